"""Metrics recomputed from an agent's predictions against the benchmark's labels, and what files claim.

The agent's own ``y_true`` is never used here: rows join the evaluator's table on ``case_id`` = patient.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.rubric import formats
from acpbench.rubric.case import Case, Outcome, Rejected, failed, partial, passed
from acpbench.rubric.formats import Table

TOLERANCE = 0.005
PARTIAL_TOLERANCE = 0.02
REPORT_TOLERANCE = 5e-4 + 1e-9
"""Equality to three decimals."""
DELTA_THRESHOLD = 0.001
LOWER_IS_BETTER = frozenset({"brier", "ece", "mae", "maeranks", "logrankp", "logloss"})

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "heldout": "test",
    "holdout": "test",
    "eval": "test",
    "evaluation": "test",
}
_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "brier": (0, 2),
    "r2": (None, 1),
    "mae": (0, None),
    "maeranks": (0, None),
    "quadraticweightedkappa": (-1, 1),
    "spearmanrho": (-1, 1),
    "pearsonr": (-1, 1),
}
_UNIT = frozenset(
    [
        "auroc",
        "auprc",
        "auc",
        "rocauc",
        "macroovrauroc",
        "tdauroc",
        "aurocmediansplit",
        "accuracy",
        "balancedaccuracy",
        "f1",
        "macrof1",
        "ece",
        "cindex",
        "ipcwcindex",
        "logrankp",
        "precision",
        "recall",
        "sensitivity",
        "specificity",
    ]
)


def squash(text: object) -> str:
    """Letters and digits of a name in lower case: ``macro_OvR_AUROC`` and ``macro OvR AUROC`` are one."""
    return re.sub(r"[^a-z0-9]+", "", str(text).casefold())


def split_name(value: object) -> str | None:
    """``train``, ``validation`` or ``test`` for the usual spellings, else ``None``."""
    return _SPLITS.get(squash(value)) if isinstance(value, str) else None


def legal_range(name: str) -> tuple[float | None, float | None]:
    """Smallest and largest value a metric can take; ``None`` where it is unbounded or unknown."""
    key = squash(name)
    return _BOUNDS.get(key, (0, 1) if key in _UNIT else (None, None))


def metric_family(case: Case) -> list[str]:
    """Primary and secondary metrics of the task."""
    return [case.task.metric_family.primary, *case.task.metric_family.secondary]


def family_name(case: Case, name: object) -> str | None:
    """The task's spelling of a metric of its family, or ``None``."""
    key = squash(name) if isinstance(name, str) else ""
    return next((known for known in metric_family(case) if squash(known) == key), None) if key else None


def claimed(document: dict[str, Any], name: str) -> float | None:
    """Finite value that a metrics document gives for a metric, in any spelling of its name."""
    values = formats.mapping(document.get("metrics"))
    if name in values:
        return formats.number(values[name])
    key = squash(name)
    return next((formats.number(value) for other, value in values.items() if squash(other) == key), None)


class Recomputed(NamedTuple):
    """Metrics of one split: name → value or ``None``, why it is ``None``, and the number of cases."""

    metrics: dict[str, float | None]
    notes: dict[str, str]
    n: int


def prediction_rows(case: Case, table: Table, split: str) -> list[dict[str, Any]]:
    """Rows of one split joined to the benchmark's labels.

    Raises:
        Rejected: no such row, a repeated case, a case the benchmark puts into another split.
    """
    evidence, path = case.evidence, case.predictions_path()
    survival = case.task.output_type == "survival"
    probabilities = {
        column: f"prob_{label}"
        for column in table.columns
        if column.startswith("prob_") and (label := evidence.canonical(column.removeprefix("prob_")))
    }
    rows, seen, foreign = [], set(), 0
    for row in table.rows:
        if split_name(row.get("split")) != split:
            continue
        patient = row["case_id"]
        if patient in seen:
            raise Rejected(f"{path} has the case {patient[:40]!r} twice in {split}")
        seen.add(patient)
        reference = evidence.reference.get(patient)
        if reference is None:
            continue
        if reference.split and reference.split != split:
            foreign += 1
        joined: dict[str, Any] = {"patient_id": patient}
        if survival:
            joined |= {"time": reference.time, "event": reference.event, "risk": row.get("risk", "")}
        elif case.task.output_type == "continuous":
            joined |= {"y_true": reference.label, "y_pred": row.get("y_pred", "")}
        else:
            predicted = row.get("y_pred", "")
            joined |= {"y_true": reference.label, "y_pred": evidence.canonical(predicted) or predicted}
            joined |= {name: row[column] for column, name in probabilities.items()}
        rows.append(joined)
    if foreign:
        raise Rejected(f"{path}: {foreign} rows marked {split} are of another split of the benchmark")
    if not rows:
        raise Rejected(f"{path} has no {split} row that joins the reference labels")
    return rows


def recompute(case: Case, split: str) -> Recomputed:
    """Metrics of the round's predictions on one split, by the reference labels.

    Raises:
        Rejected: the table is missing, has no case or split column, or cannot be scored.
    """
    from acpbench.mil.metrics import score_predictions

    table = case.need_table(case.predictions_path(), ("case_id", "split"))
    rows = prediction_rows(case, table, split)
    try:
        scored = score_predictions(case.task.output_type, case.evidence.classes, rows)
    except InputError as error:
        raise Rejected(f"{case.predictions_path()} cannot be scored: {error.message[:160]}") from None
    return Recomputed(scored["metrics"], scored["notes"], scored["n"])


def metrics_split(document: dict[str, Any], path: str) -> str:
    """The held-out split a metrics document speaks of."""
    split = split_name(document.get("split"))
    if split not in ("validation", "test"):
        raise Rejected(f"{path} names no held-out split")
    return split


def compare(case: Case, name: str, *, allow_partial: bool = False) -> Outcome:
    """Compare a round's claimed metric with its recomputation (0.005; PARTIAL within 0.02 where allowed)."""
    path = f"{case.folder}/metrics.json"
    document = case.need_metrics(case.round)
    value = claimed(document, name)
    if value is None:
        return failed(f"{path} gives no value for {name}")
    case.cite(f"{path}#/metrics")
    split = metrics_split(document, path)
    again = recompute(case, split)
    found = again.metrics.get(name)
    if found is None:
        return failed(
            f"{name} cannot be recomputed on {split} ({again.notes.get(name, 'no such metric')[:120]})"
        )
    gap = abs(found - value)
    line = f"{name} {value:.4f} in the file, {found:.4f} recomputed on {again.n} {split} cases"
    if gap <= TOLERANCE + 1e-9:
        return passed(line)
    if allow_partial and gap <= PARTIAL_TOLERANCE + 1e-9:
        return partial(line)
    return failed(line)
