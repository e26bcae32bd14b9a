"""Metrics of one prediction table, each a number or ``None`` with the reason.

A row is one patient (or slide): ``y_true``, ``y_pred`` and ``prob_<class>`` for class endpoints, numbers in
``y_true`` and ``y_pred`` for continuous ones, ``time``, ``event`` and ``risk`` for survival. Standard metrics
come from scikit-learn and scipy; concordance, the expected calibration error and the multi-class Brier
score follow their definitions here, and tests hold them against torchsurv and hand-worked values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.mil import resampling
from acpbench.mil.calibration import expected_calibration_error
from acpbench.mil.cells import is_missing, parse_event, parse_number

METRICS: dict[str, tuple[str, ...]] = {
    "binary": ("AUROC", "AUPRC", "balanced_accuracy", "accuracy", "F1", "macro_F1", "brier", "ECE"),
    "multiclass": ("macro_OvR_AUROC", "macro_F1", "balanced_accuracy", "accuracy", "brier", "ECE"),
    "ordinal": ("quadratic_weighted_kappa", "balanced_accuracy", "macro_F1", "MAE_ranks", "accuracy"),
    "continuous": ("spearman_rho", "R2", "MAE"),
    "survival": ("c_index", "IPCW_c_index"),
}
"""Metric names of each output type, in the order they are reported."""

Row = Mapping[str, Any]
Metric = Callable[[], float]


class _NotComputable(ValueError):
    """A metric has no value on these rows; the message says why."""


@contextmanager
def _quiet():
    """Silence sklearn's per-resample warnings: undefined cases are decided here, before the call."""
    import sklearn

    with (
        warnings.catch_warnings(),
        sklearn.config_context(assume_finite=True, skip_parameter_validation=True),
    ):
        warnings.simplefilter("ignore")
        yield


def _evaluate(metrics: dict[str, Metric]) -> tuple[dict[str, float | None], dict[str, str]]:
    values: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    for name, metric in metrics.items():
        try:
            value = float(metric())
        except _NotComputable as error:
            values[name], notes[name] = None, str(error)
            continue
        values[name] = value if math.isfinite(value) else None
        if values[name] is None:
            notes[name] = "undefined on these rows"
    return values, notes


# -- class endpoints ------------------------------------------------------------------------------------


class _ClassTable:
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
            raise _NotComputable("no labelled row")

    def need_probability(self) -> np.ndarray:
        self.need_rows()
        if self.probability is None:
            raise _NotComputable(self.no_probability)
        return self.probability

    def need_every_class(self) -> None:
        self.need_rows()
        present = set(self.true.tolist())
        if len(present) == 1:
            raise _NotComputable("only one class among the labels")
        absent = self.n_classes - len(present)
        if absent:
            raise _NotComputable(f"{absent} of {self.n_classes} classes absent among the labels")

    def need_two_classes(self) -> None:
        self.need_rows()
        if len(set(self.true.tolist())) < 2:
            raise _NotComputable("only one class among the labels")

    def need_predictions(self) -> None:
        self.need_rows()
        lacking = int((self.predicted < 0).sum())
        if lacking:
            raise _NotComputable(f"{lacking} rows have no prediction that is a class")


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


def _class_metrics(table: _ClassTable, output_type: str) -> dict[str, Metric]:
    from sklearn import metrics as sk

    labels = list(range(table.n_classes))

    def accuracy() -> float:
        table.need_rows()
        return sk.accuracy_score(table.true, table.predicted)

    def balanced_accuracy() -> float:
        table.need_every_class()
        return sk.balanced_accuracy_score(table.true, table.predicted)

    def macro_f1() -> float:
        table.need_every_class()
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


