"""Inspection: always three files, a status for every slide."""

import json

import numpy as np
import pytest
from PIL import Image

from acpbench.slides.inspect import inspect_slide, inspect_slide_to_files
from acpbench.slides.thumbnail import draw_thumbnail, placeholder
from acpbench.slides.tiling import TilingSettings, tile_file
from tests.slides.pictures import tissue_picture, write_pyramid


def _pixel(path, x, y):
    return Image.open(path).convert("RGB").getpixel((x, y))


def test_good_slide(tmp_path):
    picture = tissue_picture(1024, 768, [(256, 128, 512, 512)])
    path = write_pyramid(tmp_path / "slide.tif", picture, sizes=[(512, 384)], mpp=(0.5, 0.5))
    quality = inspect_slide_to_files(path, tmp_path / "out", slide_id="S.1")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "quality.json",
        "thumbnail.jpg",
        "tissue.geojson",
    ]
    assert json.loads((tmp_path / "out" / "quality.json").read_text()) == quality
    assert (quality["status"], quality["slide_id"]) == ("ok", "S.1")
    assert (quality["width_px"], quality["height_px"]) == (1024, 768)
    assert quality["mpp_x"] == pytest.approx(0.5, rel=1e-4)
    assert quality["tissue_area_mm2"] == pytest.approx((512 * 0.5 / 1000) ** 2, rel=0.06)
    assert quality["tissue_fraction"] == pytest.approx(512 * 512 / (1024 * 768), rel=0.06)
    assert [level["width_px"] for level in quality["levels"]] == [1024, 512]
    assert quality["classes"]["pen"]["fraction"] == 0.0
    document = json.loads((tmp_path / "out" / "tissue.geojson").read_text())
    ring = np.asarray(document["features"][0]["geometry"]["coordinates"][0])
    assert ring.min(axis=0) == pytest.approx([256, 128], abs=8)
    assert ring.max(axis=0) == pytest.approx([768, 640], abs=8)
    image = Image.open(tmp_path / "out" / "thumbnail.jpg")
    assert image.size == (512, 384) and quality["thumbnail_downsample"] == [2.0, 2.0]


def test_two_executions_write_the_same_bytes_and_no_path(tmp_path):
    picture = tissue_picture(600, 600, [(100, 100, 400, 400)])
    path = write_pyramid(tmp_path / "slide.tif", picture)
    for name in "ab":
        inspect_slide_to_files(path, tmp_path / name, slide_id="s")
    for file in ("quality.json", "tissue.geojson", "thumbnail.jpg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert str(tmp_path) not in (tmp_path / "a" / "quality.json").read_text()


def test_broken_slide_still_gives_all_files(tmp_path):
    (tmp_path / "x.svs").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    quality = inspect_slide_to_files(tmp_path / "x.svs", tmp_path / "out", slide_id="x")
    assert (quality["status"], quality["reason"]) == ("unreadable", "lfs_pointer")
    assert "Git-LFS" in quality["detail"]
    assert quality["tissue_fraction"] is None and quality["mpp_x"] is None and quality["classes"] is None
    assert json.loads((tmp_path / "out" / "tissue.geojson").read_text())["features"] == []
    assert Image.open(tmp_path / "out" / "thumbnail.jpg").size == (640, 360)


def test_slide_without_spacing_is_shown_but_not_measured(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", tissue_picture(600, 400, [(100, 100, 300, 200)]), mpp=None)
    result = inspect_slide(path, slide_id="a")
    assert result.quality["status"] == "no_mpp"
    assert result.quality["tissue_area_mm2"] is None and result.quality["width_px"] == 600
    assert result.thumbnail.shape[:2] == (341, 512)
    assert result.thumbnail[200, 200].tolist() != result.thumbnail[5, 5].tolist()
    assert inspect_slide(path, slide_id="a", declared_mpp=0.5).quality["status"] == "ok"


def test_empty_slide(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", np.full((400, 400, 3), 255, np.uint8))
    quality = inspect_slide(path, slide_id="a").quality
    assert (quality["status"], quality["tissue_area_mm2"]) == ("empty_tissue", 0.0)
    assert quality["classes"]["fold"]["fraction"] is None  # a share of no tissue


def test_contradicting_declaration_is_a_warning(tmp_path):
    path = write_pyramid(tmp_path / "a.tif", tissue_picture(600, 600, [(0, 0, 600, 600)]), mpp=(0.5, 0.5))
    quality = inspect_slide(path, slide_id="a", declared_mpp=0.25).quality
    assert quality["mpp_x"] == 0.25 and quality["mpp_source"] == "declared"
    assert any("0.25" in text and "0.5 x 0.5" in text for text in quality["warnings"])


def test_tiles_are_drawn_where_they_are(tmp_path):
    picture = np.full((512, 512, 3), 245, np.uint8)
    path = write_pyramid(tmp_path / "a.tif", tissue_picture(512, 512, [(0, 0, 512, 512)]))
    tiles = tile_file(path, TilingSettings(1.0, 64), slide_id="a")
    drawn = draw_thumbnail(picture, (512, 512), tiles=tiles)
    assert drawn[128, 200].tolist() == drawn[200, 128].tolist() == [40, 90, 200]
    assert drawn[200, 200].tolist() == [245, 245, 245]


def test_placeholder_survives_any_text():
    assert placeholder("naïve\n" * 200).shape == (360, 640, 3)
