"""Workflow score of one trajectory: S = sum(w v) / sum(w) over its checkpoint items (ACP-Bench, Methods).

PASS 1, PARTIAL 0.5, FAIL 0, NA 0 in the denominator, SKIP out of it; a critical item weighs 2. An item
nobody scored (``final_status`` null) is in neither sum: it is counted, and bounds say what it could do.
Sums are exact rationals, so a score that equals a threshold passes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from acpbench.core.errors import InputError

SCHEMA = "acp-workflow-score/0.1"
STATUS_VALUES: dict[str, Fraction | None] = {
    "PASS": Fraction(1),
    "PARTIAL": Fraction(1, 2),
    "FAIL": Fraction(0),
    "NA": Fraction(0),
    "SKIP": None,
}
STAGES = ("planning", "action", "diagnosis", "reflection")
SUBCAPABILITIES = tuple(
    f"{letter}{number}"
    for letter, count in (("P", 4), ("A", 6), ("D", 5), ("R", 5))
    for number in range(1, count + 1)
)
THRESHOLDS = ("0.70", "0.75", "0.80")
FORMAL_THRESHOLD = "0.75"


def weighted_share(
    rows: Iterable[Mapping[str, Any]], *, value_when_unscored: Fraction | None = None
) -> Fraction | None:
    """Exact ``sum(w v) / sum(w)`` over the non-SKIP rows; None when nothing is left to divide by.

    Args:
        rows: rows with ``weight`` (1 or 2) and ``final_status`` (a status, or None for an unscored item).
        value_when_unscored: value given to unscored items; None leaves them out of both sums.
    """
    total = Fraction(0)
    weight = 0
    for row in rows:
        status = row["final_status"]
        value = value_when_unscored if status is None else STATUS_VALUES[status]
        if value is not None:
            total += row["weight"] * value
            weight += row["weight"]
    return total / weight if weight else None


def stage_mean(shares: Sequence[Fraction | None]) -> Fraction | None:
    """Plain mean of the stage scores; None when any stage has no scored item."""
    known = [share for share in shares if share is not None]
    return sum(known, Fraction(0)) / len(known) if known and len(known) == len(shares) else None


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _check_rows(rows: Sequence[Mapping[str, Any]]) -> str | None:
    seen: set[str] = set()
    trajectories = {row.get("trajectory") for row in rows}
    if len(trajectories) > 1:
        raise InputError(f"rows of {len(trajectories)} trajectories; expected one", field="trajectory")
    for row in rows:
        item = str(row.get("item_id"))
        if item in seen:
            raise InputError(f"item {item} appears twice", field="item_id")
        seen.add(item)
        if row.get("stage") not in STAGES:
            raise InputError(
                f"item {item}: {row.get('stage')!r} is not one of {', '.join(STAGES)}", field="stage"
            )
        if row.get("weight") not in (1, 2) or isinstance(row.get("weight"), bool):
            raise InputError(f"item {item}: weight {row.get('weight')!r} is not 1 or 2", field="weight")
        if row.get("kind") not in ("deterministic", "semantic"):
            raise InputError(
                f"item {item}: {row.get('kind')!r} is not deterministic or semantic", field="kind"
            )
        status = row.get("final_status")
        if status is not None and status not in STATUS_VALUES:
            raise InputError(
                f"item {item}: {status!r} is not one of {', '.join(STATUS_VALUES)}", field="final_status"
            )
    return next(iter(trajectories), None)


def _bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    by_stage = [[row for row in rows if row["stage"] == stage] for stage in STAGES]
    item, mean = [], []
    for value in (Fraction(0), Fraction(1)):
        item.append(_number(weighted_share(rows, value_when_unscored=value)))
        mean.append(
            _number(stage_mean([weighted_share(part, value_when_unscored=value) for part in by_stage]))
        )
    return {"item_weighted": item, "stage_mean": mean}


def _basis(semantic: Sequence[Mapping[str, Any]]) -> tuple[str, float | None]:
    """What the score rests on, and the share of semantic items that a human audit decided."""
    audited = sum(row.get("decided_by") == "audit" for row in semantic)
    share = audited / len(semantic) if semantic else None
    if audited:
        return "expert_adjudicated", share
    if any(row["final_status"] is not None for row in semantic):
        return "first_pass", share
    return "deterministic_only", share


def _judges(semantic: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The one judge of the rows, or None when no row names one. Rows of several judges are refused."""
    found = {tuple(sorted(row["judge"].items())) for row in semantic if isinstance(row.get("judge"), Mapping)}
    if len(found) > 1:
        raise InputError("rows of several judges; score one judge's first pass at a time", field="judge")
    return dict(next(iter(found))) if found else None


