"""``acp-bench run``: collect one trajectory."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)


@click.command()
@click.option("--study", type=FILE, required=True, help="Resolved study (results/study.json).")
@click.option("--group", required=True, help="Group id.")
@click.option("--task", "task_id", required=True, help="Task id.")
@click.option("--replicate", default="1", show_default=True)
@click.option("--task-file", type=FILE, required=True, help="Definition of the task.")
@click.option("--labels", type=FILE, required=True, help="Evaluator's label table of the task.")
@click.option("--slides", type=FILE, required=True, help="Validated cohort table.")
@click.option("--results", type=FILE, default=Path("results"), show_default=True)
@click.option("--output", "run_dir", type=FILE, required=True, help="The run/ folder to make.")
def run(
    study: Path,
    group: str,
    task_id: str,
    replicate: str,
    task_file: Path,
    labels: Path,
    slides: Path,
    results: Path,
    run_dir: Path,
) -> None:
    """Run one group on one task and record the trajectory."""
    from acpbench.harness.collect import collect_run, settings_from_study

    settings = settings_from_study(study, group, task_id, replicate, task_file, labels, slides, results)
    record = collect_run(settings, run_dir)
    click.echo(f"{record.trajectory_id}: {record.run_status} ({record.status_reason}), {record.wall_s:.1f} s")
