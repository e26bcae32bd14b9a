"""Resampled metrics equal what the libraries give for the same rows repeated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from acpbench.mil.metrics import resample, score_predictions
from acpbench.mil.resampling import multiplicities

N_RESAMPLES = 12


def table(kind: str, n: int, seed: int) -> tuple[list[str], list[dict]]:
    generator = np.random.default_rng(seed)
    if kind == "survival":
        # Whole-number times and risks make ties of every sort.
        return [], [
            {
                "time": int(generator.integers(1, 8)),
                "event": int(generator.integers(0, 2)),
                "risk": int(generator.integers(0, 4)),
            }
            for _ in range(n)
        ]
    if kind == "continuous":
        return [], [
            {"y_true": float(v), "y_pred": float(v + generator.normal())} for v in generator.normal(size=n)
        ]
    classes = ["a", "b"] if kind == "binary" else ["a", "b", "c"]
    rows = []
    for _ in range(n):
        chances = np.round(generator.dirichlet(np.ones(len(classes))), 1)
        chances[-1] = 1 - chances[:-1].sum()
        row = {f"prob_{label}": float(p) for label, p in zip(classes, chances, strict=True)}
        if (chances < 0).any():
            row = {f"prob_{label}": 1 / len(classes) for label in classes}
        predicted = "" if kind != "ordinal" and generator.random() < 0.1 else str(generator.choice(classes))
        rows.append(row | {"y_true": str(generator.choice(classes)), "y_pred": predicted})
    return classes, rows


@pytest.mark.parametrize("kind", ["binary", "multiclass", "ordinal", "continuous", "survival"])
@pytest.mark.parametrize("n", [6, 30])
def test_equal_to_the_libraries(kind, n):
    """With six rows, resamples lose classes or comparable pairs, so undefined cases must agree too."""
    classes, rows = table(kind, n, seed=n)
    counts = multiplicities([np.array([i]) for i in range(n)], n, N_RESAMPLES, seed=1)
    names = list(score_predictions(kind, classes, rows)["metrics"])
    fast = resample(kind, classes, rows, counts)
    assert set(fast) == set(names)
    for index, count in enumerate(counts.astype(int)):
        repeated = [row for row, times in zip(rows, count, strict=True) for _ in range(times)]
        for name, value in score_predictions(kind, classes, repeated)["metrics"].items():
            got = fast[name][index]
            assert math.isnan(got) if value is None else got == pytest.approx(value, abs=1e-6), (name, index)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1e-7), (1e6, 1.0), (1e9, 1.0)])
def test_an_offset_or_a_small_unit_makes_no_label_constant(offset: float, scale: float):
    generator = np.random.default_rng(3)
    true = generator.integers(0, 4, 12) * scale + offset
    predicted = true + generator.normal(size=12) * scale
    rows = [{"y_true": float(t), "y_pred": float(p)} for t, p in zip(true, predicted, strict=True)]
    counts = multiplicities([np.array([i]) for i in range(12)], 12, N_RESAMPLES, seed=1)
    fast = resample("continuous", [], rows, counts)["R2"]
    for index, count in enumerate(counts.astype(int)):
        repeated = [row for row, times in zip(rows, count, strict=True) for _ in range(times)]
        value = score_predictions("continuous", [], repeated)["metrics"]["R2"]
        assert fast[index] == pytest.approx(value, rel=1e-6)
    alone = np.zeros((1, 12))
    alone[0, 5] = 12
    assert math.isnan(resample("continuous", [], rows, alone)["R2"][0])


def test_whole_clusters_are_drawn():
    counts = multiplicities([np.array([0, 2]), np.array([1]), np.array([3, 4, 5])], 6, 50, seed=0)
    assert (counts[:, 0] == counts[:, 2]).all() and (counts[:, 3] == counts[:, 5]).all()
    assert (counts[:, 0] + counts[:, 1] + counts[:, 3] == 3).all()
