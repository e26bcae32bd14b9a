"""One emulated cluster for all tests of the session, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, reason_to_skip


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes of two processors and two GPUs each."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with Cluster() as running:
        yield running
