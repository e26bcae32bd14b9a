"""Feature files are trusted through their sidecar only."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.features.store import FeatureBag, is_complete, read_features, sidecar_path, write_features


def bag(n: int = 5, dtype=np.float16, **attrs) -> FeatureBag:
    features = np.arange(n * 3, dtype=dtype).reshape(n, 3)
    coords = np.arange(n * 2, dtype=np.int64).reshape(n, 2)
    held = {
        "slide_id": "s1",
        "status": "ok",
        "encoder": "e",
        "cache_key": "k",
        "transform": {"b": 1, "a": None},
    }
    return FeatureBag(features, coords, held | attrs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_round_trip(tmp_path, dtype):
    path = tmp_path / "s1.h5"
    write_features(path, bag(dtype=dtype))
    read = read_features(path)
    assert read.features.dtype == dtype and np.array_equal(read.features, bag(dtype=dtype).features)
    assert np.array_equal(read.coords, bag().coords) and read.slide_id == "s1" and read.status == "ok"
    assert json.loads(read.attrs["transform"]) == {"a": None, "b": 1}
    sidecar = json.loads(sidecar_path(path).read_text())
    assert sidecar["n_tiles"] == 5 and sidecar["status"] == "ok" and sidecar["cache_key"] == "k"
    with h5py.File(path) as handle:
        assert handle["features"].chunks is None  # contiguous
    first = path.read_bytes()
    write_features(path, bag(dtype=dtype))
    assert path.read_bytes() == first


def test_excluded_slide(tmp_path):
    write_features(tmp_path / "s1.h5", bag(0, status="empty_tissue"))
    read = read_features(tmp_path / "s1.h5")
    assert read.features.shape == (0, 3) and read.coords.shape == (0, 2) and read.status == "empty_tissue"


def test_without_sidecar_or_cut_short_it_is_not_trusted(tmp_path):
    path = tmp_path / "s1.h5"
    write_features(path, bag())
    assert is_complete(path) and is_complete(path, "k") and not is_complete(path, "other")
    whole = path.read_bytes()
    path.write_bytes(whole[:-16])
    assert not is_complete(path)
    with pytest.raises(InputError, match="does not match its sidecar"):
        read_features(path)
    path.write_bytes(whole)
    assert is_complete(path)
    sidecar_path(path).unlink()
    assert not is_complete(path)
    with pytest.raises(InputError, match="did not finish"):
        read_features(path)
    sidecar_path(path).write_text("{")
    assert not is_complete(path)


def test_a_failed_rewrite_leaves_no_claim(tmp_path, monkeypatch):
    path = tmp_path / "s1.h5"
    write_features(path, bag())
    monkeypatch.setattr(
        h5py.Group, "create_dataset", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        write_features(path, bag(7))
    assert not is_complete(path)
    assert [p.name for p in tmp_path.iterdir()] == ["s1.h5"]


def test_what_is_refused(tmp_path):
    broken = bag()
    broken.features[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        write_features(tmp_path / "s1.h5", broken)
    with pytest.raises(InputError, match="do not agree"):
        write_features(tmp_path / "s1.h5", FeatureBag(bag(5).features, bag(4).coords, bag().attrs))
    with pytest.raises(InputError, match="without cache_key"):
        write_features(
            tmp_path / "s1.h5",
            FeatureBag(bag().features, bag().coords, {"slide_id": "s", "status": "ok", "encoder": "e"}),
        )
    assert list(tmp_path.iterdir()) == []
