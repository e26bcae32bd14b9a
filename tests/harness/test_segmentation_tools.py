"""Nuclei and tissue: counted by hand on drawn pictures, sane on real ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpbench.core.files import read_csv, read_json, write_json
from acpbench.harness import nuclei
from acpbench.harness.registry import call_tool
from tests.harness.build import Side

STROMA, NUCLEUS, GLASS = (228, 170, 200), (95, 65, 150), (243, 243, 244)
RADIUS_PX = 8
"""4 um at 0.5 um/px: an area of 50.3 um2."""


def picture(
    centres: list[tuple[int, int]], *, radius_px: int = RADIUS_PX, size: tuple[int, int] = (1024, 1024)
) -> np.ndarray:
    """Stroma with a disc of haematoxylin at every (x, y)."""
    rgb = np.full((size[1], size[0], 3), STROMA, np.uint8)
    y, x = np.mgrid[: size[1], : size[0]]
    for cx, cy in centres:
        rgb[(x - cx) ** 2 + (y - cy) ** 2 <= radius_px**2] = NUCLEUS
    return rgb


def segment(rgb: np.ndarray, spacing_um: float = 0.5) -> nuclei.Nuclei:
    stain, tissue = nuclei.haematoxylin(rgb, spacing_um), nuclei.tissue_pixels(rgb)
    threshold = nuclei.stain_threshold([stain], [tissue])
    return nuclei.segment(stain, tissue, threshold, spacing_um, min_area_um2=12, max_area_um2=400)


LATTICE = [(60 + 90 * i, 50 + 100 * j) for i in range(10) for j in range(9)]


def test_separate_discs_are_counted_and_measured() -> None:
    found = segment(picture(LATTICE))
    assert len(found.counted) == len(LATTICE) == 90
    assert found.counted.all() and found.whole.all()
    assert found.area_um2.mean() == pytest.approx(math.pi * 4.0**2, rel=0.12)
    assert found.eccentricity.max() < 0.5
    order = np.lexsort((found.centroid_px[:, 0], found.centroid_px[:, 1]))
    np.testing.assert_allclose(
        found.centroid_px[order], sorted(LATTICE, key=lambda c: (c[1], c[0])), atol=1.0
    )


def test_touching_discs_are_parted() -> None:
    pairs = [(100 + 120 * i + 13 * k, 100) for i in range(6) for k in (0, 1)]
    assert len(segment(picture(pairs)).counted) == 12


def test_the_frame_counts_a_nucleus_on_two_borders_and_not_on_the_other_two() -> None:
    edges = {(0, 300): False, (300, 0): False, (1023, 300): True, (300, 1023): True, (500, 500): True}
    found = segment(picture(list(edges)))
    told = {
        min(edges, key=lambda c: abs(c[0] - x) + abs(c[1] - y)): bool(counted)
        for (x, y), counted in zip(found.centroid_px, found.counted, strict=True)
    }
    assert told == edges
    assert found.whole.sum() == 1


def test_size_limits_leave_out_specks_and_clumps() -> None:
    rgb = picture([(100, 100)], radius_px=3)
    rgb[400:480, 400:480] = NUCLEUS
    assert len(segment(rgb).counted) == 0


@pytest.mark.parametrize("colour", [STROMA, GLASS, (60, 60, 60)])
def test_a_picture_without_nuclei_has_none(colour: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    rgb = np.clip(np.array(colour) + rng.normal(0, 3, (256, 256, 3)), 0, 255).astype(np.uint8)
    assert len(segment(rgb).counted) == 0


def test_one_threshold_serves_all_regions_of_a_slide() -> None:
    full, empty = picture(LATTICE), picture([])
    stains = [nuclei.haematoxylin(rgb, 0.5) for rgb in (full, empty)]
    tissues = [nuclei.tissue_pixels(rgb) for rgb in (full, empty)]
    threshold = nuclei.stain_threshold(stains, tissues)
    assert threshold is not None
    counts = [
        len(nuclei.segment(s, t, threshold, 0.5, min_area_um2=12, max_area_um2=400).counted)
        for s, t in zip(stains, tissues, strict=True)
    ]
    assert counts == [90, 0]


def test_one_region_gives_counts_density_areas_table_and_overlay(side: Side) -> None:
    rgb = picture(LATTICE)
    rgb[:, 960:] = GLASS
    side.draw_slide("S00", rgb)
    context = side.context()
    answer = call_tool(
        context,
        "segment_nuclei",
        {"slide_id": "S00", "x_level0": 0, "y_level0": 0, "width_px": 1024, "height_px": 1024},
    )
    assert answer["exit_status"] == "ok", answer["error"]
    result = answer["result"]
    assert (result["n_nuclei"], result["n_regions"], result["area"]["n"]) == (90, 1, 90)
    # 1024 x 1024 px of 0.5 um are 0.262144 mm2, of which 64 columns are glass.
    assert result["region_area_mm2"] == pytest.approx(0.262144)
    assert result["tissue_area_mm2"] == pytest.approx(0.262144 * 960 / 1024, rel=0.005)
    assert result["density_per_mm2"] == pytest.approx(90 / result["tissue_area_mm2"])
    assert result["area"]["median_um2"] == pytest.approx(50.3, rel=0.12)
    table, overlay = (entry["path"] for entry in answer["outputs"])
    rows = read_csv(context.path(table))
    assert len(rows) == 90
    assert min(abs(float(row["x_level0"]) - 60) for row in rows) < 2
    assert context.path(overlay).read_bytes().startswith(b"\x89PNG")


def test_without_a_corner_tiles_of_the_study_are_sampled(side: Side) -> None:
    side.draw_slide("S00", picture(LATTICE))
    context = side.context()
    answer = call_tool(context, "segment_nuclei", {"slide_id": "S00", "n_tiles": 3})
    assert answer["exit_status"] == "ok", answer["error"]
    # Three of six tiles of 224 px, and 0.5 um a pixel.
    assert answer["result"]["n_regions"] == 3
    assert answer["result"]["region_area_mm2"] == pytest.approx(3 * (224 * 0.5e-3) ** 2)
    again = call_tool(context, "segment_nuclei", {"slide_id": "S00", "n_tiles": 3})
    assert again["outputs"] == answer["outputs"]
    assert answer["outputs"][0]["path"] == "outputs/round_0/nuclei/S00_tiles.csv"
    assert again["result"] == answer["result"]


def test_a_coarse_slide_and_a_region_outside_are_errors(side: Side) -> None:
    side.draw_slide("S00", picture([]))
    context = side.context()
    fine = call_tool(context, "segment_nuclei", {"slide_id": "S00", "spacing_um": 0.25})
    assert "never upsampled" in fine["error"]
    outside = call_tool(context, "segment_nuclei", {"slide_id": "S00", "x_level0": 900, "y_level0": 0})
    assert "leaves the slide" in outside["error"]


def _square(x0: int, y0: int, side_px: int) -> dict[str, Any]:
    corners = [[x0, y0], [x0 + side_px, y0], [x0 + side_px, y0 + side_px], [x0, y0 + side_px], [x0, y0]]
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [corners]},
        "properties": {"classification": {"name": "Tissue"}},
    }


def test_tissue_areas_are_those_of_the_studys_polygons(side: Side) -> None:
    folder = side.slides_dir / "S00"
    pieces = {"type": "FeatureCollection", "features": [_square(0, 0, 800), _square(820, 820, 200)]}
    write_json(folder / "tissue.geojson", pieces)
    quality = read_json(folder / "quality.json")
    measured = {"mpp_x": 0.5, "mpp_y": 0.5, "mask_spacing_um": 1.0, "glass_found": True}
    write_json(folder / "quality.json", quality | measured)
    context = side.context()
    both = call_tool(context, "segment_tissue", {"slide_id": "S00"})["result"]
    # 800 px are 0.4 mm, 200 px are 0.1 mm, the slide's 1024 px are 0.512 mm.
    assert both["tissue_area_mm2"] == pytest.approx(0.16 + 0.01)
    assert both["largest_piece_mm2"] == pytest.approx(0.16)
    assert both["tissue_fraction"] == pytest.approx(0.17 / 0.512**2)
    assert both["n_pieces"] == 2
    large = call_tool(context, "segment_tissue", {"slide_id": "S00", "min_piece_mm2": 0.02})
    assert large["result"]["n_pieces"] == 1
    (output,) = large["outputs"]
    assert read_json(context.path(output["path"]))["features"] == pieces["features"][:1]


def test_a_slide_without_tissue_says_so(side: Side) -> None:
    folder = side.slides_dir / "S00"
    write_json(
        folder / "quality.json",
        read_json(folder / "quality.json") | {"status": "no_mpp", "reason": "mpp_missing"},
    )
    error = call_tool(side.context(), "segment_tissue", {"slide_id": "S00"})["error"]
    assert "no_mpp (mpp_missing)" in error


def test_quality_fractions_by_hand(side: Side) -> None:
    given = {"S00": (0.0, 0.1, 0.02), "S01": (0.2, 0.5, 0.04), "S02": (0.01, None, 0.2)}
    for slide_id, (pen, blur, fold) in given.items():
        path = side.slides_dir / slide_id / "quality.json"
        classes = {
            "pen": {"fraction": pen, "of": "slide"},
            "blur": {"fraction": blur, "of": "sampled tiles"},
            "fold": {"fraction": fold, "of": "tissue"},
        }
        write_json(path, read_json(path) | {"classes": classes, "tissue_area_mm2": 4.0})
    context = side.context()
    answer = call_tool(context, "report_quality", {})
    assert answer["exit_status"] == "ok", answer["error"]
    result = answer["result"]
    assert result["above_limits"] == {"S01": ["pen 0.200", "blur 0.500"], "S02": ["fold 0.200"]}
    assert result["n_above_limits"] == 2
    pen = result["fractions"]["pen"]
    assert (pen["n_slides"], pen["maximum"], pen["maximum_slide_id"], pen["of"]) == (3, 0.2, "S01", "slide")
    assert pen["mean"] == pytest.approx(0.07)
    assert pen["median"] == 0.01
    assert result["fractions"]["blur"]["n_slides"] == 2
    assert result["tissue_area_mm2_median"] == 4.0
    rows = {row["slide_id"]: row for row in read_csv(context.path("outputs/round_0/quality_report.csv"))}
    assert len(rows) == len(side.rows)
    assert (rows["S01"]["pen_fraction"], rows["S02"]["blur_fraction"]) == ("0.2", "")
    strict = call_tool(context, "report_quality", {"max_pen_fraction": 0.005})
    assert set(strict["result"]["above_limits"]) == {"S01", "S02"}


def test_nuclei_of_a_real_slide_have_plausible_sizes(shared_data: Path) -> None:
    slide = shared_data / "slides" / "CMU-1-Small-Region.svs"
    if not slide.is_file():
        pytest.skip("no CMU-1-Small-Region.svs in the folder with real data")
    import openslide

    with openslide.OpenSlide(str(slide)) as reader:
        rgb = np.asarray(reader.read_region((600, 1200), 0, (512, 512)).convert("RGB"))
    found = segment(rgb)
    # Half of the field is glass; by eye it holds about a hundred nuclei, mostly thin or round small ones.
    assert 60 < len(found.counted) < 160
    assert 12 <= np.median(found.area_um2) < 60
    assert found.centroid_px[:, 0].min() > 240
