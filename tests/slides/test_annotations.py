"""Masks as polygons in the layout of QuPath, and back."""

import json
import uuid

import numpy as np
import pytest
from shapely.geometry import Polygon, shape

from acpbench.core.errors import InputError
from acpbench.slides.annotations import COLOURS, mask_from_geojson, mask_polygons, tissue_geojson
from acpbench.slides.inspect import inspect_slide
from acpbench.slides.tissue import TissueMask
from tests.slides.pictures import tissue_picture, write_pyramid


def test_polygon_of_a_square_in_level0_pixels():
    mask = np.zeros((10, 12), bool)
    mask[2:8, 3:9] = True
    (polygon,) = mask_polygons(mask, (100.0, 50.0))
    assert polygon.bounds == (300.0, 100.0, 900.0, 400.0)
    # find_contours cuts the four corners by half a pixel each way: 36 - 4 / 8 pixels at most.
    assert polygon.area == pytest.approx(36 * 5000, rel=0.02)


def test_polygons_keep_holes_and_islands_and_come_back_as_the_mask():
    mask = np.zeros((60, 80), bool)
    mask[5:50, 5:50] = True
    mask[15:40, 15:40] = False
    mask[22:32, 22:32] = True  # an island in the hole
    mask[30:58, 60:80] = True  # touches the right edge
    tissue = TissueMask(mask, (16.0, 16.0), 0.1, True, 3)
    document = tissue_geojson(tissue, "slide")
    assert len(document["features"]) == 3
    shapes = [shape(feature["geometry"]) for feature in document["features"]]
    assert all(isinstance(polygon, Polygon) and polygon.is_valid for polygon in shapes)
    assert [len(polygon.interiors) for polygon in shapes] == [1, 0, 0]
    back = mask_from_geojson(document, (80 * 16, 60 * 16), (80, 60))
    assert (back.mask ^ mask).sum() <= 12  # corners
    assert back.n_objects == 3


def test_geojson_layout_is_qupaths_and_bytes_are_stable():
    mask = np.zeros((8, 8), bool)
    mask[2:6, 2:6] = True
    tissue = TissueMask(mask, (2.0, 2.0), 0.1, True, 1)
    document = tissue_geojson(tissue, "a")
    assert document == tissue_geojson(tissue, "a")
    (feature,) = document["features"]
    assert document["type"] == "FeatureCollection" and feature["type"] == "Feature"
    assert feature["properties"]["objectType"] == "annotation"
    assert feature["properties"]["classification"]["name"] == "Tissue"
    assert feature["id"] != tissue_geojson(tissue, "b")["features"][0]["id"]
    ring = feature["geometry"]["coordinates"][0]
    assert ring[0] == ring[-1]
    assert tissue_geojson(None, "a") == {"type": "FeatureCollection", "features": []}


def test_other_annotations_are_not_tissue():
    square = [[0, 0], [40, 0], [40, 40], [0, 40], [0, 0]]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [square]},
        "properties": {"classification": {"name": "Tumor"}},
    }
    document = {"type": "FeatureCollection", "features": [feature]}
    assert not mask_from_geojson(document, (80, 80), (20, 20)).mask.any()
    feature["properties"] = {}
    assert mask_from_geojson(document, (80, 80), (20, 20)).mask.sum() == pytest.approx(100, abs=21)


def test_every_feature_has_what_qupath_asks_of_an_object():
    """QuPath: Feature, UUID, objectType, classification of name and three colour values of 0 to 255."""
    mask = np.zeros((20, 20), bool)
    mask[2:12, 2:12] = True
    pen = np.zeros_like(mask)
    pen[14:18, 3:17] = True
    document = json.loads(
        json.dumps(tissue_geojson(TissueMask(mask, (8.0, 8.0), 0.1, True, 1), "s", {"Pen": pen}))
    )
    assert [f["properties"]["classification"]["name"] for f in document["features"]] == ["Tissue", "Pen"]
    for feature in document["features"]:
        assert set(feature) == {"type", "id", "geometry", "properties"} and feature["type"] == "Feature"
        assert str(uuid.UUID(feature["id"])) == feature["id"]
        properties = feature["properties"]
        assert properties["objectType"] == "annotation" and properties["isLocked"] is False
        colour = properties["classification"]["color"]
        assert tuple(colour) == COLOURS[properties["classification"]["name"]]
        assert len(colour) == 3 and all(isinstance(v, int) and 0 <= v <= 255 for v in colour)
    left, top, right, bottom = shape(document["features"][1]["geometry"]).bounds
    assert (left, top, right, bottom) == (24, 112, 136, 144)  # pixels times eight: level-0 coordinates


