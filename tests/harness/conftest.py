"""One evaluator's side a task and session; runs get folders of their own."""

from __future__ import annotations

import pytest

from tests.harness.build import Side


@pytest.fixture
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """Evaluator's side of the binary demo task."""
    return Side(tmp_path_factory.mktemp("side"))
