"""Files that look ordinary and would give wrong pixels or places: each is read right or refused in words."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from PIL import Image

from acpbench.slides.coords import read_coords, read_tiles
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import odd_levels, plan_tiles
from acpbench.slides.reader import open_slide
from acpbench.slides.tiling import TilingSettings, tile_slide_to_files
from tests.slides.pictures import textured_picture, tissue_picture, write_pyramid


def test_tiles_that_the_file_leaves_out_are_bad_where_the_mask_has_tissue(tmp_path):
    """The coarser level is whole, so tissue is found; half of level 0 has no bytes."""
    picture = tissue_picture(1024, 1024, [(128, 128, 768, 768)])
    path = write_pyramid(tmp_path / "s.tif", picture, sizes=[(256, 256)], compression="zlib", tile=128)
    coords = tmp_path / "coords.h5"
    tiles = tile_slide_to_files(path, coords, TilingSettings(0.5, 128), slide_id="s")
    assert (tiles.status, len(tiles.coords)) == ("ok", 36)
    assert sum(len(batch.pixels) for batch in read_tiles(path, coords)) == 36
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tag = tiff.pages[0].tags["TileByteCounts"]
        tag.overwrite([0 if index % 8 < 4 else count for index, count in enumerate(tag.value)])
    stream = read_tiles(path, coords, max_bad_fraction=0.6)
    batches = list(stream)
    assert sum(len(batch.pixels) for batch in batches) == stream.n_bad == 18
    assert "holds 0% of a tile" in stream.bad[0].message
    assert all((batch.pixels < 250).any(axis=(1, 2, 3)).all() for batch in batches)
    with pytest.raises(SlideError, match="tiles cannot be read, more than 10%"):
        list(read_tiles(path, coords))


def test_background_that_the_file_leaves_out_stays_white(tmp_path):
    picture = tissue_picture(512, 512, [(0, 0, 256, 512)])
    path = write_pyramid(tmp_path / "s.tif", picture, compression="zlib", tile=128)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tag = tiff.pages[0].tags["TileByteCounts"]
        tag.overwrite([0 if index % 4 == 3 else count for index, count in enumerate(tag.value)])
    tile_slide_to_files(path, tmp_path / "c.h5", TilingSettings(0.5, 128, min_tissue=0.0), slide_id="s")
    stream = read_tiles(path, tmp_path / "c.h5")
    assert sum(len(batch.pixels) for batch in stream) == len(read_coords(tmp_path / "c.h5").coords) == 16
    assert stream.n_bad == 0


def test_a_macro_picture_among_the_levels_is_no_level(tmp_path):
    picture = tissue_picture(2048, 2048, [(256, 256, 1500, 1500)])
    options = {"photometric": "rgb", "tile": (128, 128), "resolution": (20000, 20000)}
    with tifffile.TiffWriter(tmp_path / "s.tif") as tiff:
        tiff.write(picture, resolutionunit="CENTIMETER", **options)
        macro = np.full((128, 512, 3), (255, 0, 0), np.uint8)
        tiff.write(macro, subfiletype=1, resolutionunit="CENTIMETER", **options)
    with open_slide(tmp_path / "s.tif") as reader:
        assert any("512 x 128" in warning for warning in reader.warnings)
        assert plan_tiles(reader.level_dimensions, 0.5, 0.5, 8.0, 32).level == 0
        small = reader.thumbnail(256, 256).astype(int)
    assert not ((small[..., 0] > 250) & (small[..., 1] < 10)).any()


@pytest.mark.parametrize(
    ("dimensions", "odd"),
    [
        ([(4096, 4096), (1024, 256)], [1]),
        ([(100_000, 80_000), (25_000, 20_000), (6250, 5000), (1563, 1250)], []),
        ([(10_001, 7003), (5000, 3502), (2500, 1750), (3, 2)], []),
        ([(46_000, 32_914), (1280, 916), (512, 1024)], [2]),
    ],
)
def test_shape_of_levels(dimensions, odd):
    assert odd_levels(dimensions) == odd


def test_ycbcr_outside_jpeg_is_refused(tmp_path):
    Image.fromarray(textured_picture(64, 64)).convert("YCbCr").save(tmp_path / "y.tif")
    with pytest.raises(SlideError, match="YCbCr samples outside JPEG"):
        open_slide(tmp_path / "y.tif", 0.5)


@pytest.mark.parametrize(("meaning", "kind"), [(0, "unspecified"), (1, "assocalpha"), (2, "unassalpha")])
def test_a_fourth_sample_means_what_the_file_says(tmp_path, meaning, kind):
    """Strips, which OpenSlide refuses. Colour 200 at half opacity over white is 227."""
    colour = np.full((64, 64, 3), 200 if meaning != 1 else 100, np.uint8)
    samples = np.dstack([colour, np.full((64, 64), 128, np.uint8)])
    tifffile.imwrite(
        tmp_path / "e.tif", samples, photometric="rgb", extrasamples=[kind], rowsperstrip=16, metadata=None
    )
    with open_slide(tmp_path / "e.tif", 0.5) as reader:
        pixel = reader.read_region(0, 0, 0, 64, 64)[5, 5]
    assert pixel.tolist() == [{0: 200, 1: 227, 2: 227}[meaning]] * 3


@pytest.mark.parametrize(
    ("side", "words"), [(2**31 - 1, "more than any slide"), (0, "pixels|known format|open")]
)
def test_claims_of_size_that_no_slide_has(tmp_path, side, words):
    path = write_pyramid(tmp_path / "s.tif", textured_picture(128, 128), compression="zlib")
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags["ImageLength"].overwrite(side, dtype="I")
    with pytest.raises(SlideError, match=words):
        open_slide(path)


def test_a_tile_too_large_to_read_at_once_is_refused_when_it_is_planned():
    with pytest.raises(SlideError, match="no level between") as caught:
        plan_tiles([(42_000, 42_000)], 0.25, 0.25, 10.0, 512)
    assert caught.value.status == "unreadable"
