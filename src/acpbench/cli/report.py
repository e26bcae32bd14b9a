"""``acp-bench report``: the study report from a results folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Results folder of the study.",
)
@click.option(
    "--study",
    "--study-config",
    "study",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="JSON file naming the study, its grid and its reference tasks.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the report (RESULTS/report when not given).",
)
@click.option(
    "--rubric",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    default=None,
    help="Checkpoint definitions, shown beside each item. [default: the study's, if they are there]",
)
def report(results: Path, study: Path, output: Path | None, rubric: Path | None) -> None:
    """Write the study report: index.html, tables, figures and one page a trajectory.

    The pages stand alone (no outside request) and open from the file system. Results that are missing are
    listed as missing in the report. Pages of trajectories that the study no longer has are deleted.
    """
    from acpbench.report.render import write_report

    click.echo(write_report(results, study, output or results / "report", rubric))
