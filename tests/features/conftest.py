"""Networks run in one thread here, as a job of the workflow runs them: two waiting for each other on a busy
machine are many times slower than one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
