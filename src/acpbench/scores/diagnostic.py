"""Diagnostic-result lane: what the predictions are worth against the benchmark's own labels.

A missing result is null with its reason, never 0. Test and validation are evaluated apart, for the chosen
table and for every round's, so a run that never saw a test label is still measured on the test patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acpbench.core.errors import InputError
from acpbench.scores.labels import ReferenceLabels
from acpbench.scores.predictions import Candidate, Row, Selection, evidence_rank
from acpbench.tasks.models import Task

SCHEMA = "acp-diagnostic/0.1"
LEVELS = ("validation", "test")
DEFAULT_RESAMPLES = 200


def metric_rows(rows: Sequence[Row], task: Task) -> list[dict[str, Any]]:
    """Rows that have a reference label, in the form :mod:`acpbench.mil.metrics` reads.

    A prediction that is no class of the task stays in and counts as wrong: a blank hard case is no gain.
    Where none is a class, the metrics are null.
    """
    table = []
    for row in rows:
        if not row.matched:
            continue
        entry: dict[str, Any] = {
            "patient_id": row.patient_id,
            "y_true": row.y_true_reference,
            "y_pred": "" if row.unmappable and task.classes else row.y_pred,
        }
        if task.output_type == "survival":
            entry |= {"time": row.time, "event": row.event, "risk": row.risk}
        entry |= {f"prob_{label}": value for label, value in row.probabilities.items()}
        table.append(entry)
    return table


def evaluate(rows: Sequence[Row], task: Task, *, expected: frozenset[str] | None = None) -> dict[str, Any]:
    """Metrics of rows against reference labels; every null has a note.

    Args:
        rows: normalised rows of one split.
        task: the task.
        expected: the split's patients with a reference label, to say how many were not predicted. There is
            no such number (null, with ``n_other_split`` and a note) when another split's are among them.
    """
    table = metric_rows(rows, task)
    patients = {row["patient_id"] for row in table}
    others = patients - expected if expected is not None else frozenset()
    level: dict[str, Any] = {
        "n": len(table),
        "n_patients": len(patients),
        "n_expected": None if expected is None or others else len(expected),
        "n_other_split": len(others),
        "n_events": None,
        "n_per_class": {},
        "metrics": {},
        "notes": {},
        "per_class": {},
    }
    if not table:
        level["notes"] = {"all": "no row pairs a prediction with a reference label"}
        return level
    from acpbench.mil.metrics import score_predictions

    try:
        scored = score_predictions(task.output_type, task.classes, table)
    except InputError as error:
        level["notes"] = {"all": error.message}
        return level
    level |= {name: scored[name] for name in ("n_events", "n_per_class", "metrics", "notes", "per_class")}
    if others:
        level["notes"] |= {"n_expected": f"{len(others)} of {len(patients)} patients are of another split"}
    return level


def expected_patients(labels: ReferenceLabels, split: str) -> frozenset[str]:
    """The patients of a split that have a reference label."""
    return frozenset(
        patient
        for patient, row in labels.by_patient.items()
        if row.split == split and (row.label or row.time)
    )


def headline_rows(candidate: Candidate) -> tuple[str | None, list[Row]]:
    """The rows that stand for the run: test, else validation, else (nothing is split) all."""
    for split in ("test", "validation"):
        rows = [row for row in candidate.rows if row.split == split]
        if any(row.matched for row in rows):
            return split, rows
    unsplit = [row for row in candidate.rows if row.split == ""]
    return ("all", unsplit) if any(row.matched for row in unsplit) else (None, [])


def filter_reason(row: Row, headline: str | None) -> str:
    """Why a normalised row is, or is not, among those that the headline numbers come from."""
    if not row.matched:
        return "contradicting_ids" if row.contradiction else "no_reference_label"
    if headline is None or row.split != ("" if headline == "all" else headline):
        return "outside_headline_split"
    return {"test": "test_split", "validation": "validation_no_test", "all": "no_split_kept"}[headline]


def evaluate_rounds(
    candidates: Sequence[Candidate], task: Task, labels: ReferenceLabels
) -> dict[str, dict[str, Any]]:
    """Round → validation and test evaluation of its table: the best evidence among the round's."""
    of_round: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.reason is None and candidate.round_id is not None:
            of_round.setdefault(candidate.round_id, []).append(candidate)
    chosen = {round_id: max(tables, key=evidence_rank) for round_id, tables in of_round.items()}
    return {
        str(round_id): {"source_file": chosen[round_id].path} | levels(chosen[round_id], task, labels)
        for round_id in sorted(chosen)
    }


