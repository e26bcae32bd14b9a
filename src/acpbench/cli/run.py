"""``acp-bench run``: collect one trajectory."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path)


@click.command()
@click.option("--study", type=FILE, required=True, help="Resolved study (results/study.json).")
@click.option(
    "--inputs", type=FILE, required=True, help="What the task's agents are given (agent_inputs.json)."
)
@click.option("--group", required=True, help="Group id.")
@click.option("--replicate", default="1", show_default=True)
@click.option("--results", type=FILE, default=Path("results"), show_default=True)
@click.option("--output", "run_dir", type=FILE, required=True, help="The run/ folder to make.")
def run(study: Path, inputs: Path, group: str, replicate: str, results: Path, run_dir: Path) -> None:
    """Run one group on one task and record the trajectory.

    A record that is there already is kept: delete the run/ folder to run again.
    """
    from acpbench.harness.collect import collect_run
    from acpbench.harness.sandbox import UNSANDBOXED
    from acpbench.harness.settings import settings_from_study

    record = collect_run(settings_from_study(study, inputs, group, replicate, results), run_dir)
    if record.sandbox == UNSANDBOXED and record.harness.name != "scripted":
        click.echo("warning: UNSANDBOXED: nothing isolated this agent from the machine", err=True)
    click.echo(f"{record.trajectory_id}: {record.run_status} ({record.status_reason}), {record.wall_s:.1f} s")
