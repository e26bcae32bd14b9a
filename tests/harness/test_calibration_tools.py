"""Calibration and comparison on validation patients, by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from acpbench.core.files import write_csv
from acpbench.harness.calibration_tools import recalibration
from acpbench.harness.registry import call_tool
from tests.harness.build import Side, write_predictions

A, B = "outputs/round_0/predictions.csv", "reflection/round_1/predictions.csv"
OUTPUT = "outputs/round_0/calibration.json"


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_slope_and_intercept_of_a_table_worked_by_hand() -> None:
    # Three of four happen at logit 1, one of four at logit -1: a + b = ln 3, a - b = -ln 3.
    confidence = np.array([sigmoid(1)] * 4 + [sigmoid(-1)] * 4)
    hit = np.array([1, 1, 1, 0, 1, 0, 0, 0], float)
    slope, intercept, note = recalibration(confidence, hit)
    assert note == ""
    assert slope == pytest.approx(math.log(3), rel=1e-4)
    assert intercept == pytest.approx(0, abs=1e-4)
    # The same outcomes at half the logit need twice the slope.
    flat = np.array([sigmoid(0.5)] * 4 + [sigmoid(-0.5)] * 4)
    assert recalibration(flat, hit)[0] == pytest.approx(2 * math.log(3), rel=1e-4)


@pytest.mark.parametrize(
    ("confidence", "hit", "word"),
    [
        ([0.2, 0.4], [1, 1], "one class"),
        ([0.4, 0.4], [0, 1], "equal"),
        ([0.2, 0.9], [0, 1], "without overlap"),
        ([0.9, 0.2], [0, 1], "without overlap"),
        ([0.0, 1.0], [0, 1], "without overlap"),
    ],
)
def test_a_slope_that_does_not_exist_is_null_with_its_reason(
    confidence: list[float], hit: list[float], word: str
) -> None:
    slope, intercept, note = recalibration(np.array(confidence), np.array(hit, float))
    assert (slope, intercept) == (None, None)
    assert word in note


def validation(side: Side) -> dict[str, str]:
    """Validation patients of the side and their class: P03 low, P09 high, P15 low."""
    return {row["patient_id"]: row["label"] for row in side.rows if row["split"] == "validation"}


def test_calibration_of_three_patients(side: Side) -> None:
    assert validation(side) == {"P03": "low", "P09": "high", "P15": "low"}
    context = side.context()
    write_predictions(context, A, {"P03": 0.1, "P09": 0.8, "P15": 0.4, "P04": 0.9}, side)
    answer = call_tool(context, "assess_calibration", {"predictions": A, "output": OUTPUT})
    assert answer["exit_status"] == "ok", answer["error"]
    result = answer["result"]
    assert (result["n"], result["event"]) == (3, "high")
    assert result["prevalence"] == pytest.approx(1 / 3)
    assert result["mean_confidence"] == pytest.approx(1.3 / 3)
    # Brier: (0.01 + 0.04 + 0.16) / 3; every patient has a bin of his own: (0.1 + 0.2 + 0.4) / 3.
    assert result["metrics"]["brier"] == pytest.approx(0.07)
    assert result["metrics"]["ECE"] == pytest.approx(0.7 / 3)
    assert "without overlap" in result["notes"]["slope"]
    filled = [row for row in result["bins"] if row["n"]]
    assert [(row["mean_probability"], row["observed"]) for row in filled] == [(0.1, 0), (0.4, 0), (0.8, 1)]
    assert len(result["bins"]) == 10
    document = json.loads(context.path(OUTPUT).read_text())
    assert (document["split"], document["n"]) == ("validation", 3)
    assert "P09" not in context.path(OUTPUT).read_text()


@pytest.mark.parametrize("missing", ["prob_low", "prob_high"])
def test_one_probability_column_is_enough_for_two_classes(side: Side, missing: str) -> None:
    context = side.context()
    rows = [
        {"case_id": name, "split": "validation", "y_pred": "low", "prob_low": 1 - p, "prob_high": p}
        for name, p in {"P03": 0.1, "P09": 0.8, "P15": 0.4}.items()
    ]
    columns = [name for name in rows[0] if name != missing]
    write_csv(context.path(A), columns, rows)
    answer = call_tool(context, "assess_calibration", {"predictions": A, "output": OUTPUT})
    assert answer["result"]["metrics"]["brier"] == pytest.approx(0.07)


def test_an_endpoint_without_probabilities_is_said_to_have_none(tmp_path: Any) -> None:
    side = Side(tmp_path, "demo_survival")
    context = side.context()
    rows = [{"case_id": f"P{i:02d}", "split": "validation", "risk": i} for i in (3, 9, 15)]
    write_csv(context.path(A), list(rows[0]), rows)
    error = call_tool(context, "assess_calibration", {"predictions": A, "output": OUTPUT})["error"]
    assert "no class probabilities" in error


def compare(context: Any, **changes: Any) -> dict[str, Any]:
    args = {"predictions_a": A, "predictions_b": B, "output": "reflection/round_1/comparison.json",
            "n_resamples": 500}  # fmt: skip
    return call_tool(context, "compare_predictions", args | changes)


def test_a_table_that_ranks_right_beats_one_that_ranks_wrong(side: Side) -> None:
    context = side.context()
    write_predictions(context, A, {"P03": 0.8, "P09": 0.1, "P15": 0.7}, side)
    write_predictions(context, B, {"P03": 0.1, "P09": 0.8, "P15": 0.2}, side)
    answer = compare(context)
    assert answer["exit_status"] == "ok", answer["error"]
    result = answer["result"]
    assert (result["metric"], result["n"], result["n_left_out"]) == ("AUROC", 3, 0)
    assert (result["value_a"], result["value_b"], result["difference"]) == (0.0, 1.0, 1.0)
    assert result["interval"] == [1.0, 1.0]
    assert result["statement"].startswith("Table b is better in AUROC on these 3 patients")
    brier = compare(context, metric="brier")["result"]
    # a: (0.64 + 0.81 + 0.49) / 3, b: (0.01 + 0.04 + 0.04) / 3; a lower Brier score is better.
    assert brier["difference"] == pytest.approx((0.09 - 1.94) / 3)
    assert brier["higher_is_better"] is False
    assert brier["statement"].startswith("Table b is better in brier")
    swapped = compare(context, predictions_a=B, predictions_b=A)["result"]
    assert swapped["difference"] == -1.0
    assert swapped["statement"].startswith("Table a is better")


def test_equal_tables_cannot_be_told_apart(side: Side) -> None:
    context = side.context()
    for path in (A, B):
        write_predictions(context, path, {"P03": 0.1, "P09": 0.8, "P15": 0.2}, side)
    result = compare(context)["result"]
    assert (result["difference"], result["interval"]) == (0.0, [0.0, 0.0])
    assert "do not part the two tables" in result["statement"]
    assert result["p"] == 1.0


def test_only_shared_validation_patients_are_compared(side: Side) -> None:
    context = side.context()
    write_predictions(context, A, {"P03": 0.1, "P09": 0.8, "P15": 0.2, "P04": 0.4}, side)
    write_predictions(context, B, {"P03": 0.1, "P09": 0.8, "P10": 0.4}, side)
    result = compare(context, metric="accuracy")["result"]
    assert (result["n"], result["n_left_out"]) == (2, 1)
    write_predictions(context, B, {"P15": 0.1}, side)
    write_predictions(context, A, {"P03": 0.1}, side)
    assert "no validation patient in common" in compare(context)["error"]


def test_a_metric_of_another_endpoint_is_refused_with_those_there_are(side: Side) -> None:
    context = side.context()
    for path in (A, B):
        write_predictions(context, path, {"P03": 0.1, "P09": 0.8}, side)
    error = compare(context, metric="c_index")["error"]
    assert "'c_index'" in error and "AUROC" in error