def workflow_score(
    rows: Sequence[Mapping[str, Any]],
    run_status: str,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score one trajectory from its adjudicated rows.

    Args:
        rows: rows of ``adjudicated.jsonl`` of one trajectory (``item_id``, ``stage``, ``subcapability``,
            ``kind``, ``weight``, ``final_status``, ``first_pass_status``, ``decided_by``, ``judge``).
        run_status: how the run ended; carried beside the score, never folded into it.
        provenance: what made the rows, stored as given.

    Returns:
        The ``workflow_score.json`` value. Scores are in 0..1, null where nothing was scored;
        ``passes`` compares with >= and is null where the score is.

    Raises:
        InputError: repeated item, unknown stage, kind, status or weight, rows of several trajectories
            or of several judges.
    """
    rows = list(rows)
    trajectory = _check_rows(rows)
    semantic = [row for row in rows if row["kind"] == "semantic"]
    by_stage = {stage: [row for row in rows if row["stage"] == stage] for stage in STAGES}
    shares = {stage: weighted_share(part) for stage, part in by_stage.items()}
    item_weighted, mean = weighted_share(rows), stage_mean(list(shares.values()))

    skipped = [row for row in rows if row["final_status"] == "SKIP"]
    pending = [row for row in rows if row["final_status"] is None]
    n_not_implemented = sum(row.get("first_pass_status") == "not_implemented" for row in pending)
    n_scored = len(rows) - len(skipped) - len(pending)
    grade_status = "unscored" if not n_scored else "partial" if pending else "scored"
    basis, audited_share = _basis(semantic)
    counts = Counter(row["final_status"] or "unscored" for row in rows)
    aggregates = {"item_weighted": item_weighted, "stage_mean": mean}
    return {
        "schema": SCHEMA,
        "trajectory": trajectory,
        "run_status": run_status,
        "grade_status": grade_status,
        "item_weighted": _number(item_weighted),
        "stage_mean": _number(mean),
        "stages": {stage: _number(share) for stage, share in shares.items()},
        "stage_items": {
            stage: {
                "n": len(part),
                "n_scored": sum(row["final_status"] not in (None, "SKIP") for row in part),
                "n_skip": sum(row["final_status"] == "SKIP" for row in part),
                "weight": sum(row["weight"] for row in part if row["final_status"] not in (None, "SKIP")),
            }
            for stage, part in by_stage.items()
        },
        "subcapabilities": {
            name: _number(weighted_share(row for row in rows if row.get("subcapability") == name))
            for name in SUBCAPABILITIES
        },
        "passes": {
            threshold: {
                name: None if value is None else value >= Fraction(threshold)
                for name, value in aggregates.items()
            }
            for threshold in THRESHOLDS
        },
        "coverage": {
            "n_items": len(rows),
            "n_scored": n_scored,
            "n_skip": len(skipped),
            "n_unscored": len(pending) - n_not_implemented,
            "n_not_implemented": n_not_implemented,
            "share": n_scored / (len(rows) - len(skipped)) if len(rows) > len(skipped) else None,
        },
        "bounds": _bounds(rows),
        "status_counts": {name: counts.get(name, 0) for name in (*STATUS_VALUES, "unscored")},
        "by_kind": {
            kind: _number(weighted_share(row for row in rows if row["kind"] == kind))
            for kind in ("deterministic", "semantic")
        },
        "basis": basis,
        "audited_share": audited_share,
        "judge": _judges(semantic),
        "provenance": dict(provenance or {}),
    }
