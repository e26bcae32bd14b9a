"""The task model: rules between fields, conditions and label canonicalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from acpbench.core.files import read_yaml
from acpbench.tasks.catalogue import find_task
from acpbench.tasks.models import CONDITIONS, Task


@pytest.fixture
def fields(repository: Path) -> dict[str, Any]:
    """The fields of the worked example, without the schema line."""
    content = read_yaml(repository / "tasks" / "bladder_tp53.yaml")
    del content["schema"]
    return content


def broken_fields(fields: dict[str, Any]) -> set[str]:
    with pytest.raises(ValidationError) as caught:
        Task.model_validate(fields)
    return {".".join(str(part) for part in error["loc"]) for error in caught.value.errors()}


def find(repository: Path, task_id: str) -> Task:
    return find_task(task_id, [repository / "tasks", repository / "tasks" / "demo"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"wsi_to_label": False, "calibration_bearing": False}, "wsi_to_label"),
        ({"calibration_bearing": False}, "calibration_bearing"),
        ({"multiclass": True}, "multiclass"),
        ({"ordinal": True}, "ordinal"),
        ({"label_values": ["wildtype"]}, "label_values"),
        ({"label_values": ["a", "b", "c"]}, "label_values"),
        ({"label_values": "wildtype or mutant"}, "label_values"),
        ({"label_values": {0: "mutant", 1: "Mutant "}}, "label_values"),
        ({"label_values": {0: "1", 1: "0"}}, "label_values"),
        ({"label_values": {"1": "a", "1.0": "b"}}, "label_values"),
        ({"label_values": [False, True]}, "label_values"),
        ({"metric_family": {"primary": "c_index", "secondary": ["brier", "ECE"]}}, "metric_family.primary"),
        ({"metric_family": {"primary": "brier", "secondary": ["brier", "ECE"]}}, "metric_family.primary"),
        (
            {"metric_family": {"primary": "AUROC", "secondary": ["R2", "brier", "ECE"]}},
            "metric_family.secondary",
        ),
        ({"metric_family": {"primary": "AUROC", "secondary": ["AUPRC"]}}, "metric_family.secondary"),
        ({"claim_boundary_type": "direct_diagnostic_adjudication"}, "claim_boundary_type"),
        ({"body_system": "synthetic"}, "body_system"),
        ({"label_reference_type": "generator_parameter"}, "label_reference_type"),
        ({"task_id": "../escape"}, "task_id"),
        ({"access": {"name": "x", "url": "ftp://x"}}, "access.url"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_broken_rule_names_its_field(fields: dict[str, Any], change: dict[str, Any], field: str) -> None:
    assert broken_fields({**fields, **change}) == {field}


def test_survival_has_no_classes_and_a_survival_metric(repository: Path) -> None:
    task = find(repository, "bladder_os")
    assert task.classes == []
    assert task.canonical_label("1") is None
    fields = task.model_dump()
    assert broken_fields({**fields, "label_values": ["alive", "dead"]}) == {"label_values"}
    primary = {"primary": "AUROC", "secondary": []}
    assert broken_fields({**fields, "metric_family": primary}) == {"metric_family.primary"}


def test_a_task_survives_a_dump_and_cannot_be_changed(repository: Path) -> None:
    for task_id in ("bladder_tp53", "prostate_isup", "lung_cd274_expression", "demo_survival"):
        task = find(repository, task_id)
        assert Task.model_validate(task.model_dump(mode="json")) == task
    with pytest.raises(ValidationError):
        task.target = "something else"


def test_integer_codes_become_text(fields: dict[str, Any]) -> None:
    task = Task.model_validate({**fields, "label_values": {0: "wildtype", 1: "mutant"}})
    assert task.label_values == {"0": "wildtype", "1": "mutant"}
    assert task.classes == ["wildtype", "mutant"]


@pytest.mark.parametrize(
    ("task_id", "written", "expected"),
    [
        ("bladder_tp53", "Mutant", "mutant"),
        ("bladder_tp53", " wild-type ", "wildtype"),
        ("bladder_tp53", "WILD TYPE", "wildtype"),
        ("bladder_tp53", "wt", "wildtype"),
        ("bladder_tp53", 1, "mutant"),
        ("bladder_tp53", 1.0, "mutant"),
        ("bladder_tp53", "1.0", "mutant"),
        ("bladder_tp53", "0", "wildtype"),
        ("bladder_tp53", "ｍｕｔａｎｔ", "mutant"),
        ("bladder_tp53", "2", None),
        ("bladder_tp53", "-1", None),
        ("bladder_tp53", "0.7", None),
        ("bladder_tp53", "non-mutant", None),
        ("bladder_tp53", True, None),
        ("bladder_tp53", None, None),
        ("bladder_tp53", float("nan"), None),
        ("bladder_tp53", "1e999", None),
        ("bladder_tp53", "", None),
        ("colorectal_msi", "msi_h", "MSI-H"),
        ("prostate_isup", "3.0", "3"),
        ("prostate_isup", "ISUP 3", "3"),
        ("prostate_isup", "grade group 6", None),
        ("breast_aln_burden", "n+ (1–2)", "N+(1-2)"),
        ("breast_aln_burden", "2", "N+(>2)"),
        ("demo_gland_grade", "Moderate", "moderate"),
        ("demo_gland_grade", 0, "well"),
        ("demo_pleomorphism", "HIGH", "high"),
    ],
)
def test_canonical_label(repository: Path, task_id: str, written: object, expected: str | None) -> None:
    assert find(repository, task_id).canonical_label(written) == expected


def test_every_class_name_and_code_maps_onto_itself(repository: Path) -> None:
    for path in sorted((repository / "tasks").glob("*_*.yaml")):
        task = find(repository, path.stem)
        assert [task.canonical_label(name) for name in task.classes] == task.classes
        codes = task.label_values if isinstance(task.label_values, dict) else range(len(task.classes))
        assert [task.canonical_label(code) for code in codes] == task.classes


def test_conditions(repository: Path) -> None:
    task = find(repository, "bladder_tp53")
    held = {condition for condition in CONDITIONS if task.matches(condition)}
    assert held == {"all", "wsi_to_label", "calibration_bearing", "binary", "output_type==binary"}
    assert task.matches(None)
    with pytest.raises(ValueError, match="not a condition"):
        task.matches("urgent")
