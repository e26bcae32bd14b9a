"""Feature files are trusted through their sidecar only."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.features.foreign import read_any_features
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


def test_reading_takes_no_lock(tmp_path):
    """Network file systems refuse locks or hold stale ones (errno 11, 37): readers must not ask for any."""
    import fcntl

    path = tmp_path / "s1.h5"
    write_features(path, bag())
    with open(path, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="lock"):
            h5py.File(path, "r", locking=True)
        assert len(read_features(path).features) == 5
        assert len(read_any_features(path).features) == 5


def test_made_on_scratch_and_copied_in_one_sweep(tmp_path, monkeypatch):
    """Where HDF5 cannot work in the target folder, it never touches it: the bytes arrive whole."""
    plain = tmp_path / "plain.h5"
    write_features(plain, bag())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("ACPBENCH_SCRATCH", str(scratch))
    real, opened = h5py.File, []

    def watched(name, mode="r", **options):
        if mode == "w":
            opened.append(str(name))
        return real(name, mode, **options)

    monkeypatch.setattr(h5py, "File", watched)
    write_features(tmp_path / "network" / "s1.h5", bag())
    assert len(opened) == 1 and opened[0].startswith(str(scratch)) and list(scratch.iterdir()) == []
    assert (tmp_path / "network" / "s1.h5").read_bytes() == plain.read_bytes()
    assert [p.name for p in (tmp_path / "network").iterdir() if p.name.startswith(".")] == []


def test_a_file_is_hashed_once_a_process_and_again_when_it_changed(tmp_path, monkeypatch):
    import hashlib

    import acpbench.features.store as store

    path, hashed = tmp_path / "s1.h5", []
    write_features(path, bag())
    real = hashlib.sha256

    class Counted:
        @staticmethod
        def sha256(*data):
            hashed.append(len(data))
            return real(*data)

    monkeypatch.setattr(store, "hashlib", Counted)
    for _ in range(3):
        assert np.array_equal(read_features(path).features, bag().features)
    assert len(hashed) == 1
    whole = bytearray(path.read_bytes())
    at = bytes(whole).index(bag().features.tobytes())
    whole[at] ^= 1  # one bit of one feature, size unchanged
    path.write_bytes(bytes(whole))
    with pytest.raises(InputError, match="does not match its sidecar"):
        read_features(path)


def test_what_is_read_can_be_changed_without_touching_the_next_reading(tmp_path):
    path = tmp_path / "s1.h5"
    write_features(path, bag())
    read_features(path).features[:] = 7
    assert np.array_equal(read_features(path).features, bag().features)


def test_a_file_of_another_layout_with_a_sidecar_of_its_own(tmp_path):
    import json as js

    from acpbench.core.files import sha256_file

    path = tmp_path / "s1.h5"
    with h5py.File(path, "w") as handle:
        handle["features"] = np.zeros((2, 3), np.float16)
    sidecar = {"slide_id": "s1", "encoder": "e", "cache_key": "k", "n_tiles": 2, "status": "ok"}
    sidecar_path(path).write_text(js.dumps({**sidecar, "sha256": sha256_file(path)}))
    with pytest.raises(InputError, match="not a feature file"):
        read_features(path)
