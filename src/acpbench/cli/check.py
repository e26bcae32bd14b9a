"""``acp-bench check``: the deterministic checkpoint rules on one record."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--task", "task_file", type=click.Path(path_type=Path), required=True, help="The task's YAML file."
)
@click.option(
    "--labels",
    "labels_file",
    type=click.Path(path_type=Path),
    required=True,
    help="The evaluator's labels.csv.",
)
@click.option(
    "--rubric", "rubric_file", type=click.Path(path_type=Path), required=True, help="The rubric's YAML file."
)
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="checks.jsonl to write, one item a line."
)
def check(run_dir: Path, task_file: Path, labels_file: Path, rubric_file: Path, output: Path) -> None:
    """Apply the deterministic checkpoint rules to the record in RUN_DIR.

    Missing evidence is FAIL; a checkpoint without a rule is not_implemented, never PASS.
    """
    from acpbench.core.errors import InputError
    from acpbench.core.files import read_csv, write_jsonl
    from acpbench.rubric.catalogue import load_rubric
    from acpbench.rubric.engine import check_run
    from acpbench.tasks.catalogue import load_task

    if not run_dir.is_dir():
        raise InputError("is not a folder; expected the record of a run", file=run_dir)
    labels = read_csv(labels_file, max_bytes=256 * 1024 * 1024)
    lacking = [name for name in ("patient_id", "split") if labels and name not in labels[0]]
    if lacking or not labels:
        raise InputError("expected rows with the columns patient_id and split", file=labels_file)
    rows = check_run(run_dir, load_task(task_file), labels, load_rubric(rubric_file))
    write_jsonl(output, rows)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    click.echo(f"{len(rows)} items: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}")
