"""One finished small study for all tests of the session (about 75 seconds on two cores)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workflow.study import copy_checkout, snakemake, write_study


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that its files can be touched."""
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "acp-bench")


@pytest.fixture(scope="session")
def mini(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """The finished study; read only."""
    folder = tmp_path_factory.mktemp("mini") / "study"
    write_study(folder)
    done = snakemake(checkout, folder)
    assert done.returncode == 0, done.stdout[-4000:]
    return folder


@pytest.fixture
def mini_copy(tmp_path: Path, mini: Path) -> Path:
    """A copy to change: times, modes and hard links kept."""
    target = tmp_path / "study"
    subprocess.run(["cp", "-a", str(mini), str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def shared_copy(tmp_path_factory: pytest.TempPathFactory, mini: Path) -> Callable[[], Path]:
    """A copy for dry runs, which leave it as it is; removed at the end of the module."""
    target = tmp_path_factory.mktemp("dry") / "study"
    subprocess.run(["cp", "-a", str(mini), str(target)], check=True)
    yield target
    shutil.rmtree(target, ignore_errors=True)
