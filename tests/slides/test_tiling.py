"""Tiling, coords.h5 and the tile stream."""

import dataclasses
import subprocess
import sys

import h5py
import numpy as np
import pytest
import tifffile
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_file, write_json
from acpbench.slides.coords import read_coords, read_tiles, write_coords
from acpbench.slides.errors import SlideError
from acpbench.slides.tiling import TilingSettings, tile_file, tile_slide_to_files
from tests.slides.pictures import tissue_picture, write_pyramid

SETTINGS = TilingSettings(spacing_um=1.0, tile_size_px=64)
CONTRACT = (
    "requested_spacing_um",
    "read_spacing_um",
    "effective_spacing_um",
    "tile_size_px",
    "tile_size_level0",
    "level",
    "tiler_version",
)


@pytest.fixture
def slide(tmp_path):
    """1024 x 768 px at 0.5 um/px; tissue in x 256..768, y 128..640: 16 tiles of 64 px at 1 um/px."""
    picture = tissue_picture(1024, 768, [(256, 128, 512, 512)])
    return write_pyramid(tmp_path / "slide.tif", picture, sizes=[(512, 384), (256, 192)])


def test_tiles_of_a_tissue_square(slide):
    tiles = tile_file(slide, SETTINGS, slide_id="s")
    assert tiles.status == "ok"
    expected = [[x, y] for y in range(128, 640, 128) for x in range(256, 768, 128)]
    assert tiles.coords.tolist() == expected
    assert tiles.counts["n_grid"] == 8 * 6 and tiles.counts["n_tiles"] == 16
    assert tiles.tissue_fractions.min() > 0.9
    assert tiles.slide_sha256 == sha256_file(slide)


def test_tissue_share_decides(tmp_path):
    # Tissue covers 96 of 128 px of the second column of tiles: 75 %.
    picture = tissue_picture(1024, 768, [(0, 0, 224, 768)])
    path = write_pyramid(tmp_path / "a.tif", picture)
    half = tile_file(path, SETTINGS, slide_id="a")
    assert sorted(set(half.coords[:, 0].tolist())) == [0, 128]
    most = tile_file(path, TilingSettings(1.0, 64, min_tissue=0.9), slide_id="a")
    assert sorted(set(most.coords[:, 0].tolist())) == [0]
    everything = tile_file(path, TilingSettings(1.0, 64, min_tissue=0.0), slide_id="a")
    assert len(everything.coords) == 48


def test_layout_of_coords_file(slide, tmp_path):
    tiles = tile_slide_to_files(slide, tmp_path / "out" / "coords.h5", SETTINGS, slide_id="s")
    with h5py.File(tmp_path / "out" / "coords.h5") as handle:
        dataset = handle["coords"]
        assert dataset.dtype == np.int64 and dataset.shape == (16, 2)
        for holder in (handle, dataset):
            assert set(CONTRACT) <= set(holder.attrs)
            assert holder.attrs["requested_spacing_um"] == 1.0
            assert holder.attrs["read_spacing_um"] == pytest.approx(1.0, rel=1e-4)
            assert holder.attrs["effective_spacing_um"] == pytest.approx(1.0, rel=1e-4)
            assert holder.attrs["tile_size_px"] == 64
            assert holder.attrs["tile_size_level0"] == 128.0
            assert holder.attrs["level"] == 1
            assert holder.attrs["slide_id"] == "s" and holder.attrs["status"] == "ok"
            assert holder.attrs["slide_sha256"] == tiles.slide_sha256
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["coords.h5"]


def test_coords_file_comes_back_and_its_bytes_are_stable(slide, tmp_path):
    tiles = tile_file(slide, SETTINGS, slide_id="s")
    write_coords(tmp_path / "a.h5", tiles)
    write_coords(tmp_path / "b.h5", tile_file(slide, SETTINGS, slide_id="s"))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    back = read_coords(tmp_path / "a.h5")
    for field in dataclasses.fields(tiles):
        left, right = getattr(tiles, field.name), getattr(back, field.name)
        assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, field.name


def test_excluded_slide_holds_no_tiles_and_comes_back(tmp_path):
    tiles = tile_slide_to_files(tmp_path / "none.svs", tmp_path / "coords.h5", SETTINGS, slide_id="s")
    back = read_coords(tmp_path / "coords.h5")
    assert (back.status, back.reason, back.plan, back.mpp_x) == ("unreadable", "missing_file", None, None)
    assert back.coords.shape == (0, 2) and back.detail == tiles.detail
    with h5py.File(tmp_path / "coords.h5") as handle:
        assert set(CONTRACT) <= set(handle.attrs)
        assert np.isnan(handle.attrs["read_spacing_um"]) and handle.attrs["level"] == -1
    with pytest.raises(ValueError, match="has no tiles"):
        write_coords(tmp_path / "x.h5", dataclasses.replace(tiles, coords=np.zeros((1, 2), np.int64)))


