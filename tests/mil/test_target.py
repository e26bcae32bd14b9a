"""Targets that are bound by a label column alone: which cells are which class, and which are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpbench.core.config import TaskBinding
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv
from acpbench.mil.label_table import write_label_table
from acpbench.mil.target import make_target


def table(folder: Path, cells: list[str]) -> Path:
    rows = [{"slide_id": f"s{i}", "patient_id": f"p{i}", "tils": cell} for i, cell in enumerate(cells)]
    write_csv(folder / "slides.csv", ["slide_id", "patient_id", "tils"], rows)
    return folder / "slides.csv"


@pytest.mark.parametrize("name", ["none", "NA", "unknown", " "])
def test_a_class_that_reads_as_a_missing_value_is_refused(name: str) -> None:
    binding = TaskBinding(cohort="c", label_column="tils", classes=[name, "some"])
    with pytest.raises(InputError, match="reads as a missing value"):
        make_target("t", binding, None)


def test_a_map_may_say_that_none_is_a_class(tmp_path: Path) -> None:
    binding = TaskBinding(
        cohort="c", label_column="tils", classes=["absent", "present"],
        label_map={"None": "absent", "some": "present"},
    )  # fmt: skip
    target = make_target("t", binding, None)
    slides = table(tmp_path, ["None", "some", "", "many", "None", "some", "NA", "None"])
    summary = write_label_table(slides, {"label_column": "tils"}, target, 3, 0, tmp_path / "labels.csv")
    labels = {row["slide_id"]: row["label"] for row in read_csv(tmp_path / "labels.csv")}
    assert labels == {"s0": "absent", "s1": "present", "s4": "absent", "s5": "present", "s7": "absent"}
    assert summary["n_dropped_by_reason"] == {"label 'many' is not a class": 1, "no label": 2}


def test_a_map_names_only_classes_of_the_target() -> None:
    binding = TaskBinding(cohort="c", label_column="x", classes=["a", "b"], label_map={"1": "c"})
    with pytest.raises(InputError, match="'c'"):
        make_target("t", binding, None)
