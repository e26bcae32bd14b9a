"""``acp-bench adjudicate``: checks, judgements and human audit into one status an item."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--checks", required=True, type=click.Path(path_type=Path), help="checks.jsonl.")
@click.option("--judgements", required=True, type=click.Path(path_type=Path), help="judgements.jsonl.")
@click.option(
    "--reviews",
    type=click.Path(path_type=Path),
    help="Folder of <reviewer>.jsonl audit files; absent or empty means no audit.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="adjudicated.jsonl to write.")
def adjudicate(checks: Path, judgements: Path, reviews: Path | None, output: Path) -> None:
    """Combine checks, judgements and human audit."""
    from acpbench.adjudication.adjudicate import adjudicate_rows
    from acpbench.adjudication.audit import read_audit_records
    from acpbench.core.files import read_jsonl, write_jsonl

    audits = read_audit_records(reviews) if reviews is not None else []
    rows = adjudicate_rows(read_jsonl(checks), read_jsonl(judgements), audits)
    write_jsonl(output, rows)
    conflicts = [row["item_id"] for row in rows if row["audit_status"] == "conflict"]
    audited = sum(row["decided_by"] == "audit" for row in rows)
    click.echo(
        f"{output}: {len(rows)} items, {audited} decided by audit, {len(conflicts)} in conflict", err=True
    )
    for item in conflicts:
        click.echo(f"  conflict: {item}", err=True)