def test_statuses(tmp_path, slide):
    def status(path, settings=SETTINGS, mpp=None):
        tiles = tile_file(path, settings, slide_id="s", declared_mpp=mpp)
        assert (tiles.status == "ok") == bool(len(tiles.coords))
        return tiles.status, tiles.reason

    blank = write_pyramid(tmp_path / "blank.tif", np.full((400, 400, 3), 245, np.uint8))
    sparse = write_pyramid(tmp_path / "sparse.tif", tissue_picture(1024, 768, [(200, 200, 240, 240)]))
    few = write_pyramid(tmp_path / "few.tif", tissue_picture(1024, 768, [(256, 128, 256, 256)]))
    none = write_pyramid(tmp_path / "none.tif", tissue_picture(400, 400, [(0, 0, 400, 400)]), mpp=None)
    small = write_pyramid(tmp_path / "small.tif", tissue_picture(500, 500, [(0, 0, 500, 500)]))
    assert status(slide) == ("ok", "")
    assert status(blank) == ("empty_tissue", "no_tissue")
    assert status(sparse, TilingSettings(1.0, 256)) == ("emptied_by_filter", "min_tissue")
    assert status(few, TilingSettings(1.0, 64, min_tiles=5)) == ("too_few_tiles", "min_tiles")
    assert status(few) == ("ok", "")
    assert status(none) == ("no_mpp", "mpp_missing")
    assert status(none, mpp=0.5) == ("ok", "")
    assert status(small, TilingSettings(1.0, 512)) == ("too_few_tiles", "slide_smaller_than_tile")
    assert status(slide, TilingSettings(0.25, 64)) == ("too_coarse", "upsampling_refused")


def test_pen_is_not_tiled(tmp_path):
    picture = tissue_picture(1024, 768, [(0, 0, 1024, 768)])
    picture[:, 256:512] = (40, 150, 70)
    tiles = tile_file(write_pyramid(tmp_path / "a.tif", picture), SETTINGS, slide_id="a")
    assert set(tiles.coords[:, 0].tolist()) == {0, 128, 512, 640, 768, 896}
    picture[:] = (40, 150, 70)
    tiles = tile_file(write_pyramid(tmp_path / "b.tif", picture), SETTINGS, slide_id="b")
    assert (tiles.status, tiles.reason) == ("emptied_by_filter", "artefact")


