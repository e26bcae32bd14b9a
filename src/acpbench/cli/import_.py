"""``acp-bench import``: a record from a file that another program wrote."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder of the record (a run/ folder)."
)
@click.option("--group", help="Group id; else taken from the output's path, else 'imported'.")
@click.option("--task", help="Task id; else taken from the output's path, else 'unassigned'.")
@click.option("--replicate", help="Replicate; else taken from the output's path, else 1.")
@click.option("--format", "source_format", default="auto", show_default=True, help="Format of FILE.")
@click.option("--sample", help="Sample of an Inspect log, as ID or ID:EPOCH.")
def import_(
    file: Path,
    output: Path,
    group: str | None,
    task: str | None,
    replicate: str | None,
    source_format: str,
    sample: str | None,
) -> None:
    """Write the record of FILE, or refuse it with the reason.

    Reads Claude Code stream-json and sessions, Codex exec streams and rollouts, OpenCode streams and exports,
    ATIF 1.5 to 1.8 and Inspect .eval logs, told apart by content.
    """
    from acpbench.core.errors import InputError
    from acpbench.trajectory.importer import import_file

    try:
        record = import_file(
            file,
            output,
            group=group,
            task=task,
            replicate=replicate,
            source_format=source_format,
            sample=sample,
        )
    except InputError:
        raise
    except (Exception, RecursionError, MemoryError) as error:  # a refusal has one line and one exit code
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise InputError(f"cannot be imported ({reason})", file=file) from None
    source = record.imported
    assert source is not None
    unknown = sum(source.unknown.values())
    click.echo(
        f"{record.trajectory_id}: {source.source_format}, {source.kept} events kept, {unknown} unknown, "
        f"{source.malformed} malformed; {record.run_status} ({record.status_reason})"
    )
