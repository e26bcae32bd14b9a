"""Metrics against values worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.mil.calibration import expected_calibration_error
from acpbench.mil.metrics import bootstrap_intervals, score_predictions


def binary(truth: str, probabilities: list[float | None], threshold: float = 0.5) -> list[dict]:
    return [
        {
            "patient_id": f"p{i}",
            "y_true": {"0": "neg", "1": "pos", "-": ""}[t],
            "y_pred": "" if p is None else ("pos" if p >= threshold else "neg"),
            "prob_neg": None if p is None else 1 - p,
            "prob_pos": p,
        }
        for i, (t, p) in enumerate(zip(truth, probabilities, strict=True))
    ]


def survival(times: list[float], events: list[int], risks: list[float]) -> list[dict]:
    return [
        {"patient_id": f"p{i}", "time": t, "event": e, "risk": r}
        for i, (t, e, r) in enumerate(zip(times, events, risks, strict=True))
    ]


def test_auroc_counts_ties_as_half():
    # positives .8 .5, negatives .5 .2: pairs .8>.5 1, .8>.2 1, .5=.5 0.5, .5>.2 1 -> 3.5 / 4
    result = score_predictions("binary", ["neg", "pos"], binary("1100", [0.8, 0.5, 0.5, 0.2]))
    assert result["metrics"]["AUROC"] == pytest.approx(3.5 / 4)
    assert result["n_per_class"] == {"neg": 2, "pos": 2}


def test_binary_threshold_metrics():
    # predictions pos pos pos neg against 1 1 0 0: TP 2, FP 1, TN 1, FN 0
    result = score_predictions("binary", ["neg", "pos"], binary("1100", [0.8, 0.6, 0.7, 0.2]))
    metrics = result["metrics"]
    assert metrics["accuracy"] == pytest.approx(0.75)
    assert metrics["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert metrics["F1"] == pytest.approx(2 * 2 / (2 * 2 + 1))
    assert metrics["macro_F1"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert metrics["brier"] == pytest.approx((0.04 + 0.16 + 0.49 + 0.04) / 4)
    # average precision: ranks .8(+) .7(-) .6(+): 1/2 * 1 + 1/2 * 2/3
    assert metrics["AUPRC"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert result["per_class"]["pos"] == pytest.approx(
        {"recall": 1, "precision": 2 / 3, "f1": 0.8, "auroc": 0.75, "n": 2}
    )


def test_ece_bins():
    # bin 9 holds .95 .95 with one hit: |1 - 1.9| = .9; bin 1 holds .15 .15 with none: .3 -> 1.2 / 4
    assert expected_calibration_error(np.array([0.95, 0.95, 0.15, 0.15]), np.array([1, 0, 0, 0])) == (
        pytest.approx(0.3)
    )
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([1, 0])) == 0


def test_one_class_gives_none_and_reason():
    result = score_predictions("binary", ["neg", "pos"], binary("111", [0.8, 0.6, 0.7]))
    for name in ("AUROC", "AUPRC", "balanced_accuracy", "F1", "macro_F1"):
        assert result["metrics"][name] is None
        assert "one class" in result["notes"][name]
    assert result["metrics"]["accuracy"] == 1
    assert result["metrics"]["brier"] == pytest.approx((0.04 + 0.16 + 0.09) / 3)
    assert result["per_class"]["neg"]["recall"] is None


def test_rows_without_label_or_probability():
    result = score_predictions("binary", ["neg", "pos"], binary("10-", [0.8, 0.2, 0.9]))
    assert result["n"] == 2
    lacking = score_predictions("binary", ["neg", "pos"], binary("10", [0.8, None]))
    assert lacking["metrics"]["AUROC"] is None
    assert "1 of 2 rows" in lacking["notes"]["AUROC"]
    assert lacking["metrics"]["accuracy"] == 0.5  # no prediction counts as wrong
    empty = score_predictions("binary", ["neg", "pos"], [])
    assert set(empty["metrics"].values()) == {None} and empty["n"] == 0


def test_positive_probability_alone_is_enough():
    rows = [{k: v for k, v in row.items() if k != "prob_neg"} for row in binary("10", [0.8, 0.2])]
    assert score_predictions("binary", ["neg", "pos"], rows)["metrics"]["AUROC"] == 1


def test_unknown_label_is_refused():
    with pytest.raises(InputError, match="maybe"):
        score_predictions("binary", ["neg", "pos"], [{"y_true": "maybe", "y_pred": "pos"}])
    with pytest.raises(InputError, match="output type"):
        score_predictions("regression", [], [])


def test_multiclass():
    rows = [
        {"y_true": t, "y_pred": max(zip(p, "abc"))[1], "prob_a": p[0], "prob_b": p[1], "prob_c": p[2]}
        for t, p in [("a", (0.8, 0.1, 0.1)), ("b", (0.5, 0.4, 0.1)), ("c", (0.2, 0.2, 0.6))]
    ]
    metrics = score_predictions("multiclass", list("abc"), rows)["metrics"]
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["macro_OvR_AUROC"] == 1  # each class's own row has its highest probability
    # F1: a = 2*1/(2+1) = 2/3, b = 0, c = 1
    assert metrics["macro_F1"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert metrics["brier"] == pytest.approx((0.06 + (0.25 + 0.36 + 0.01) + (0.04 + 0.04 + 0.16)) / 3)
    absent = score_predictions("multiclass", [*"abc", "d"], [row | {"prob_d": 0.0} for row in rows])
    assert absent["metrics"]["macro_OvR_AUROC"] is None
    assert "1 of 4 classes absent" in absent["notes"]["macro_OvR_AUROC"]


def test_quadratic_kappa_by_hand():
    rows = [{"y_true": t, "y_pred": p} for t, p in zip("112233", "122233")]
    # observed disagreement: one pair one step apart = 1; expected from margins (2,2,2) and (1,3,2):
    # sum_ij row_i col_j (i-j)^2 / 6 = [2*(0+3*1+2*4) + 2*(1+0+2) + 2*(4+3+0)] / 6 = (22+6+14)/6 = 7
    metrics = score_predictions("ordinal", list("123"), rows)["metrics"]
    assert metrics["quadratic_weighted_kappa"] == pytest.approx(1 - 1 / 7)
    assert metrics["MAE_ranks"] == pytest.approx(1 / 6)
    rows[0]["y_pred"] = ""
    lacking = score_predictions("ordinal", list("123"), rows)
    assert lacking["metrics"]["quadratic_weighted_kappa"] is None
    assert "no prediction" in lacking["notes"]["MAE_ranks"]


def test_continuous():
    rows = [{"y_true": t, "y_pred": p} for t, p in [(1, 1.5), (2, 1.0), (3, 3.0), (4, 4.5)]]
    metrics = score_predictions("continuous", [], rows)["metrics"]
    assert metrics["MAE"] == pytest.approx((0.5 + 1 + 0 + 0.5) / 4)
    assert metrics["R2"] == pytest.approx(1 - (0.25 + 1 + 0.25) / 5)
    assert metrics["spearman_rho"] == pytest.approx(1 - 6 * 2 / (4 * 15))
    flat = score_predictions("continuous", [], [row | {"y_pred": 1} for row in rows])
    assert flat["metrics"]["spearman_rho"] is None and flat["metrics"]["MAE"] == pytest.approx(1.5)


def test_c_index_sign_and_censoring():
    # comparable pairs (earlier one has the event): (1,2) (1,3) (1,4) (3,4); patient 2 is censored
    times, events = [1, 2, 3, 4], [1, 0, 1, 0]
    earlier_is_riskier = score_predictions("survival", [], survival(times, events, [4, 3, 2, 1]))
    assert earlier_is_riskier["metrics"]["c_index"] == 1
    assert earlier_is_riskier["n_events"] == 2
    reverse = score_predictions("survival", [], survival(times, events, [1, 2, 3, 4]))
    assert reverse["metrics"]["c_index"] == 0
    # (1,2) right, (1,3) tied, (1,4) right, (3,4) wrong -> 2.5 / 4
    mixed = score_predictions("survival", [], survival(times, events, [3, 0, 3, 2.5]))
    assert mixed["metrics"]["c_index"] == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    wrong = score_predictions("survival", [], survival(times, events, [3, 0, 2, 2.5]))
    assert wrong["metrics"]["c_index"] == pytest.approx(3 / 4)


def test_survival_without_pairs():
    none = score_predictions("survival", [], survival([1, 2], [0, 0], [1, 2]))
    assert none["metrics"]["c_index"] is None and "no event" in none["notes"]["c_index"]
    last = score_predictions("survival", [], survival([1, 2], [0, 1], [1, 2]))
    assert last["metrics"]["c_index"] is None and "comparable" in last["notes"]["c_index"]
    # Followed to the very time of the event, and no further: still followed longer than the one who had it.
    same = score_predictions("survival", [], survival([1, 2, 2], [0, 1, 0], [1, 2, 1]))
    assert same["metrics"]["c_index"] == 1
    with pytest.raises(InputError, match="event"):
        score_predictions("survival", [], [{"time": 3, "event": 2, "risk": 1}])


def test_ipcw_equals_harrell_without_censoring():
    metrics = score_predictions("survival", [], survival([1, 2, 3, 4], [1, 1, 1, 1], [4, 1, 2, 3]))["metrics"]
    assert metrics["c_index"] == pytest.approx(3 / 6)
    assert metrics["IPCW_c_index"] == pytest.approx(3 / 6)


def test_bootstrap_is_seeded_and_clusters():
    generator = np.random.default_rng(0)
    truth = "".join(generator.choice(["0", "1"], 60))
    rows = binary(truth, [float(0.3 * int(t) + 0.7 * generator.random()) for t in truth])
    kwargs = {"n_resamples": 200, "metrics": ["AUROC", "accuracy"]}
    one = bootstrap_intervals("binary", ["neg", "pos"], rows, seed=1, **kwargs)
    assert one == bootstrap_intervals("binary", ["neg", "pos"], rows, seed=1, **kwargs)
    assert one != bootstrap_intervals("binary", ["neg", "pos"], rows, seed=2, **kwargs)
    value = score_predictions("binary", ["neg", "pos"], rows)["metrics"]["AUROC"]
    assert one["AUROC"][0] < value < one["AUROC"][1]
    # Each patient listed four times is the same evidence; drawn as patients the interval must not shrink.
    fourfold = bootstrap_intervals("binary", ["neg", "pos"], rows * 4, seed=1, **kwargs)
    assert fourfold["AUROC"] == pytest.approx(one["AUROC"])


def test_bootstrap_needs_clusters():
    rows = binary("10", [0.8, 0.2])
    assert bootstrap_intervals("binary", ["neg", "pos"], rows[:1])["AUROC"] is None
    with pytest.raises(InputError, match="cluster"):
        bootstrap_intervals("binary", ["neg", "pos"], [{"y_true": "pos", "y_pred": "pos"}])


@pytest.mark.parametrize("seed", range(8))
def test_concordance_is_that_of_torchsurv(seed: int):
    import torch
    from torchsurv.metrics.cindex import ConcordanceIndex
    from torchsurv.stats.ipcw import get_ipcw

    rng = np.random.default_rng(seed)
    n = 40
    # Coarse values, so that times and risks tie.
    time, event, risk = rng.integers(1, 15, n) * 1.0, rng.random(n) < 0.6, rng.integers(0, 9, n) * 0.5
    ours = score_predictions(
        "survival", [], survival(time.tolist(), event.astype(int).tolist(), risk.tolist())
    )
    tensors = [torch.from_numpy(values) for values in (risk, event, time)]
    weight = get_ipcw(tensors[1], tensors[2]).to(torch.float64)
    assert ours["metrics"]["c_index"] == pytest.approx(float(ConcordanceIndex()(*tensors)), abs=1e-9)
    weighted = float(ConcordanceIndex()(*tensors, weight=weight))
    assert ours["metrics"]["IPCW_c_index"] == pytest.approx(weighted, abs=1e-6)


def test_c_index_of_a_textbook_table_and_its_mirror_image():
    """Five patients, one censored: 8 comparable pairs, 7 in the right order with risk = 10 - time but one."""
    times, events = [2, 4, 6, 8, 10], [1, 1, 0, 1, 1]
    # Comparable: 2 with 4 6 8 10; 4 with 6 8 10; 8 with 10. Risk 8 5 4 6 1: only (4, 8) is wrong.
    risk = [8, 5, 4, 6, 1]
    found = score_predictions("survival", [], survival(times, events, risk))["metrics"]
    assert found["c_index"] == pytest.approx(7 / 8)
    mirrored = score_predictions("survival", [], survival(times, events, [-r for r in risk]))["metrics"]
    assert mirrored["c_index"] == pytest.approx(1 / 8)  # never turned round to look better


def test_tiny_risks_are_ranked_and_equal_ones_tie():
    times, events, risk = [2, 4, 6, 8, 10], [1, 1, 0, 1, 1], [8, 5, 4, 6, 1]
    for scale in (1e-12, 1e-9, 1e6):
        rows = survival(times, events, [value * scale for value in risk])
        assert score_predictions("survival", [], rows)["metrics"]["c_index"] == pytest.approx(7 / 8), scale
    # Hazards instead of their logarithms: the same order, over thirty powers of ten.
    rows = survival(times, events, [10.0 ** (4 * value - 30) for value in risk])
    assert score_predictions("survival", [], rows)["metrics"]["c_index"] == pytest.approx(7 / 8)
    flat = survival(times, events, [1e-9] * 5)
    assert score_predictions("survival", [], flat)["metrics"]["c_index"] == 0.5


def test_multiclass_classes_have_their_own_auroc():
    rows = [
        {"y_true": t, "y_pred": max(zip(p, "abc"))[1], "prob_a": p[0], "prob_b": p[1], "prob_c": p[2]}
        for t, p in [("a", (0.8, 0.1, 0.1)), ("b", (0.5, 0.2, 0.3)), ("c", (0.1, 0.3, 0.6))]
    ]
    found = score_predictions("multiclass", list("abc"), rows)["per_class"]
    # b: .2 against .1 (right) and .3 (wrong)
    assert [found[label]["auroc"] for label in "abc"] == [1, 0.5, 1]
    absent = score_predictions("multiclass", [*"abc", "d"], [row | {"prob_d": 0.0} for row in rows])
    assert absent["per_class"]["d"]["auroc"] is None and absent["per_class"]["a"]["auroc"] == 1


def test_ordinal_predictions_with_probabilities_are_calibrated_too():
    rows = [
        {"y_true": "1", "y_pred": "1", "prob_1": 0.7, "prob_2": 0.2, "prob_3": 0.1},
        {"y_true": "3", "y_pred": "2", "prob_1": 0.1, "prob_2": 0.6, "prob_3": 0.3},
    ]
    metrics = score_predictions("ordinal", list("123"), rows)["metrics"]
    assert metrics["brier"] == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.36 + 0.49) / 2)
    assert metrics["ECE"] == pytest.approx((0.3 + 0.6) / 2)
