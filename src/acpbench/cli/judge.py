"""``acp-bench judge``: first pass over the semantic checkpoints of one record."""

from __future__ import annotations

from pathlib import Path

import click

from acpbench.core.errors import InputError

JUDGES = ("offline",)


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--task", "task_file", required=True, type=click.Path(path_type=Path), help="Task file.")
@click.option("--rubric", "rubric_file", required=True, type=click.Path(path_type=Path), help="Rubric file.")
@click.option("--judge", "judge_name", default="offline", show_default=True, help="Who judges: offline.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="judgements.jsonl to write.")
def judge(run_dir: Path, task_file: Path, rubric_file: Path, judge_name: str, output: Path) -> None:
    """Judge the semantic checkpoints of the record RUN_DIR."""
    if judge_name not in JUDGES:
        raise InputError(f"{judge_name!r} is not available; available: {', '.join(JUDGES)}", field="--judge")
    from acpbench.adjudication.engine import judge_run
    from acpbench.adjudication.offline import OfflineJudge
    from acpbench.core.files import write_jsonl
    from acpbench.rubric.catalogue import load_rubric
    from acpbench.tasks.catalogue import load_task

    rows = judge_run(run_dir, load_task(task_file), load_rubric(rubric_file), OfflineJudge())
    write_jsonl(output, rows)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["grade_status"]] = counts.get(row["grade_status"], 0) + 1
    named = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    click.echo(f"{output}: {len(rows)} items by the offline cue judge ({named})", err=True)
