"""Open slides as resources: one a process and thread, bounded caches, alive after errors."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image

import acpbench.slides.backends as backends
from acpbench.slides.coords import TileSet, read_tiles
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import plan_tiles
from acpbench.slides.reader import open_slide
from tests.slides.pictures import (
    encode_tile,
    textured_picture,
    write_jpeg_tiff,
    write_pyramid,
    write_repeated_tile_tiff,
)


@pytest.fixture(params=["jpeg", "zlib", "strips", "png"])
def slide(tmp_path, request):
    """One slide for each way of reading."""
    picture = textured_picture(128, 128)
    path = tmp_path / f"{request.param}.tif"
    if request.param == "jpeg":
        return write_jpeg_tiff(path, picture)
    if request.param == "zlib":
        return write_pyramid(path, picture, compression="zlib")
    if request.param == "strips":
        tifffile.imwrite(path, picture, photometric="rgb", rowsperstrip=16)
        return path
    Image.fromarray(picture).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def _outcome(read) -> str:
    try:
        read()
    except RuntimeError as error:
        return str(error)
    return "read"


def test_reader_of_another_thread_is_refused(slide):
    with open_slide(slide, 0.5) as reader:
        said = []
        thread = threading.Thread(
            target=lambda: said.append(_outcome(lambda: reader.read_region(0, 0, 0, 8, 8)))
        )
        thread.start()
        thread.join()
        assert "once per worker" in said[0]
        assert reader.read_region(0, 0, 0, 8, 8).shape == (8, 8, 3)


def _in_child(reader, queue):
    queue.put(_outcome(lambda: reader.read_region(0, 0, 0, 8, 8)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_reader_carried_over_a_fork_is_refused(slide):
    context = multiprocessing.get_context("fork")
    with open_slide(slide, 0.5) as reader:
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(reader, queue))
        child.start()
        assert "once per worker" in queue.get(timeout=30)
        child.join(30)
        assert reader.read_region(0, 0, 0, 8, 8).shape == (8, 8, 3)


def _stream_in_child(path, coords, queue):
    plan = plan_tiles(((128, 128),), 0.5, 0.5, 0.5, 32)
    tiles = TileSet("s", "", "ok", "", "", coords, np.ones(len(coords)), 0.5, 32, plan, 0.5, 0.5)
    queue.put(np.concatenate([batch.pixels for batch in read_tiles(path, tiles)]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_that_open_for_themselves_read_the_same(slide):
    coords = np.array([[x, y] for y in range(0, 128, 32) for x in range(0, 128, 32)])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_stream_in_child, args=(slide, coords, queue)) for _ in range(3)]
    for child in children:
        child.start()
    results = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(30)
    assert results[0].std() > 10
    assert all(np.array_equal(result, results[0]) for result in results)


def test_handle_is_opened_again_after_an_error(tmp_path):
    """libtiff, OpenSlide and an error: the handle refuses everything from then on, ours does not."""
    picture = textured_picture(128, 128)
    path = write_pyramid(tmp_path / "a.tif", picture, compression="zlib")
    with tifffile.TiffFile(path) as tiff:
        start, count = tiff.pages[0].dataoffsets[1], tiff.pages[0].databytecounts[1]
    data = bytearray(path.read_bytes())
    data[start : start + count] = bytes(count)
    path.write_bytes(data)
    with openslide.OpenSlide(path) as dead:
        with pytest.raises(openslide.OpenSlideError):
            dead.read_region((64, 0), 0, (64, 64))
        with pytest.raises(openslide.OpenSlideError):
            dead.read_region((0, 0), 0, (64, 64))
    with open_slide(path) as reader:
        for _ in range(3):
            with pytest.raises(SlideError):
                reader.read_region(64, 0, 0, 64, 64)
            assert np.array_equal(reader.read_region(0, 0, 0, 64, 64), picture[:64, :64])


def test_slide_that_vanishes_and_comes_back(tmp_path):
    """Each read fails with its reason while a share is away, and the reader works again afterwards."""
    picture = textured_picture(128, 128)
    path = write_pyramid(tmp_path / "a.tif", picture, compression="zlib")
    with tifffile.TiffFile(path) as tiff:
        start, count = tiff.pages[0].dataoffsets[3], tiff.pages[0].databytecounts[3]
    good = path.read_bytes()
    path.write_bytes(good[:start] + bytes(count) + good[start + count :])
    with open_slide(path) as reader:
        with pytest.raises(SlideError):
            reader.read_region(64, 64, 0, 64, 64)
        path.unlink()
        for _ in range(2):
            with pytest.raises(SlideError) as caught:
                reader.read_region(0, 0, 0, 64, 64)
            assert caught.value.status == "unreadable"
        path.write_bytes(good)
        assert np.array_equal(reader.read_region(64, 64, 0, 64, 64), picture[64:, 64:])


def test_openslide_cache_is_capped(tmp_path, monkeypatch):
    asked = []
    real = openslide.OpenSlideCache
    monkeypatch.setattr(openslide, "OpenSlideCache", lambda size: asked.append(size) or real(size))
    path = write_pyramid(tmp_path / "a.tif", textured_picture(64, 64), compression="zlib")
    open_slide(path).close()
    assert asked == [backends.OPENSLIDE_CACHE_BYTES] and asked[0] <= 64 * 1024 * 1024


def test_unbounded_region_is_refused(slide):
    with open_slide(slide, 0.5) as reader:
        for size in ((0, 5), (5, -1), (1_000_000, 1_000_000)):
            with pytest.raises(ValueError, match="cannot read a region"):
                reader.read_region(0, 0, 0, *size)
        with pytest.raises(ValueError, match="level 1 of 1"):
            reader.read_region(0, 0, 1, 8, 8)


STREAM = """
import sys
import numpy as np
from acpbench.slides.coords import TileSet, read_tiles
from acpbench.slides.geometry import plan_tiles, tile_grid
from acpbench.slides.reader import open_slide
path, count, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open_slide(path) as reader:
    plan = plan_tiles(reader.level_dimensions, 0.25, 0.25, 0.25, 256)
    coords = tile_grid(*reader.dimensions, plan)[:count] + np.array([left, 0])
