"""A saved model predicts again, and shows no label it must not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acpbench.core.files import read_csv, read_yaml
from acpbench.harness.registry import call_tool
from acpbench.harness.tool_args import TrainMil
from acpbench.mil.settings import MilSettings
from tests.harness.build import Side

INDEX = "outputs/round_0/features_index.csv"
OUTPUT = "outputs/round_0/again.csv"
GRID = {"spacing_um": 0.5, "tile_size_px": 224, "encoder": "color_stats"}


def ok(context: Any, tool: str, args: dict[str, Any]) -> dict[str, Any]:
    row = call_tool(context, tool, args)
    assert row["exit_status"] == "ok", row["error"]
    return row


def trained(side: Side, **access: Any) -> Any:
    context = side.context(**access)
    ok(context, "extract_features", GRID)
    ok(context, "train_mil", {"features_index": INDEX, "max_epochs": 3})
    return context


def predict(context: Any, **changes: Any) -> dict[str, Any]:
    args = {"model": "outputs/round_0/model.pt", "features_index": INDEX, "output": OUTPUT}
    return call_tool(context, "predict_mil", args | changes)


def test_the_model_gives_the_rows_that_training_gave(side: Side) -> None:
    context = trained(side)
    answer = predict(context)
    assert answer["exit_status"] == "ok", answer["error"]
    assert answer["result"]["n_by_split"] == {"validation": 3, "test": 6}
    assert answer["result"]["encoder"] == "color_stats"
    first = context.path("outputs/round_0/predictions.csv").read_bytes()
    assert context.path(OUTPUT).read_bytes() == first


def test_labels_of_test_patients_stay_hidden_and_others_show(side: Side) -> None:
    context = trained(side)
    answer = predict(context, splits=["train", "test"])
    assert answer["result"]["n_by_split"] == {"train": 9, "test": 6}
    truth = {row["patient_id"]: row["label"] for row in side.rows}
    for row in read_csv(context.path(OUTPUT)):
        assert row["y_true"] == ("" if row["split"] == "test" else truth[row["case_id"]])
    opened = trained(Side(side.root / "open"), label_access="open")
    predict(opened, splits=["test"])
    assert all(row["y_true"] for row in read_csv(opened.path(OUTPUT)))


def test_a_model_of_another_endpoint_and_a_file_that_is_none_are_refused(side: Side, tmp_path: Path) -> None:
    other = trained(Side(tmp_path, "demo_gland_grade"))
    context = side.context()
    ok(context, "extract_features", GRID)
    target = context.path("outputs/round_0/model.pt")
    target.write_bytes(other.path("outputs/round_0/model.pt").read_bytes())
    error = predict(context)["error"]
    assert "well, moderate, poor" in error and "low, high" in error
    target.write_bytes(b"not a model")
    assert "not a readable model file" in predict(context)["error"]


def test_the_configuration_names_the_grid_of_the_features_it_used(side: Side) -> None:
    context = trained(side)
    config = read_yaml(context.path("outputs/round_0/config.yaml"))
    assert (config["spacing_um"], config["tile_size_px"]) == (0.5, 224)
    text = context.path(INDEX).read_text().replace(",0.5,224", ",1.0,112")
    context.path(INDEX).write_text(text)
    ok(context, "train_mil", {"features_index": INDEX, "max_epochs": 2})
    config = read_yaml(context.path("outputs/round_0/config.yaml"))
    assert (config["spacing_um"], config["tile_size_px"]) == (1.0, 112)


def test_every_setting_that_an_agent_gives_reaches_the_model(side: Side) -> None:
    """And none of them has a default of its own but for how long to train."""
    context = trained(side)
    plain = read_yaml(context.path("outputs/round_0/config.yaml"))["mil"]
    given = {
        "aggregator": "abmil", "hidden_dim": 16, "attention_dim": 8, "dropout": 0.0, "lr": 0.01,
        "weight_decay": 0.0, "max_epochs": 2, "patience": 1, "batch_size": 3, "bag_size": None,
        "class_weighting": False,
    }  # fmt: skip
    ok(context, "train_mil", {"features_index": INDEX, "seed": 5, **given})
    config = read_yaml(context.path("outputs/round_0/config.yaml"))
    assert config["seed"] == 5
    assert config["mil"] == plain | given
    defaults = {name: field.default for name, field in TrainMil.model_fields.items() if name in given}
    own = MilSettings().model_dump()
    assert {name for name in given if defaults[name] != own[name]} == {"max_epochs", "patience"}


@pytest.mark.parametrize("name", ["read_table", "train_mil"])
def test_a_training_call_reports_its_epochs(side: Side, name: str) -> None:
    context = side.context()
    ok(context, "extract_features", GRID)
    heard: list[tuple[str, int, int | None]] = []
    args = {"path": INDEX} if name == "read_table" else {"features_index": INDEX, "max_epochs": 4}
    row = call_tool(context, name, args, progress=lambda *step: heard.append(step))
    assert row["exit_status"] == "ok", row["error"]
    epochs = [done for label, done, _ in heard if label == "training"]
    assert epochs == ([] if name == "read_table" else [0, 1, 2, 3, 4])
