"""Tissue masks that the user brings."""

import json

import numpy as np
import pytest
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.core.files import write_json
from acpbench.slides.inspect import inspect_slide, inspect_slide_to_files
from acpbench.slides.masks import read_mask
from acpbench.slides.tiling import TilingSettings, tile_file
from tests.slides.pictures import tissue_picture, write_pyramid

DIMENSIONS, SIZE = (800, 400), (80, 40)


def _left_half(width=80, height=40, value=255):
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, : width // 2] = value
    return pixels


def _polygon(box, name=None):
    x, y, w, h = box
    ring = [[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]]
    properties = {} if name is None else {"classification": {"name": name, "color": [1, 2, 3]}}
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": properties,
    }


@pytest.fixture
def slide(tmp_path):
    """1024 x 768 px at 0.5 um/px, tissue everywhere."""
    return write_pyramid(tmp_path / "slide.tif", tissue_picture(1024, 768, [(0, 0, 1024, 768)]))


@pytest.mark.parametrize("value", [1, 255])
@pytest.mark.parametrize("name", ["m.png", "m.tif"])
def test_a_picture_of_any_size_and_label_is_a_mask(tmp_path, name, value):
    Image.fromarray(_left_half(160, 80, value)).save(tmp_path / name)
    mask = read_mask(tmp_path / name, DIMENSIONS, SIZE)
    assert mask.mask.shape == (40, 80) and mask.scale == (10.0, 10.0) and mask.n_objects == 1
    assert mask.mask[:, :40].all() and not mask.mask[:, 40:].any()


def test_edges_of_a_jpeg_are_cut_at_half_and_not_at_zero(tmp_path):
    Image.fromarray(_left_half()).save(tmp_path / "m.jpg", quality=30)
    assert read_mask(tmp_path / "m.jpg", DIMENSIONS, SIZE).mask.sum() == 40 * 40


def test_one_bit_and_grey_saved_in_colour_are_masks(tmp_path):
    Image.fromarray(_left_half()).convert("1").save(tmp_path / "one.png")
    Image.fromarray(_left_half()).convert("RGBA").save(tmp_path / "rgba.png")
    for name in ("one.png", "rgba.png"):
        assert read_mask(tmp_path / name, DIMENSIONS, SIZE).mask.sum() == 1600


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: Image.fromarray(_left_half(40, 40)).save(path), "proportions"),
        (lambda path: Image.new("RGB", (80, 40), (200, 120, 180)).save(path), "colour"),
        (lambda path: path.write_bytes(b"no picture"), "neither GeoJSON nor"),
        (lambda path: None, "does not exist"),
    ],
)  # fmt: skip
def test_pictures_that_are_no_mask_of_the_slide_are_refused(tmp_path, make, words):
    make(tmp_path / "m.png")
    with pytest.raises(InputError, match=words):
        read_mask(tmp_path / "m.png", DIMENSIONS, SIZE)


def test_classes_choose_polygons(tmp_path):
    features = [_polygon((0, 0, 400, 400), "Tumor"), _polygon((400, 0, 400, 400), "Stroma")]
    write_json(tmp_path / "m.geojson", {"type": "FeatureCollection", "features": features})
    assert read_mask(tmp_path / "m.geojson", DIMENSIONS, SIZE).mask.all()
    tumour = read_mask(tmp_path / "m.geojson", DIMENSIONS, SIZE, ["Tumor"]).mask
    assert tumour[:, :40].all() and not tumour[:, 40:].any()
    assert not read_mask(tmp_path / "m.geojson", DIMENSIONS, SIZE, ["Necrosis"]).mask.any()


def test_a_given_mask_decides_what_is_tiled(slide, tmp_path):
    write_json(tmp_path / "mask.geojson", [_polygon((256, 128, 256, 256), "anything")])
    quality = inspect_slide_to_files(slide, tmp_path / "out", slide_id="s", mask=tmp_path / "mask.geojson")
    assert (quality["status"], quality["mask_source"], quality["saturation_threshold"]) == (
        "ok",
        "given",
        None,
    )
    assert quality["tissue_area_mm2"] == pytest.approx((256 * 0.5 / 1000) ** 2, rel=0.02)
    tiles = tile_file(
        slide, TilingSettings(1.0, 64), slide_id="s", tissue_geojson=tmp_path / "out/tissue.geojson"
    )
    assert tiles.coords.tolist() == [[256, 128], [384, 128], [256, 256], [384, 256]]


def test_a_given_mask_is_taken_as_it_is_even_under_ink(tmp_path):
    picture = tissue_picture(1024, 768, [(0, 0, 1024, 768)])
    picture[:, :512] = (40, 150, 70)
    slide = write_pyramid(tmp_path / "a.tif", picture)
    Image.fromarray(np.full((48, 64), 1, np.uint8)).save(tmp_path / "m.png")
    quality = inspect_slide(slide, slide_id="a", mask=tmp_path / "m.png").quality
    assert quality["tissue_fraction"] == 1.0
    assert quality["classes"]["pen_green"]["fraction"] == pytest.approx(0.5, abs=0.06)


def test_an_empty_mask_is_empty_tissue_with_its_own_reason(slide, tmp_path):
    Image.fromarray(np.zeros((48, 64), np.uint8)).save(tmp_path / "m.png")
    quality = inspect_slide(slide, slide_id="s", mask=tmp_path / "m.png").quality
    assert (quality["status"], quality["reason"]) == ("empty_tissue", "empty_mask")


@pytest.mark.parametrize("content", [None, b"rubbish", json.dumps([_polygon((5000, 5000, 9, 9))]).encode()])
def test_a_mask_that_cannot_be_used_excludes_its_slide_and_stops_nothing(slide, tmp_path, content):
    if content is not None:
        (tmp_path / "m.geojson").write_bytes(content)
    quality = inspect_slide_to_files(slide, tmp_path / "out", slide_id="s", mask=tmp_path / "m.geojson")
    assert (quality["status"], quality["reason"]) == ("unreadable", "bad_mask")
    assert "m.geojson" in quality["detail"] and str(tmp_path) not in json.dumps(quality)
    assert quality["width_px"] == 1024


def test_tiles_under_any_mask_lie_on_the_slides_one_grid(slide, tmp_path):
    """Masks that start anywhere choose tiles; they never move them."""
    settings = TilingSettings(1.0, 64, min_tissue=0.3, min_tiles=1)
    grid = set(map(tuple, tile_file(slide, settings, slide_id="s").coords.tolist()))
    assert len(grid) == 48
    for box in [(0, 0, 300, 300), (37, 91, 411, 333), (601, 222, 200, 500)]:
        write_json(tmp_path / "m.geojson", [_polygon(box)])
        tiles = tile_file(slide, settings, slide_id="s", tissue_geojson=tmp_path / "m.geojson")
        assert tiles.status == "ok" and set(map(tuple, tiles.coords.tolist())) < grid
