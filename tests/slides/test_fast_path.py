"""JPEG tiles read without OpenSlide: the same pixels to the last bit, or OpenSlide itself."""

from __future__ import annotations

import os

import numpy as np
import openslide
import pytest
import tifffile

import acpbench.slides.jpeg_tiles as jpeg_tiles
from acpbench.slides.backends import OpenSlideReader, composite_on_white
from acpbench.slides.coords import read_tiles
from acpbench.slides.errors import SlideError
from acpbench.slides.jpeg_tiles import NotDecodable, StrictDecoder, complete_jpeg
from acpbench.slides.reader import open_slide
from acpbench.slides.tiff_layout import TiffLayout, match_levels, read_layout
from acpbench.slides.tiling import TilingSettings, tile_file
from tests.slides.pictures import (
    abbreviate,
    encode_tile,
    textured_picture,
    with_adobe_marker,
    write_jpeg_tiff,
    write_pyramid,
)

APERIO = "Aperio Image Library v11\r\n300x230 [0,0 300x230] (64x64) JPEG/RGB Q=90|AppMag = 20|MPP = 0.5"


@pytest.fixture(scope="module")
def picture():
    return textured_picture(300, 230)


@pytest.fixture
def asked(monkeypatch):
    """Regions that OpenSlide was asked for, as ``(x, y, level, width, height)``."""
    calls = []
    real = OpenSlideReader._openslide_region

    def spy(self, *region):
        calls.append(region)
        return real(self, *region)

    monkeypatch.setattr(OpenSlideReader, "_openslide_region", spy)
    return calls


def by_openslide(path, x, y, level, width, height):
    with openslide.OpenSlide(path) as slide:
        return composite_on_white(np.asarray(slide.read_region((x, y), level, (width, height))))


@pytest.mark.parametrize("space", ["ycbcr", "rgb"])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4"])
@pytest.mark.parametrize("stored", ["whole", "tables apart", "claims RGB", "claims YCbCr"])
def test_colour_layouts_are_those_of_openslide(tmp_path, picture, asked, space, subsampling, stored):
    edit = {"claims RGB": 0, "claims YCbCr": 1}
    path = write_jpeg_tiff(
        tmp_path / "a.tif",
        picture,
        sizes=[(150, 115)],
        space=space,
        subsampling=subsampling,
        shared_tables=stored == "tables apart",
        edit=(lambda jpeg: with_adobe_marker(jpeg, edit[stored])) if stored in edit else bytes,
    )
    with open_slide(path) as reader:
        for level, (width, height) in enumerate(reader.level_dimensions):
            got = reader.read_region(0, 0, level, width, height)
            assert np.array_equal(got, by_openslide(path, 0, 0, level, width, height))
        got = reader.read_region(0, 0, 0, 300, 230)
    assert [region[2] for region in asked] == [0, 1]  # one tile a level, to compare with
    # Both could be wrong in the same way: against the picture, a wrong colour space is off by about 50.
    assert np.abs(got.astype(int) - picture).mean() < 6


@pytest.mark.parametrize(
    "region",
    [
        (64, 64, 64, 64),  # one tile
        (0, 128, 128, 64),  # two tiles
        (64, 64, 192, 128),  # six
        (80, 70, 16, 20),  # within one
        (33, 90, 64, 64),  # across four
        (256, 192, 64, 64),  # the corner tile, most of it beyond the edge
        (290, 0, 64, 64),
        (0, 229, 300, 40),
        (500, 500, 30, 20),  # outside
        (299, 229, 1, 1),
    ],
)
def test_any_region_is_that_of_openslide(tmp_path, picture, asked, region):
    path = write_jpeg_tiff(tmp_path / "a.tif", picture, tile=(64, 64))
    x, y, width, height = region
    with open_slide(path) as reader:
        reader.read_region(0, 0, 0, 8, 8)
        asked.clear()
        got = reader.read_region(x, y, 0, width, height)
    assert np.array_equal(got, by_openslide(path, x, y, 0, width, height))
    assert asked == []


@pytest.mark.parametrize("tile", [(64, 96), (80, 48), (320, 256)])
def test_tiles_of_other_shapes(tmp_path, picture, asked, tile):
    path = write_jpeg_tiff(tmp_path / "a.tif", picture, tile=tile)
    with open_slide(path) as reader:
        got = reader.read_region(10, 20, 0, 280, 205)
    assert len(asked) == 1 and np.array_equal(got, by_openslide(path, 10, 20, 0, 280, 205))


