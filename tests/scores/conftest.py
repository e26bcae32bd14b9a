"""Records for the score tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from acpbench.core.files import read_csv
from acpbench.scores.view import RunView
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task
from tests.scores.record_builder import Record


@pytest.fixture(scope="session")
def pleomorphism(repository: Path) -> Task:
    return load_task(repository / "tasks" / "demo" / "demo_pleomorphism.yaml")


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A complete record, not yet written."""
    return Record(tmp_path).complete()


@pytest.fixture
def view_of(pleomorphism: Task) -> Callable[[Record], RunView]:
    """Write a record and open it."""

    def open_record(record: Record) -> RunView:
        run_dir = record.write()
        return RunView(run_dir, pleomorphism, read_csv(record.folder / "labels.csv"))

    return open_record
