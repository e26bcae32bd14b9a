"""The rubric: counts of definitions and items, evidence, and rules on the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.rubric.catalogue import expand, load_rubric
from acpbench.rubric.models import STAGES, Rubric
from acpbench.tasks.catalogue import find_task, load_tasks
from acpbench.tasks.models import Task


@pytest.fixture(scope="module")
def rubric(repository: Path) -> Rubric:
    return load_rubric(repository / "tasks" / "rubric.yaml")


@pytest.fixture(scope="module")
def tasks(repository: Path) -> list[Task]:
    return load_tasks(repository / "tasks")


def test_definitions(rubric: Rubric) -> None:
    assert len(rubric.checkpoints) == 156
    kinds = Counter(
        (point.kind, point.per_round, point.condition is not None) for point in rubric.checkpoints
    )
    assert kinds == {
        ("semantic", False, False): 50,
        ("semantic", True, False): 22,
        ("deterministic", False, False): 60,
        ("deterministic", True, False): 15,
        ("deterministic", False, True): 9,
    }
    assert sum(point.critical for point in rubric.checkpoints) == 33
    assert all((point.weight == 2) == point.critical for point in rubric.checkpoints)
    assert len(rubric.subcapabilities) == 4 + 6 + 5 + 5
    assert rubric.rounds == 5
    assert rubric.pass_threshold == 0.75
    assert rubric.status_values == {"PASS": 1.0, "PARTIAL": 0.5, "FAIL": 0.0, "NA": 0.0, "SKIP": None}


def test_semantic_items_of_every_trajectory(rubric: Rubric, tasks: list[Task]) -> None:
    for task in tasks:
        semantic = [item for item in expand(rubric, task) if item.checkpoint.kind == "semantic"]
        stages = Counter(item.checkpoint.stage for item in semantic)
        assert [stages[stage] for stage in STAGES] == [16, 16, 16, 112]
        assert len(semantic) == 160


def test_deterministic_items_over_the_benchmark(rubric: Rubric, tasks: list[Task]) -> None:
    counts = [sum(item.checkpoint.kind == "deterministic" for item in expand(rubric, task)) for task in tasks]
    assert (min(counts), max(counts)) == (135, 140)
    assert 9 * sum(counts) == 50_274


def test_conditional_items_by_hand(rubric: Rubric, repository: Path) -> None:
    def conditional(task_id: str) -> list[str]:
        task = find_task(task_id, [repository / "tasks"])
        return [item.item_id for item in expand(rubric, task) if item.checkpoint.condition]

    assert conditional("bladder_tp53") == ["D3.dc1"]
    assert conditional("lung_histology") == []
    assert conditional("prostate_isup") == ["D3.dc3"]
    assert conditional("bladder_os") == ["D3.dc4"]
    assert conditional("lung_cd274_expression") == ["A5.dc1", "D3.dc5"]
    immune = ["D3.dc2", "A5.dc1", "A5.dc2", "D3.dc6", "A6.dc1"]
    assert conditional("pancancer_immune_subtype") == immune


def test_rounds_are_expanded_in_catalogue_order(rubric: Rubric, repository: Path) -> None:
    task = find_task("bladder_tp53", [repository / "tasks"])
    items = expand(rubric, task)
    ids = [item.item_id for item in items]
    assert len(set(ids)) == len(ids) == 296
    start = ids.index("R1.sk1@r1")
    assert ids[start : start + 6] == [*(f"R1.sk1@r{number}" for number in range(1, 6)), "R1.sk2@r1"]
    third = items[start + 2]
    assert (third.round, third.evidence) == (3, ("reflection/round_3/critique.json",))
    order = {point.id: position for position, point in enumerate(rubric.checkpoints)}
    assert [order[item.checkpoint.id] for item in items] == sorted(
        order[item.checkpoint.id] for item in items
    )
    assert not any("{k}" in reference for item in items for reference in item.evidence)
    assert sum(item.round is None for item in items) == 296 - 5 * (22 + 15)
    assert len(expand(rubric, task, rounds=0)) == 296 - 5 * (22 + 15)
    assert len(expand(rubric, task, rounds=2)) == 296 - 3 * (22 + 15)
    with pytest.raises(ValueError, match="0 or more"):
        expand(rubric, task, rounds=-1)


def test_weights_of_the_worked_example(rubric: Rubric, repository: Path) -> None:
    """Weight units by stage of a Bladder/TP53 trajectory: 35, 45, 46 and 235 of 361; 65 critical items."""
    items = expand(rubric, find_task("bladder_tp53", [repository / "tasks"]))
    weights: Counter[str] = Counter()
    for item in items:
        weights[item.checkpoint.stage] += item.checkpoint.weight
    assert [weights[stage] for stage in STAGES] == [35, 45, 46, 235]
    assert sum(item.checkpoint.critical for item in items) == 65


def test_evidence_is_of_known_kinds(rubric: Rubric) -> None:
    references = {reference for point in rubric.checkpoints for reference in point.evidence}
    assert {reference for reference in references if ":" in reference} == {
        "run:tools.jsonl",
        "reference:labels.csv",
    }
    roots = (
        "plan/",
        "task.json",
        "registry.json",
        "logs/",
        "scripts/",
        "outputs/",
        "reports/",
        "reflection/",
    )
    for reference in references:
        assert reference.startswith((*roots, "memory/", "run:", "reference:")), reference


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("weight: 2", "weight: 1", r"checkpoints\.0\.weight: .*expected 2 exactly for critical"),
        ("subcapability: P1", "subcapability: A1", r"checkpoints\.0\.subcapability: .*stage planning"),
        ("subcapability: P1", "subcapability: P2", r"checkpoints\.0\.subcapability: .*before the dot"),
        ("rule: semantic_judgement", "rule: regex", r"checkpoints\.0\.rule: .*semantic_judgement exactly"),
        ("rule: semantic_judgement", "rule: guess", r"checkpoints\.0\.rule: "),
        (
            "per_round: false",
            "per_round: true",
            r"checkpoints\.0\.per_round: .*only checkpoints of the stage",
        ),
        ("- plan/plan.md", "- ../plan.md", r"checkpoints\.0\.evidence: .*not a path relative"),
        ("- plan/plan.md", "- plan/{k}.md", r"checkpoints\.0\.evidence: .*not per round"),
        ("condition: null", "condition: often", r"checkpoints\.0\.condition: .*expected null or one of"),
        ("id: P1.s2", "id: P1.s1", r"checkpoints: .*P1\.s1 is used twice"),
        ("  P4: configuration completeness\n", "", r"checkpoints: .*P4 is not among"),
        ("SKIP: null", "SKIP: 0.0", r"status_values: .*null exactly for SKIP"),
        ("  NA: 0.0\n", "", r"status_values: .*expected a value for NA"),
        ("acp-rubric/0.1", "acp-rubric/2", r"schema: expected 'acp-rubric/0\.1'"),
    ],
)
def test_a_broken_rubric_names_file_and_field(
    repository: Path, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = (repository / "tasks" / "rubric.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "rubric.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=rf"^{path}: {expected}"):
        load_rubric(path)
