"""TIFF layouts in the field: for each the right pixels in the right place, or a clear reason."""

from __future__ import annotations

import struct

import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image

from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import level_downsamples, plan_tiles, tile_grid
from acpbench.slides.reader import open_slide
from acpbench.slides.tiff_layout import read_layout
from tests.slides.pictures import (
    encode_tile,
    overwrite_tag,
    textured_picture,
    tissue_picture,
    write_jpeg_tiff,
    write_pyramid,
)


def numbered(width: int, height: int) -> np.ndarray:
    """Every pixel says where it is: ``x = R + 256 G``, ``y = B`` (up to 256 rows)."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([x & 255, x >> 8, y & 255], axis=-1).astype(np.uint8)


def write_numbered(path, sizes, *, mpp=0.25, compression=None):
    """A pyramid whose levels each count their own pixels."""
    options = {"tile": (64, 64), "photometric": "rgb", "compression": compression}
    options |= {"resolution": (10000 / mpp, 10000 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as tiff:
        for index, (width, height) in enumerate(sizes):
            tiff.write(numbered(width, height), subfiletype=int(index > 0), **options)
    return path


PYRAMIDS = {
    "exact": [(2048, 128), (1024, 64), (512, 32)],
    "rounded up": [(10001, 251), (5001, 126), (2501, 63)],
    "rounded down": [(10003, 251), (5001, 125), (2500, 62)],
    "3.99": [(7980, 160), (2000, 40)],
    "4.0001": [(40001, 100), (10000, 25)],
    "one axis rounded": [(8000, 99), (4000, 50), (2000, 25)],
    "single": [(620, 140)],
}


@pytest.mark.parametrize("name", PYRAMIDS)
def test_tiles_lie_where_they_should_up_to_the_far_corner(tmp_path, name):
    """Every tile of every level starts on the level's own pixel, and less than one level pixel away from
    where its level-0 coordinate says, in the far corner too."""
    sizes = PYRAMIDS[name]
    path = write_numbered(tmp_path / "a.tif", sizes)
    with open_slide(path) as reader:
        assert reader.level_dimensions == tuple(sizes)
        for level, (ds_x, ds_y) in enumerate(level_downsamples(sizes)):
            plan = plan_tiles(sizes, 0.25, 0.25, 0.25 * max(ds_x, ds_y), 24)
            assert plan.level == level and not plan.resized
            for x, y in tile_grid(*sizes[0], plan)[[0, 1, -2, -1]].tolist():
                got = reader.read_region(x, y, level, 24, 24).astype(int)
                columns, rows = got[..., 0] + 256 * got[..., 1], got[..., 2]
                # OpenSlide, which reads these uncompressed levels, shifts by a fraction of a pixel.
                assert abs(columns[12, 12] - 12 - x / ds_x) < 1, (level, x)
                assert abs(rows[12, 12] - 12 - y / ds_y) < 1, (level, y)


def test_openslide_alone_drifts_on_flat_slides(tmp_path):
    """The reason for what the test above asks: OpenSlide divides by the mean of both axes' ratios."""
    path = write_numbered(tmp_path / "a.tif", PYRAMIDS["rounded up"])
    x = 9600
    with openslide.OpenSlide(path) as slide:
        got = np.asarray(slide.read_region((x, 0), 1, (24, 24))).astype(int)
    assert abs(got[12, 12, 0] + 256 * got[12, 12, 1] - 12 - x / (10001 / 5001)) > 5


