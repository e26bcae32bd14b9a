"""Fixtures of the rubric tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acpbench.rubric.catalogue import load_rubric
from acpbench.rubric.engine import check_run
from acpbench.rubric.models import Rubric
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task
from tests.rubric.workspace import RunBuilder, good_run, label_rows

Check = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def rubric(repository: Path) -> Rubric:
    """The benchmark's rubric."""
    return load_rubric(repository / "tasks" / "rubric.yaml")


@pytest.fixture(scope="session")
def task(repository: Path) -> Task:
    """A binary, calibration-bearing task."""
    return load_task(repository / "tasks" / "bladder_tp53.yaml")


@pytest.fixture
def run(tmp_path: Path, task: Task) -> RunBuilder:
    """A good run, not yet finished."""
    return good_run(tmp_path / "run", task)


@pytest.fixture
def check(rubric: Rubric) -> Check:
    """Finish a run and check it strictly (a rule's own error fails the test); rows by item id."""

    def apply(run: RunBuilder, labels: list[dict[str, str]] | None = None) -> dict[str, dict[str, Any]]:
        rows = check_run(
            run.finish(), run.task, label_rows() if labels is None else labels, rubric, strict=True
        )
        return {row["item_id"]: row for row in rows}

    return apply
