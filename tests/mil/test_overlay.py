"""Attention overlays line up with the tiles, and attention is compared with tile truth by coordinate."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from acpbench.core.errors import InputError
from acpbench.core.files import write_csv, write_json
from acpbench.features.store import FeatureBag, write_features
from acpbench.mil.bags import PatientBag
from acpbench.mil.crossval import write_attention
from acpbench.mil.label_table import LABEL_COLUMNS
from acpbench.mil.overlay import attention_auroc, attention_overlay, draw_reference_attention


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
        (np.array([[0, 0]]), np.array([np.nan]), "finite"),
    ]:
        with pytest.raises(InputError, match=message):
            attention_overlay(thumbnail, coords, attention, **options)
    (tmp_path / "t.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match="thumbnail"):
        attention_overlay(tmp_path / "t.jpg", np.array([[0, 0]]), np.array([1.0]), **options)


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


def test_held_out_attention_of_the_right_fold(tmp_path):
    attrs = {"slide_id": "s1", "status": "ok", "encoder": "e", "cache_key": "k", "tile_size_level0": 100.0}
    coords = np.array([[0, 0], [100, 100]], np.int64)
    write_features(tmp_path / "s1.h5", FeatureBag(np.ones((2, 3), np.float32), coords, attrs))
    Image.new("RGB", (60, 60), "white").save(tmp_path / "t.jpg")
    write_json(tmp_path / "q.json", {"width_px": 300, "height_px": 300})
    label = {"slide_id": "s1", "patient_id": "p", "fold": 1, "split": "validation"}
    write_csv(tmp_path / "labels.csv", LABEL_COLUMNS, [label])
    files = [tmp_path / "0.h5", tmp_path / "1.h5"]
    write_attention(files[0], [], [])
    bag = PatientBag("p", np.ones((2, 3), np.float32), (("s1", 0, 2),), coords)
    write_attention(files[1], [bag], [np.array([0.2, 0.8], np.float32)])
    sidecar = tmp_path / "s1.h5.json"
    rest = (tmp_path / "t.jpg", tmp_path / "q.json", "s1", tmp_path / "o.jpg")
    draw_reference_attention(tmp_path / "labels.csv", files, sidecar, *rest)
    assert Image.open(tmp_path / "o.jpg").size == (60, 104)
    plain = (tmp_path / "o.jpg").read_bytes()
    draw_reference_attention(tmp_path / "labels.csv", files[:1], sidecar, *rest)  # a picture that says why
    assert (tmp_path / "o.jpg").read_bytes() != plain
    write_features(tmp_path / "s1.h5", FeatureBag(np.ones((2, 3), np.float32), coords + 1, attrs))
    with pytest.raises(InputError, match="other tiles"):
        draw_reference_attention(tmp_path / "labels.csv", files, sidecar, *rest)
    write_features(tmp_path / "s1.h5", FeatureBag(np.ones((2, 3), np.float32), coords, attrs))
    write_json(tmp_path / "q.json", {"width_px": None, "height_px": None})
    with pytest.raises(InputError, match="slide size"):
        draw_reference_attention(tmp_path / "labels.csv", files, sidecar, *rest)
