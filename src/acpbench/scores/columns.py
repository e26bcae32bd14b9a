"""Recognise the columns of a prediction table by name, conservatively.

A column that could mean two things is not mapped: a score without a class name is no class probability.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acpbench.mil.cells import parse_number
from acpbench.tasks.models import Task

_TRUE = (
    "y_true", "true_label", "label_true", "ground_truth", "ground_truth_label", "gt", "gt_label",
    "reference", "reference_label", "actual", "actual_label", "truth", "true_class", "true", "label",
    "target", "y", "class_label",
)  # fmt: skip
_PRED = (
    "y_pred", "pred_label", "predicted_label", "label_pred", "predicted_class", "pred_class", "prediction",
    "predicted", "pred", "y_hat", "yhat", "predicted_value", "prediction_label",
)  # fmt: skip
_SLIDE = ("slide_id", "slide", "slide_name", "wsi_id", "wsi", "image_id", "slide_submitter_id")
_PATIENT = ("patient_id", "case_id", "patient", "case", "case_submitter_id", "subject_id", "participant_id")
_ANY_ID = ("id", "sample_id", "sample", "bag_id", "filename", "file_name", "name")
_SPLIT = ("split", "set", "subset", "partition", "phase", "dataset_split", "split_name", "cohort_split")
_TIME = (
    "time",
    "survival_time",
    "time_months",
    "os_time",
    "os_months",
    "duration",
    "followup_time",
    "months",
)
_EVENT = ("event", "os_event", "event_observed", "survival_event", "vital_status", "death")
_RISK = ("risk", "risk_score", "pred_risk", "predicted_risk", "hazard", "log_hazard", "log_risk", "risk_pred")
_TEST_LIKE = {
    "test", "testing", "test_set", "held_out", "heldout", "held_out_test", "holdout", "hold_out", "eval",
    "evaluation", "internal_test", "external_test",
}  # fmt: skip
_VALIDATION_LIKE = {"validation", "valid", "val", "validation_set", "dev", "tune", "tuning"}
_TRAIN_LIKE = {"train", "training", "train_set", "fit"}
_PROB_PREFIX = re.compile(r"^(?:pred_prob|y_prob|probability|probs|proba|prob|p)_(.+)$")
_PROB_SUFFIX = re.compile(r"^(.+)_(?:prob|proba|probability)$")
_WHOLE_NUMBER = re.compile(r"^(\d+)_0+$")
_BARE_SCORES = {
    "prob", "proba", "probability", "y_prob", "y_score", "score", "pred_prob", "probabilities", "confidence",
    "y_proba", "pred_score", "logit",
}  # fmt: skip
_LOG_PROGRESS = {"epoch", "step", "iteration", "iter", "global_step", "batch"}
_LOG_VALUE = re.compile(r"(?:^|_)(loss|lr|learning_rate)(?:_|$)")


def key(name: str) -> str:
    """A column name as lower-case words joined by ``_`` (``Y-True`` and ``y true`` are both ``y_true``)."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^0-9a-z]+", "_", split.casefold()).strip("_")


def canonical_split(value: str) -> str:
    """``test``, ``validation``, ``train`` or ``""`` for an empty or unknown split name."""
    name = key(value)
    if name in _TEST_LIKE:
        return "test"
    if name in _VALIDATION_LIKE:
        return "validation"
    return "train" if name in _TRAIN_LIKE else ""


def class_of(text: str, task: Task) -> str | None:
    """The class that a cell names, or ``None``. ``True`` and ``False`` are 1 and 0 of a task coded so."""
    label = task.canonical_label(text)
    if label is None and text.strip().casefold() in ("true", "false") and len(task.classes) == 2:
        no, yes = task.canonical_label("0"), task.canonical_label("1")
        if no is not None and yes is not None:
            label = yes if text.strip().casefold() == "true" else no
    return label


@dataclass(frozen=True)
class ColumnMap:
    """Which column of a table holds what; a role without a column is ``None``.

    Attributes:
        probabilities: canonical class → column.
        probability_reason: why there is no usable probability mapping, ``None`` when there is one.
        conflict: two columns that predict different things, in words; empty when there are none.
    """

    y_true: str | None = None
    y_pred: str | None = None
    slide: str | None = None
    patient: str | None = None
    any_id: str | None = None
    split: str | None = None
    time: str | None = None
    event: str | None = None
    risk: str | None = None
    probabilities: dict[str, str] = field(default_factory=dict)
    probability_reason: str | None = None
    conflict: str = ""

    @property
    def has_id(self) -> bool:
        """Whether any column identifies the case."""
        return bool(self.slide or self.patient or self.any_id)

    def paired(self, output_type: str) -> bool:
        """Whether a row can be paired with a reference label: a prediction, and a label or an id."""
        if output_type == "survival":
            return self.risk is not None and (
                self.has_id or (self.time is not None and self.event is not None)
            )
        predicted = self.y_pred is not None or bool(self.probabilities)
        return predicted and (self.y_true is not None or self.has_id)

    @property
    def predicts(self) -> bool:
        """Whether some column is a prediction of any kind."""
        return self.y_pred is not None or self.risk is not None or bool(self.probabilities)


