"""Reliability of predicted probabilities: how often what was given a probability happened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acpbench.core.files import atomic_path, write_csv
from acpbench.mil.calibration import N_CALIBRATION_BINS, calibration_bins
from acpbench.mil.class_metrics import ClassTable
from acpbench.mil.metric_values import METRICS, Row
from acpbench.mil.metrics import labelled_rows

BIN_COLUMNS = ["bin_low", "bin_high", "n", "mean_probability", "observed", "observed_low", "observed_high"]
_STYLE = {
    "svg.hashsalt": "acpbench",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
_SVG_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def reliability_bins(
    output_type: str, classes: Sequence[str], rows: Sequence[Row]
) -> tuple[list[dict[str, Any]], str]:
    """The bins behind the expected calibration error, on the same probabilities.

    Binary endpoints: probability of the positive class and whether it was the truth. Multiclass and ordinal:
    probability of the likeliest class and whether that was the truth.

    Returns:
        One row for each of ten equal bins (``observed`` is a share with its 95 % Wilson interval; None in an
        empty bin), and an empty note; or no row and why.

    Raises:
        InputError: as in :func:`acpbench.mil.metrics.score_predictions`.
    """
    from scipy.stats import binomtest

    if "ECE" not in METRICS[output_type]:
        return [], f"{output_type} endpoints have no class probabilities"
    kept = labelled_rows(output_type, rows)
    table = ClassTable(classes, kept, need_all=output_type != "binary")
    if not kept:
        return [], "no labelled row"
    if table.probability is None:
        return [], table.no_probability
    if output_type == "binary":
        confidence, hit = table.probability[:, 1], table.true == 1
    else:
        confidence = table.probability.max(axis=1)
        hit = table.probability.argmax(axis=1) == table.true
    bins = calibration_bins(confidence)
    found = []
    for index in range(N_CALIBRATION_BINS):
        here = bins == index
        n, hits = int(here.sum()), int(hit[here].sum())
        row: dict[str, Any] = dict.fromkeys(BIN_COLUMNS)
        row |= {"bin_low": index / N_CALIBRATION_BINS, "bin_high": (index + 1) / N_CALIBRATION_BINS, "n": n}
        if n:
            edges = binomtest(hits, n).proportion_ci(method="wilson")
            row |= {
                "mean_probability": round(float(confidence[here].mean()), 6),
                "observed": round(hits / n, 6),
                "observed_low": round(float(edges.low), 6),
                "observed_high": round(float(edges.high), 6),
            }
        found.append(row)
    return found, ""


def write_reliability(
    csv_path: str | os.PathLike[str],
    svg_path: str | os.PathLike[str],
    output_type: str,
    classes: Sequence[str],
    rows: Sequence[Row],
    title: str,
    ece: float | None,
) -> None:
    """Write the bins as CSV and the reliability plot as SVG; without probabilities the plot says why.

    The same rows give the same bytes.
    """
    bins, note = reliability_bins(output_type, classes, rows)
    write_csv(csv_path, BIN_COLUMNS, bins)
    what = f"P({classes[1]})" if output_type == "binary" else "probability of the likeliest class"
    _draw(svg_path, bins, note, title, what, ece)


def _draw(
    path: str | os.PathLike[str],
    bins: Sequence[Mapping[str, Any]],
    note: str,
    title: str,
    what: str,
    ece: float | None,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    def literal(text: str) -> str:
        # A dollar sign would start mathematics.
        return text.replace("$", r"\$")

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "Agg", **_STYLE}):
        figure, axes = pyplot.subplots(figsize=(3.6, 3.8))
        axes.set_title(literal(title), loc="left", fontsize=9.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.plot([0, 1], [0, 1], color="#999999", lw=0.8, ls="--")
        filled = [row for row in bins if row["n"]]
        if filled:
            x = [row["mean_probability"] for row in filled]
            y = np.array([row["observed"] for row in filled])
            low = y - [row["observed_low"] for row in filled]
            high = np.array([row["observed_high"] for row in filled]) - y
            spread = np.clip([low, high], 0, None)
            axes.errorbar(x, y, yerr=spread, fmt="o-", ms=4, lw=1, capsize=2, color="#1f5fa8")
            for a, b, row in zip(x, y, filled, strict=True):
                axes.annotate(str(row["n"]), (a, b), xytext=(4, 5), textcoords="offset points", fontsize=7)
            n = sum(row["n"] for row in filled)
            shown = "not available" if ece is None else f"{ece:.3f}"
            axes.text(0.98, 0.04, f"ECE {shown}, n = {n}", ha="right", transform=axes.transAxes)
        else:
            axes.text(0.5, 0.5, literal(note), ha="center", wrap=True, transform=axes.transAxes, fontsize=8)
        axes.set_xlabel(literal(f"{what}, mean of a bin"))
        axes.set_ylabel("share observed (95 % Wilson)")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="svg", metadata=_SVG_METADATA)
        pyplot.close(figure)
