"""Metrics of many bootstrap resamples at once.

A resample is a row of multiplicities: how often each prediction row was drawn. Every function takes (R, N)
multiplicities and gives (R,) values, NaN where the metric is undefined on that resample. The values are those
that scikit-learn and torchsurv give for the repeated rows, which the tests assert; computed one resample at a
time by those libraries, a thousand resamples would take ten to twenty seconds a table instead of a fraction
of one.
"""

from __future__ import annotations

import numpy as np

from acpbench.mil.calibration import N_CALIBRATION_BINS, calibration_bins


def multiplicities(members: list[np.ndarray], n_rows: int, n_resamples: int, seed: int) -> np.ndarray:
    """Draw whole clusters with replacement.

    Args:
        members: row indices of each cluster.
        n_rows: number of rows N.
        n_resamples: number of resamples R.
        seed: seed.

    Returns:
        (R, N) float64 counts.
    """
    generator = np.random.default_rng(seed)
    cluster = np.empty(n_rows, dtype=int)
    for index, rows in enumerate(members):
        cluster[rows] = index
    drawn = generator.integers(0, len(members), (n_resamples, len(members)))
    counts = np.stack([np.bincount(draw, minlength=len(members)) for draw in drawn])
    return counts[:, cluster].astype(np.float64)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Elementwise quotient, NaN where the denominator is 0."""
    out = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    return np.divide(numerator, denominator, out=out, where=denominator != 0)


def _by_score(score: np.ndarray, positive: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, G) drawn positives and negatives at each distinct score, highest score first."""
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    return (
        np.add.reduceat(counts[:, order] * positive[order], starts, axis=1),
        np.add.reduceat(counts[:, order] * ~positive[order], starts, axis=1),
    )


