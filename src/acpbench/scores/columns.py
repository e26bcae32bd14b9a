"""Recognise the columns of a prediction table by name, conservatively.

A column that could mean two things is not mapped: a score without a class name is no class probability.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

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
_PROB_PREFIX = re.compile(r"^(?:prob|probs|proba|probability|p|pred_prob|y_prob|prob_class|p_class)_(.+)$")
_PROB_SUFFIX = re.compile(r"^(.+)_(?:prob|proba|probability)$")
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


@dataclass(frozen=True)
class ColumnMap:
    """Which column of a table holds what; a role without a column is ``None``.

    Attributes:
        probabilities: canonical class → column.
        probability_reason: why there is no usable probability mapping, ``None`` when there is one.
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


def map_columns(columns: Sequence[str], task: Task) -> ColumnMap:
    """Map the header of a table to the roles of a prediction table for ``task``."""
    by_key: dict[str, str] = {}
    for column in columns:
        by_key.setdefault(key(column), column)

    def first(names: Sequence[str]) -> str | None:
        return next((by_key[name] for name in names if name in by_key), None)

    survival = task.output_type == "survival"
    # What a survival model predicts may be a risk or a time, which have opposite signs: a risk is named so.
    y_pred, risk = first(_PRED), first(_RISK) if survival else None
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
    )


def _probability_columns(by_key: dict[str, str], task: Task) -> tuple[dict[str, str], str | None]:
    """Canonical class → column for columns that name their class, or the reason why they do not map."""
    found: dict[str, str] = {}
    for name, column in by_key.items():
        match = _PROB_PREFIX.match(name) or _PROB_SUFFIX.match(name)
        if not match:
            continue
        label = task.canonical_label(match.group(1))
        if label is None and len(task.classes) == 2 and match.group(1) in ("positive", "pos"):
            label = task.classes[1]
        if label is None:
            continue
        if label in found:
            return {}, f"two columns name the class {label!r}"
        found[label] = column
    if len(found) == len(task.classes):
        return {label: found[label] for label in task.classes}, None
    if len(task.classes) == 2 and len(found) == 1:
        return found, None
    bare = sorted(by_key[name] for name in by_key if name in _BARE_SCORES)
    if found:
        missing = [label for label in task.classes if label not in found]
        return {}, f"no probability column for {', '.join(map(repr, missing[:5]))}"
    if bare:
        return {}, f"column {bare[0][:40]!r} does not name its class"
    return {}, "no probability column names a class of the task"