def _binary_metrics(table: _ClassTable) -> dict[str, Metric]:
    from sklearn import metrics as sk

    def positive(every_class: bool = True) -> np.ndarray:
        if every_class:
            table.need_every_class()
        return table.need_probability()[:, 1]

    def f1() -> float:
        table.need_every_class()
        return sk.f1_score(table.true == 1, table.predicted == 1, zero_division=0)

    return {
        "AUROC": lambda: sk.roc_auc_score(table.true, positive()),
        "AUPRC": lambda: sk.average_precision_score(table.true, positive()),
        "F1": f1,
        "brier": lambda: sk.brier_score_loss(table.true, positive(every_class=False), pos_label=1),
        "ECE": lambda: expected_calibration_error(positive(every_class=False), table.true),
    }


def _multiclass_metrics(table: _ClassTable) -> dict[str, Metric]:
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

    def brier() -> float:
        # Brier 1950: mean over rows of the squared distance to the one-hot truth, in [0, 2].
        probability = table.need_probability()
        return float(((probability - np.eye(table.n_classes)[table.true]) ** 2).sum(axis=1).mean())

    def ece() -> float:
        probability = table.need_probability()
        return expected_calibration_error(probability.max(axis=1), probability.argmax(axis=1) == table.true)

    return {"macro_OvR_AUROC": auroc, "brier": brier, "ECE": ece}


def _ordinal_metrics(table: _ClassTable) -> dict[str, Metric]:
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

    return {"quadratic_weighted_kappa": kappa, "MAE_ranks": mae_ranks}


# -- continuous and survival ----------------------------------------------------------------------------


def _numbers(rows: Sequence[Row], key: str) -> np.ndarray:
    return np.array([math.nan if (n := parse_number(row.get(key))) is None else n for row in rows], float)


def _continuous_metrics(true: np.ndarray, predicted: np.ndarray) -> dict[str, Metric]:
    from scipy import stats
    from sklearn import metrics as sk

    def need(n_rows: int) -> None:
        if len(true) < n_rows:
            raise _NotComputable(f"{len(true)} labelled rows; {n_rows} needed")
        lacking = int(np.isnan(predicted).sum())
        if lacking:
            raise _NotComputable(f"{lacking} rows have no numeric prediction")

    def spearman() -> float:
        need(3)
        if np.ptp(true) == 0 or np.ptp(predicted) == 0:
            raise _NotComputable("labels or predictions are constant")
        return stats.spearmanr(true, predicted).statistic

    def r2() -> float:
        need(2)
        if np.ptp(true) == 0:
            raise _NotComputable("labels are constant")
        return sk.r2_score(true, predicted)

    def mae() -> float:
        need(1)
        return sk.mean_absolute_error(true, predicted)

    return {"spearman_rho": spearman, "R2": r2, "MAE": mae}


def _survival_metrics(time: np.ndarray, event: np.ndarray, risk: np.ndarray) -> dict[str, Metric]:
    def need_pair() -> None:
        lacking = int(np.isnan(risk).sum())
        if lacking:
            raise _NotComputable(f"{lacking} rows have no risk")
        if not event.any():
            raise _NotComputable("no event among the rows")
        if not (time > time[event].min()).any():
            raise _NotComputable("no comparable pair: nobody is followed past the first event")

    def concordance(name: str) -> float:
        need_pair()
        # Higher risk means an earlier event; the sign is never chosen after seeing the labels. The values are
        # those of torchsurv (a test holds them equal), whose import costs seconds in every scoring job.
        value = resampling.survival_metrics(time, event, risk, np.ones((1, len(time))))[name][0]
        if not np.isfinite(value):
            raise _NotComputable("the weight of every comparable pair is 0")
        return float(value)

    # IPCW: Uno et al. 2011; the censoring distribution is estimated on the same rows.
    return {name: (lambda name=name: concordance(name)) for name in METRICS["survival"]}


# -- public ---------------------------------------------------------------------------------------------


def _labelled(output_type: str, rows: Sequence[Row]) -> list[Row]:
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
        return _survival_metrics(*_survival_columns(rows))
    if output_type == "continuous":
        return _continuous_metrics(*_continuous_columns(rows))
    return _class_metrics(_ClassTable(classes, rows, need_all=output_type != "binary"), output_type)


