"""Command lines from npm, a drawn cohort, and every run once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness_cli import programs
from tests.harness_cli.chain import Finished, collect, row_of, table
from tests.harness_cli.cohort import SlideSide

_ROWS: list[dict[str, Any]] = []

Collect = Callable[[str, str], Finished]


@pytest.fixture(scope="session")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> SlideSide:
    """Eighteen drawn slides, inspected and tiled as a study does it (about a minute)."""
    return SlideSide(tmp_path_factory.mktemp("cohort"))


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """The command line of a family, or a skip that says why there is none."""
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir("harness_cli"))

    missing: dict[str, str] = {}

    def found(harness: str) -> Path:
        # Asked for once: where npm does not answer, every try would wait minutes for it.
        if harness not in missing:
            try:
                programs.check_namespace()
                return programs.install(harness, folder)
            except programs.Missing as reason:
                missing[harness] = str(reason)
        pytest.skip(f"no {harness} here: {missing[harness]}")

    return found


@pytest.fixture(scope="session")
def collected(
    cohort: SlideSide, program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Collect:
    """``collected(harness, policy)``: the run with its scores; ``scripted`` is the built-in harness."""
    root = tmp_path_factory.mktemp("runs")
    finished: dict[tuple[str, str], Finished] = {}

    def run(harness: str, policy: str) -> Finished:
        if (harness, policy) not in finished:
            path = None if harness == "scripted" else program(harness)
            finished[harness, policy] = collect(cohort, root, harness, policy, path)
            _ROWS.append(row_of(finished[harness, policy]))
        return finished[harness, policy]

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The runs side by side."""
    if _ROWS:
        terminalreporter.section("runs side by side")
        terminalreporter.write_line(table(sorted(_ROWS, key=lambda row: str(row["run"]).split(", ")[1])))
