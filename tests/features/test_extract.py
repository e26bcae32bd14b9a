"""From a slide and its coordinates to a feature file."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

import acpbench.slides.coords as slides_coords
from acpbench.core.errors import InputError
from acpbench.core.files import sha256_file
from acpbench.features.encoders import DeferredEncoder, load_encoder
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


def test_what_was_kept_serves_only_where_it_still_holds(slide, tmp_path, color, monkeypatch):
    """A limit is that of the call, a disk recovers, and one slide's reason is not another's."""
    path, tiles = slide
    real = slides_coords.read_tile

    def two_fail(reader, x, y, plan):
        if (x, y) in ((0, 0), (32, 0)):
            raise SlideError("unreadable", "broken", reason="read_failed")
        return real(reader, x, y, plan)

    def run(name, limit, coords="coords.h5"):
        out = extract_slide(
            path, tmp_path / coords, color, tmp_path / f"{name}.h5", store_dir=tmp_path / "store",
            max_bad_fraction=limit,
        )  # fmt: skip
        return out["cache"], out["status"], out["n_tiles"]

    monkeypatch.setattr(slides_coords, "read_tile", two_fail)
    assert run("strict", 0.0) == ("miss", "unreadable", 0)
    assert run("lax", 0.5) == ("miss", "ok", 14)
    assert run("lax", 0.5) == ("hit", "ok", 14)
    assert run("other", 0.5) == ("hit", "ok", 14)
    assert run("other2", 0.0) == ("miss", "unreadable", 0)
    assert run("lax", 0.0) == ("miss", "unreadable", 0)
    monkeypatch.setattr(slides_coords, "read_tile", real)
    assert run("strict", 0.0) == ("miss", "ok", 16)
    none = dataclasses.replace(
        tiles, coords=np.zeros((0, 2), np.int64), tissue_fractions=np.zeros(0), slide_sha256="", plan=None
    )
    for name, status, reason in (
        ("p", "unreadable", "lfs_pointer"),
        ("q", "unreadable", "missing_file"),
        ("p", "no_mpp", "x"),
    ):
        write_coords(
            tmp_path / f"{name}.c", dataclasses.replace(none, status=status, reason=reason, detail=reason)
        )
        assert run(name, 0.1, f"{name}.c") == ("miss", status, 0)
        assert read_features(tmp_path / f"{name}.h5").attrs["reason"] == reason


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


class Counted(DeferredEncoder):
    """Says whether the network was ever built."""

    loads = 0

    @property
    def weights_sha256(self) -> str:
        return "w" * 64

    def load(self):
        self.loads += 1
        return super().load()


def test_broken_coordinates_are_refused_before_anything_is_loaded(slide, tmp_path, color):
    path, _ = slide
    encoder = Counted(color.spec)
    whole = (tmp_path / "coords.h5").read_bytes()
    for left in (0, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "coords.h5").write_bytes(whole[:left])
        with pytest.raises(InputError, match=r"not a readable coords\.h5"):
            extract_slide(path, tmp_path / "coords.h5", encoder, tmp_path / "s1.h5")
    (tmp_path / "coords.h5").unlink()
    with pytest.raises(InputError, match="does not exist"):
        extract_slide(path, tmp_path / "coords.h5", encoder, tmp_path / "s1.h5")
    assert encoder.loads == 0 and not (tmp_path / "s1.h5").exists()


def test_a_slide_without_tiles_and_one_that_is_done_load_nothing(slide, tmp_path, color):
    path, tiles = slide
    encoder = Counted(color.spec)
    none = {"coords": COORDS[:0], "tissue_fractions": np.ones(0), "plan": None}
    write_coords(tmp_path / "e.h5", dataclasses.replace(tiles, status="empty_tissue", **none))
    extract_slide(path, tmp_path / "e.h5", encoder, tmp_path / "empty.h5")
    assert encoder.loads == 0 and read_features(tmp_path / "empty.h5").attrs["device"] == "none"
    extract_slide(path, tmp_path / "coords.h5", encoder, tmp_path / "s1.h5")
    assert encoder.loads > 0
    encoder.loads = 0
    assert extract_slide(path, tmp_path / "coords.h5", encoder, tmp_path / "s1.h5")["cache"] == "hit"
    assert encoder.loads == 0


def test_one_tile_is_enough(slide, tmp_path, color):
    path, tiles = slide
    one = dataclasses.replace(tiles, coords=COORDS[5:6], tissue_fractions=np.ones(1))
    write_coords(tmp_path / "coords.h5", one)
    assert extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")["n_tiles"] == 1
    bag = read_features(tmp_path / "s1.h5")
    assert bag.coords.tolist() == [[32, 32]] and bag.features[0, 0] == pytest.approx(5 * 16 / 255, abs=1e-6)


def test_an_unreadable_tile_is_left_out_and_no_blank_takes_its_place(slide, tmp_path, color, monkeypatch):
    """Encoders see real pixels only: as many tiles as features, none of them white or black by default."""
    path, _ = slide
    real, seen = slides_coords.read_tile, []

    def flaky(reader, x, y, plan):
        if (x, y) == (96, 96):
            raise SlideError("unreadable", "broken tile", reason="read_failed")
        return real(reader, x, y, plan)

    class Watching(type(color)):
        def encode(self, batch):
            seen.extend(batch.reshape(len(batch), -1).tolist())
            return super().encode(batch)

    monkeypatch.setattr(slides_coords, "read_tile", flaky)
    result = extract_slide(path, tmp_path / "coords.h5", Watching(color.spec), tmp_path / "s1.h5")
    assert (result["n_tiles"], result["n_bad_tiles"], len(seen)) == (15, 1, 15)
    assert [tile[0] for tile in seen] == [16 * i for i in range(15)]  # the 16th, of grey 240, is not there
    assert [96, 96] not in read_features(tmp_path / "s1.h5").coords.tolist()


def test_the_slide_is_read_in_a_thread_of_its_own_and_opened_there(slide, tmp_path, color, monkeypatch):
    import threading

    path, _ = slide
    real, opened, used = slides_coords.open_slide, [], []

    def opening(*arguments, **options):
        opened.append(threading.current_thread().name)
        return real(*arguments, **options)

    read = slides_coords.read_tile
    monkeypatch.setattr(slides_coords, "open_slide", opening)
    monkeypatch.setattr(
        slides_coords, "read_tile", lambda *a: (used.append(threading.current_thread().name), read(*a))[1]
    )
    extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5", batch_size=2)
    assert opened == ["read-ahead"] and set(used) == {"read-ahead"}
    assert not [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_too_little_memory_is_said_with_the_amount(slide, tmp_path, color, monkeypatch):
    import acpbench.features.extract as module

    path, _ = slide

    class Full:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, *arguments, **options):
            raise MemoryError

    monkeypatch.setattr(module, "np", Full())
    told = r"no memory for 16 tiles x 6 numbers \(0\.0 GiB\); give the job more"
    with pytest.raises(InputError, match=told):
        extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    assert not (tmp_path / "s1.h5").exists()


def test_both_sides_of_a_tile_are_in_the_file(slide, tmp_path, color):
    """0.5 x 1 um/px at level 0, tiles of 32 px at 1 um: 64 x 32 pixels of level 0."""
    path, tiles = slide
    plan = plan_tiles(((128, 128),), 0.5, 1.0, 1.0, SIDE)
    tiles = dataclasses.replace(tiles, plan=plan, mpp_y=1.0, coords=COORDS[:1], tissue_fractions=np.ones(1))
    write_coords(tmp_path / "flat.h5", dataclasses.replace(tiles, requested_spacing_um=1.0))
    extract_slide(path, tmp_path / "flat.h5", color, tmp_path / "s1.h5")
    attrs = read_features(tmp_path / "s1.h5").attrs
    assert (attrs["tile_size_level0"], attrs["tile_size_level0_y"]) == (64.0, 32.0)
    assert (attrs["mpp"], attrs["mpp_y"]) == (0.5, 1.0)


def test_the_file_says_what_its_features_are(slide, tmp_path, color):
    path, tiles = slide
    extract_slide(path, tmp_path / "coords.h5", color, tmp_path / "s1.h5")
    attrs = read_features(tmp_path / "s1.h5").attrs
    expected = {
        "encoder": "color_stats", "encoder_sha256": color.weights_sha256, "variant": "stats",
        "dtype": "float32", "compute_dtype": "float32", "spacing_um": 0.5, "tile_size_px": 32,
        "tile_size_level0": 32.0, "level": 0, "level_downsample": 1.0, "read_size_px": 32, "mpp": 0.5,
        "slide_width_px": 128, "slide_height_px": 128, "level_width_px": 128, "level_height_px": 128,
        "slide_sha256": tiles.slide_sha256, "slide_id": "s1", "status": "ok", "n_bad_tiles": 0,
    }  # fmt: skip
    assert {name: attrs[name] for name in expected} == expected
    assert len(attrs["tiler_sha256"]) == len(attrs["cache_key"]) == 64
    assert "input_size_px" in attrs["transform"]


def test_batch_size_changes_no_byte(slide, tmp_path, repository):
    """The file is the same for batches of any size: 16 tiles by fives or at once."""
    path, _ = slide
    spec = load_registry(repository / "config" / "encoders.yaml")["efficientnet_lite0"]
    small = spec.model_copy(update={"input_size_px": 64})
    encoder = load_encoder(small, device="cpu")
    whole = []
    for size in (5, 64):
        out = tmp_path / f"{size}.h5"
        extract_slide(path, tmp_path / "coords.h5", encoder, out, batch_size=size)
        whole.append(out.read_bytes())
    assert whole[0] == whole[1]