def levels(candidate: Candidate, task: Task, labels: ReferenceLabels) -> dict[str, Any]:
    """Validation and test evaluation of one table."""
    return {
        split: evaluate(
            [row for row in candidate.rows if row.split == split],
            task,
            expected=expected_patients(labels, split),
        )
        for split in LEVELS
    }


def diagnostic_result(
    trajectory: str,
    run_status: str,
    candidates: Sequence[Candidate],
    selection: Selection,
    rounds: dict[str, dict[str, Any]],
    task: Task,
    labels: ReferenceLabels,
    *,
    n_resamples: int = DEFAULT_RESAMPLES,
) -> dict[str, Any]:
    """``diagnostic.json`` without its provenance."""
    chosen = selection.candidate
    headline, rows = headline_rows(chosen) if chosen else (None, [])
    overall = evaluate(
        rows, task, expected=None if headline in (None, "all") else expected_patients(labels, headline)
    )
    metrics, primary = overall["metrics"], task.metric_family.primary
    if chosen is None:
        grade_status, reason = "no_predictions", "no table in the workspace pairs predictions with cases"
    elif headline is None and any(row.matched for row in chosen.rows):
        grade_status, reason = (
            "only_training_rows",
            "every row that joins a reference label is a training case",
        )
    elif headline is None:
        grade_status, reason = "no_reference_pairs", "no prediction joins a reference label by id"
    elif not any(row.usable for row in rows) and all(value is None for value in metrics.values()):
        grade_status, reason = "no_usable_prediction", "no row has a prediction that can be read"
    else:
        grade_status, reason = "scored", None
    all_rows = chosen.rows if chosen else []
    probability_status, probability_reason = _probability_status(chosen, overall, task)
    return {
        "schema": SCHEMA,
        "trajectory": trajectory,
        "task_id": task.task_id,
        "run_status": run_status,
        "grade_status": grade_status,
        "reason": reason,
        "funnel": {
            "n_candidates": len(candidates),
            "n_excluded": sum(candidate.reason is not None for candidate in candidates),
            "selected": chosen.path if chosen else None,
            "selection_rule": selection.rule,
            "n_rows": chosen.n_source_rows if chosen else 0,
            "n_normalised": overall["n"],
            "n_probability": overall["n"] if probability_status == "mapped" else 0,
        },
        "candidates": [
            {
                "path": candidate.path,
                "status": "excluded" if candidate.reason else "selected" if candidate is chosen else "other",
                "reason": candidate.reason,
                "detail": candidate.detail,
            }
            for candidate in candidates
        ],
        "headline_split": headline,
        "n": overall["n"],
        "n_patients": overall["n_patients"],
        "n_expected": overall["n_expected"],
        "n_other_split": overall["n_other_split"],
        "accuracy": metrics.get("accuracy"),
        "balanced_accuracy": metrics.get("balanced_accuracy"),
        "macro_f1": metrics.get("macro_F1"),
        "primary_metric": primary,
        "primary_value": metrics.get(primary),
        "primary_note": None if metrics.get(primary) is not None else _note(overall, primary, reason),
        "primary_interval": _interval(rows, task, primary, n_resamples)
        if metrics.get(primary) is not None
        else None,
        "n_resamples": n_resamples,
        "metrics": metrics,
        "notes": overall["notes"],
        "probability_status": probability_status,
        "probability_reason": probability_reason,
        "n_label_conflict": sum(row.label_conflict for row in all_rows),
        "n_unmappable": sum(bool(row.unmappable) for row in all_rows),
        "n_unreferenced": sum(not row.matched for row in all_rows),
        "n_duplicates": chosen.n_duplicates if chosen else 0,
        "n_split_mismatch": sum(
            bool(r.matched and r.split_agent and labels.split_of(r.patient_id) not in ("", r.split_agent))
            for r in all_rows
        ),
        "levels": levels(chosen, task, labels) if chosen else dict.fromkeys(LEVELS),
        "rounds": rounds,
    }


