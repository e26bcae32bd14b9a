"""The long-horizon score: the published weights, the worked example and the tiers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from acpbench.tasks.catalogue import find_task, load_tasks
from acpbench.tasks.horizon import HorizonInputs, horizon_inputs, horizon_tier, long_horizon, raw_horizon
from acpbench.tasks.requirements import Requirements, load_requirements


@pytest.fixture(scope="module")
def requirements(repository: Path) -> Requirements:
    return load_requirements(repository / "tasks" / "requirements.yaml")


def test_bladder_tp53_by_hand(repository: Path, requirements: Requirements) -> None:
    """26 subnodes, 9 stages, 3, 3, 1, 2, 2, 0: 650 + 450 + 180 + 210 + 55 + 120 + 140 + 0 = 1805 of 2455."""
    task = find_task("bladder_tp53", [repository / "tasks"])
    inputs = horizon_inputs(task, 26)
    assert inputs == HorizonInputs(26, 9, 3, 3, 1, 2, 2, 0)
    assert raw_horizon(inputs) == 650 + 450 + 180 + 210 + 55 + 120 + 140 == 1805
    (scored,) = long_horizon([task], requirements, maximum=2455)
    assert scored.score == pytest.approx(7.3523, abs=1e-4)
    assert scored.tier == "middle"


@pytest.mark.parametrize(
    ("task_id", "inputs", "raw", "score"),
    [
        ("pancancer_immune_subtype", (29, 10, 3, 5, 3, 3, 4, 1), 2455, 10.0),
        ("lung_cd274_expression", (25, 9, 3, 5, 4, 3, 4, 0), 2285, 9.31),
        ("bladder_os", (24, 9, 3, 4, 4, 4, 3, 0), 2180, 8.88),
        ("breast_aln_burden", (25, 8, 2, 2, 2, 3, 3, 0), 1785, 7.27),
        ("breast_er", (26, 9, 3, 2, 1, 2, 2, 0), 1735, 7.07),
        ("pancancer_tumor_type", (26, 8, 1, 1, 3, 3, 1, 1), 1670, 6.80),
        ("lung_histology", (22, 7, 1, 1, 1, 1, 1, 0), 1215, 4.95),
    ],
)
def test_inputs_by_hand(
    repository: Path,
    requirements: Requirements,
    task_id: str,
    inputs: tuple[int, ...],
    raw: int,
    score: float,
) -> None:
    rows = {row.task_id: row for row in long_horizon(load_tasks(repository / "tasks"), requirements)}
    assert rows[task_id].inputs == HorizonInputs(*inputs)
    assert rows[task_id].raw == raw
    assert rows[task_id].score == pytest.approx(score, abs=0.005)


def test_tiers_over_the_benchmark(repository: Path, requirements: Requirements) -> None:
    rows = long_horizon(load_tasks(repository / "tasks"), requirements)
    assert Counter(row.tier for row in rows) == {"lower": 6, "middle": 20, "high": 9, "highest": 6}
    assert max(row.raw for row in rows) == 2455
    assert max(row.score for row in rows) == 10.0


def test_a_cutpoint_belongs_to_the_tier_above() -> None:
    scores = (0, 5.999, 6.0, 7.499, 7.5, 8.999, 9.0, 10.0)
    assert [horizon_tier(score) for score in scores] == [
        *("lower", "lower", "middle", "middle", "high", "high", "highest", "highest")
    ]


def test_empty_and_bad_scales(repository: Path, requirements: Requirements) -> None:
    assert long_horizon([], requirements) == []
    task = find_task("bladder_tp53", [repository / "tasks"])
    assert long_horizon([task], requirements)[0].score == 10.0
    with pytest.raises(ValueError, match="positive"):
        long_horizon([task], requirements, maximum=0)
