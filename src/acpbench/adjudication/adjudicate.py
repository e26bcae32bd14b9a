"""Combine deterministic checks, first-pass judgements and human audit into one final status an item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acpbench.adjudication.audit import AuditRecord, AuditVerdict, audit_summary, audit_verdicts
from acpbench.core.errors import InputError

IDENTITY = (
    "trajectory",
    "item_id",
    "checkpoint",
    "stage",
    "subcapability",
    "kind",
    "round",
    "critical",
    "weight",
    "rule",
)
STATUSES = ("PASS", "PARTIAL", "FAIL", "NA", "SKIP")


def _first_pass(row: Mapping[str, Any]) -> dict[str, Any]:
    """First-pass status, grade status, who decided and why, of a check or a judgement row."""
    status = row.get("status")
    if row["kind"] == "deterministic":
        implemented = status != "not_implemented"
        return {
            "status": status,
            "grade_status": "scored" if implemented else "not_implemented",
            "final": status if implemented else None,
            "decided_by": "check" if implemented else "none",
            "why": row.get("reason") or "",
            "refs": list(row.get("evidence") or []),
        }
    grade = row.get("grade_status")
    decided_by = {"scored": "judge", "capped": "cap"}.get(grade, "none")
    return {
        "status": status,
        "grade_status": grade,
        "final": status if decided_by != "none" else None,
        "decided_by": decided_by,
        "why": row.get("rationale") or "",
        "refs": list(row.get("evidence_refs") or []),
    }


def _adjudicated(row: Mapping[str, Any], verdict: AuditVerdict | None) -> dict[str, Any]:
    first = _first_pass(row)
    if first["final"] is not None and first["final"] not in STATUSES:
        raise InputError(
            f"item {row['item_id']}: {first['final']!r} is not one of {', '.join(STATUSES)}", field="status"
        )
    final, decided_by, why, refs = first["final"], first["decided_by"], first["why"], first["refs"]
    if verdict is not None and verdict.status == "conflict":
        named = ", ".join(f"{record.reviewer} {record.status}" for record in verdict.records)
        why = f"audit conflict ({named}); first pass kept: {why}"
    elif verdict is not None:
        names = ", ".join(record.reviewer for record in verdict.records)
        before = first["status"] or first["grade_status"]
        final, decided_by = verdict.status, "audit"
        why = f"audit by {names} (first pass {before}): {verdict.records[0].rationale}"
        refs = list(dict.fromkeys(ref for record in verdict.records for ref in record.evidence_refs))
    return {key: row.get(key) for key in IDENTITY} | {
        "first_pass_status": first["status"],
        "first_pass_grade_status": first["grade_status"],
        "audit_status": None if verdict is None else verdict.status,
        "final_status": final,
        "decided_by": decided_by,
        "why": why,
        "evidence_refs": refs,
        "judge": row.get("judge"),
        "findings": list(row.get("findings") or []),
        "auditors": [] if verdict is None else audit_summary(verdict),
    }


def adjudicate_rows(
    checks: Sequence[Mapping[str, Any]],
    judgements: Sequence[Mapping[str, Any]],
    audits: Iterable[AuditRecord] = (),
) -> list[dict[str, Any]]:
    """Rows of ``adjudicated.jsonl``: the judgements in their order, then the checks (the catalogue's order).

    An audit that its reviewers agree on decides, whatever the first pass said; reviewers in conflict leave
    the first pass standing. An unscored or not implemented item without an audit stays null.

    Raises:
        InputError: rows of several trajectories, a repeated item, an unknown status, or an audit record of
            this trajectory for an item that it does not have.
    """
    rows = [*judgements, *checks]
    for row, kind in [(row, "semantic") for row in judgements] + [(row, "deterministic") for row in checks]:
        if not isinstance(row, Mapping) or row.get("kind") != kind:
            raise InputError(f"expected {kind} rows only", field="kind")
    trajectories = sorted({str(row.get("trajectory")) for row in rows})
    if len(trajectories) > 1:
        raise InputError(f"rows of several trajectories: {', '.join(trajectories[:3])}", field="trajectory")
    items = [row.get("item_id") for row in rows]
    repeated = sorted({str(item) for item in items if items.count(item) > 1})
    if repeated:
        raise InputError(f"items appear twice: {', '.join(repeated[:3])}", field="item_id")
    verdicts = {
        item: verdict
        for (trajectory, item), verdict in audit_verdicts(audits).items()
        if trajectories and trajectory == trajectories[0]
    }
    for item in verdicts:
        if item not in items:
            source = verdicts[item].records[0].source
            raise InputError(
                f"{source}: item {item} is not among the items of {trajectories[0]}", field="checkpoint"
            )
    return [_adjudicated(row, verdicts.get(row["item_id"])) for row in rows]