def test_given_polygons_are_used_instead(slide, tmp_path):
    ring = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    document = {
        "type": "FeatureCollection",
        "features": [
            {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        ],
    }
    write_json(tmp_path / "tissue.geojson", document)
    tiles = tile_file(slide, SETTINGS, slide_id="s", tissue_geojson=tmp_path / "tissue.geojson")
    assert tiles.coords.tolist() == [[0, 0], [128, 0], [0, 128], [128, 128]]


def test_stream_reads_the_right_pixels(slide):
    tiles = tile_file(slide, SETTINGS, slide_id="s")
    level1 = tifffile.imread(slide, key=1)
    stream = read_tiles(slide, tiles, batch_size=5)
    batches = list(stream)
    assert [len(batch.indices) for batch in batches] == [5, 5, 5, 1]
    assert np.concatenate([batch.indices for batch in batches]).tolist() == list(range(16))
    assert (stream.n_read, stream.n_bad) == (16, 0)
    for batch in batches:
        assert batch.pixels.dtype == np.uint8 and batch.pixels.shape[1:] == (64, 64, 3)
        for (x, y), pixels in zip(batch.coords.tolist(), batch.pixels, strict=True):
            assert np.array_equal(pixels, level1[y // 2 : y // 2 + 64, x // 2 : x // 2 + 64])


def test_stream_shrinks_by_area_where_there_is_no_level(tmp_path):
    picture = tissue_picture(1024, 768, [(0, 0, 1024, 768)])
    path = write_pyramid(tmp_path / "a.tif", picture)
    tiles = tile_file(path, SETTINGS, slide_id="a")
    assert tiles.plan.resized and tiles.plan.level == 0
    batch = next(iter(read_tiles(path, tiles)))
    expected = picture[:128, :128].reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))
    assert np.abs(batch.pixels[0] - expected).max() <= 1.0  # two rounded passes


def test_same_tissue_at_two_scan_resolutions_looks_the_same(tmp_path):
    fine = tissue_picture(512, 512, [(0, 0, 512, 512)])
    coarse = np.asarray(Image.fromarray(fine).resize((256, 256), Image.Resampling.BOX))
    settings = TilingSettings(0.5, 64, min_tissue=0.0, min_tiles=1)
    pictures = []
    for name, picture, mpp in [("f", fine, 0.25), ("c", coarse, 0.5)]:
        path = write_pyramid(tmp_path / f"{name}.tif", picture, mpp=(mpp, mpp))
        tiles = tile_file(path, settings, slide_id=name)
        pictures.append(np.concatenate([batch.pixels for batch in read_tiles(path, tiles)]))
    assert pictures[0].shape == pictures[1].shape == (16, 64, 64, 3)
    assert np.abs(pictures[0].astype(int) - pictures[1]).max() <= 1


def _damage(path, page, segments):
    with tifffile.TiffFile(path) as tiff:
        where = [(tiff.pages[page].dataoffsets[i], tiff.pages[page].databytecounts[i]) for i in segments]
    data = bytearray(path.read_bytes())
    for start, length in where:
        data[start : start + length] = bytes(length)
    path.write_bytes(data)


def test_bad_tiles_are_left_out_and_counted(tmp_path):
    picture = tissue_picture(1024, 1024, [(0, 0, 1024, 1024)])
    path = write_pyramid(tmp_path / "a.tif", picture, compression="jpeg", tile=64, mpp=(1.0, 1.0))
    tiles = tile_file(path, SETTINGS, slide_id="a")
    assert len(tiles.coords) == 256
    _damage(path, 0, [17, 200])
    stream = read_tiles(path, tiles, batch_size=100)
    indices = np.concatenate([batch.indices for batch in stream])
    assert sorted(set(range(256)) - set(indices.tolist())) == [17, 200]
    assert (stream.n_read, stream.n_bad) == (254, 2)
    assert (stream.bad[0].index, stream.bad[0].x_level0, stream.bad[0].y_level0) == (17, 64, 64)
    assert sum(1 for _ in stream) == 3 and stream.n_bad == 2  # a second pass starts afresh


def test_too_many_bad_tiles_fail_the_slide(tmp_path):
    picture = tissue_picture(512, 512, [(0, 0, 512, 512)])
    path = write_pyramid(tmp_path / "a.tif", picture, compression="jpeg", tile=64, mpp=(1.0, 1.0))
    tiles = tile_file(path, SETTINGS, slide_id="a")
    assert len(tiles.coords) == 64
    _damage(path, 0, range(10, 16))  # 6 of 64: 9.4 %
    assert sum(len(batch.indices) for batch in read_tiles(path, tiles)) == 58
    _damage(path, 0, [30])  # 7 of 64: 10.9 %
    with pytest.raises(SlideError) as caught:
        list(read_tiles(path, tiles))
    assert (caught.value.status, caught.value.reason) == ("unreadable", "bad_tiles")


def test_empty_set_streams_nothing_without_opening_the_slide(tmp_path):
    tiles = tile_file(tmp_path / "none.svs", SETTINGS, slide_id="s")
    assert list(read_tiles(tmp_path / "none.svs", tiles)) == []


def test_coords_are_read_while_another_process_holds_a_lock(slide, tmp_path):
    """Shared mounts without locks, and writers that died with one, must not stop a reader."""
    tiles = tile_slide_to_files(slide, tmp_path / "c.h5", SETTINGS, slide_id="s")
    code = (
        "import fcntl, sys\nhandle = open(sys.argv[1], 'r+b')\nfcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c.h5")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert read_coords(tmp_path / "c.h5").coords.tolist() == tiles.coords.tolist()
        holder.stdin.close()


@pytest.mark.parametrize("content", [None, b"", b"not hdf5"])
def test_bad_coords_files_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "c.h5").write_bytes(content)
    with pytest.raises(InputError):
        read_coords(tmp_path / "c.h5")


@pytest.mark.parametrize(
    "wrong", [{"min_tissue": 1.5}, {"min_tiles": 0}, {"spacing_um": 0}, {"tile_size_px": 0}]
)
def test_nonsense_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        TilingSettings(**({"spacing_um": 0.5, "tile_size_px": 256} | wrong))
