"""Bags that do not fit, long bags, short bags, constant columns: the same numbers, or exact ones."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from acpbench.core.errors import InputError
from acpbench.features.store import FeatureBag, read_features, write_features
from acpbench.mil import fitting
from acpbench.mil.bags import PatientBag, load_bags
from acpbench.mil.prepared import Prepared, Scaler, standardiser
from acpbench.mil.stored import StoredFeatures
from acpbench.mil.train import MilSettings, predict, save_model, train_fold

DIM = 12
FAST = MilSettings(hidden_dim=8, attention_dim=4, max_epochs=6, patience=6, lr=5e-3, bag_size=16)


def write_cohort(folder, n_patients=12, dtype=np.float32, seed=0):
    """Two slides of 15 to 60 tiles for every third patient; returns the label rows."""
    generator = np.random.default_rng(seed)
    rows = []
    for p in range(n_patients):
        for s in range(2 if p % 3 == 0 else 1):
            n, slide = int(generator.integers(15, 60)), f"s{p:02d}_{s}"
            features = generator.normal(size=(n, DIM)).astype(dtype)
            features[: n // 3, 0] += 3 * (p % 2)
            attrs = {"slide_id": slide, "status": "ok", "encoder": "e", "cache_key": slide}
            corners = np.stack([np.arange(n) * 32, np.zeros(n)], axis=1).astype(np.int64)
            write_features(folder / f"{slide}.h5", FeatureBag(features, corners, attrs))
            rows.append(
                {
                    "slide_id": slide,
                    "patient_id": f"p{p:02d}",
                    "label": "ab"[p % 2],
                    "time": p + 1.0,
                    "event": 1,
                }
            )
    return rows


def bags_of(folder, rows, kind="binary"):
    return load_bags(rows, kind, lambda slide: folder / f"{slide}.h5")[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_read_from_files_are_the_rows_of_the_array(tmp_path, dtype):
    rows = write_cohort(tmp_path, dtype=dtype)
    bag = bags_of(tmp_path, rows)[0]  # two slides
    assert isinstance(bag.features, StoredFeatures) and bag.features.dtype == dtype
    whole = np.concatenate([read_features(tmp_path / f"s00_{s}.h5").features for s in (0, 1)])
    n, first = len(whole), bag.slides[0][2]
    assert bag.features.shape == whole.shape and np.array_equal(bag.read(), whole)
    assert np.array_equal(np.asarray(bag.features), whole)
    for part in (slice(0, 5), slice(first - 2, first + 3), slice(n - 1, n + 9), slice(0, 0)):
        assert np.array_equal(bag.read(part), whole[part])
    for chosen in ([0], [first - 1, first], [n - 1], list(range(n)), [3, first + 1, n - 2], []):
        assert np.array_equal(bag.read(np.array(chosen, int)), whole[np.array(chosen, int)])


def test_a_file_replaced_or_cut_during_training_is_noticed(tmp_path):
    rows = write_cohort(tmp_path, 2)
    bag = bags_of(tmp_path, rows)[1]
    path = tmp_path / "s01_0.h5"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="changed"):
        bag.read()
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        bag.read(slice(0, 1))


@pytest.mark.parametrize("kind", ["binary", "survival"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_memory_given_to_a_run_does_not_change_a_byte_of_its_model(tmp_path, kind, dtype):
    rows = write_cohort(tmp_path, dtype=dtype)
    classes = ["a", "b"] if kind == "binary" else []

    def model(cache_mb):
        bags = bags_of(tmp_path, rows, kind)
        return save_model(train_fold(bags[:8], bags[8:], kind, classes, FAST, cache_mb=cache_mb))

    in_arrays = [
        PatientBag(b.patient_id, b.read(), label=b.label, time=b.time, event=b.event)
        for b in bags_of(tmp_path, rows, kind)
    ]
    everything_held = save_model(train_fold(in_arrays[:8], in_arrays[8:], kind, classes, FAST))
    assert model(1000) == everything_held
    assert model(0) == everything_held
    assert model(0.005) == everything_held  # some bags held, others read


def test_only_what_fits_is_held():
    bags = [PatientBag(f"p{i}", np.ones((100, DIM), np.float32)) for i in range(5)]
    scaler = Scaler(np.zeros(DIM, np.float32), np.ones(DIM, np.float32), torch.device("cpu"))
    prepared = Prepared(bags, scaler, cache_bytes=2 * 100 * DIM * 4 + 50)
    assert prepared.bytes_held == 2 * 100 * DIM * 4
    half = Scaler(np.zeros(DIM, np.float32), np.ones(DIM, np.float32), torch.device("cpu"), torch.bfloat16)
    assert Prepared(bags, half, cache_bytes=2 * 100 * DIM * 4 + 50).bytes_held == 4 * 100 * DIM * 2


def test_evenly_spaced_tiles_stand_for_a_long_bag():
    features = np.arange(10, dtype=np.float32)[:, None] * np.ones(DIM, np.float32)
    scaler = Scaler(np.zeros(DIM, np.float32), np.ones(DIM, np.float32), torch.device("cpu"))
    prepared = Prepared([PatientBag("p", features)], scaler, 10**6, max_tiles=4)
    assert prepared.sizes == [4] and prepared.tiles(0)[:, 0].tolist() == [0, 2, 5, 7]


@pytest.mark.parametrize("kind", ["binary", "ordinal", "continuous", "survival"])
def test_a_step_in_passes_has_the_gradient_of_a_step_at_once(kind, monkeypatch):
    """Without dropout, whose masks depend on how the tiles are batched."""
    generator = np.random.default_rng(0)
    bags = [
        PatientBag(
            f"p{i}",
            generator.normal(size=(20, DIM)).astype(np.float32),
            label="abc"[i % 3 if kind == "ordinal" else i % 2],
            value=float(i),
            time=float(9 - i),
            event=i % 3 != 0,
        )
        for i in range(9)
    ]
    classes = {"binary": ["a", "b"], "ordinal": ["a", "b", "c"]}.get(kind, [])
    settings = FAST.model_copy(update={"dropout": 0.0, "bag_size": None, "max_epochs": 3, "batch_size": 6})
    weights = []
    for limit in (10**6, 50):
        monkeypatch.setattr(fitting, "PASS_TILES", limit)
        monkeypatch.setattr(fitting, "COX_PASS_TILES", limit)
        fitted = train_fold(bags[:6], bags[6:], kind, classes, settings)
        weights.append(fitted.model.state_dict())
        losses = [row["train_loss"] for row in fitted.history]
        weights[-1]["losses"] = torch.tensor(losses)
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=2e-5), name


def test_dropout_of_the_two_passes_is_the_same(monkeypatch):
    """The second pass must see the masks of the first, or its gradient would be of other outputs."""
    seen = []
    monkeypatch.setattr(fitting, "COX_PASS_TILES", 50)
    original = fitting.Run._forward

    def spy(self, bags, drawn):
        output = original(self, bags, drawn)
        if self.model.training:
            seen.append((torch.is_grad_enabled(), output.detach().clone()))
        return output

    monkeypatch.setattr(fitting.Run, "_forward", spy)
    generator = np.random.default_rng(0)
    bags = [
        PatientBag(f"p{i}", generator.normal(size=(20, DIM)).astype(np.float32), time=i + 1.0, event=True)
        for i in range(9)
    ]
    settings = FAST.model_copy(update={"dropout": 0.5, "bag_size": None, "max_epochs": 1})
    train_fold(bags[:6], bags[6:], "survival", [], settings)
    first = [output for with_gradient, output in seen if not with_gradient]
    second = [output for with_gradient, output in seen if with_gradient]
    assert len(first) == len(second) == 3
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)


def test_standardiser_by_hand_and_constant_columns():
    # Patients with means 1 and 5 and variances 1 and 4: mean 3, spread sqrt((1 + 4) / 2 + 4) = sqrt(6.5)
    one = np.array([[0, 7, 1e4], [2, 7, 1e4]], np.float32)
    two = np.array([[3, 7, 1e4], [7, 7, 1e4], [3, 7, 1e4], [7, 7, 1e4]], np.float32)
    mean, scale = standardiser([PatientBag("a", one), PatientBag("b", two)])
    assert mean.tolist() == pytest.approx([3, 7, 1e4])
    assert scale.tolist() == pytest.approx([6.5**0.5, 1, 1])
    # A constant in float16 noise-free columns stays 0 after scaling; it is never blown up.
    scaled = Scaler(mean, scale, torch.device("cpu"))(one)
    assert scaled[:, 1:].tolist() == [[0, 0], [0, 0]]


def test_standardiser_of_large_common_values_loses_nothing():
    generator = np.random.default_rng(0)
    features = (generator.normal(size=(20_000, 3)) + 5000).astype(np.float32)
    mean, scale = standardiser([PatientBag("a", features), PatientBag("b", features[:100])])
    exact = [features.astype(float), features[:100].astype(float)]
    centre = np.mean([part.mean(0) for part in exact], axis=0)
    spread = np.sqrt(np.mean([((part - centre) ** 2).mean(0) for part in exact], axis=0))
    assert mean == pytest.approx(centre, rel=1e-6) and scale == pytest.approx(spread, rel=1e-4)


@pytest.mark.parametrize("aggregator", ["gated_abmil", "abmil", "mean"])
def test_fewer_tiles_than_asked_for_are_all_taken(aggregator):
    """bag_size 16 with bags of 1, 2 and 3 tiles."""
    settings = FAST.model_copy(update={"aggregator": aggregator})
    bags = [
        PatientBag(f"p{i}", np.full((1 + i % 3, DIM), float(i % 2), np.float32), label="ab"[i % 2])
        for i in range(12)
    ]
    fitted = train_fold(bags[:8], bags[8:], "binary", ["a", "b"], settings)
    predicted = predict(fitted, bags[8:])
    assert [len(share) for share in predicted.attention] == [1 + i % 3 for i in range(8, 12)]
    for share in predicted.attention:
        assert share.sum() == pytest.approx(1, abs=1e-5)


def test_a_sampled_step_draws_distinct_tiles_and_prediction_takes_all():
    settings = FAST.model_copy(update={"bag_size": 7})
    bags = [PatientBag(f"p{i}", np.ones((30, DIM), np.float32) * i, label="ab"[i % 2]) for i in range(6)]
    sizes = []
    original = fitting.Run._draw

    def spy(self, n_tiles):
        rows = original(self, n_tiles)
        sizes.append(rows)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.Run, "_draw", spy)
        fitted = train_fold(bags[:4], bags[4:], "binary", ["a", "b"], settings)
    assert all(len(rows) == 7 == len(set(rows.tolist())) for rows in sizes)
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in sizes)
    assert len({tuple(rows.tolist()) for rows in sizes}) > 1
    assert len(predict(fitted, bags[:1]).attention[0]) == 30


@pytest.mark.parametrize("kind", ["binary", "survival"])
def test_bf16_learns_what_fp32_learns(kind):
    from tests.mil.test_train import make_bags

    classes = ["a", "b"] if kind == "binary" else []
    parts = [make_bags(n, seed, kind, prefix) for n, seed, prefix in ((24, 0, "t"), (12, 1, "v"))]
    found = {}
    for precision in ("fp32", "bf16"):
        settings = MilSettings(
            hidden_dim=16, attention_dim=8, max_epochs=8, lr=5e-3, precision=precision, device="cpu"
        )
        fitted = train_fold(*parts, kind, classes, settings)
        assert all(value.dtype == torch.float32 for value in fitted.model.state_dict().values())
        found[precision] = [row["val_loss"] for row in fitted.history]
        assert save_model(train_fold(*parts, kind, classes, settings)) == save_model(fitted)
    # bfloat16 keeps 8 bits of the mantissa: losses agree to about 1 %, and are not the same numbers.
    assert found["bf16"] != found["fp32"]
    assert found["bf16"] == pytest.approx(found["fp32"], rel=0.05, abs=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["binary", "ordinal", "survival"])
def test_cuda_gives_what_the_cpu_gives(kind, precision):
    from tests.mil.test_train import make_bags

    classes = {"binary": ["a", "b"], "ordinal": ["a", "b", "c"]}.get(kind, [])
    parts = [make_bags(n, seed, kind, prefix) for n, seed, prefix in ((24, 0, "t"), (12, 1, "v"))]
    losses = {}
    for device in ("cpu", "cuda"):
        settings = MilSettings(
            hidden_dim=16, attention_dim=8, max_epochs=5, dropout=0, device=device, precision=precision
        )
        # Weights start from the CPU's generator on both.
        losses[device] = [row["val_loss"] for row in train_fold(*parts, kind, classes, settings).history]
    tolerance = 1e-3 if precision == "fp32" else 0.05
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=tolerance, abs=tolerance)


def test_a_device_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    bags = [PatientBag(f"p{i}", np.ones((3, DIM), np.float32), label="ab"[i % 2]) for i in range(4)]
    with pytest.raises(InputError, match="no CUDA device"):
        train_fold(bags[:2], bags[2:], "binary", ["a", "b"], FAST.model_copy(update={"device": "cuda"}))


def test_reading_leaves_no_file_open(tmp_path):
    rows = write_cohort(tmp_path, 3)
    bags = bags_of(tmp_path, rows)
    before = len(os.listdir("/proc/self/fd"))
    for bag in bags * 20:
        bag.read()
        bag.read(np.array([0, 1]))
    assert len(os.listdir("/proc/self/fd")) == before
