"""Models learn what bags hold, the same way every time, and never from the test part."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from acpbench.core.errors import InputError
from acpbench.mil.abmil import Mil, class_weights
from acpbench.mil.bags import PatientBag
from acpbench.mil.metrics import score_predictions
from acpbench.mil.splits import assign_folds
from acpbench.mil.train import MilSettings, load_model, predict, save_model, train_fold

DIM = 16
FAST = MilSettings(hidden_dim=16, attention_dim=8, max_epochs=40, lr=5e-3)


def make_bags(n: int, seed: int, kind: str = "binary", prefix: str = "p") -> list[PatientBag]:
    """Bags of noise in which the share of tiles along the first axis carries the label."""
    generator = np.random.default_rng(seed)
    bags = []
    for i in range(n):
        features = generator.normal(size=(int(generator.integers(20, 40)), DIM)).astype(np.float32)
        level = i % (3 if kind == "ordinal" else 2) if kind in ("binary", "ordinal") else generator.random()
        witnesses = round(level * 6)
        features[:witnesses, 0] += 6
        label: dict = {"label": "abc"[int(level)]}
        if kind == "continuous":
            label = {"value": 100 + 50 * float(level)}
        if kind == "survival":
            label = {"time": float(40 * (1.1 - level)), "event": bool(generator.random() < 0.7)}
        bags.append(PatientBag(f"{prefix}{i:03d}", features, (("s", 0, len(features)),), **label))
    return bags


def score(kind: str, classes: list[str], settings: MilSettings = FAST) -> dict:
    fitted = train_fold(make_bags(48, 0, kind, "t"), make_bags(24, 1, kind, "v"), kind, classes, settings)
    return score_predictions(kind, classes, predict(fitted, make_bags(60, 2, kind, "x")).rows)["metrics"]


@pytest.mark.parametrize("aggregator", ["gated_abmil", "abmil", "mean"])
def test_learns_a_binary_bag_problem(aggregator):
    settings = FAST.model_copy(update={"aggregator": aggregator})
    assert score("binary", ["a", "b"], settings)["AUROC"] > 0.9


def test_shuffled_labels_are_not_learnt():
    generator = np.random.default_rng(5)
    train, val = make_bags(48, 0, prefix="t"), make_bags(24, 1, prefix="v")
    noise = [PatientBag(b.patient_id, b.features, b.slides, label="ab"[generator.integers(2)]) for b in train]
    test = make_bags(200, 2, prefix="x")
    flipped = [
        PatientBag(b.patient_id, b.features, b.slides, label="ab"[generator.integers(2)]) for b in test
    ]
    rows = predict(train_fold(noise, val, "binary", ["a", "b"], FAST), flipped).rows
    assert 0.35 < score_predictions("binary", ["a", "b"], rows)["metrics"]["AUROC"] < 0.65


def test_learns_ordinal_continuous_and_survival():
    assert score("ordinal", list("abc"))["quadratic_weighted_kappa"] > 0.7
    longer = FAST.model_copy(update={"max_epochs": 120, "patience": 40})
    assert score("continuous", [], longer)["spearman_rho"] > 0.7
    assert score("survival", [], longer)["c_index"] > 0.7


def test_attention_finds_the_witnesses():
    fitted = train_fold(
        make_bags(48, 0, prefix="t"), make_bags(24, 1, prefix="v"), "binary", ["a", "b"], FAST
    )
    test = make_bags(20, 2, prefix="x")
    result = predict(fitted, test)
    for bag, weights in zip(test, result.attention, strict=True):
        assert weights.shape == (len(bag.features),) and weights.sum() == pytest.approx(1, abs=1e-5)
        if bag.label == "b":
            assert weights[:6].mean() > 2 * weights[6:].mean()


def test_class_weights_with_an_absent_class():
    weights = class_weights(torch.tensor([0, 0, 0, 2]), 3)
    # inverse frequency 1/3, -, 1; mean over the four rows 1 -> times 4 / 2
    assert weights.tolist() == pytest.approx([2 / 3, 0, 2])
    fitted = train_fold(
        make_bags(12, 0, prefix="t"), make_bags(8, 1, prefix="v"), "multiclass", list("abc"), FAST
    )
    rows = predict(fitted, make_bags(4, 2)).rows
    assert all(math.isfinite(row["prob_c"]) for row in rows)
    assert all(math.isfinite(row["val_loss"]) for row in fitted.history)
    third = [PatientBag("v99", make_bags(1, 3)[0].features, label="c")]
    fitted = train_fold(make_bags(12, 0, prefix="t"), third, "multiclass", list("abc"), FAST)
    assert math.isfinite(fitted.history[0]["val_loss"])


def test_ordinal_probabilities():
    model = Mil(DIM, "ordinal", 4)
    chances = model.probabilities(torch.tensor([[-3.0], [0.0], [3.0]]))
    assert torch.allclose(chances.sum(dim=1), torch.ones(3)) and (chances >= 0).all()
    assert chances.argmax(dim=1).tolist()[0] == 0 and chances.argmax(dim=1).tolist()[2] == 3


@pytest.mark.parametrize("kind", ["binary", "survival"])
def test_same_bytes_twice(kind):
    classes = ["a", "b"] if kind == "binary" else []

    def once() -> tuple[bytes, list]:
        torch.manual_seed(int(time.time_ns() % 1000))  # whatever came before must not matter
        fitted = train_fold(make_bags(16, 0, kind, "t"), make_bags(8, 1, kind, "v"), kind, classes, FAST)
        return save_model(fitted), predict(fitted, make_bags(6, 2, kind)).rows

    assert once() == once()


def test_order_of_bags_has_no_effect():
    train, val = make_bags(16, 0, prefix="t"), make_bags(8, 1, prefix="v")
    one = train_fold(train, val, "binary", ["a", "b"], FAST)
    two = train_fold(train[::-1], val[::-1], "binary", ["a", "b"], FAST)
    assert save_model(one) == save_model(two)


def test_early_stopping_uses_the_inner_part_only():
    fitted = train_fold(
        make_bags(24, 0, prefix="t"), make_bags(12, 1, prefix="v"), "binary", ["a", "b"], FAST
    )
    losses = [row["val_loss"] for row in fitted.history]
    assert fitted.best_epoch == int(np.argmin(losses)) + 1
    # Recompute the stored model's loss on the inner part: it must be that of the best epoch.
    rows = predict(fitted, make_bags(12, 1, prefix="v")).rows
    recomputed = -np.mean([math.log(row[f"prob_{row['y_true']}"]) for row in rows])
    assert recomputed == pytest.approx(min(losses), abs=1e-4)
    assert fitted.patients["validation"] == [f"v{i:03d}" for i in range(12)]


def test_scaling_comes_from_training_tiles_only():
    train = make_bags(16, 0, prefix="t")
    shifted = [PatientBag(b.patient_id, b.features + 100, label=b.label) for b in make_bags(8, 1, prefix="v")]
    one = train_fold(train, make_bags(8, 1, prefix="v"), "binary", ["a", "b"], FAST)
    two = train_fold(train, shifted, "binary", ["a", "b"], FAST)
    assert np.array_equal(one.feature_mean, two.feature_mean)
    assert np.allclose(one.feature_mean, np.mean([b.features.mean(0) for b in train], axis=0), atol=1e-5)


def test_model_file_round_trip():
    fitted = train_fold(make_bags(12, 0, prefix="t"), make_bags(8, 1, prefix="v"), "binary", ["a", "b"], FAST)
    data = save_model(fitted)
    loaded = load_model(data)
    assert predict(loaded, make_bags(5, 2)).rows == predict(fitted, make_bags(5, 2)).rows
    assert save_model(loaded) == data and loaded.settings == FAST
    with pytest.raises(InputError, match="model file"):
        load_model(data[: len(data) // 2])


def test_refusals():
    bags = make_bags(8, 0)
    with pytest.raises(InputError, match="training and in the inner"):
        train_fold(bags, bags[:2], "binary", ["a", "b"], FAST)
    with pytest.raises(InputError, match="only class"):
        train_fold(
            [b for b in bags if b.label == "a"], make_bags(4, 1, prefix="v"), "binary", ["a", "b"], FAST
        )
    with pytest.raises(InputError, match="inner validation"):
        train_fold(bags, [], "binary", ["a", "b"], FAST)
    with pytest.raises(InputError, match="not one of"):
        train_fold(bags, make_bags(4, 1, prefix="v"), "binary", ["a", "z"], FAST)
    fitted = train_fold(bags, make_bags(4, 1, prefix="v"), "binary", ["a", "b"], FAST)
    with pytest.raises(InputError, match="the model takes"):
        predict(fitted, [PatientBag("q", np.zeros((3, DIM + 1), np.float32))])


def test_survival_stops_on_what_the_inner_part_adds():
    """Three inner patients, none with an event: how they rank among the training patients still decides."""
    val = [
        PatientBag(b.patient_id, b.features, time=b.time, event=False)
        for b in make_bags(3, 1, "survival", "v")
    ]
    train = make_bags(16, 0, "survival", "t")
    fitted = train_fold(train, val, "survival", [], FAST)
    losses = [row["val_loss"] for row in fitted.history]
    assert len(set(losses)) > 1 and fitted.best_epoch == int(np.argmin(losses)) + 1

    def negative_likelihood(bags: list[PatientBag]) -> float:
        rows = sorted(predict(fitted, bags).rows, key=lambda row: row["time"])
        risk = np.exp([row["risk"] for row in rows])
        return sum(math.log(risk[i:].sum()) - math.log(risk[i]) for i, row in enumerate(rows) if row["event"])

    added = negative_likelihood([*train, *val]) - negative_likelihood(train)
    assert min(losses) == pytest.approx(added / 3, abs=1e-4)


def test_one_tile_is_a_bag():
    bags = [
        PatientBag(f"t{i}", np.full((1, DIM), float(i % 2), np.float32), label="ab"[i % 2]) for i in range(8)
    ]
    val = [
        PatientBag(f"v{i}", np.full((1, DIM), float(i % 2), np.float32), label="ab"[i % 2]) for i in range(4)
    ]
    rows = predict(train_fold(bags, val, "binary", ["a", "b"], FAST), val).rows
    assert [row["y_pred"] for row in rows] == list("abab")


def test_real_bags(shared_data):
    """Musk1 (92 molecules, 166 features): out-of-fold AUROC; published gated ABMIL accuracy 0.90."""
    held = np.load(shared_data / "bags" / "classic_mil_musk1.npz")
    bags = [
        PatientBag(
            f"m{i:03d}", held["X"][held["bag_id"] == i], label=["neg", "pos"][held["bag_label"][i - 1]]
        )
        for i in range(1, 93)
    ]
    folds = assign_folds([{"patient_id": b.patient_id, "stratum": b.label} for b in bags], 4, seed=0)
    rows = []
    for fold in range(4):
        parts = {k: [b for b in bags if folds[b.patient_id] == k] for k in range(4)}
        test, inner = parts.pop(fold), parts.pop((fold + 1) % 4)
        train = [bag for part in parts.values() for bag in part]
        rows += predict(train_fold(train, inner, "binary", ["neg", "pos"]), test).rows
    assert score_predictions("binary", ["neg", "pos"], rows)["metrics"]["AUROC"] > 0.8


def test_without_a_validation_part_the_last_epoch_is_kept():
    settings = FAST.model_copy(update={"max_epochs": 5, "patience": 1})
    fitted = train_fold(make_bags(12, 0, prefix="t"), None, "binary", ["a", "b"], settings)
    assert fitted.best_epoch == 5 and [row["val_loss"] for row in fitted.history] == [None] * 5
    assert fitted.patients["validation"] == [] and load_model(save_model(fitted)).best_epoch == 5
