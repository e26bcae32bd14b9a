"""Identifiers and the study configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpbench.core.config import load_groups, load_study, parse_study
from acpbench.core.errors import InputError
from acpbench.core.ids import check_id, trajectory_id

MINIMAL = {
    "study": "lung",
    "cohorts": {"lung": {"manifest": "slides.csv"}},
    "tasks": {"luad": {"cohort": "lung", "label_column": "label", "classes": ["LUAD", "LUSC"]}},
}


@pytest.mark.parametrize("value", ["TCGA-CR-7395", "a", "a.b_c-1", "_x", "0"])
def test_good_ids(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize("value", ["", ".hidden", "a/b", "a b", "..", "é", "x" * 129, "a\n"])
def test_bad_ids(value: str) -> None:
    with pytest.raises(InputError):
        check_id(value)


def test_trajectory_id() -> None:
    assert trajectory_id("g", "t", 1) == "g/t/1"
    with pytest.raises(InputError):
        trajectory_id("../g", "t", 1)


def test_a_cohort_needs_a_manifest_and_a_label_column_only() -> None:
    study = parse_study(MINIMAL, "x.yaml")
    assert study.tasks["luad"].resolved_output_type == "binary"
    assert study.agent_tasks == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cohort": {}}, "cohort"),
        ({"cohorts": {"lung": {}}}, "cohorts.lung.manifest"),
        ({"tasks": {"luad": {"cohort": "other", "label_column": "l", "classes": ["a", "b"]}}}, "other"),
        ({"tasks": {"luad": {"cohort": "lung"}}}, "label_column"),
        ({"tasks": {"luad": {"cohort": "lung", "time_column": "t"}}}, "event_column"),
        ({"tiling": {"spacing_um": -1}}, "tiling.spacing_um"),
        ({"folds": 1}, "folds"),
    ],
)
def test_errors_name_file_and_field(change: dict, field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_study(MINIMAL | change, "study.yaml")
    assert str(caught.value).startswith("study.yaml: ")
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_shipped_configuration_is_valid(repository: Path) -> None:
    study = load_study(repository / "config" / "config.yaml")
    groups = load_groups(repository / study.groups_config)
    assert len(study.trajectories.groups) == 6
    assert set(study.trajectories.groups) <= set(groups)
    assert len(study.agent_tasks) == 3


def test_a_chain_of_memory_follows_the_stated_order(repository: Path) -> None:
    study = load_study(repository / "config" / "config.yaml")
    first, second, third = study.agent_tasks
    assert {study.task_before(task) for task in study.agent_tasks} == {None}
    rules = study.trajectories.model_copy(update={"memory": "group", "tasks": [third, first, second]})
    chained = study.model_copy(update={"trajectories": rules})
    assert [chained.task_before(task) for task in (third, first, second)] == [None, third, first]
    assert chained.task_before("elsewhere") is None