def _survival_columns(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    event = np.array([parse_event(row["event"]) for row in rows], dtype=bool)
    return _numbers(rows, "time"), event, _numbers(rows, "risk")


def _continuous_columns(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    true = _numbers(rows, "y_true")
    if np.isnan(true).any():
        raise InputError("a y_true of a continuous endpoint is not a number", field="y_true")
    return true, _numbers(rows, "y_pred")


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
        ``n_events`` (None unless survival) and ``per_class`` (label → recall, precision, f1, n).

    Raises:
        InputError: unknown output type, a label that is not a class, an unreadable time or event.
    """
    kept = _labelled(output_type, rows)
    with _quiet():
        values, notes = _evaluate(_metrics_of(output_type, classes, kept))
        per_class = _per_class(classes, kept) if output_type in ("binary", "multiclass", "ordinal") else {}
    events = None
    if output_type == "survival":
        events = sum(bool(parse_event(row["event"])) for row in kept)
    return {
        "metrics": values,
        "notes": notes,
        "n": len(kept),
        "n_per_class": {label: part["n"] for label, part in per_class.items()},
        "n_events": events,
        "per_class": per_class,
    }


def _per_class(classes: Sequence[str], rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    from sklearn.metrics import precision_recall_fscore_support

    table = _ClassTable(classes, rows, need_all=True)
    if not rows:
        return {label: {"recall": None, "precision": None, "f1": None, "n": 0} for label in classes}
    precision, recall, f1, support = precision_recall_fscore_support(
        table.true, table.predicted, labels=list(range(len(classes))), zero_division=np.nan
    )

    def number(value: float) -> float | None:
        return None if math.isnan(value) else float(value)

    return {
        label: {
            "recall": number(recall[i]) if support[i] else None,
            "precision": number(precision[i]),
            "f1": number(f1[i]) if support[i] else None,
            "n": int(support[i]),
        }
        for i, label in enumerate(classes)
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
    kept = _labelled(output_type, rows)
    names = [name for name in METRICS[output_type] if metrics is None or name in metrics]
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(kept):
        if is_missing(row.get(cluster_key)):
            raise InputError("a prediction row has no cluster to resample by", field=cluster_key)
        groups.setdefault(str(row[cluster_key]), []).append(index)
    if len(groups) < 2:
        return dict.fromkeys(names)
    members = [np.array(groups[name]) for name in sorted(groups)]
    counts = resampling.multiplicities(members, len(kept), n_resamples, seed)
    draws = _resample(output_type, classes, kept, counts, names)
    tail = (1 - level) / 2
    found: dict[str, list[float] | None] = dict.fromkeys(names)
    for name in names:
        values = draws[name][np.isfinite(draws[name])] if name in draws else np.empty(0)
        if len(values) and len(values) * 2 >= n_resamples:
            found[name] = [float(edge) for edge in np.quantile(values, [tail, 1 - tail])]
    return found


def _resample(
    output_type: str, classes: Sequence[str], rows: Sequence[Row], counts: np.ndarray, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """(R,) values of each metric that the columns allow, NaN where a resample leaves it undefined."""
    if output_type == "survival":
        time, event, risk = _survival_columns(rows)
        return {} if np.isnan(risk).any() else resampling.survival_metrics(time, event, risk, counts)
    if output_type != "continuous":
        table = _ClassTable(classes, rows, need_all=output_type != "binary")
        return resampling.class_metrics(
            output_type, table.n_classes, table.true, table.predicted, table.probability, counts
        )
    true, predicted = _continuous_columns(rows)
    draws = {name: np.full(len(counts), np.nan) for name in names}
    with _quiet():
        for index, count in enumerate(counts.astype(int)):
            drawn = _continuous_metrics(np.repeat(true, count), np.repeat(predicted, count))
            values, _ = _evaluate({name: drawn[name] for name in names})
            for name, value in values.items():
                draws[name][index] = math.nan if value is None else value
    return draws
