"""From a slide and its coordinates to a feature file."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

import acpbench.slides.coords as slides_coords
from acpbench.core.errors import InputError
from acpbench.core.files import sha256_file
from acpbench.features.encoders import load_encoder
from acpbench.features.extract import extract_slide, store_path
from acpbench.features.registry import load_registry
from acpbench.features.store import read_features
from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import plan_tiles

SIDE = 32
COORDS = np.array([[x, y] for y in range(0, 128, SIDE) for x in range(0, 128, SIDE)], dtype=np.int64)


@pytest.fixture(scope="module")
def color(repository):
    return load_encoder(load_registry(repository / "config" / "encoders.yaml")["color_stats"])


@pytest.fixture
def slide(tmp_path):
    """A 128 x 128 image at 0.5 um/px whose 16 tiles each have one grey level, and its coordinates."""
    pixels = np.repeat(np.repeat(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16, SIDE, 0), SIDE, 1)
    path = tmp_path / "slide.png"
    Image.fromarray(np.stack([pixels] * 3, axis=-1)).save(path)
    tiles = TileSet(
        slide_id="s1",
        slide_sha256=sha256_file(path),
        status="ok",
        reason="",
        detail="",
        coords=COORDS,
        tissue_fractions=np.ones(16),
        requested_spacing_um=0.5,
        tile_size_px=SIDE,
        plan=plan_tiles(((128, 128),), 0.5, 0.5, 0.5, SIDE),
        mpp_x=0.5,
        mpp_y=0.5,
    )
    write_coords(tmp_path / "coords.h5", tiles)
    return path, tiles


def test_features_belong_to_their_coordinates(slide, tmp_path, color):
    path, _ = slide
    result = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5", batch_size=5)
    assert (result["cache"], result["n_tiles"], result["n_bad_tiles"], result["status"]) == (
        "miss",
        16,
        0,
        "ok",
    )
    bag = read_features(tmp_path / "s1.h5")
    assert np.array_equal(bag.coords, COORDS) and bag.features.dtype == np.float32
    assert bag.features[:, 0].tolist() == pytest.approx([16 * i / 255 for i in range(16)], abs=1e-6)
    assert bag.attrs["spacing_um"] == 0.5 and bag.attrs["tile_size_px"] == SIDE


def test_cache_key_follows_its_inputs(slide, tmp_path, color):
    path, tiles = slide
    first = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    again = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    assert again["cache"] == "hit" and again["cache_key"] == first["cache_key"]
    write_coords(
        tmp_path / "coords.h5", dataclasses.replace(tiles, coords=COORDS[:8], tissue_fractions=np.ones(8))
    )
    fewer = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    assert fewer["cache"] == "miss" and fewer["n_tiles"] == 8 and fewer["cache_key"] != first["cache_key"]


def test_store_is_shared_and_keeps_the_right_identity(slide, tmp_path, color):
    path, tiles = slide
    store = tmp_path / "store"
    one = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "a" / "s1.h5", store_dir=store)
    assert store_path(store, one["cache_key"]).is_file()
    write_coords(tmp_path / "coords.h5", dataclasses.replace(tiles, slide_id="s2"))
    two = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "b" / "s2.h5", store_dir=store)
    assert two["cache"] == "hit" and two["slide_id"] == "s2"
    assert read_features(tmp_path / "b" / "s2.h5").slide_id == "s2"
    with pytest.raises(InputError, match="cache key"):
        store_path(store, "../x")


def test_excluded_slide_gets_an_empty_file(slide, tmp_path, color):
    path, tiles = slide
    empty = dataclasses.replace(
        tiles,
        status="empty_tissue",
        reason="no_tissue",
        coords=COORDS[:0],
        tissue_fractions=np.ones(0),
        plan=None,
    )
    write_coords(tmp_path / "coords.h5", empty)
    result = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    assert result["status"] == "empty_tissue" and result["n_tiles"] == 0
    assert read_features(tmp_path / "s1.h5").features.shape == (0, 6)


@pytest.mark.parametrize(("bad", "status", "n_tiles"), [({3}, "ok", 15), ({1, 2, 3, 4}, "unreadable", 0)])
def test_unreadable_tiles(slide, tmp_path, color, monkeypatch, bad, status, n_tiles):
    path, _ = slide
    real = slides_coords.read_tile

    def flaky(reader, x, y, plan):
        if (x // SIDE) + 4 * (y // SIDE) in bad:
            raise SlideError("unreadable", "broken tile", reason="read_failed")
        return real(reader, x, y, plan)

    monkeypatch.setattr(slides_coords, "read_tile", flaky)
    result = extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    assert (result["status"], result["n_tiles"]) == (status, n_tiles)
    bag = read_features(tmp_path / "s1.h5")
    if status == "ok":
        assert result["n_bad_tiles"] == 1
        assert np.array_equal(bag.coords, np.delete(COORDS, 3, axis=0))
        assert bag.features[3, 0] == pytest.approx(16 * 4 / 255, abs=1e-6)
    else:
        assert bag.attrs["reason"] == "bad_tiles"


def test_changed_slide_and_wrong_spacing(slide, tmp_path, color, repository):
    path, _ = slide
    Image.new("RGB", (128, 128)).save(path)
    with pytest.raises(InputError, match="changed since"):
        extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    spec = color.spec.model_copy(update={"spacing_um": [1.0]})
    strict = type(color)(spec)
    with pytest.raises(InputError, match=r"the tiles have 0\.5"):
        extract_slide(path, tmp_path / "coords.h5", strict, tmp_path / "s1.h5")
    assert not (tmp_path / "s1.h5").exists()
