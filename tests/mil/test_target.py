"""Targets that are bound by a label column alone: which cells are which class, and which are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpbench.core.config import TaskBinding
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv
from acpbench.mil.label_table import read_label_table, write_label_table
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


@pytest.mark.parametrize(
    ("slide", "patient", "site", "message"),
    [
        ("s0", "p9", "B", "'s0' is listed more than once"),
        (" s0 ", "p9", "B", "'s0' is listed more than once"),
        (" ", "p9", "B", "line 8 names no slide"),
        ("s9", "P0", "B", "'p0' and 'P0' differ only in spelling"),
        ("s9", "1.0", "B", "'1' and '1.0' differ only in spelling"),
        ("s9", "p9", "a", "'A' and 'a' differ only in spelling"),
        ("s9", "p0 ", "A ", None),
    ],
)
def test_names_that_do_not_tell_who_is_who_get_no_folds(
    tmp_path: Path, slide: str, patient: str, site: str, message: str | None
) -> None:
    columns = ["slide_id", "patient_id", "site", "y"]
    patients = ["p0", "p1", "p2", "p3", "p4", "1"]
    rows = [[f"s{i}", name, "ABC"[i % 3], "ab"[i % 2]] for i, name in enumerate(patients)]
    cells = [*rows, [slide, patient, site, "a"]]
    write_csv(tmp_path / "slides.csv", columns, [dict(zip(columns, row, strict=True)) for row in cells])
    target = make_target("t", TaskBinding(cohort="c", label_column="y", classes=["a", "b"]), None)
    given = tmp_path / "slides.csv", {"label_column": "y", "site_column": "site"}, target, 3, 0
    if message is not None:
        with pytest.raises(InputError, match=message):
            write_label_table(*given, tmp_path / "labels.csv")
        return
    write_label_table(*given, tmp_path / "labels.csv")
    found = {
        row["slide_id"]: (row["patient_id"], row["site"], row["fold"])
        for row in read_label_table(tmp_path / "labels.csv")
    }
    assert found["s9"] == found["s0"] and found["s0"][:2] == ("p0", "A")