def _note(overall: dict[str, Any], metric: str, reason: str | None) -> str:
    notes = overall["notes"]
    return (
        reason or notes.get(metric) or notes.get("all") or "the metric is not computed for this output type"
    )


def _interval(rows: Sequence[Row], task: Task, metric: str, n_resamples: int) -> list[float] | None:
    """95 % percentile interval of one metric, patients resampled; ``None`` when it cannot be formed."""
    if n_resamples < 1:
        return None
    from acpbench.mil.metrics import bootstrap_intervals

    try:
        return bootstrap_intervals(
            task.output_type, task.classes, metric_rows(rows, task), n_resamples=n_resamples, metrics=[metric]
        ).get(metric)
    except InputError:
        return None


def _probability_status(
    chosen: Candidate | None, overall: dict[str, Any], task: Task
) -> tuple[str, str | None]:
    """Whether every evaluated row has usable class probabilities, else why not.

    Returns:
        ``mapped``, ``probability_unmapped`` or (endpoints without classes) ``not_applicable``; the reason.
    """
    if task.output_type in ("continuous", "survival"):
        return "not_applicable", f"a {task.output_type} endpoint has no class probabilities"
    if chosen is None:
        return "probability_unmapped", "no predictions"
    if chosen.columns.probability_reason:
        return "probability_unmapped", chosen.columns.probability_reason
    probe = {"binary": "AUROC", "multiclass": "brier"}.get(task.output_type)
    note = overall["notes"].get(probe) or overall["notes"].get("all")
    if probe and note and "probabilit" in note:
        return "probability_unmapped", note
    if not overall["n"]:
        return "probability_unmapped", "no row pairs a prediction with a reference label"
    return "mapped", None


PREDICTION_COLUMNS = (
    "trajectory", "task_id", "slide_id", "patient_id", "split", "y_true_agent", "y_true_reference", "y_pred",
)  # fmt: skip
PREDICTION_TAIL = ("time", "event", "risk", "label_conflict", "filter_reason", "source_file", "round")


def predictions_table(
    trajectory: str, selection: Selection, task: Task
) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``predictions.csv``: the chosen table's rows, in its order."""
    probabilities = [f"prob_{label}" for label in task.classes]
    columns = [*PREDICTION_COLUMNS, *probabilities, *PREDICTION_TAIL]
    chosen = selection.candidate
    if chosen is None:
        return columns, []
    headline, _ = headline_rows(chosen)
    rows = []
    for row in chosen.rows:
        entry: dict[str, Any] = {
            "trajectory": trajectory,
            "task_id": task.task_id,
            "slide_id": row.slide_id,
            "patient_id": row.patient_id,
            "split": row.split,
            "y_true_agent": row.y_true_agent,
            "y_true_reference": row.y_true_reference,
            "y_pred": row.y_pred,
            "time": row.time,
            "event": row.event,
            "risk": row.risk,
            "label_conflict": int(row.label_conflict),
            "filter_reason": filter_reason(row, headline),
            "source_file": chosen.path,
            "round": chosen.round_id,
        }
        entry |= {f"prob_{label}": row.probabilities.get(label) for label in task.classes}
        rows.append(entry)
    return columns, rows