def test_random_regions_of_a_pyramid(tmp_path, asked):
    path = write_jpeg_tiff(
        tmp_path / "a.tif", textured_picture(640, 512), sizes=[(320, 256), (160, 128)], tile=(64, 64)
    )
    rng = np.random.default_rng(3)
    with open_slide(path) as reader:
        for _ in range(150):
            level = int(rng.integers(3))
            x, y = int(rng.integers(-20, 660)), int(rng.integers(-20, 530))
            width, height = (int(n) for n in rng.integers(1, 150, 2))
            got = reader.read_region(x, y, level, width, height)
            assert np.array_equal(got, by_openslide(path, x, y, level, width, height)), (x, y, level)
    between = [
        region for region in asked if region[2] and (region[0] % 2 ** region[2] or region[1] % 2 ** region[2])
    ]
    assert between  # a corner between two pixels of a level is OpenSlide's


def test_real_slides_are_those_of_openslide(shared_data, asked):
    slides = sorted((shared_data / "cohorts" / "lung_composite" / "slides").glob("*.svs"))[::24]
    for path in [shared_data / "slides" / "CMU-1-Small-Region.svs", *slides]:
        asked.clear()
        with open_slide(path) as reader:
            for level, (width, height) in enumerate(reader.level_dimensions):
                got = reader.read_region(0, 0, level, width, height)
                assert np.array_equal(got, by_openslide(path, 0, 0, level, width, height)), path.name
            assert len(asked) == len(reader.level_dimensions), path.name


def test_jpeg2000_is_left_to_openslide(shared_data):
    path = shared_data / "slides" / "TCGA-CR-7395-01A-01-TS1.svs"
    with open_slide(path, 0.5) as reader:
        assert reader._tiles is None
        got = reader.read_region(1024, 768, 0, 256, 256)
    assert np.array_equal(got, by_openslide(path, 1024, 768, 0, 256, 256))


def test_extraction_streams_through_it(tmp_path, asked):
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(512, 512), tile=(64, 64))
    tiles = tile_file(path, TilingSettings(0.5, 64, min_tissue=0.0), slide_id="a")
    asked.clear()
    pixels = np.concatenate([batch.pixels for batch in read_tiles(path, tiles, batch_size=10)])
    assert len(pixels) == 64 and len(asked) == 1
    for (x, y), got in zip(tiles.coords.tolist(), pixels, strict=True):
        assert np.array_equal(got, by_openslide(path, x, y, 0, 64, 64))


