"""Overlays line up with the tiles, top tiles and exports are those tiles, truth is matched by place."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv, write_json
from acpbench.features.store import FeatureBag, write_features
from acpbench.mil.bags import PatientBag
from acpbench.mil.crossval import write_attention
from acpbench.mil.label_table import LABEL_COLUMNS
from acpbench.mil.overlay import attention_auroc, attention_overlay
from acpbench.mil.reference_attention import draw_reference_attention, export_attention, held_out_attention
from acpbench.mil.top_tiles import top_tiles
from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.geometry import TilePlan

TILE = 20


def make_slide(folder: Path, coords: np.ndarray, size: tuple[int, int], name: str = "s1") -> dict[str, Path]:
    """A plain picture as a slide, with features, coords, thumbnail and quality record.

    The tile with corner (x, y) is filled with the colour (x / 10, y / 10, 200).
    """
    pixels = np.full((size[1], size[0], 3), 255, np.uint8)
    for x, y in coords.tolist():
        pixels[y : y + TILE, x : x + TILE] = (x // 10, y // 10, 200)
    Image.fromarray(pixels).save(folder / f"{name}.png")
    attrs = {
        "slide_id": name,
        "status": "ok",
        "encoder": "e",
        "cache_key": "k",
        "tile_size_level0": float(TILE),
    }
    write_features(folder / f"{name}.h5", FeatureBag(np.ones((len(coords), 3), np.float32), coords, attrs))
    plan = TilePlan(
        requested_spacing_um=0.5,
        tile_size_px=TILE,
        level=0,
        read_spacing_x_um=0.5,
        read_spacing_y_um=0.5,
        effective_spacing_x_um=0.5,
        effective_spacing_y_um=0.5,
        tile_width_level0=float(TILE),
        tile_height_level0=float(TILE),
        downsample_x=1.0,
        downsample_y=1.0,
        read_width_px=TILE,
        read_height_px=TILE,
    )
    tiles = TileSet(
        name, "", "ok", "", "", coords, np.ones(len(coords)), 0.5, TILE, plan, mpp_x=0.5, mpp_y=0.5
    )
    write_coords(folder / f"{name}_coords.h5", tiles)
    Image.fromarray(pixels).resize((100, round(100 * size[1] / size[0]))).save(folder / "thumbnail.png")
    write_json(folder / "quality.json", {"width_px": size[0], "height_px": size[1]})
    label = {"slide_id": name, "patient_id": "p", "fold": 1, "split": "validation"}
    write_csv(folder / "labels.csv", LABEL_COLUMNS, [label])
    return {
        "features_sidecar": folder / f"{name}.h5.json",
        "coords_file": folder / f"{name}_coords.h5",
        "thumbnail": folder / "thumbnail.png",
        "quality": folder / "quality.json",
        "slide_path": folder / f"{name}.png",
    }


def draw(folder: Path, files: list[Path], parts: dict[str, Path], **changes: object) -> None:
    draw_reference_attention(
        folder / "labels.csv",
        files,
        slide_id="s1",
        out=folder / "o.jpg",
        top_picture=folder / "top.jpg",
        top_table=folder / "top.csv",
        **(parts | changes),
    )


def test_tiles_are_tinted_where_they_are(tmp_path):
    thumbnail = np.full((100, 200, 3), 255, np.uint8)  # slide 4000 x 2000, so 1 px = 20 level-0 px
    coords = np.array([[0, 0], [2000, 1000], [3800, 1800]])
    out = tmp_path / "a.jpg"
    options = {"tile_size_level0": 200, "slide_size_level0": (4000, 2000), "out": out, "opacity": 1.0}
    attention_overlay(thumbnail, coords, np.array([0.1, 0.9, 0.5]), **options)
    pixels = np.asarray(Image.open(out).convert("RGB")).astype(int)
    assert pixels.shape == (144, 200, 3)
    # viridis: lowest (68, 1, 84), highest (253, 231, 37), middle (33, 145, 140)
    for (x, y), colour in {(5, 5): (68, 1, 84), (105, 55): (253, 231, 37), (195, 95): (33, 145, 140)}.items():
        assert np.abs(pixels[y, x] - colour).max() < 30
    assert pixels[30, 60].min() > 245  # no tile here
    first = out.read_bytes()
    attention_overlay(thumbnail, coords, np.array([0.1, 0.9, 0.5]), **options)
    assert out.read_bytes() == first


def test_overlay_edges_and_refusals(tmp_path):
    thumbnail = np.full((50, 50, 3), 255, np.uint8)
    options = {"tile_size_level0": 10, "slide_size_level0": (500, 500), "out": tmp_path / "a.jpg"}
    attention_overlay(
        thumbnail, np.array([[0, 0]]), np.array([1.0]), **options
    )  # one tile, constant attention
    for coords, attention, message in [
        (np.array([[0, 0]]), np.array([1.0, 2.0]), "do not agree"),
        (np.zeros((0, 2)), np.zeros(0), "empty"),
        (np.array([[600, 0]]), np.array([1.0]), "outside"),
        (np.array([[0, 0]]), np.array([np.nan]), "attention: not every number is finite"),
        (np.array([[0, np.nan]]), np.array([1.0]), "coords: not every number is finite"),
    ]:
        with pytest.raises(InputError, match=message):
            attention_overlay(thumbnail, coords, attention, **options)
    with pytest.raises(InputError, match="80 x 50 px shows no slide of 500 x 500 px"):
        attention_overlay(np.full((50, 80, 3), 255, np.uint8), np.array([[0, 0]]), np.array([1.0]), **options)
    (tmp_path / "t.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match="thumbnail"):
        attention_overlay(tmp_path / "t.jpg", np.array([[0, 0]]), np.array([1.0]), **options)


@pytest.mark.parametrize("channels", [None, 4])
def test_a_corner_in_the_last_half_pixel_is_tinted_on_any_picture(tmp_path, channels):
    shape = (50, 50) if channels is None else (50, 50, channels)
    out = tmp_path / "a.jpg"
    # 10 level-0 px a pixel: 497 would be rounded to pixel 50 of 0..49
    attention_overlay(
        np.full(shape, 255, np.uint8), np.array([[0, 0], [497, 497]]), np.array([0.9, 0.1]),
        tile_size_level0=3, slide_size_level0=(500, 500), out=out, opacity=1.0,
    )  # fmt: skip
    luminance = np.asarray(Image.open(out).convert("L"))
    assert luminance[49, 49] < 128 < luminance[47, 47]


def test_attention_auroc_matches_by_coordinate():
    coords = np.array([[0, 0], [10, 0], [20, 0], [30, 0]])
    attention = np.array([0.4, 0.1, 0.3, 0.2])
    truth = [
        {"x_level0": "30", "y_level0": "0", "positive": "0"},
        {"x_level0": "0", "y_level0": "0", "positive": "1"},
        {"x_level0": "10", "y_level0": "0", "positive": "1"},
        {"x_level0": "990", "y_level0": "0", "positive": "1"},  # not a tile
    ]
    # positives .4 .1 against negative .2: 1 of 2 pairs
    assert attention_auroc(truth, coords, attention) == (0.5, "")
    assert attention_auroc(truth[1:3], coords, attention) == (None, "only one class among the tiles")
    assert attention_auroc([], coords, attention) == (None, "no tile has a truth")
    with pytest.raises(InputError, match="expected 0 or 1"):
        attention_auroc([truth[0] | {"positive": "maybe"}], coords, attention)
    # A table that went through a spreadsheet, a tile that is listed twice.
    assert (
        attention_auroc([*truth, truth[1] | {"x_level0": "0.0", "positive": "1.0"}], coords, attention)[0]
        == 0.5
    )
    with pytest.raises(InputError, match="both positive and negative"):
        attention_auroc([*truth, truth[1] | {"positive": "0"}], coords, attention)
    with pytest.raises(InputError, match="whole number"):
        attention_auroc([truth[0] | {"x_level0": "0.5"}], coords, attention)
    with pytest.raises(InputError, match="not finite"):
        attention_auroc(truth, coords, attention * np.nan)


def test_the_bottom_right_tile_is_tinted_at_the_bottom_right_of_an_odd_slide(tmp_path):
    """No drift: sides that divide by nothing, a thumbnail whose sides are rounded, the last tile's corner."""
    width, height, tile = 10007, 7411, 223.7
    thumbnail = np.full((741, 1001, 3), 255, np.uint8)
    coords = np.array([[0, 0], [width - 224, height - 224]])
    out = tmp_path / "a.jpg"
    attention_overlay(
        thumbnail,
        coords,
        np.array([0.1, 0.9]),
        tile_size_level0=tile,
        slide_size_level0=(width, height),
        out=out,
        opacity=1.0,
    )
    pixels = np.asarray(Image.open(out).convert("RGB")).astype(int)[:741]
    # Half way from white to the yellow of the highest attention; JPEG blurs colours over a pixel or two.
    yellow = (pixels[:, :, 2] < (255 + 37) / 2) & (pixels[:, :, 0] > 128)
    rows, columns = np.flatnonzero(yellow.any(axis=1)), np.flatnonzero(yellow.any(axis=0))
    # Corner (9783, 7187) and end (10006.7, 7410.7) level-0 px, times 1001 / 10007 and 741 / 7411.
    assert abs(columns[0] - 978.6) <= 1 and abs(columns[-1] + 1 - 1000.97) <= 1
    assert abs(rows[0] - 718.6) <= 1 and abs(rows[-1] + 1 - 740.97) <= 1


