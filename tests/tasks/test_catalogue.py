"""The 41 task files: published counts, and errors that name file and field."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.tasks.catalogue import find_task, load_task, load_tasks
from acpbench.tasks.models import BODY_SYSTEMS, TARGET_FAMILIES, Task


@pytest.fixture(scope="module")
def tasks(repository: Path) -> list[Task]:
    return load_tasks(repository / "tasks")


def test_published_counts(tasks: list[Task]) -> None:
    assert len(tasks) == 41
    assert [task.task_id for task in tasks] == sorted(task.task_id for task in tasks)
    assert Counter(task.reference_group for task in tasks) == {
        "biomarker": 24,
        "morphology": 7,
        "prognosis": 10,
    }
    assert {task.body_system for task in tasks} == set(BODY_SYSTEMS)
    assert len(BODY_SYSTEMS) == 6
    assert {task.target_family for task in tasks} == set(TARGET_FAMILIES)
    assert len(TARGET_FAMILIES) == 9


def test_flags_over_the_benchmark(tasks: list[Task]) -> None:
    """The flag counts that the published requirement totals imply: 34, 20, 6, 3 and 2 tasks."""
    flags = ("wsi_to_label", "calibration_bearing", "multiclass", "ordinal", "expression_like", "pan_cancer")
    assert [sum(getattr(task, flag) for task in tasks) for flag in flags] == [34, 20, 8, 3, 6, 2]
    outputs = Counter(task.output_type for task in tasks)
    assert outputs == {"binary": 22, "multiclass": 8, "survival": 7, "ordinal": 3, "continuous": 1}


def test_every_task_bounds_its_claim_and_says_what_was_verified(tasks: list[Task]) -> None:
    for task in tasks:
        statement = task.claim_boundary_statement
        assert statement.startswith("May claim:") and "May not claim:" in statement
        known = (task.n.slides, task.n.patients)
        assert any(known) or "not" in task.n.verified_from, task.task_id
        assert " own" not in f" {task.n.verified_from}", task.task_id
        assert not task.demo


def test_files_are_plain_yaml(repository: Path) -> None:
    for path in [*(repository / "tasks").glob("*.yaml"), *(repository / "tasks" / "demo").glob("*.yaml")]:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("schema: acp-"), path
        assert "&id" not in text and "*id" not in text, path


def test_demo_tasks_say_that_they_are_synthetic(repository: Path) -> None:
    demo = load_tasks(repository / "tasks" / "demo")
    assert [task.task_id for task in demo] == ["demo_gland_grade", "demo_pleomorphism", "demo_survival"]
    assert [task.output_type for task in demo] == ["ordinal", "binary", "survival"]
    assert [task.metric_family.primary for task in demo] == ["quadratic_weighted_kappa", "AUROC", "c_index"]
    assert [task.classes for task in demo] == [["well", "moderate", "poor"], ["low", "high"], []]
    for task in demo:
        assert task.demo and task.body_system == "synthetic"
        assert task.label_reference_type == "generator_parameter"
        assert "synthetic" in task.claim_boundary_statement


def test_find_task(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_task("bladder_tp53").target == "TP53 mutation"
    assert find_task("demo_survival").demo
    with pytest.raises(InputError, match="no task 'bladder_tp99'"):
        find_task("bladder_tp99")
    with pytest.raises(InputError, match="not a valid task_id"):
        find_task("../bladder_tp53")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "field", "expectation"),
    [
        ("target: TP53 mutation\n", "", "target", "Field required"),
        ("primary: AUROC", "primary: accuracyy", "metric_family.primary", "expected one of AUPRC, AUROC"),
        ("calibration_bearing: true", "calibration_bearing: false", "calibration_bearing", "expected true"),
        ("acp-task/0.1", "acp-task/9", "schema", "expected 'acp-task/0.1'"),
        ("note:", "notes:", "notes", "Extra inputs"),
    ],
)
def test_a_broken_file_is_one_line_with_file_and_field(
    repository: Path, tmp_path: Path, old: str, new: str, field: str, expectation: str
) -> None:
    text = (repository / "tasks" / "bladder_tp53.yaml").read_text(encoding="utf-8")
    assert old in text
    path = write(tmp_path, "bladder_tp53.yaml", text.replace(old, new))
    for read in (lambda: load_task(path), lambda: load_tasks(tmp_path)):
        with pytest.raises(InputError) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: {field}: ")
        assert expectation in str(caught.value)
        assert "\n" not in str(caught.value)


def test_no_task_goes_missing_silently(repository: Path, tmp_path: Path) -> None:
    good = (repository / "tasks" / "bladder_tp53.yaml").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="does not exist"):
        load_tasks(tmp_path / "absent")
    write(tmp_path, "rubric.yaml", "schema: acp-rubric/0.1\n")
    with pytest.raises(InputError, match="holds no task file"):
        load_tasks(tmp_path)
    write(tmp_path, "renamed.yaml", good)
    with pytest.raises(InputError, match=r"renamed\.yaml: task_id: expected the name of the file"):
        load_tasks(tmp_path)
    (tmp_path / "renamed.yaml").unlink()
    write(tmp_path, "bladder_tp53.yaml", good)
    assert [task.task_id for task in load_tasks(tmp_path)] == ["bladder_tp53"]
    write(tmp_path, "nameless.yaml", "organ: bladder\n")
    with pytest.raises(InputError, match=r"nameless\.yaml: task_id"):
        load_tasks(tmp_path)
    write(tmp_path, "nameless.yaml", "- a list\n")
    with pytest.raises(InputError, match="expected a mapping"):
        load_tasks(tmp_path)