def auroc(score: np.ndarray, positive: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Area under the ROC curve: share of positive-negative pairs in the right order, ties counting half."""
    hits, false = _by_score(score, positive, counts)
    below = false.sum(axis=1, keepdims=True) - np.cumsum(false, axis=1)
    wins = (hits * (below + false / 2)).sum(axis=1)
    return _divide(wins, hits.sum(axis=1) * false.sum(axis=1))


def average_precision(score: np.ndarray, positive: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Average precision: precision at each distinct score, weighted by the recall gained there."""
    hits, false = _by_score(score, positive, counts)
    found = np.cumsum(hits, axis=1)
    precision = np.nan_to_num(_divide(found, found + np.cumsum(false, axis=1)))
    both = (hits.sum(axis=1) > 0) & (false.sum(axis=1) > 0)
    return np.where(both, _divide((hits * precision).sum(axis=1), hits.sum(axis=1)), np.nan)


def class_metrics(
    output_type: str,
    n_classes: int,
    true: np.ndarray,
    predicted: np.ndarray,
    probability: np.ndarray | None,
    counts: np.ndarray,
) -> dict[str, np.ndarray]:
    """Every metric of a class endpoint that these columns allow.

    Args:
        output_type: binary, multiclass or ordinal.
        n_classes: number of classes C.
        true: (N,) codes.
        predicted: (N,) codes, -1 for a prediction that is no class.
        probability: (N, C), or ``None`` when some row has none.
        counts: (R, N) multiplicities.
    """
    n_rows = counts.sum(axis=1)
    # The last column holds predictions that are no class: wrong for accuracy, in no class's precision.
    cell = true * (n_classes + 1) + np.where(predicted < 0, n_classes, predicted)
    one_hot = np.eye(n_classes * (n_classes + 1))[cell]
    confusion = (counts @ one_hot).reshape(-1, n_classes, n_classes + 1)
    support = confusion.sum(axis=2)
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    called = confusion[:, :, :n_classes].sum(axis=1)
    every_class = (support > 0).all(axis=1)
    f1 = _divide(2 * hits, support + called)

    def where_every_class(values: np.ndarray) -> np.ndarray:
        return np.where(every_class, values, np.nan)

    found = {
        "accuracy": hits.sum(axis=1) / n_rows,
        "balanced_accuracy": where_every_class(_divide(hits, support).mean(axis=1)),
        "macro_F1": where_every_class(f1.mean(axis=1)),
    }
    if output_type == "ordinal" and (predicted >= 0).all():
        found |= _rank_metrics(confusion[:, :, :n_classes], n_rows)
    if output_type == "binary":
        found["F1"] = where_every_class(f1[:, 1])
    if probability is None:
        return found
    if output_type == "binary":
        score, positive = probability[:, 1], true == 1
        found["AUROC"] = auroc(score, positive, counts)
        found["AUPRC"] = average_precision(score, positive, counts)
        squared, confidence, hit = (score - positive) ** 2, score, positive
    else:
        if output_type == "multiclass":
            each = [auroc(probability[:, code], true == code, counts) for code in range(n_classes)]
            found["macro_OvR_AUROC"] = where_every_class(np.mean(each, axis=0))
        squared = ((probability - np.eye(n_classes)[true]) ** 2).sum(axis=1)
        confidence, hit = probability.max(axis=1), probability.argmax(axis=1) == true
    found["brier"] = counts @ squared / n_rows
    bins = np.eye(N_CALIBRATION_BINS)[calibration_bins(confidence)]
    found["ECE"] = np.abs(counts @ (bins * (hit - confidence)[:, None])).sum(axis=1) / n_rows
    return found


def _rank_metrics(confusion: np.ndarray, n_rows: np.ndarray) -> dict[str, np.ndarray]:
    codes = np.arange(confusion.shape[1])
    distance = np.abs(codes[:, None] - codes[None, :])
    margins = confusion.sum(axis=2)[:, :, None] * confusion.sum(axis=1)[:, None, :]
    observed = (confusion * distance**2).sum(axis=(1, 2))
    expected = (margins * distance**2).sum(axis=(1, 2)) / n_rows
    two_classes = (confusion.sum(axis=2) > 0).sum(axis=1) > 1
    return {
        "quadratic_weighted_kappa": np.where(two_classes, 1 - _divide(observed, expected), np.nan),
        "MAE_ranks": (confusion * distance).sum(axis=(1, 2)) / n_rows,
    }


def continuous_metrics(true: np.ndarray, predicted: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Spearman's rho, R² and mean absolute error of each resample.

    Args:
        true, predicted: (N,) finite. counts: (R, N) multiplicities.
    """
    n_rows = counts.sum(axis=1)
    drawn = counts > 0
    constant = np.where(drawn, true, -np.inf).max(axis=1) == np.where(drawn, true, np.inf).min(axis=1)
    centred = true - true.mean()  # before squaring, or an offset such as a year would eat the digits
    mean = counts @ centred / n_rows
    spread = (counts * (centred[None, :] - mean[:, None]) ** 2).sum(axis=1)
    residual = counts @ (true - predicted) ** 2
    ranks = [_midranks(values, counts) for values in (true, predicted)]
    # All midranks have the mean (n + 1) / 2.
    x, y = (rank - (n_rows[:, None] + 1) / 2 for rank in ranks)
    rho = _divide(
        (counts * x * y).sum(axis=1),
        np.sqrt((counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1)),
    )
    enough = n_rows >= 3
    return {
        "spearman_rho": np.where(enough, rho, np.nan),
        "R2": np.where(constant | (n_rows < 2), np.nan, 1 - _divide(residual, spread)),
        "MAE": counts @ np.abs(true - predicted) / n_rows,
    }


def _midranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(R, N) mean rank of each row's value among the drawn rows, ties sharing their ranks."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(values[order]) != 0])
    drawn = np.add.reduceat(counts[:, order], starts, axis=1)
    rank = np.cumsum(drawn, axis=1) - drawn + (drawn + 1) / 2
    group = np.searchsorted(values[order][starts], values, side="right") - 1
    return rank[:, group]


def survival_metrics(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray, counts: np.ndarray
) -> dict[str, np.ndarray]:
    """Harrell's and Uno's concordance of each resample.

    Args:
        time: (N,) follow-up. event: (N,) bool. risk: (N,) finite, higher = earlier event.
        counts: (R, N) multiplicities.
    """
    order = np.argsort(time, kind="stable")
    time, event, risk, counts = time[order], event[order], risk[order], counts[:, order]
    # A pair is comparable when the earlier one had the event; at equal times, when the other is censored.
    later = time[None, :] > time[:, None]
    same_time_censored = (time[None, :] == time[:, None]) & ~event[None, :]
    comparable = (event[:, None] & (later | same_time_censored)).astype(np.float64)
    gap = risk[:, None] - risk[None, :]
    # Only equal risks are ties (Harrell 1996), so that any increasing function of the risk scores the same;
    # torchsurv calls a gap of 1e-8 a tie, which hazards of that size are not.
    right = np.where(gap == 0, 0.5, (gap > 0).astype(np.float64)) * comparable
    n_right, n_pairs = counts @ right.T, counts @ comparable.T  # (R, N): of each row, weighted by the others
    weight = _censoring_weight(time, event, counts) ** 2
    return {
        "c_index": _divide((counts * n_right).sum(axis=1), (counts * n_pairs).sum(axis=1)),
        "IPCW_c_index": _divide(
            (counts * weight * n_right).sum(axis=1), (counts * weight * n_pairs).sum(axis=1)
        ),
    }


def _censoring_weight(time: np.ndarray, event: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(R, N) inverse Kaplan-Meier estimate of staying uncensored beyond each row's time; 0 where that is 0.

    ``time`` is sorted.
    """
    starts = np.flatnonzero(np.r_[True, np.diff(time) != 0])
    drawn = np.add.reduceat(counts, starts, axis=1)
    censored = np.add.reduceat(counts * ~event, starts, axis=1)
    # Events at a time come before the censorings at that time, so they are no longer at risk of censoring.
    at_risk = drawn.sum(axis=1, keepdims=True) - np.cumsum(drawn, axis=1) + censored
    step = 1 - np.nan_to_num(_divide(censored, at_risk))
    survival = np.cumprod(step, axis=1)
    group = np.searchsorted(time[starts], time, side="right") - 1
    return np.nan_to_num(_divide(np.ones_like(survival), survival))[:, group]
