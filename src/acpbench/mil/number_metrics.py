"""Metrics of continuous and survival endpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from acpbench.core.errors import InputError
from acpbench.mil import resampling
from acpbench.mil.cells import parse_event, parse_number
from acpbench.mil.metric_values import METRICS, Metric, NotComputable, Row


def numbers(rows: Sequence[Row], key: str) -> np.ndarray:
    """(N,) float64 of one column; NaN where a cell holds no number."""
    return np.array([math.nan if (n := parse_number(row.get(key))) is None else n for row in rows], float)


def continuous_metrics(true: np.ndarray, predicted: np.ndarray) -> dict[str, Metric]:
    """Metric functions by name, each of which raises when it has no value."""
    from scipy import stats
    from sklearn import metrics as sk

    def need(n_rows: int) -> None:
        if len(true) < n_rows:
            raise NotComputable(f"{len(true)} labelled rows; {n_rows} needed")
        lacking = int(np.isnan(predicted).sum())
        if lacking:
            raise NotComputable(f"{lacking} rows have no numeric prediction")

    def spearman() -> float:
        need(3)
        if np.ptp(true) == 0 or np.ptp(predicted) == 0:
            raise NotComputable("labels or predictions are constant")
        return stats.spearmanr(true, predicted).statistic

    def r2() -> float:
        need(2)
        if np.ptp(true) == 0:
            raise NotComputable("labels are constant")
        return sk.r2_score(true, predicted)

    def mae() -> float:
        need(1)
        return sk.mean_absolute_error(true, predicted)

    return {"spearman_rho": spearman, "R2": r2, "MAE": mae}


def survival_metrics(time: np.ndarray, event: np.ndarray, risk: np.ndarray) -> dict[str, Metric]:
    """Metric functions by name, each of which raises when it has no value."""

    def need_pair() -> None:
        lacking = int(np.isnan(risk).sum())
        if lacking:
            raise NotComputable(f"{lacking} rows have no risk")
        if not event.any():
            raise NotComputable("no event among the rows")
        first = time[event].min()
        # At equal times the event comes before the censoring.
        if not ((time > first) | ((time == first) & ~event)).any():
            raise NotComputable("no comparable pair: nobody is followed past the first event")

    def concordance(name: str) -> float:
        need_pair()
        # Higher risk means an earlier event; the sign is never chosen after seeing the labels. A test holds
        # the values equal to torchsurv's on risks further apart than its 1e-8; its import costs seconds.
        value = resampling.survival_metrics(time, event, risk, np.ones((1, len(time))))[name][0]
        if not np.isfinite(value):
            raise NotComputable("the weight of every comparable pair is 0")
        return float(value)

    # IPCW: Uno et al. 2011; the censoring distribution is estimated on the same rows.
    return {name: (lambda name=name: concordance(name)) for name in METRICS["survival"]}


def survival_columns(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N,) time, event and risk."""
    event = np.array([parse_event(row["event"]) for row in rows], dtype=bool)
    return numbers(rows, "time"), event, numbers(rows, "risk")


def continuous_columns(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """(N,) truth and prediction. Raises :class:`InputError` for a truth that is no number."""
    true = numbers(rows, "y_true")
    if np.isnan(true).any():
        raise InputError("a y_true of a continuous endpoint is not a number", field="y_true")
    return true, numbers(rows, "y_pred")
