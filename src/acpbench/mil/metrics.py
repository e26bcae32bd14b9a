"""Metrics of one prediction table, each a number or ``None`` with the reason.

A row is one patient (or slide): ``y_true``, ``y_pred`` and ``prob_<class>`` for class endpoints, numbers in
``y_true`` and ``y_pred`` for continuous ones, ``time``, ``event`` and ``risk`` for survival. Standard metrics
come from scikit-learn and scipy; concordance, the expected calibration error and the multi-class Brier
score follow their definitions here, and tests hold them against torchsurv and hand-worked values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.mil import resampling
from acpbench.mil.cells import is_missing, parse_event, parse_number
from acpbench.mil.class_metrics import ClassTable, class_metrics, per_class
from acpbench.mil.metric_values import METRICS, Metric, Row, evaluate, quiet
from acpbench.mil.number_metrics import (
    continuous_columns,
    continuous_metrics,
    survival_columns,
    survival_metrics,
)

__all__ = [
    "METRICS",
    "bootstrap_intervals",
    "draw_patients",
    "interval_of",
    "labelled_rows",
    "resample",
    "score_predictions",
]


def labelled_rows(output_type: str, rows: Sequence[Row]) -> list[Row]:
    """Rows whose label is known. Raises :class:`InputError` for one that cannot be read."""
    if output_type not in METRICS:
        raise InputError(f"output type {output_type!r} is none of {sorted(METRICS)}")
    if output_type == "survival":
        kept = []
        for row in rows:
            if is_missing(row.get("time")) or is_missing(row.get("event")):
                continue
            time, event = parse_number(row["time"]), parse_event(row["event"])
            if time is None or time < 0 or event is None:
                raise InputError(
                    f"time {row['time']!r} and event {row['event']!r}; expected a number >= 0 and 0 or 1"
                )
            kept.append(row)
        return kept
    return [row for row in rows if not is_missing(row.get("y_true"))]


def _metrics_of(output_type: str, classes: Sequence[str], rows: Sequence[Row]) -> dict[str, Metric]:
    if output_type == "survival":
        return survival_metrics(*survival_columns(rows))
    if output_type == "continuous":
        return continuous_metrics(*continuous_columns(rows))
    return class_metrics(ClassTable(classes, rows, need_all=output_type != "binary"), output_type)


def score_predictions(output_type: str, classes: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """Score a prediction table.

    Rows without a label are left out; a row whose prediction is not a class counts as wrong; probability
    metrics need every row to have its probabilities, and ranks need every row to have a prediction.

    Args:
        output_type: binary, multiclass, ordinal, continuous or survival.
        classes: class names in order (the second is the positive class of a binary endpoint; ordinal order).
        rows: prediction rows.

    Returns:
        ``metrics`` (name → value or None), ``notes`` (name → why it is None), ``n``, ``n_per_class``,
        ``n_events`` (None unless survival) and ``per_class`` (label → recall, precision, f1, one-vs-rest
        auroc, n).

    Raises:
        InputError: unknown output type, a label that is not a class, an unreadable time or event.
    """
    kept = labelled_rows(output_type, rows)
    with quiet():
        values, notes = evaluate(_metrics_of(output_type, classes, kept))
        by_class = per_class(classes, kept) if output_type in ("binary", "multiclass", "ordinal") else {}
    events = None
    if output_type == "survival":
        events = sum(bool(parse_event(row["event"])) for row in kept)
    return {
        "metrics": values,
        "notes": notes,
        "n": len(kept),
        "n_per_class": {label: part["n"] for label, part in by_class.items()},
        "n_events": events,
        "per_class": by_class,
    }


def bootstrap_intervals(
    output_type: str,
    classes: Sequence[str],
    rows: Sequence[Row],
    *,
    cluster_key: str = "patient_id",
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    metrics: Sequence[str] | None = None,
) -> dict[str, list[float] | None]:
    """Percentile intervals from a cluster bootstrap (whole patients are drawn with replacement).

    A resample on which a metric is undefined (one class drawn) does not count; with fewer than half of the
    resamples left, or fewer than two clusters, the interval is ``None``.

    Args:
        output_type: as in :func:`score_predictions`.
        classes: as in :func:`score_predictions`.
        rows: prediction rows; each must have ``cluster_key``.
        cluster_key: column whose equal values are drawn together.
        n_resamples: number of resamples.
        seed: seed of the generator; the same rows and seed give the same interval.
        level: coverage in (0, 1).
        metrics: names to compute; all of the output type's when ``None``.

    Raises:
        InputError: as in :func:`score_predictions`, or a row without ``cluster_key``.
    """
    kept = labelled_rows(output_type, rows)
    names = [name for name in METRICS[output_type] if metrics is None or name in metrics]
    counts, n_clusters = draw_patients(kept, cluster_key, n_resamples, seed)
    if n_clusters < 2:
        return dict.fromkeys(names)
    draws = resample(output_type, classes, kept, counts)
    return {name: interval_of(draws[name], level) if name in draws else None for name in names}


def resample(
    output_type: str, classes: Sequence[str], rows: Sequence[Row], counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Every metric that the columns allow, on resamples of the rows.

    Args:
        output_type, classes, rows: as in :func:`score_predictions`; every row has a label.
        counts: (R, N) how often each row was drawn.

    Returns:
        Metric name → (R,) values, NaN where a resample leaves it undefined.
    """
    if output_type == "survival":
        time, event, risk = survival_columns(rows)
        return {} if np.isnan(risk).any() else resampling.survival_metrics(time, event, risk, counts)
    if output_type == "continuous":
        true, predicted = continuous_columns(rows)
        return {} if np.isnan(predicted).any() else resampling.continuous_metrics(true, predicted, counts)
    table = ClassTable(classes, rows, need_all=output_type != "binary")
    return resampling.class_metrics(
        output_type, table.n_classes, table.true, table.predicted, table.probability, counts
    )


def draw_patients(
    rows: Sequence[Row], cluster_key: str, n_resamples: int, seed: int
) -> tuple[np.ndarray, int]:
    """(R, N) multiplicities of rows when whole clusters are drawn, and the number of clusters.

    Raises:
        InputError: a row without ``cluster_key``.
    """
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if is_missing(row.get(cluster_key)):
            raise InputError("a prediction row has no cluster to resample by", field=cluster_key)
        groups.setdefault(str(row[cluster_key]), []).append(index)
    if len(groups) < 2:
        return np.zeros((0, len(rows))), len(groups)
    members = [np.array(groups[name]) for name in sorted(groups)]
    return resampling.multiplicities(members, len(rows), n_resamples, seed), len(groups)


def interval_of(draws: np.ndarray, level: float = 0.95) -> list[float] | None:
    """Percentile interval of the resamples on which a metric is defined; ``None`` when half are not."""
    values = draws[np.isfinite(draws)]
    if not len(values) or len(values) * 2 < len(draws):
        return None
    tail = (1 - level) / 2
    return [float(edge) for edge in np.quantile(values, [tail, 1 - tail])]
