"""What becomes of every real file at hand: its status and its reason, as a user would meet them.

The record was worked out from what the files are (their source's notes and their headers): a slide with and
without a spacing, dpi tags that pose as microns per pixel, a stub of another compression, pointers where a
slide should be, a slide that opens and then cannot be read.
"""

import json

import pytest

from acpbench.core.files import read_csv
from acpbench.slides.inspect import inspect_slide
from acpbench.slides.tiling import TilingSettings, tile_file

IMPLAUSIBLE = ("no_mpp", "mpp_implausible")
POINTER = ("unreadable", "lfs_pointer")
RECORD = {
    "CMU-1-Small-Region.svs": ("ok", None, None),
    "TCGA-CR-7395-01A-01-TS1.svs": ("no_mpp", "mpp_missing", "declare"),
    # 28.97 um/px: the coarsest level of a slide, exported alone. Beyond any use, whatever it is called.
    "gcp_multi_frame_jpeg_camelyon.dcm": (*IMPLAUSIBLE, "28.969"),
    "li_test_orient5.tif": (*IMPLAUSIBLE, "352.858"),
    "li_yb10kx5k.zstd.tiff": (*IMPLAUSIBLE, "352.858"),
    "osp_boxes.tiff": (*IMPLAUSIBLE, "352.778"),
    "osp_small.svs": ("empty_tissue", "no_tissue", "no tissue"),  # 16 x 16 white pixels
    "osp_unopenable.tiff": ("unreadable", "open_failed", "compression"),
    "osp_unreadable.svs": ("unreadable", "read_failed", "cannot be read"),
    "eva_a_lfs_pointer.tiff": (*POINTER, "git lfs pull"),
    "gcp_ndpi_test_lfs_pointer.ndpi": (*POINTER, "git lfs pull"),
}
"""File → status, reason, and a word of the detail."""

WITH_SPACING = {
    "CMU-1-Small-Region.svs": ("ok", ""),
    "TCGA-CR-7395-01A-01-TS1.svs": ("ok", ""),
    "gcp_multi_frame_jpeg_camelyon.dcm": ("too_few_tiles", "min_tiles"),
    "li_test_orient5.tif": ("empty_tissue", "no_tissue"),
    "li_yb10kx5k.zstd.tiff": ("ok", ""),
    "osp_boxes.tiff": ("emptied_by_filter", "artefact"),  # boxes of pure colours, which pass for ink
    "osp_small.svs": ("empty_tissue", "no_tissue"),
    "osp_unopenable.tiff": ("unreadable", "open_failed"),
    "osp_unreadable.svs": ("unreadable", "read_failed"),
    "eva_a_lfs_pointer.tiff": POINTER,
    "gcp_ndpi_test_lfs_pointer.ndpi": POINTER,
}
"""File → status and reason of its tiling at 0.5 um/px, 224 px, when 0.5 um/px is declared for it."""


@pytest.fixture
def folder(shared_data):
    if not (shared_data / "slides").is_dir():
        pytest.skip("no folder of slides among the real data")
    return shared_data / "slides"


def test_every_file_is_on_record(folder):
    assert {path.name for path in folder.iterdir()} == set(RECORD) == set(WITH_SPACING)


@pytest.mark.parametrize("name", RECORD)
def test_status_and_reason(folder, name):
    status, reason, word = RECORD[name]
    result = inspect_slide(folder / name, slide_id="s")
    assert (result.quality["status"], result.quality["reason"]) == (status, reason)
    assert (result.quality["detail"] is None) == (status == "ok")
    assert word is None or word in result.quality["detail"]
    assert str(folder) not in json.dumps(result.quality)
    assert result.thumbnail.ndim == 3
    classes = [f["properties"]["classification"]["name"] for f in result.geojson["features"]]
    assert classes.count("Tissue") == (status == "ok")


@pytest.mark.parametrize("name", WITH_SPACING)
def test_outcome_of_tiling_with_a_declared_spacing(folder, name):
    tiles = tile_file(folder / name, TilingSettings(0.5, 224), slide_id="s", declared_mpp=0.5)
    assert (tiles.status, tiles.reason) == WITH_SPACING[name]
    assert (len(tiles.coords) > 0) == (tiles.status == "ok")


def test_contradiction_and_missing_spacing_are_told_apart(folder):
    missing = inspect_slide(folder / "TCGA-CR-7395-01A-01-TS1.svs", slide_id="s").quality["detail"]
    wrong = inspect_slide(folder / "osp_boxes.tiff", slide_id="s", declared_mpp=0.5).quality["warnings"]
    assert "records no spacing" in missing
    assert any("352.778" in text and "0.5 um/px is used" in text for text in wrong)


@pytest.mark.parametrize("name", ["TCGA-CR-7395-01A-01-TS1.svs", "li_yb10kx5k.zstd.tiff"])
def test_a_level_of_twice_the_declared_spacing_is_read_as_it_is(folder, name):
    tiles = tile_file(folder / name, TilingSettings(0.5, 256), slide_id="s", declared_mpp=0.25)
    assert tiles.status == "ok" and tiles.plan.level == 1 and not tiles.plan.resized


@pytest.mark.parametrize("slide_id", ["NORM000-1", "LUAD008-1", "LUSC014-1"])
def test_tiles_of_the_lung_cohort_are_its_tissue(shared_data, slide_id):
    folder = shared_data / "cohorts" / "lung_composite"
    if not folder.is_dir():
        pytest.skip("no lung_composite cohort")
    truth = {
        (int(r["x"]), int(r["y"])) for r in read_csv(folder / "tile_truth.csv") if r["slide_id"] == slide_id
    }
    tiles = tile_file(folder / "slides" / f"{slide_id}.svs", TilingSettings(0.5, 224), slide_id=slide_id)
    found = set(map(tuple, tiles.coords.tolist()))
    assert found <= truth
    assert len(found) >= 0.9 * len(truth)


@pytest.mark.slow
def test_every_slide_of_the_lung_cohort_is_usable(shared_data):
    folder = shared_data / "cohorts" / "lung_composite"
    if not folder.is_dir():
        pytest.skip("no lung_composite cohort")
    from shapely.geometry import shape

    for row in read_csv(folder / "slides.csv"):
        result = inspect_slide(folder / row["path"], slide_id=row["slide_id"])
        assert result.quality["status"] == "ok" and result.quality["warnings"] == [], row["slide_id"]
        for feature in result.geojson["features"]:
            polygon = shape(feature["geometry"])
            left, top, right, bottom = polygon.bounds
            assert polygon.is_valid and polygon.area > 0, row["slide_id"]
            assert left >= 0 and top >= 0 and right <= 2016.01 and bottom <= 2016.01, row["slide_id"]
