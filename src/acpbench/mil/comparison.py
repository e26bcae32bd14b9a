"""Two models on the same patients: how far apart they are, and whether that may be chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.mil.cells import parse_event, parse_number
from acpbench.mil.class_metrics import ClassTable
from acpbench.mil.metric_values import Row
from acpbench.mil.metrics import draw_patients, interval_of, labelled_rows, resample, score_predictions


def compare_models(
    output_type: str,
    classes: Sequence[str],
    rows: Sequence[Row],
    control_rows: Sequence[Row],
    metric: str,
    *,
    cluster_key: str = "patient_id",
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare one metric of two models by a paired bootstrap of patients; AUROC also by DeLong's test.

    Every resample draws the same patients for both models. The p value is two-sided: twice the smaller share
    of resamples on either side of 0, counting the observation itself (Davison and Hinkley 1997, eq. 4.11).

    Args:
        output_type, classes: as in :func:`acpbench.mil.metrics.score_predictions`.
        rows, control_rows: prediction rows of the model and of the other one, one a patient.
        metric: name of the metric.
        cluster_key: column that names the patient.
        n_resamples: number of resamples.
        seed: seed of the resamples.

    Returns:
        ``metric``, ``value``, ``control_value`` (both on the shared patients), ``difference`` (model minus
        control), ``interval`` (95 %), ``p``, ``method``, ``n`` (patients both have), ``n_left_out`` (patients
        that only one has), ``n_resamples``, ``delong`` (``z``, ``p``, ``interval``, ``method``, or None) and
        ``note`` (why something is None, else empty).

    Raises:
        InputError: a patient twice in one table, or with another label in the other one.
    """
    ours, theirs = (_by_patient(output_type, table, cluster_key) for table in (rows, control_rows))
    shared = sorted(ours.keys() & theirs.keys())
    for name in shared:
        if _label(output_type, ours[name]) != _label(output_type, theirs[name]):
            raise InputError(f"patient {name!r} has another label in the table compared with")
    left, right = [ours[name] for name in shared], [theirs[name] for name in shared]
    scored = [score_predictions(output_type, classes, table) for table in (left, right)]
    value, control = (part["metrics"].get(metric) for part in scored)
    result: dict[str, Any] = {
        "metric": metric,
        "value": value,
        "control_value": control,
        "difference": None,
        "interval": None,
        "p": None,
        "method": "paired bootstrap of patients",
        "n": len(shared),
        "n_left_out": len(ours.keys() ^ theirs.keys()),
        "n_resamples": n_resamples,
        "delong": None,
        "note": "",
    }
    if value is None or control is None:
        side = 0 if value is None else 1
        why = scored[side]["notes"].get(metric, "not computed")
        return result | {"note": f"{'the control' if side else 'the model'}: {why}"}
    result["difference"] = value - control
    counts, n_patients = draw_patients(left, cluster_key, n_resamples, seed)
    if n_patients < 2:
        return result | {"note": "fewer than two patients"}
    draws = [resample(output_type, classes, table, counts)[metric] for table in (left, right)]
    gap = draws[0] - draws[1]
    result["interval"] = interval_of(gap)
    if result["interval"] is None:
        return result | {"note": "the metric is undefined on most resamples"}
    defined = gap[np.isfinite(gap)]
    tail = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    result["p"] = min(1.0, 2 * (tail + 1) / (len(defined) + 1))
    if output_type == "binary" and metric == "AUROC":
        tables = [ClassTable(classes, table, need_all=False) for table in (left, right)]
        result["delong"] = delong_test(
            tables[0].true == 1, tables[0].need_probability()[:, 1], tables[1].need_probability()[:, 1]
        )
    return result


def _by_patient(output_type: str, rows: Sequence[Row], key: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in labelled_rows(output_type, rows):
        name = str(row.get(key))
        if name in found:
            raise InputError(f"patient {name!r} is predicted twice", field=key)
        found[name] = row
    return found


def _label(output_type: str, row: Row) -> Any:
    if output_type == "survival":
        return parse_number(row["time"]), parse_event(row["event"])
    return parse_number(row["y_true"]) if output_type == "continuous" else str(row["y_true"])


def delong_test(positive: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """DeLong's test for two correlated areas under the ROC curve.

    DeLong, DeLong and Clarke-Pearson (Biometrics 1988, 44:837), with the structural components from midranks
    (Sun and Xu, IEEE Signal Processing Letters 2014).

    Args:
        positive: (N,) bool, the truth.
        first, second: (N,) scores of the two models, one patient a row.

    Returns:
        ``z``, two-sided ``p``, ``interval`` (95 %, of the difference first minus second), ``method``, and
        ``note``; the numbers are None, with the note, when a class has fewer than two rows or the difference
        has no variance.
    """
    from scipy import stats

    result: dict[str, Any] = {"z": None, "p": None, "interval": None, "method": "DeLong 1988", "note": ""}
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if min(n_positive, n_negative) < 2:
        return result | {"note": "fewer than two patients of one class"}
    components = []
    for score in (first, second):
        among_all = stats.rankdata(score)
        # Share of the other class that each row is ranked above (ties half): V10 and V01 of the paper.
        above = (among_all[positive] - stats.rankdata(score[positive])) / n_negative
        below = 1 - (among_all[~positive] - stats.rankdata(score[~positive])) / n_positive
        components.append((above, below))
    gaps = [components[0][side] - components[1][side] for side in (0, 1)]
    difference = float(gaps[0].mean())
    variance = float(gaps[0].var(ddof=1) / n_positive + gaps[1].var(ddof=1) / n_negative)
    if variance <= 1e-15:
        return result | {"note": "the difference has no variance"}
    error = math.sqrt(variance)
    z = difference / error
    reach = float(stats.norm.ppf(0.975)) * error
    return result | {
        "z": z,
        "p": float(2 * stats.norm.sf(abs(z))),
        "interval": [difference - reach, difference + reach],
    }


def comparison_line(comparison: Mapping[str, Any]) -> str:
    """One sentence: the difference with interval, p and n, or why there is none."""
    name, metric = comparison.get("against", "the control"), comparison["metric"]
    if comparison["difference"] is None or comparison["interval"] is None:
        return f"Against {name}: {metric} not compared ({comparison['note']}; n = {comparison['n']})."
    low, high = comparison["interval"]
    text = (
        f"Against {name}: {metric} {comparison['difference']:+.3f} [{low:+.3f}, {high:+.3f}], "
        f"p = {comparison['p']:.3f} ({comparison['method']}, n = {comparison['n']})"
    )
    delong = comparison["delong"]
    if delong is not None and delong["p"] is not None:
        text += f"; DeLong p = {delong['p']:.3f}"
    return text + "."