def test_artefacts_in_the_file_are_not_taken_for_tissue():
    mask = np.zeros((20, 20), bool)
    mask[2:12, 2:12] = True
    tissue = TissueMask(mask, (8.0, 8.0), 0.1, True, 1)
    document = tissue_geojson(tissue, "s", {"Fold": np.ones_like(mask)})
    assert (mask_from_geojson(document, (160, 160), (20, 20)).mask ^ mask).sum() <= 4
    assert mask_from_geojson(document, (160, 160), (20, 20), None).mask.sum() >= 396


SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [40, 0], [40, 40], [0, 40], [0, 0]]]}
FEATURE = {"type": "Feature", "geometry": SQUARE, "properties": {"objectType": "annotation"}}


@pytest.mark.parametrize(
    "document",
    [
        {"type": "FeatureCollection", "features": [FEATURE]},
        [FEATURE],
        FEATURE,
        [FEATURE | {"geometry": {"type": "MultiPolygon", "coordinates": [SQUARE["coordinates"]]}}],
        [
            FEATURE,
            FEATURE | {"geometry": {"type": "Point", "coordinates": [1, 1]}},
            FEATURE | {"geometry": None},
        ],
    ],
)
def test_all_forms_that_qupath_exports_are_read(document):
    assert mask_from_geojson(document, (80, 80), (20, 20)).mask.sum() == 100


@pytest.mark.parametrize(
    "document",
    [
        "text",
        7,
        {"type": "FeatureCollection"},
        [{}],
        [FEATURE | {"geometry": {"type": "Polygon", "coordinates": "x"}}],
        [
            FEATURE
            | {"geometry": {"type": "Polygon", "coordinates": [[[0, 0], [9, float("nan")], [9, 9], [0, 0]]]}}
        ],
        [
            FEATURE
            | {"geometry": {"type": "Polygon", "coordinates": [[[0, 0], [9, float("inf")], [9, 9], [0, 0]]]}}
        ],
        [FEATURE | {"properties": {"classification": {"name": ["Tissue"]}}}],
    ],
)
def test_other_json_is_refused(document):
    with pytest.raises(InputError, match=r"m\.geojson"):
        mask_from_geojson(document, (80, 80), (20, 20), file="m.geojson")


def test_polygons_beside_the_slide_are_an_error_not_an_empty_mask():
    with pytest.raises(InputError, match="level-0 pixels"):
        mask_from_geojson(FEATURE | {"geometry": {"type": "Polygon", "coordinates": [
            [[900, 900], [950, 900], [950, 950], [900, 900]]]}}, (80, 80), (20, 20))  # fmt: skip


def test_polygons_of_a_speckled_mask_are_valid_and_cover_it():
    rng = np.random.default_rng(5)
    mask = rng.random((60, 60)) < 0.55  # touching corners, pinched outlines, holes in holes
    polygons = mask_polygons(mask, (1.0, 1.0))
    assert polygons and all(p.is_valid and p.geom_type == "Polygon" and p.area > 0 for p in polygons)
    # Every corner of the pixel outline is cut by an eighth of a pixel; nothing else may be lost.
    assert sum(p.area for p in polygons) == pytest.approx(mask.sum(), rel=0.25)


def test_outline_of_a_slide_with_odd_downsample_lies_where_its_tissue_is(tmp_path):
    picture = tissue_picture(1001, 777, [(403, 222, 301, 333)])
    path = write_pyramid(tmp_path / "a.tif", picture, sizes=[(501, 389)], mpp=(1.0, 1.0))
    (feature,) = inspect_slide(path, slide_id="a").geojson["features"]
    assert shape(feature["geometry"]).bounds == pytest.approx((403, 222, 704, 555), abs=6)
