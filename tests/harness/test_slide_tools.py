"""Tiles and features that a run makes itself are kept for the next one only while they still hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from acpbench.core.files import read_csv, write_json
from acpbench.harness.registry import call_tool
from tests.harness.build import Side

OWN_GRID = {"spacing_um": 0.5, "tile_size_px": 112, "min_tissue": 0.5}
FEATURES = OWN_GRID | {"encoder": "color_stats"}


@pytest.fixture
def drawn(tmp_path: Path) -> Side:
    """Slides of one stained square each, inspected."""
    side = Side(tmp_path)
    rng = np.random.default_rng(0)
    for row in side.rows:
        rgb = np.full((448, 448, 3), 245, dtype=np.uint8)
        rgb[:224, :224] = rng.integers((150, 60, 120), (200, 110, 170), (224, 224, 3), dtype=np.uint8)
        side.draw_slide(row["slide_id"], rgb)
        outline = [[0, 0], [224, 0], [224, 224], [0, 224], [0, 0]]
        write_json(
            side.slides_dir / row["slide_id"] / "tissue.geojson",
            {"type": "FeatureCollection", "features": [
                {"type": "Feature", "properties": {"classification": {"name": "Tissue"}},
                 "geometry": {"type": "Polygon", "coordinates": [outline]}}]},
        )  # fmt: skip
    return side


def counts(side: Side, name: str) -> dict[str, int]:
    """Tiles of each slide in the features index of a run."""
    rows = read_csv(side.root / name / "workspace" / "outputs" / "round_0" / "features_index.csv")
    return {row["slide_id"]: int(row["n_tiles"]) for row in rows}


def test_features_of_a_grid_of_ones_own_are_made_once(drawn: Side) -> None:
    first = call_tool(drawn.context("one"), "extract_features", FEATURES)
    assert (first["exit_status"], first["cache"]) == ("ok", "miss"), first["error"]
    assert set(counts(drawn, "one").values()) == {4} and len(counts(drawn, "one")) == 18
    again = call_tool(drawn.context("two"), "extract_features", FEATURES)
    assert (again["exit_status"], again["cache"]) == ("ok", "hit")
    assert [entry["sha256"] for entry in again["outputs"]] == [entry["sha256"] for entry in first["outputs"]]


def test_a_slide_that_could_not_be_read_once_is_read_in_the_next_run(drawn: Side) -> None:
    path = drawn.root / "evaluator" / "files" / "S03.svs"
    away = path.rename(path.with_suffix(".away"))
    first = call_tool(drawn.context("one"), "extract_features", FEATURES)
    assert (first["exit_status"], first["result"]["n_slides"]) == ("ok", 17), first["error"]
    tiles = call_tool(drawn.context("tiles"), "tile_slides", OWN_GRID)
    assert tiles["result"] == {"n_slides": 18, "n_with_tiles": 17, "n_tiles": 68}
    away.rename(path)
    tiles = call_tool(drawn.context("later"), "tile_slides", OWN_GRID)
    assert (tiles["cache"], tiles["result"]["n_with_tiles"]) == ("miss", 18)
    again = call_tool(drawn.context("two"), "extract_features", FEATURES)
    assert (again["exit_status"], again["cache"], again["result"]["n_slides"]) == ("ok", "miss", 18)


def test_features_of_other_weights_are_not_served(drawn: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    from acpbench.features.encoders import DeferredEncoder

    call_tool(drawn.context("one"), "extract_features", FEATURES)
    monkeypatch.setattr(DeferredEncoder, "weights_sha256", "f" * 64)
    again = call_tool(drawn.context("two"), "extract_features", FEATURES)
    assert (again["exit_status"], again["cache"]) == ("ok", "miss"), again["error"]
