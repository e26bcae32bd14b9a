"""Metrics of class endpoints: binary, multiclass and ordinal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.mil.calibration import expected_calibration_error
from acpbench.mil.cells import parse_number
from acpbench.mil.metric_values import METRICS, Metric, NotComputable, Row, evaluate


class ClassTable:
    """Class rows as arrays: codes of truth and prediction (-1: not a class), probabilities or why not."""

    def __init__(self, classes: Sequence[str], rows: Sequence[Row], *, need_all: bool) -> None:
        codes = {label: code for code, label in enumerate(classes)}
        unknown = sorted({str(row["y_true"]) for row in rows} - set(codes))
        if unknown:
            raise InputError(
                f"y_true {unknown[0]!r} is not one of the classes {list(classes)}", field="y_true"
            )
        self.n_classes = len(classes)
        self.true = np.array([codes[str(row["y_true"])] for row in rows], dtype=int)
        self.predicted = np.array([codes.get(str(row.get("y_pred")), -1) for row in rows], dtype=int)
        self.probability, self.no_probability = _probabilities(classes, rows, need_all=need_all)

    def need_rows(self) -> None:
        if not len(self.true):
            raise NotComputable("no labelled row")

    def need_probability(self) -> np.ndarray:
        self.need_rows()
        if self.probability is None:
            raise NotComputable(self.no_probability)
        return self.probability

    def need_every_class(self) -> None:
        self.need_rows()
        present = set(self.true.tolist())
        if len(present) == 1:
            raise NotComputable("only one class among the labels")
        absent = self.n_classes - len(present)
        if absent:
            raise NotComputable(f"{absent} of {self.n_classes} classes absent among the labels")

    def need_two_classes(self) -> None:
        self.need_rows()
        if len(set(self.true.tolist())) < 2:
            raise NotComputable("only one class among the labels")

    def need_some_prediction(self) -> None:
        """One that is no class counts as wrong; where none is a class, nothing was predicted."""
        self.need_rows()
        if (self.predicted < 0).all():
            raise NotComputable("no prediction is a class")

    def need_predictions(self) -> None:
        self.need_rows()
        lacking = int((self.predicted < 0).sum())
        if lacking:
            raise NotComputable(f"{lacking} rows have no prediction that is a class")


def _probabilities(
    classes: Sequence[str], rows: Sequence[Row], *, need_all: bool
) -> tuple[np.ndarray | None, str]:
    """(N, C) probabilities, or ``None`` and the reason; a binary table may give the positive class alone."""
    table = np.full((len(rows), len(classes)), np.nan)
    for column, label in enumerate(classes):
        for index, row in enumerate(rows):
            number = parse_number(row.get(f"prob_{label}"))
            if number is not None:
                table[index, column] = number
    if not need_all and len(classes) == 2:
        for known, other in ((1, 0), (0, 1)):
            gap = np.isnan(table[:, other]) & ~np.isnan(table[:, known])
            table[gap, other] = 1 - table[gap, known]
    lacking = int(np.isnan(table).any(axis=1).sum())
    if lacking:
        return None, f"{lacking} of {len(rows)} rows have no probability for every class"
    outside = int(((table < -1e-6) | (table > 1 + 1e-6)).any(axis=1).sum())
    if outside:
        return None, f"{outside} rows have a probability outside [0, 1]"
    wrong = int((np.abs(table.sum(axis=1) - 1) > 1e-2).sum())
    if wrong:
        return None, f"{wrong} rows have probabilities that do not sum to 1"
    table = np.clip(table, 0, 1)
    # Rounded probabilities sum to 0.999; sklearn wants 1.
    return table if len(classes) == 2 else table / table.sum(axis=1, keepdims=True), ""


def class_metrics(table: ClassTable, output_type: str) -> dict[str, Metric]:
    """Metric functions by name, each of which raises when it has no value."""
    from sklearn import metrics as sk

    labels = list(range(table.n_classes))

    def accuracy() -> float:
        table.need_some_prediction()
        return sk.accuracy_score(table.true, table.predicted)

    def balanced_accuracy() -> float:
        table.need_every_class()
        table.need_some_prediction()
        return sk.balanced_accuracy_score(table.true, table.predicted)

    def macro_f1() -> float:
        table.need_every_class()
        table.need_some_prediction()
        return sk.f1_score(table.true, table.predicted, labels=labels, average="macro", zero_division=0)

    common: dict[str, Metric] = {
        "balanced_accuracy": balanced_accuracy,
        "accuracy": accuracy,
        "macro_F1": macro_f1,
    }
    if output_type == "binary":
        special = _binary_metrics(table)
    elif output_type == "multiclass":
        special = _multiclass_metrics(table)
    else:
        special = _ordinal_metrics(table)
    merged = common | special
    return {name: merged[name] for name in METRICS[output_type]}


def _binary_metrics(table: ClassTable) -> dict[str, Metric]:
    from sklearn import metrics as sk

    def positive(every_class: bool = True) -> np.ndarray:
        if every_class:
            table.need_every_class()
        return table.need_probability()[:, 1]

    def f1() -> float:
        table.need_every_class()
        table.need_some_prediction()
        return sk.f1_score(table.true == 1, table.predicted == 1, zero_division=0)

    return {
        "AUROC": lambda: sk.roc_auc_score(table.true, positive()),
        "AUPRC": lambda: sk.average_precision_score(table.true, positive()),
        "F1": f1,
        "brier": lambda: sk.brier_score_loss(table.true, positive(every_class=False), pos_label=1),
        "ECE": lambda: expected_calibration_error(positive(every_class=False), table.true),
    }


def _multiclass_metrics(table: ClassTable) -> dict[str, Metric]:
    from sklearn import metrics as sk

    def auroc() -> float:
        table.need_every_class()
        return sk.roc_auc_score(
            table.true,
            table.need_probability(),
            multi_class="ovr",
            average="macro",
            labels=list(range(table.n_classes)),
        )

    return {"macro_OvR_AUROC": auroc, **_calibration_metrics(table)}


def _ordinal_metrics(table: ClassTable) -> dict[str, Metric]:
    from sklearn import metrics as sk

    def kappa() -> float:
        table.need_predictions()
        table.need_two_classes()
        return sk.cohen_kappa_score(
            table.true, table.predicted, labels=list(range(table.n_classes)), weights="quadratic"
        )

    def mae_ranks() -> float:
        table.need_predictions()
        return sk.mean_absolute_error(table.true, table.predicted)

    return {"quadratic_weighted_kappa": kappa, "MAE_ranks": mae_ranks, **_calibration_metrics(table)}


def _calibration_metrics(table: ClassTable) -> dict[str, Metric]:
    """Brier score over all classes, and calibration of the probability of the likeliest class."""

    def brier() -> float:
        # Brier 1950: mean over rows of the squared distance to the one-hot truth, in [0, 2].
        probability = table.need_probability()
        return float(((probability - np.eye(table.n_classes)[table.true]) ** 2).sum(axis=1).mean())

    def ece() -> float:
        probability = table.need_probability()
        return expected_calibration_error(probability.max(axis=1), probability.argmax(axis=1) == table.true)

    return {"brier": brier, "ECE": ece}


def per_class(classes: Sequence[str], rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Label → ``recall``, ``precision``, ``f1``, one-vs-rest ``auroc`` (each None where undefined), ``n``."""
    from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

    table = ClassTable(classes, rows, need_all=len(classes) != 2)
    predicted = bool((table.predicted >= 0).any())
    if not rows:
        empty = dict.fromkeys(("recall", "precision", "f1", "auroc"))
        return {label: {**empty, "n": 0} for label in classes}
    precision, recall, f1, support = precision_recall_fscore_support(
        table.true, table.predicted, labels=list(range(len(classes))), zero_division=np.nan
    )

    def against_rest(code: int) -> float:
        table.need_two_classes()
        if not (table.true == code).any():
            raise NotComputable("no row of this class")
        return roc_auc_score(table.true == code, table.need_probability()[:, code])

    aurocs, _ = evaluate({str(code): lambda code=code: against_rest(code) for code in range(len(classes))})

    def number(value: float) -> float | None:
        return None if math.isnan(value) else float(value)

    return {
        label: {
            "recall": number(recall[i]) if support[i] and predicted else None,
            "precision": number(precision[i]),
            "f1": number(f1[i]) if support[i] and predicted else None,
            "auroc": aurocs[str(i)],
            "n": int(support[i]),
        }
        for i, label in enumerate(classes)
    }
