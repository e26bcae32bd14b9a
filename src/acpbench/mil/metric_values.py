"""A metric that has no value says why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

METRICS: dict[str, tuple[str, ...]] = {
    "binary": ("AUROC", "AUPRC", "balanced_accuracy", "accuracy", "F1", "macro_F1", "brier", "ECE"),
    "multiclass": ("macro_OvR_AUROC", "macro_F1", "balanced_accuracy", "accuracy", "brier", "ECE"),
    "ordinal": (
        "quadratic_weighted_kappa",
        "balanced_accuracy",
        "macro_F1",
        "MAE_ranks",
        "accuracy",
        "brier",
        "ECE",
    ),
    "continuous": ("spearman_rho", "R2", "MAE"),
    "survival": ("c_index", "IPCW_c_index"),
}
"""Metric names of each output type, in the order they are reported."""

Row = Mapping[str, Any]
Metric = Callable[[], float]


class NotComputable(ValueError):
    """A metric has no value on these rows; the message says why."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence sklearn's per-resample warnings: undefined cases are decided here, before the call."""
    import sklearn

    with (
        warnings.catch_warnings(),
        sklearn.config_context(assume_finite=True, skip_parameter_validation=True),
    ):
        warnings.simplefilter("ignore")
        yield


def evaluate(metrics: Mapping[str, Metric]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Values by name, ``None`` where there is none, and the reasons for those."""
    values: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    for name, metric in metrics.items():
        try:
            value = float(metric())
        except NotComputable as error:
            values[name], notes[name] = None, str(error)
            continue
        values[name] = value if math.isfinite(value) else None
        if values[name] is None:
            notes[name] = "undefined on these rows"
    return values, notes