def training_log_like(columns: Sequence[str]) -> bool:
    """Whether the header is that of a training log: a progress counter beside a loss or learning rate."""
    names = {key(column) for column in columns}
    return bool(names & _LOG_PROGRESS) and any(_LOG_VALUE.search(name) for name in names)


def map_columns(columns: Sequence[str], task: Task, rows: Sequence[Mapping[str, str]] = ()) -> ColumnMap:
    """Map the header of a table to the roles of a prediction table for ``task``.

    Of several columns that may hold the prediction, the first by name whose cells can be read as one; the
    rows say whether the others agree with it.
    """
    by_key: dict[str, list[str]] = {}
    for column in columns:
        by_key.setdefault(key(column), []).append(column)

    def every(names: Sequence[str]) -> list[str]:
        return [column for name in names for column in by_key.get(name, ())]

    def first(names: Sequence[str]) -> str | None:
        return next(iter(every(names)), None)

    survival = task.output_type == "survival"
    # What a survival model predicts may be a risk or a time, which have opposite signs: a risk is named so.
    y_pred, conflict = (first(_PRED), "") if survival else _agreed(every(_PRED), task, rows)
    risk, risk_conflict = _agreed(every(_RISK), task, rows) if survival else (None, "")
    probabilities, reason = (
        ({}, f"a {task.output_type} task has no class probabilities")
        if not task.classes
        else _probability_columns(by_key, task)
    )
    return ColumnMap(
        y_true=None if survival else first(_TRUE),
        y_pred=y_pred,
        slide=first(_SLIDE),
        patient=first(_PATIENT),
        any_id=first(_ANY_ID),
        split=first(_SPLIT),
        time=first(_TIME) if survival else None,
        event=first(_EVENT) if survival else None,
        risk=risk,
        probabilities=probabilities,
        probability_reason=reason,
        conflict=conflict or risk_conflict,
    )


def _agreed(columns: Sequence[str], task: Task, rows: Sequence[Mapping[str, str]]) -> tuple[str | None, str]:
    """The column that holds the prediction, and what contradicts it.

    A column of which most cells are no prediction (a score beside the class it led to) is no rival.
    """
    if len(columns) < 2 or not rows:
        return next(iter(columns), None), ""
    readable: dict[str, list[str | float | None]] = {}
    for column in columns:
        cells = [row.get(column, "") for row in rows]
        read = [class_of(cell, task) if task.classes else parse_number(cell) for cell in cells]
        if 2 * sum(value is not None for value in read) >= max(1, sum(cell != "" for cell in cells)):
            readable[column] = read
    if not readable:
        return columns[0], ""
    chosen, *others = readable
    for other in others:
        pairs = [
            (mine, its)
            for mine, its in zip(readable[chosen], readable[other], strict=True)
            if mine is not None and its is not None
        ]
        if not _same(pairs, task):
            return chosen, f"columns {chosen[:40]!r} and {other[:40]!r} predict different things"
    return chosen, ""


def _same(pairs: Sequence[tuple[Any, Any]], task: Task) -> bool:
    if task.output_type == "survival":
        # Only the order of risks counts: a hazard and its logarithm are the same prediction.
        mine, its = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
        return mine == its
    if task.classes:
        return all(left == right for left, right in pairs)
    return all(math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9) for left, right in pairs)


def _ranks(values: Sequence[float]) -> list[int]:
    rank = {value: place for place, value in enumerate(sorted(set(values)))}
    return [rank[value] for value in values]


def _probability_columns(by_key: dict[str, list[str]], task: Task) -> tuple[dict[str, str], str | None]:
    """Canonical class → column for columns that name their class, or the reason why they do not map."""
    found: dict[str, str] = {}
    for name, columns in by_key.items():
        match = _PROB_PREFIX.match(name) or _PROB_SUFFIX.match(name)
        label = _class_named(match.group(1), task) if match else None
        if label is None:
            continue
        if label in found or len(columns) > 1:
            return {}, f"two columns name the class {label!r}"
        found[label] = columns[0]
    if len(found) == len(task.classes):
        return {label: found[label] for label in task.classes}, None
    if len(task.classes) == 2 and len(found) == 1:
        return found, None
    bare = sorted(columns[0] for name, columns in by_key.items() if name in _BARE_SCORES)
    if found:
        missing = [label for label in task.classes if label not in found]
        return {}, f"no probability column for {', '.join(map(repr, missing[:5]))}"
    if bare:
        return {}, f"column {bare[0][:40]!r} does not name its class"
    return {}, "no probability column names a class of the task"


def _class_named(text: str, task: Task) -> str | None:
    """The class that part of a column's name names: ``high``, ``1``, ``class_1``, ``1_0`` (once ``1.0``)."""
    for name in (text, text.removeprefix("class_")):
        label = task.canonical_label(_WHOLE_NUMBER.sub(r"\1", name))
        if label is not None:
            return label
    return task.classes[1] if len(task.classes) == 2 and text in ("positive", "pos") else None
