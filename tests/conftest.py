"""Shared fixtures. Tests need no file from outside; those that can use more skip with a reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that: tests that
# stop one with SIGINT would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real slides, cohorts and records beside the checkout (or ``ACPBENCH_SHARED_DATA``)."""
    named = os.environ.get("ACPBENCH_SHARED_DATA")
    for folder in [Path(named)] if named else [REPOSITORY.parent / "shared" / "data"]:
        if folder.is_dir():
            return folder
    pytest.skip("no folder with real data beside the checkout (set ACPBENCH_SHARED_DATA)")