def test_tiles_of_a_slide_with_unequal_spacing_are_not_squares(tmp_path):
    out = tmp_path / "a.jpg"
    attention_overlay(
        np.full((100, 100, 3), 255, np.uint8),
        np.array([[0, 0], [500, 500]]),
        np.array([0.1, 0.9]),
        tile_size_level0=(400.0, 200.0),
        slide_size_level0=(1000, 1000),
        out=out,
        opacity=1.0,
    )
    pixels = np.asarray(Image.open(out).convert("RGB")).astype(int)
    assert np.abs(pixels[60, 85] - (253, 231, 37)).max() < 30
    assert pixels[80, 60].min() > 240
    with pytest.raises(InputError, match="do not say its size"):
        attention_overlay(
            np.full((9, 9, 3), 255, np.uint8),
            np.array([[0, 0]]),
            np.array([1.0]),
            tile_size_level0=-1.0,
            slide_size_level0=(9, 9),
            out=out,
        )


def test_held_out_attention_of_the_right_fold(tmp_path):
    coords = np.array([[0, 0], [100, 100]], np.int64)
    parts = make_slide(tmp_path, coords, (300, 300))
    files = [tmp_path / "0.h5", tmp_path / "1.h5"]
    write_attention(files[0], [], [])
    bag = PatientBag("p", np.ones((2, 3), np.float32), (("s1", 0, 2),), coords)
    write_attention(files[1], [bag], [np.array([0.2, 0.8], np.float32)])
    draw(tmp_path, files, parts)
    assert Image.open(tmp_path / "o.jpg").size == (100, 144)
    plain = (tmp_path / "o.jpg").read_bytes()
    draw(tmp_path, files[:1], parts)  # pictures that say why
    assert (tmp_path / "o.jpg").read_bytes() != plain and read_csv(tmp_path / "top.csv") == []
    write_json(tmp_path / "quality.json", {"width_px": None, "height_px": None})
    with pytest.raises(InputError, match="slide size"):
        draw(tmp_path, files, parts)
    attrs = {"slide_id": "s1", "status": "ok", "encoder": "e", "cache_key": "k", "tile_size_level0": 20.0}
    write_features(tmp_path / "s1.h5", FeatureBag(np.ones((2, 3), np.float32), coords + 1, attrs))
    with pytest.raises(InputError, match="other tiles"):
        draw(tmp_path, files, parts)


