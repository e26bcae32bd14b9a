"""The requirement map reproduces the published totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.tasks.catalogue import find_task, load_tasks
from acpbench.tasks.requirements import (
    CATEGORIES,
    Requirements,
    assigned_subnodes,
    load_requirements,
    requirement_table,
)

PUBLISHED = {
    "clinical_framing": 200,
    "data_source_grounding": 166,
    "pipeline_design": 233,
    "target_modeling": 82,
    "evaluation_design": 102,
    "interpretation": 118,
    "iteration_readiness": 126,
}


@pytest.fixture(scope="module")
def requirements(repository: Path) -> Requirements:
    return load_requirements(repository / "tasks" / "requirements.yaml")


def test_published_totals(repository: Path, requirements: Requirements) -> None:
    table = requirement_table(requirements, load_tasks(repository / "tasks"))
    assert table["totals"] == {**PUBLISHED, "all": 1027}
    assert tuple(PUBLISHED) == CATEGORIES
    assert requirements.published_totals == PUBLISHED
    assert len(table["tasks"]) == 41
    for row in table["tasks"]:
        assert row["total"] == len(row["subnodes"]) == sum(row["counts"].values())
        assert len(set(row["subnodes"])) == row["total"]


def test_worked_example(repository: Path, requirements: Requirements) -> None:
    """Bladder/TP53 (binary, WSI to label, calibration-bearing): 26 subnodes, listed by hand."""
    task = find_task("bladder_tp53", [repository / "tasks"])
    expected = [
        "CF1",
        "CF2",
        "CF3",
        "CF4",
        "CF5",
        "DS1",
        "DS2",
        "DS3",
        "DS4",
        "PD1",
        "PD2",
        "PD3",
        "PD4",
        "PD5",
        "PD7",
        "TM1",
        "TM2b",
        "ED1",
        "ED2",
        "ED3",
        "IN1",
        "IN2",
        "IN3",
        "IR1",
        "IR2",
        "IR3",
    ]
    assert [subnode.id for subnode in assigned_subnodes(requirements, task)] == expected
    assert len(expected) == 26


def test_each_task_gets_exactly_one_head(repository: Path, requirements: Requirements) -> None:
    for task in load_tasks(repository / "tasks") + load_tasks(repository / "tasks" / "demo"):
        heads = [node.id for node in assigned_subnodes(requirements, task) if node.id.startswith("TM2")]
        assert len(heads) == 1, task.task_id


def test_a_broken_map_names_file_and_field(repository: Path, tmp_path: Path) -> None:
    text = (repository / "tasks" / "requirements.yaml").read_text(encoding="utf-8")
    path = tmp_path / "requirements.yaml"
    path.write_text(text.replace("when: pan_cancer", "when: pan_cancers", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"requirements\.yaml: subnodes\.5\.when: .*expected one of"):
        load_requirements(path)
    path.write_text(text.replace("id: CF2", "id: CF1", 1), encoding="utf-8")
    with pytest.raises(InputError, match="ids used twice: CF1"):
        load_requirements(path)