@pytest.mark.parametrize("name", ["exact", "rounded up", "rounded down", "3.99", "4.0001"])
def test_jpeg_levels_give_their_pixels_as_stored(tmp_path, name):
    width, height = PYRAMIDS[name][0]
    sizes = PYRAMIDS[name][1:]
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(width, height), sizes=sizes, mpp=0.25)
    with open_slide(path) as reader:
        for level, (ds_x, _) in enumerate(level_downsamples(PYRAMIDS[name])):
            stored = tifffile.imread(path, key=level)
            plan = plan_tiles(PYRAMIDS[name], 0.25, 0.25, 0.25 * ds_x, 24)
            xs = np.unique(tile_grid(width, height, plan)[:, 0])
            for index in (0, 1, len(xs) // 2, len(xs) - 2):
                got = reader.read_region(int(xs[index]), 0, plan.level, 24, 24).astype(int)
                left = index * 24
                assert np.abs(got - stored[:24, left : left + 24]).max() <= 2, (level, index)


@pytest.mark.parametrize("size", [(620, 740), (1, 1), (63, 65), (640, 64)])
@pytest.mark.parametrize("layout", ["tiles", "strips", "one strip", "planes in strips", "planes in tiles"])
def test_odd_sizes_and_unpyramidal_layouts(tmp_path, size, layout):
    width, height = size
    picture = textured_picture(width, height)
    planar = layout.startswith("planes")
    options = {
        "tiles": {"tile": (48, 80), "compression": "zlib"},
        "strips": {"rowsperstrip": 13, "compression": "zlib"},
        "one strip": {"rowsperstrip": height},
        "planes in strips": {"rowsperstrip": 7, "compression": "zlib"},
        "planes in tiles": {"tile": (48, 80), "compression": "zlib"},
    }[layout]
    path = tmp_path / "a.tif"
    data = np.moveaxis(picture, -1, 0) if planar else picture
    tifffile.imwrite(
        path,
        data,
        photometric="rgb",
        planarconfig="separate" if planar else "contig",
        metadata=None,
        **options,
    )
    with open_slide(path, 0.5) as reader:
        assert reader.dimensions == size and reader.mpp_x == 0.5
        assert np.array_equal(reader.read_region(0, 0, 0, width, height), picture)
        x, y = width // 3, height // 3
        part = reader.read_region(x, y, 0, width, height)
        assert np.array_equal(part[: height - y, : width - x], picture[y:, x:])
        assert (part[height - y :] == 255).all() and (part[:, width - x :] == 255).all()


def test_tiles_of_620_by_740(tmp_path):
    """Not a multiple of 16, as the standard asks for; some writers do not care."""
    picture = textured_picture(1300, 800)
    path = write_jpeg_tiff(tmp_path / "a.tif", picture, tile=(624, 752))
    with tifffile.TiffFile(path) as tiff:
        first = tiff.pages[0]
        across = [(first.dataoffsets[i], first.databytecounts[i]) for i in range(6)]
    assert len(across) == 6
    data = bytearray(path.read_bytes())
    for index, (offset, count) in enumerate(across):
        x, y = index % 3 * 620, index // 3 * 740
        block = picture[y : y + 740, x : x + 620]
        block = np.pad(block, ((0, 740 - block.shape[0]), (0, 620 - block.shape[1]), (0, 0)), "edge")
        jpeg = encode_tile(block, quality=60)
        assert len(jpeg) <= count
        data[offset : offset + count] = jpeg + bytes(count - len(jpeg))
    path.write_bytes(data)
    overwrite_tag(path, "TileWidth", 620)
    overwrite_tag(path, "TileLength", 740)
    with open_slide(path) as reader:
        got = reader.read_region(600, 720, 0, 200, 80).astype(int)
    assert np.abs(got - picture[720:800, 600:800]).mean() < 12


def test_jpeg_strips_are_decoded_strictly(tmp_path):
    """OpenSlide refuses strips, and tifffile's decoder goes on over damaged ones."""
    rgb = textured_picture(200, 150)
    path = tmp_path / "a.tif"
    stored = np.asarray(Image.fromarray(rgb).convert("YCbCr"))
    tifffile.imwrite(path, stored, photometric="ycbcr", compression="jpeg", rowsperstrip=64, metadata=None)
    with open_slide(path, 0.5) as reader:
        assert reader.backend == "tifffile"
        got = reader.read_region(0, 0, 0, 200, 150)
        assert np.abs(got.astype(int) - rgb).mean() < 8
    with tifffile.TiffFile(path) as tiff:
        start, count = tiff.pages[0].dataoffsets[1], tiff.pages[0].databytecounts[1]
    data = bytearray(path.read_bytes())
    data[start + count // 2 : start + count] = bytes(count - count // 2)
    path.write_bytes(data)
    with open_slide(path, 0.5) as reader:
        with pytest.raises(SlideError):
            reader.read_region(0, 70, 0, 50, 20)
        assert np.array_equal(reader.read_region(0, 130, 0, 200, 20), got[130:])


def test_no_spacing_and_unequal_spacings(tmp_path):
    picture = tissue_picture(128, 128, [(0, 0, 128, 128)])
    with open_slide(write_pyramid(tmp_path / "none.tif", picture, mpp=None)) as reader:
        with pytest.raises(SlideError) as caught:
            reader.require_spacing()
        assert (caught.value.status, caught.value.reason) == ("no_mpp", "mpp_missing")
    with open_slide(write_pyramid(tmp_path / "two.tif", picture, mpp=(0.25, 0.5))) as reader:
        assert reader.require_spacing() == pytest.approx((0.25, 0.5), rel=1e-4)
        assert any("not square" in text for text in reader.warnings)


def test_truncated_file_loses_only_what_was_cut_off(tmp_path):
    # One directory in front of the tiles, so that the file still opens.
    picture = textured_picture(256, 256)
    path = write_jpeg_tiff(tmp_path / "a.tif", picture)
    with tifffile.TiffFile(path) as tiff:
        last = tiff.pages[0].dataoffsets[15]
        directory = tiff.pages[0].offset
    assert directory < last
    path.write_bytes(path.read_bytes()[: last + 40])
    with open_slide(path) as reader:
        with pytest.raises(SlideError) as caught:
            reader.read_region(192, 192, 0, 64, 64)
        assert (caught.value.status, caught.value.reason) == ("unreadable", "read_failed")
        got = reader.read_region(0, 0, 0, 192, 192).astype(int)
    assert np.abs(got - picture[:192, :192]).mean() < 8
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert caught.value.status == "unreadable"


def _claim(path, byte_count: int) -> None:
    """Let the first tile of a BigTIFF claim so many bytes."""
    with tifffile.TiffFile(path) as tiff:
        tag = tiff.pages[0].tags["TileByteCounts"]
        where, count = tag.offset, tag.count
    data = bytearray(path.read_bytes())
    values = struct.pack(f"<{count}Q", byte_count, *[1000] * (count - 1))
    struct.pack_into("<H", data, where + 2, 16)
    struct.pack_into("<Q", data, where + 12, len(data))
    path.write_bytes(data + values)


@pytest.mark.parametrize("byte_count", [2**45, 2**63 + 5, 2**32])
def test_absurd_byte_count_is_refused_before_openslide_allocates_it(tmp_path, byte_count):
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(128, 128), bigtiff=True)
    with open_slide(path) as reader:
        reader.read_region(0, 0, 0, 64, 64)
    _claim(path, byte_count)
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert caught.value.reason == "corrupt_file" and str(byte_count) in caught.value.message


def test_absurd_tile_size_is_refused(tmp_path):
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(64, 64))
    overwrite_tag(path, "TileWidth", 2**20, dtype="I")
    overwrite_tag(path, "TileLength", 2**20, dtype="I")
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert caught.value.reason == "corrupt_file" and "too large" in caught.value.message