def test_attention_of_another_length_than_its_tiles_is_refused(tmp_path):
    coords = np.array([[0, 0], [20, 0], [40, 0]], np.int64)
    bag = PatientBag("p", np.ones((3, 3), np.float32), (("s1", 0, 3),), coords)
    with pytest.raises(InputError, match="2 attention weights for 3 tiles"):
        write_attention(tmp_path / "a.h5", [bag], [np.array([0.5, 0.5], np.float32)])
    with h5py.File(tmp_path / "b.h5", "w") as handle:
        handle["s1/attention"], handle["s1/coords"] = np.ones(2), coords
        handle["s2/attention"] = np.ones(2)
    with pytest.raises(InputError, match="2 attention weights for 3 tiles"):
        held_out_attention([tmp_path / "b.h5"], "s1")
    with pytest.raises(InputError, match="no coords"):
        held_out_attention([tmp_path / "b.h5"], "s2")


def test_top_tiles_are_the_pixels_of_the_highest_attention_in_order(tmp_path):
    coords = np.array([[x, y] for y in range(0, 400, 100) for x in range(0, 500, 100)], np.int64)
    parts = make_slide(tmp_path, coords, (600, 500))
    attention = np.linspace(0.01, 0.09, len(coords)).astype(np.float32)
    attention[7] = 0.5  # corner (200, 100)
    bag = PatientBag("p", np.ones((len(coords), 3), np.float32), (("s1", 0, len(coords)),), coords)
    write_attention(tmp_path / "1.h5", [bag], [attention])
    draw(tmp_path, [tmp_path / "1.h5"], parts, n_top=5)
    rows = read_csv(tmp_path / "top.csv")
    assert [(row["x_level0"], row["y_level0"]) for row in rows] == [
        ("200", "100"), ("400", "300"), ("300", "300"), ("200", "300"), ("100", "300"),
    ]  # fmt: skip
    assert rows[0]["times_mean"] == str(round(float(attention[7]) / float(attention.mean(dtype=float)), 3))
    mosaic = np.asarray(Image.open(tmp_path / "top.jpg").convert("RGB")).astype(int)
    # Cells of 192 px, 8 px apart, 16 px of text below, four in a row.
    assert mosaic.shape == (2 * 216 + 8, 4 * 200 + 8, 3)
    for place, (x, y) in {(104, 104): (20, 10), (304, 104): (40, 30), (104, 320): (10, 30)}.items():
        assert np.abs(mosaic[place[1], place[0]] - (x, y, 200)).max() < 8, place
    first = (tmp_path / "top.jpg").read_bytes()
    draw(tmp_path, [tmp_path / "1.h5"], parts, n_top=5)
    assert (tmp_path / "top.jpg").read_bytes() == first


