"""Two models on the same patients, and reliability of probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv
from acpbench.mil.comparison import compare_models, comparison_line, delong_test
from acpbench.mil.metrics import score_predictions
from acpbench.mil.reliability import reliability_bins, write_reliability
from tests.mil.test_metrics import binary, survival


def random_pair(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < 0.4
    shared = rng.normal(size=n) + positive
    scores = [np.round(shared + rng.normal(size=n) * spread, 1) for spread in (0.5, 1.5)]  # with ties
    return positive, *scores


def delong_by_definition(positive, first, second):
    """DeLong 1988, equations 4 to 6, pair by pair."""
    v10, v01, areas = [], [], []
    for score in (first, second):
        cases, controls = score[positive], score[~positive]
        psi = [[1.0 if x > y else 0.5 if x == y else 0.0 for y in controls] for x in cases]
        v10.append([sum(row) / len(controls) for row in psi])
        v01.append([sum(row[j] for row in psi) / len(cases) for j in range(len(controls))])
        areas.append(sum(map(sum, psi)) / (len(cases) * len(controls)))
    variance = 0.0
    for components, n in ((v10, len(v10[0])), (v01, len(v01[0]))):
        s = [
            [sum((a - areas[i]) * (b - areas[k]) for a, b in zip(components[i], components[k])) / (n - 1)
             for k in range(2)] for i in range(2)
        ]  # fmt: skip
        variance += (s[0][0] + s[1][1] - 2 * s[0][1]) / n
    return areas, variance


@pytest.mark.parametrize("seed", range(6))
def test_delong_is_its_definition(seed):
    positive, first, second = random_pair(35, seed)
    areas, variance = delong_by_definition(positive, first, second)
    found = delong_test(positive, first, second)
    z = (areas[0] - areas[1]) / math.sqrt(variance)
    assert found["z"] == pytest.approx(z)
    assert found["p"] == pytest.approx(math.erfc(abs(z) / math.sqrt(2)))
    middle = sum(found["interval"]) / 2
    assert middle == pytest.approx(areas[0] - areas[1])
    assert found["interval"][1] - middle == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-6)


def test_delong_by_hand():
    # Cases A and B, controls c and d. Model 1 ranks both cases first: components 1 1 / 1 1. Model 2 ranks
    # A > c > B > d: cases 1 and 1/2, controls 1/2 and 1, area 3/4.
    positive = np.array([True, True, False, False])
    found = delong_test(positive, np.array([4.0, 3, 2, 1]), np.array([4.0, 2, 3, 1]))
    # Gaps: cases 0 and 1/2 (variance 1/8), controls 1/2 and 0 (1/8); variance 1/8 / 2 + 1/8 / 2 = 1/8
    assert found["z"] == pytest.approx(0.25 / math.sqrt(1 / 8))
    same = delong_test(positive, np.array([4.0, 3, 2, 1]), np.array([8.0, 7, 6, 5]))
    assert same["p"] is None and "no variance" in same["note"]
    few = delong_test(np.array([True, False, False]), np.ones(3), np.ones(3))
    assert few["z"] is None and "fewer than two" in few["note"]


def test_delong_has_its_size_under_the_null():
    """Two equally good models: about 5 % of p values below .05 (binomial 99.9 % bounds for 400 draws)."""
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        positive = rng.random(60) < 0.5
        shared = rng.normal(size=60) + positive
        found = delong_test(positive, shared + rng.normal(size=60), shared + rng.normal(size=60))
        rejected += found["p"] < 0.05
    assert 8 <= rejected <= 35


def rows_of(positive, score):
    return binary("".join("1" if p else "0" for p in positive), [float(s) for s in score])


def test_a_better_model_is_told_from_its_control():
    rng = np.random.default_rng(0)
    positive = np.arange(80) % 2 == 0
    good = np.clip(0.35 + 0.3 * positive + rng.normal(size=80) * 0.12, 0, 1)
    chance = rng.random(80)
    found = compare_models(
        "binary", ["neg", "pos"], rows_of(positive, good), rows_of(positive, chance), "AUROC"
    )
    expected = [
        score_predictions("binary", ["neg", "pos"], rows_of(positive, s))["metrics"]["AUROC"]
        for s in (good, chance)
    ]
    assert found["difference"] == pytest.approx(expected[0] - expected[1])
    assert (found["value"], found["control_value"]) == tuple(expected)
    assert found["interval"][0] > 0.2 and found["p"] < 0.01 and found["delong"]["p"] < 0.001
    assert found["n"] == 80 and found["n_left_out"] == 0
    assert f"{found['difference']:+.3f}" in comparison_line(found | {"against": "color_stats"})
    again = compare_models(
        "binary", ["neg", "pos"], rows_of(positive, good), rows_of(positive, chance), "AUROC"
    )
    assert again == found


def test_a_model_against_itself_differs_by_nothing():
    positive, first, _ = random_pair(40, 1)
    rows = rows_of(positive, 1 / (1 + np.exp(-first)))
    found = compare_models("binary", ["neg", "pos"], rows, rows, "AUROC", n_resamples=200)
    assert found["difference"] == 0 and found["interval"] == [0, 0] and found["p"] == 1.0


def test_only_shared_patients_are_compared_and_their_labels_must_agree():
    rows = binary("101010", [0.9, 0.2, 0.8, 0.4, 0.3, 0.6])
    found = compare_models("binary", ["neg", "pos"], rows, rows[:5], "AUROC", n_resamples=100)
    assert (found["n"], found["n_left_out"]) == (5, 1)
    with pytest.raises(InputError, match="'p0' has another label"):
        compare_models("binary", ["neg", "pos"], rows, binary("0", [0.9]), "AUROC")
    with pytest.raises(InputError, match="predicted twice"):
        compare_models("binary", ["neg", "pos"], [*rows, rows[0]], rows, "AUROC")


def test_no_comparison_gives_none_and_the_reason():
    rows = binary("111", [0.9, 0.2, 0.8])
    found = compare_models("binary", ["neg", "pos"], rows, rows, "AUROC")
    assert found["difference"] is None and "one class" in found["note"]
    assert "not compared" in comparison_line(found)
    lacking = compare_models(
        "binary", ["neg", "pos"], binary("10", [0.9, 0.1]), binary("10", [0.9, None]), "AUROC"
    )
    assert lacking["p"] is None and lacking["note"].startswith("the control: 1 of 2 rows")


@pytest.mark.parametrize("kind", ["survival", "ordinal", "continuous"])
def test_other_endpoints_are_compared_by_bootstrap_alone(kind):
    rng = np.random.default_rng(2)
    if kind == "survival":
        time = (rng.random(50) * 10).tolist()
        event = (rng.random(50) < 0.7).astype(int).tolist()
        tables = [survival(time, event, [-t for t in time]), survival(time, event, rng.random(50).tolist())]
        metric, classes = "c_index", []
    elif kind == "ordinal":
        truth = [str(i % 3) for i in range(60)]
        noise = [str(v) for v in rng.integers(0, 3, 60)]
        tables = [
            [{"patient_id": i, "y_true": t, "y_pred": p} for i, (t, p) in enumerate(zip(truth, given))]
            for given in (truth, noise)
        ]
        metric, classes = "quadratic_weighted_kappa", list("012")
    else:
        value = rng.normal(size=50)
        tables = [
            [{"patient_id": i, "y_true": t, "y_pred": p} for i, (t, p) in enumerate(zip(value, given))]
            for given in (value, rng.normal(size=50))
        ]
        metric, classes = "spearman_rho", []
    found = compare_models(kind, classes, *tables, metric, n_resamples=300)
    assert found["value"] == pytest.approx(1) and found["interval"][0] > 0 and found["p"] < 0.02
    assert found["delong"] is None


def test_reliability_bins_by_hand():
    # .05 .05 (no hit), .95 .95 .9 (two hits): bins 0 and 9
    rows = binary("00110", [0.05, 0.05, 0.95, 0.95, 0.9])
    bins, note = reliability_bins("binary", ["neg", "pos"], rows)
    assert note == "" and [row["n"] for row in bins] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 3]
    assert bins[9]["mean_probability"] == pytest.approx(2.8 / 3, abs=1e-6)
    assert bins[9]["observed"] == pytest.approx(2 / 3, abs=1e-6) and bins[1]["observed"] is None
    # Wilson 1927 for 2 of 3: (2 + z²/2 ± z sqrt(2/3 + z²/4)) / (3 + z²)
    z = 1.959964
    reach = z * math.sqrt(2 / 3 + z * z / 4)
    assert bins[9]["observed_low"] == pytest.approx((2 + z * z / 2 - reach) / (3 + z * z), abs=1e-5)
    assert bins[9]["observed_high"] == pytest.approx((2 + z * z / 2 + reach) / (3 + z * z), abs=1e-5)
    ece = score_predictions("binary", ["neg", "pos"], rows)["metrics"]["ECE"]
    from_bins = sum(row["n"] * abs(row["observed"] - row["mean_probability"]) for row in bins if row["n"]) / 5
    assert ece == pytest.approx(from_bins, abs=1e-5)


def test_reliability_files_are_the_same_bytes_and_say_why_they_are_empty(tmp_path):
    rows = binary("0011", [0.1, 0.4, 0.6, 0.9])
    for name in ("one", "two"):
        write_reliability(
            tmp_path / f"{name}.csv", tmp_path / f"{name}.svg", "binary", ["neg", "p$s"],
            [r | {"y_true": r["y_true"].replace("pos", "p$s"), "prob_p$s": r["prob_pos"]} for r in rows],
            "a $task", 0.25,
        )  # fmt: skip
    for kind in ("csv", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    picture = (tmp_path / "one.svg").read_text()
    assert "ECE 0.250, n = 4" in picture and len(read_csv(tmp_path / "one.csv")) == 10
    for kind, why in (("survival", "no class probabilities"), ("binary", "rows have no probability")):
        given = survival([1, 2], [1, 0], [2, 1]) if kind == "survival" else binary("01", [0.1, None])
        write_reliability(tmp_path / "x.csv", tmp_path / "x.svg", kind, ["neg", "pos"], given, "t", None)
        assert why in (tmp_path / "x.svg").read_text() and read_csv(tmp_path / "x.csv") == []