def damaged(kind: str, jpeg: bytes) -> bytes:
    return {
        "cut off": jpeg[: len(jpeg) * 2 // 3],
        "not a JPEG": b"II*\0" + bytes(200),
        "other size": encode_tile(textured_picture(48, 64)),
        "grey": encode_grey(),
        "header only": jpeg[:20],
    }[kind]


def encode_grey() -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", (64, 64), 128).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["cut off", "not a JPEG", "other size", "grey", "header only"])
def test_damaged_tile_fails_alone(tmp_path, picture, kind):
    """libjpeg itself goes on over a tile that is cut off with grey pixels, which must never come out."""
    good = encode_tile(picture[:64, 64:128])
    path = write_jpeg_tiff(tmp_path / "a.tif", picture, change={(0, 1): damaged(kind, good)})
    with open_slide(path) as reader:
        for _ in range(2):
            with pytest.raises(SlideError) as caught:
                reader.read_region(64, 0, 0, 64, 64)
            assert caught.value.reason == "read_failed"
            with pytest.raises(SlideError):
                reader.read_region(40, 10, 0, 64, 64)  # the damaged tile is a part of it
            assert np.array_equal(
                reader.read_region(128, 0, 0, 64, 64), by_openslide(path, 128, 0, 0, 64, 64)
            )


def test_damage_has_the_outcome_it_has_in_openslide(tmp_path):
    """A few wrong bytes may still be valid codes, which nothing can find out."""
    picture = textured_picture(64, 64)
    jpeg = encode_tile(picture)
    scan = jpeg.index(b"\xff\xda") + 14
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(80):
        wrong = bytearray(jpeg)
        for at in rng.integers(scan, len(jpeg) - 2, int(rng.integers(1, 4))):
            wrong[at] = rng.choice([0xFF, int(rng.integers(256))])
        path = write_jpeg_tiff(tmp_path / "a.tif", picture, change={(0, 0): bytes(wrong)})
        with open_slide(path) as reader:
            try:
                expected = by_openslide(path, 0, 0, 0, 64, 64)
            except openslide.OpenSlideError:
                outcomes["refused"] += 1
                with pytest.raises(SlideError):
                    reader.read_region(0, 0, 0, 64, 64)
            else:
                outcomes["read"] += 1
                assert np.array_equal(reader.read_region(0, 0, 0, 64, 64), expected)
    assert min(outcomes.values()) > 5


def test_missing_tile_is_what_openslide_makes_of_it(tmp_path, picture):
    path = write_jpeg_tiff(tmp_path / "a.tif", picture, change={(0, 6): b""})
    with tifffile.TiffFile(path) as tiff:
        assert tiff.pages[0].databytecounts[6] == 0
    with open_slide(path) as reader:
        got = reader.read_region(0, 0, 0, 300, 230)
    assert np.array_equal(got, by_openslide(path, 0, 0, 0, 300, 230))
    assert (got[64:128, 64:128] == 255).all() and got[64:128, 128:].std() > 1  # a sparse TIFF's empty glass
    path = write_jpeg_tiff(
        tmp_path / "a.svs",
        picture,
        sizes=[(150, 115), (75, 58)],
        change={(1, 4): b""},
        description=APERIO,
    )
    with open_slide(path) as reader:
        assert reader.vendor == "aperio"
        # Aperio's gaps are painted from the finer level, also in levels below that have bytes of their own.
        assert [reader._tiles.serves(level) for level in range(3)] == [True, True, False]
        for level, (width, height) in enumerate(reader.level_dimensions):
            got = reader.read_region(0, 0, level, width, height)
            assert np.array_equal(got, by_openslide(path, 0, 0, level, width, height))


def test_wrong_decoder_is_found_out_and_never_used(tmp_path, picture, monkeypatch):
    import simplejpeg

    path = write_jpeg_tiff(tmp_path / "a.tif", picture)
    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: real(*a, **k) ^ np.uint8(1))
    with open_slide(path) as reader:
        for x in (0, 64, 100):
            assert np.array_equal(reader.read_region(x, 0, 0, 64, 64), by_openslide(path, x, 0, 0, 64, 64))
        assert not reader._tiles.serves(0)


def test_decoded_tiles_are_kept_within_bounds(tmp_path, picture, monkeypatch):
    monkeypatch.setattr(jpeg_tiles, "CACHE_BYTES", 3 * 64 * 64 * 3)
    path = write_jpeg_tiff(tmp_path / "a.tif", picture)
    with open_slide(path) as reader:
        for y in range(5, 160, 31):
            for x in range(7, 230, 31):
                got = reader.read_region(x, y, 0, 64, 64)
                assert np.array_equal(got, by_openslide(path, x, y, 0, 64, 64))
                assert sum(tile.nbytes for tile in reader._tiles._cache.values()) <= jpeg_tiles.CACHE_BYTES


def test_one_decode_serves_neighbouring_regions(tmp_path, picture, monkeypatch):
    import simplejpeg

    decoded = []
    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: decoded.append(1) or real(*a, **k))
    path = write_jpeg_tiff(tmp_path / "a.tif", picture)
    with open_slide(path) as reader:
        for x in range(10, 200, 20):
            reader.read_region(x, 10, 0, 20, 20)
    assert len(decoded) == 4 + 1  # the four tiles of the row and the one compared with OpenSlide


def test_closing_gives_the_file_back(tmp_path, picture):
    path = write_jpeg_tiff(tmp_path / "a.tif", picture)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with open_slide(path) as reader:
            reader.read_region(0, 0, 0, 64, 64)
    assert len(os.listdir("/proc/self/fd")) == before


def test_stream_is_completed_from_the_tables():
    jpeg = encode_tile(textured_picture(64, 64))
    tables, tile = abbreviate(jpeg)
    whole = complete_jpeg(tile, tables, "YCBCR", 64, 64)
    assert whole[:4] == b"\xff\xd8\xff\xee" and b"JFIF" not in whole and whole[-2:] == b"\xff\xd9"
    assert complete_jpeg(jpeg, b"", "YCBCR", 64, 64)[:18] == whole[:18]