def test_asking_for_more_top_tiles_than_there_are_gives_those_there_are(tmp_path):
    assert top_tiles(np.zeros((1, 2)), np.array([1.0]), 12).tolist() == [0]
    assert top_tiles(np.zeros((3, 2)), np.array([0.2, 0.5, 0.5]), 12).tolist() == [1, 2, 0]
    assert top_tiles(np.zeros((0, 2)), np.zeros(0), 12).tolist() == []
    with pytest.raises(InputError, match="at least 1"):
        top_tiles(np.zeros((1, 2)), np.array([1.0]), 0)
    parts = make_slide(tmp_path, np.array([[40, 60]], np.int64), (100, 100))
    bag = PatientBag("p", np.ones((1, 3), np.float32), (("s1", 0, 1),), np.array([[40, 60]]))
    write_attention(tmp_path / "1.h5", [bag], [np.ones(1, np.float32)])
    draw(tmp_path, [tmp_path / "1.h5"], parts)
    assert len(read_csv(tmp_path / "top.csv")) == 1
    assert Image.open(tmp_path / "top.jpg").size == (208, 224)


def test_a_slide_that_cannot_be_read_any_more_still_has_its_table(tmp_path):
    parts = make_slide(tmp_path, np.array([[40, 60]], np.int64), (100, 100))
    bag = PatientBag("p", np.ones((1, 3), np.float32), (("s1", 0, 1),), np.array([[40, 60]]))
    write_attention(tmp_path / "1.h5", [bag], [np.ones(1, np.float32)])
    draw(tmp_path, [tmp_path / "1.h5"], parts, slide_path=tmp_path / "gone.svs")
    assert len(read_csv(tmp_path / "top.csv")) == 1 and Image.open(tmp_path / "top.jpg").size == (640, 360)


def test_export_for_qupath_has_a_box_and_a_measurement_for_every_tile(tmp_path):
    from shapely.geometry import shape

    coords = np.array([[0, 0], [20, 0], [40, 60]], np.int64)
    parts = make_slide(tmp_path, coords, (100, 100))
    bag = PatientBag("p", np.ones((3, 3), np.float32), (("s1", 0, 3),), coords)
    write_attention(tmp_path / "1.h5", [bag], [np.array([0.25, 0.5, 0.25], np.float32)])
    out = tmp_path / "s1.geojson"
    export_attention([tmp_path / "1.h5"], parts["coords_file"], "s1", out)
    document = json.loads(out.read_text())
    assert document["type"] == "FeatureCollection"
    assert [shape(row["geometry"]).bounds for row in document["features"]] == [
        (0, 0, 20, 20), (20, 0, 40, 20), (40, 60, 60, 80),
    ]  # fmt: skip
    assert [row["properties"] for row in document["features"]] == [
        {"objectType": "detection", "measurements": {"attention": a, "attention_rank": r}}
        for a, r in [(0.25, 0.0), (0.5, 1.0), (0.25, 0.0)]
    ]
    assert len({row["id"] for row in document["features"]}) == 3
    export_attention([], parts["coords_file"], "s1", out)
    assert json.loads(out.read_text())["features"] == []