def test_absurd_strip_is_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, textured_picture(64, 64), photometric="rgb", compression="zlib", metadata=None)
    overwrite_tag(path, "ImageWidth", 2**20, dtype="I")
    overwrite_tag(path, "ImageLength", 2**20, dtype="I")
    overwrite_tag(path, "RowsPerStrip", 2**20, dtype="I")
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert (caught.value.status, caught.value.reason) == ("unreadable", "too_large")


def test_layout_of_hostile_bytes_is_none_or_bounded(tmp_path):
    good = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(128, 128)).read_bytes()
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        start = tiff.pages[0].offset
    rng = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(good)
        for at in rng.integers(start, start + 220, 3):
            data[at % len(data)] = rng.integers(256)
        (tmp_path / "b.tif").write_bytes(data)
        layout = read_layout(tmp_path / "b.tif")
        for page in layout.pages if layout is not None else ():
            assert len(page.offsets) == len(page.counts) <= len(data)


def test_every_shared_slide_has_its_outcome(shared_data):
    """Reason codes for what cannot be read, spacings for what can."""
    expected = {
        "CMU-1-Small-Region.svs": ("openslide", 0.499),
        "TCGA-CR-7395-01A-01-TS1.svs": ("openslide", None),
        "osp_boxes.tiff": ("openslide", None),
        "li_yb10kx5k.zstd.tiff": ("openslide", None),
        "li_test_orient5.tif": ("openslide", None),
        "osp_small.svs": ("openslide", 0.499),
        "gcp_multi_frame_jpeg_camelyon.dcm": ("openslide", None),
        "osp_unreadable.svs": ("read_failed", None),
        "osp_unopenable.tiff": ("open_failed", None),
        "eva_a_lfs_pointer.tiff": ("lfs_pointer", None),
        "gcp_ndpi_test_lfs_pointer.ndpi": ("lfs_pointer", None),
    }
    for name, (outcome, mpp) in expected.items():
        try:
            with open_slide(shared_data / "slides" / name) as reader:
                reader.read_region(0, 0, 0, 16, 16)
                got, spacing = reader.backend, reader.mpp_x
        except SlideError as error:
            got, spacing = error.reason, None
        assert (got, spacing) == (outcome, mpp), name
