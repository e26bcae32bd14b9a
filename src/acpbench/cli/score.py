"""``acp-bench score``: the three lanes of one trajectory."""

from __future__ import annotations

from pathlib import Path

import click

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run_dir", type=_FILE)
@click.option("--task", "task_file", type=_FILE, required=True, help="The task's YAML file.")
@click.option(
    "--labels",
    "labels_file",
    type=_FILE,
    help="The evaluator's labels.csv; without it nothing is compared with labels.",
)
@click.option(
    "--adjudicated",
    "adjudicated_file",
    type=_FILE,
    required=True,
    help="adjudicated.jsonl of the trajectory.",
)
@click.option("--output-dir", type=_FILE, required=True, help="Folder for the six score files.")
@click.option(
    "--bootstrap",
    "n_resamples",
    type=click.IntRange(0, 100_000),
    default=200,
    show_default=True,
    help="Resamples of the headline interval (patients are drawn); 0 gives no interval.",
)
def score(
    run_dir: Path,
    task_file: Path,
    labels_file: Path | None,
    adjudicated_file: Path,
    output_dir: Path,
    n_resamples: int,
) -> None:
    """Score the record in RUN_DIR.

    Writes workflow_score.json, predictions.csv, diagnostic.json, cwas3.json, r6.json and reflection.json.
    """
    from acpbench.scores.bundle import score_trajectory

    documents = score_trajectory(
        run_dir,
        task_file=task_file,
        labels_file=labels_file,
        adjudicated_file=adjudicated_file,
        output_dir=output_dir,
        n_resamples=n_resamples,
    )
    diagnostic, cwas3, r6 = (documents[name] for name in ("diagnostic.json", "cwas3.json", "r6.json"))
    value = diagnostic["primary_value"]
    shown = f"null ({diagnostic['primary_note']})" if value is None else f"{value:.3f}"
    click.echo(
        f"{cwas3['trajectory']} ({cwas3['run_status']}): item_weighted {_number(documents)}, "
        f"{diagnostic['primary_metric']} {shown}, CWAS-3 {_shown(cwas3['score'])}, R6 {_shown(r6['score'])}"
    )


def _number(documents: dict) -> str:
    value = documents["workflow_score.json"].get("item_weighted")
    return _shown(value)


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.3f}"