@pytest.mark.parametrize("claimed", [(65500, 65500), (64, 128), (0, 64)])
def test_frame_of_another_size_is_never_decoded(claimed):
    jpeg = encode_tile(textured_picture(64, 64))
    at = jpeg.index(b"\xff\xc0")
    size = bytes((claimed[1] >> 8, claimed[1] & 255, claimed[0] >> 8, claimed[0] & 255))
    with pytest.raises(NotDecodable, match="other dimensions"):
        complete_jpeg(jpeg[: at + 5] + size + jpeg[at + 9 :], b"", "YCBCR", 64, 64)


def test_a_remembered_header_changes_no_stream_and_lets_none_through():
    """Tiles of two qualities, some of them damaged, through one decoder and each through a new one."""
    rng = np.random.default_rng(1)
    tiles = [encode_tile(rng.integers(0, 256, (64, 64, 3), np.uint8), quality=q) for q in (60, 90) * 3]
    at = tiles[0].index(b"\xff\xc0")
    tiles += [tiles[0][: at + 6], tiles[0][: at + 4] + b"\0" + tiles[0][at + 5 :], b"", tiles[1][:2]]
    decoder = StrictDecoder(b"", "YCBCR", 64, 64)

    def outcome(make, tile):
        try:
            return make(tile)
        except NotDecodable as error:
            return str(error)

    for index in rng.integers(0, len(tiles), 200):
        alone = outcome(lambda tile: complete_jpeg(tile, b"", "YCBCR", 64, 64), tiles[index])
        assert outcome(decoder.stream, tiles[index]) == alone
        assert isinstance(alone, bytes) == (index < 6)
    whole = decoder(tiles[0])
    with pytest.raises(NotDecodable):
        decoder(tiles[0][: len(tiles[0]) // 2])
    assert np.array_equal(decoder(tiles[0]), whole)


def test_no_bytes_make_the_parser_fail_otherwise():
    jpeg = encode_tile(textured_picture(64, 64))
    tables, tile = abbreviate(jpeg)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        wrong, wrong_tables = bytearray(tile[: rng.integers(1, 700)]), bytearray(tables)
        for buffer in (wrong, wrong_tables):
            for at in rng.integers(0, len(buffer), rng.integers(0, 4)):
                buffer[at] = rng.integers(256)
        try:
            complete_jpeg(bytes(wrong), bytes(wrong_tables[: rng.integers(2, 800)]), "RGB", 64, 64)
        except NotDecodable:
            continue


def test_uncompressed_levels_are_left_to_openslide(tmp_path, picture):
    path = write_pyramid(tmp_path / "a.tif", picture, compression="zlib")
    with open_slide(path) as reader:
        assert reader._tiles is None
        assert np.array_equal(reader.read_region(5, 6, 0, 70, 80), picture[6:86, 5:75])


def test_only_levels_beyond_doubt_are_served(tmp_path):
    path = write_jpeg_tiff(tmp_path / "a.tif", textured_picture(256, 192), sizes=[(128, 96)])
    layout = read_layout(path)
    sizes = [(256, 192), (128, 96)]
    assert [page is not None for page in match_levels(layout, sizes, "generic-tiff")] == [True, True]
    assert match_levels(layout, sizes, "ventana") == [None, None]  # its tiles overlap
    assert match_levels(layout, [(256, 192), (64, 48)], "generic-tiff")[1] is None
    twice = TiffLayout(layout.pages + layout.pages[1:], 1, None)
    assert [page is not None for page in match_levels(twice, sizes, "generic-tiff")] == [True, False]


def test_dicom_is_openslides(shared_data):
    path = shared_data / "slides" / "gcp_multi_frame_jpeg_camelyon.dcm"
    with open_slide(path) as reader:
        assert (reader.backend, reader.vendor) == ("openslide", "dicom")
        width, height = reader.dimensions
        got = reader.read_region(0, 0, 0, width, height)
        with pytest.raises(SlideError) as caught:  # an overview of 29 um/px, said to be a slide
            reader.require_spacing()
        assert caught.value.reason == "mpp_implausible"
    assert np.array_equal(got, by_openslide(path, 0, 0, 0, width, height)) and got.std() > 5
