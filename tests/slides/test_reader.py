"""Opening and reading slides."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from acpbench.slides.backends import composite_on_white
from acpbench.slides.errors import SlideError
from acpbench.slides.overview import overview, overview_size
from acpbench.slides.reader import open_slide
from tests.slides.pictures import tissue_picture, write_pyramid


@pytest.fixture
def picture():
    return tissue_picture(300, 200, [(40, 30, 150, 120)])


def test_alpha_is_composited_on_white():
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [100, 0, 255, 51]]], np.uint8)
    # 100 * 0.2 + 255 * 0.8 = 224; 0 + 204; 51 + 204 = 255
    assert composite_on_white(rgba).tolist() == [[[10, 20, 30], [255, 255, 255], [224, 204, 255]]]


def test_pyramid_through_openslide(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture, sizes=[(150, 100), (75, 50)], mpp=(0.25, 0.26))
    with open_slide(path) as reader:
        assert reader.backend == "openslide"
        assert reader.dimensions == (300, 200)
        assert reader.level_dimensions == ((300, 200), (150, 100), (75, 50))
        assert reader.level_downsamples == (1.0, 2.0, 4.0)
        assert (reader.mpp_x, reader.mpp_y) == pytest.approx((0.25, 0.26), rel=1e-4)
        assert reader.mpp_source == "tiff.resolution"
        region = reader.read_region(40, 30, 0, 20, 10)
        assert region.dtype == np.uint8
        assert np.array_equal(region, picture[30:40, 40:60])


def test_outside_the_slide_is_white(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture)
    with open_slide(path) as reader:
        region = reader.read_region(290, 195, 0, 20, 10)
        assert np.array_equal(region[:5, :10], picture[195:, 290:])
        assert (region[5:] == 255).all() and (region[:, 10:] == 255).all()


def test_jpeg_colours_survive(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture, compression="jpeg", tile=128)
    with open_slide(path) as reader:
        mean = reader.read_region(60, 50, 0, 100, 80).reshape(-1, 3).mean(axis=0)
    assert mean == pytest.approx(picture[50:130, 60:160].reshape(-1, 3).mean(axis=0), abs=3)


@pytest.mark.parametrize("dpi", [72, 25.4])  # 352.8 and 1000 um/px
def test_dpi_is_not_a_spacing(tmp_path, picture, dpi):
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=(25400 / dpi, 25400 / dpi))
    with open_slide(path) as reader, pytest.raises(SlideError) as caught:
        reader.require_spacing()
    assert (caught.value.status, caught.value.reason) == ("no_mpp", "mpp_implausible")


def test_missing_spacing_is_told_from_unreadable(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture, mpp=None)
    with open_slide(path) as reader:
        with pytest.raises(SlideError) as caught:
            reader.require_spacing()
        assert caught.value.status == "no_mpp"
    with open_slide(path, 0.5) as reader:
        assert reader.require_spacing() == (0.5, 0.5)
        assert reader.mpp_source == "declared"


@pytest.mark.parametrize("rows", [7, 200])
def test_striped_tiff_falls_back_and_needs_a_declared_spacing(tmp_path, picture, rows):
    path = tmp_path / "strips.tif"
    tifffile.imwrite(
        path,
        picture,
        photometric="rgb",
        rowsperstrip=rows,
        compression="zlib",
        resolution=(20000, 20000),
        resolutionunit="CENTIMETER",
    )
    with open_slide(path) as reader:
        assert reader.backend == "tifffile"
        assert reader.mpp_x is None
        assert np.array_equal(reader.read_region(0, 0, 0, 300, 200), picture)
        assert np.array_equal(reader.read_region(37, 13, 0, 50, 9), picture[13:22, 37:87])
        corner = reader.read_region(-5, 195, 0, 10, 10)
        assert np.array_equal(corner[:5, 5:], picture[195:, :5])
        assert (corner[5:] == 255).all() and (corner[:, :5] == 255).all()
    with open_slide(path, 0.5) as reader:
        assert reader.mpp_x == 0.5


def test_grey_and_inverted_grey_tiff(tmp_path):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    for name, photometric, expected in [("b", "minisblack", grey), ("w", "miniswhite", 255 - grey)]:
        tifffile.imwrite(tmp_path / f"{name}.tif", grey, photometric=photometric)
        with open_slide(tmp_path / f"{name}.tif") as reader:
            got = reader.read_region(0, 0, 0, 8, 6)
        assert np.array_equal(got, np.repeat(expected[..., None], 3, axis=-1))


def test_sixteen_bit_tiff_is_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((8, 8), np.uint16))
    with pytest.raises(SlideError) as caught:
        open_slide(tmp_path / "a.tif")
    assert caught.value.reason == "unsupported_format"


def test_plain_image(tmp_path, picture):
    Image.fromarray(picture).save(tmp_path / "a.png", dpi=(25400, 25400))
    with open_slide(tmp_path / "a.png") as reader:
        assert (reader.backend, reader.vendor, reader.mpp_x) == ("pillow", "png", None)
        assert np.array_equal(reader.read_region(10, 20, 0, 30, 40), picture[20:60, 10:40])
        outside = reader.read_region(295, 0, 0, 10, 5)
        assert np.array_equal(outside[:, :5], picture[:5, 295:]) and (outside[:, 5:] == 255).all()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "lfs_pointer"),
        (b"", "empty_file"),
        (b"not a slide at all", "unsupported_format"),
        (b"II*\0\xff\xff\xff\x7f", "open_failed"),
        (None, "missing_file"),
    ],
)
def test_unreadable_files_say_why(tmp_path, content, reason):
    path = tmp_path / "slide.svs"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert (caught.value.status, caught.value.reason) == ("unreadable", reason)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in caught.value.message


def test_folder_is_not_a_slide(tmp_path):
    with pytest.raises(SlideError) as caught:
        open_slide(tmp_path)
    assert caught.value.reason == "missing_file"


def test_reader_survives_a_bad_region(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture, compression="jpeg", tile=128)
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages[0]
        start, length = page.dataoffsets[0], page.databytecounts[0]
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(data)
    with open_slide(path) as reader:
        with pytest.raises(SlideError) as caught:
            reader.read_region(0, 0, 0, 10, 10)
        assert caught.value.reason == "read_failed"
        good = reader.read_region(130, 0, 0, 40, 40)
    assert np.abs(good.astype(int) - picture[:40, 130:170]).mean() < 12


def test_orientation_tag_is_reported_not_applied(tmp_path, picture):
    tifffile.imwrite(
        tmp_path / "a.tif", picture, photometric="rgb", tile=(64, 64), extratags=[(274, "H", 1, 5, True)]
    )
    with open_slide(tmp_path / "a.tif") as reader:
        assert reader.dimensions == (300, 200)
        assert any("orientation 5" in text for text in reader.warnings)


def test_overview_is_an_area_average(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    path = write_pyramid(tmp_path / "a.tif", picture)
    with open_slide(path) as reader:
        view = overview(reader, 15, 10)
    expected = picture.reshape(10, 4, 15, 4, 3).mean(axis=(1, 3))
    assert np.abs(view.rgb - expected).max() <= 1.0
    assert view.scale == (4.0, 4.0) and view.n_bad_blocks == 0


def test_overview_in_many_blocks_equals_one_block(tmp_path, monkeypatch):
    picture = np.random.default_rng(1).integers(0, 256, (203, 301, 3), np.uint8)
    path = write_pyramid(tmp_path / "a.tif", picture)
    with open_slide(path) as reader:
        whole = overview(reader, 77, 53).rgb
        monkeypatch.setattr("acpbench.slides.overview._SOURCE_BLOCK_PX", 40)
        blocks = overview(reader, 77, 53)
    assert blocks.n_blocks > 20
    assert np.abs(blocks.rgb.astype(int) - whole).max() <= 1


@pytest.mark.parametrize(
    ("dimensions", "mpp", "size"),
    [
        ((64000, 32000), (0.25, 0.25), (2000, 1000)),  # 8 um/px
        ((2016, 1008), (0.5, 0.5), (512, 256)),  # a small slide is shown finer
        ((100, 50), (0.5, 0.5), (100, 50)),  # never finer than level 0
        ((64000, 32000), (0.25, 0.5), (2000, 2000)),  # square in micrometres
        ((400000, 4000), (0.25, 0.25), (4096, 41)),  # bounded
        ((4000, 2000), None, (512, 256)),
    ],
)
def test_overview_size(dimensions, mpp, size):
    assert overview_size(dimensions, mpp, spacing_um=8, min_side=512, max_side=4096) == size
