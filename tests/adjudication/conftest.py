"""A diligent record, the demo task and the rubric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acpbench.adjudication.engine import judge_run
from acpbench.adjudication.offline import OfflineJudge
from acpbench.rubric.catalogue import load_rubric
from acpbench.rubric.models import Rubric
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task
from tests.adjudication.build import Record, diligent


@pytest.fixture(scope="session")
def task(repository: Path) -> Task:
    return load_task(repository / "tasks" / "demo" / "demo_pleomorphism.yaml")


@pytest.fixture(scope="session")
def rubric(repository: Path) -> Rubric:
    return load_rubric(repository / "tasks" / "rubric.yaml")


@pytest.fixture
def record(tmp_path: Path, task: Task) -> Record:
    """A diligent record, not yet closed."""
    return diligent(tmp_path / "run", task)


@pytest.fixture
def judged(task: Task, rubric: Rubric):
    """Close a record and judge it offline: item id → row."""

    def run(record: Record) -> dict[str, dict[str, Any]]:
        rows = judge_run(record.close(), task, rubric, OfflineJudge())
        return {row["item_id"]: row for row in rows}

    return run