# The last tile lies partly beyond the slide.
tiles = TileSet("s", "", "ok", "", "", coords, np.full(len(coords), 0.5), 0.25, 256, plan, 0.25, 0.25)
stream = read_tiles(path, tiles)
n = sum(len(batch.pixels) for batch in stream)
print(n, next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def _peak_mib(path, count: int, left: int) -> float:
    command = [sys.executable, "-c", STREAM, str(path), str(count), str(left)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    n, kib = done.stdout.split()
    assert int(n) == count
    return int(kib) / 1024


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """200,000 tiles of 256 px that are all the same bytes."""
    tile = encode_tile(textured_picture(256, 256), quality=60)
    return write_repeated_tile_tiff(tmp_path_factory.mktemp("large") / "a.tif", 500, 400, tile)


@pytest.mark.parametrize("left", [0, 100])
def test_memory_does_not_grow_with_the_tiles_read(large, left):
    few, many = _peak_mib(large, 600, left), _peak_mib(large, 4000, left)
    assert many < 1024 and many - few < 150


@pytest.mark.slow
def test_slide_of_200_000_tiles_streams_within_4_gib(large):
    assert _peak_mib(large, 200_000, 0) < 1024


def test_using_slides_imports_no_gpu_library(tmp_path):
    """A parent that had a CUDA context could not fork, and would hold memory on every device."""
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(512, 512))
    code = (
        "import sys\n"
        "from acpbench.slides.tiling import TilingSettings, tile_file\n"
        "from acpbench.slides.coords import read_tiles\n"
        f"tiles = tile_file({str(path)!r}, TilingSettings(0.5, 64, min_tissue=0.0), slide_id='s')\n"
        f"assert sum(len(b.pixels) for b in read_tiles({str(path)!r}, tiles)) == 64\n"
        "found = {'torch', 'cucim', 'cupy', 'timm', 'torchvision'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
