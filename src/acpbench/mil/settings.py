"""Settings of one training run, and the process-wide state that makes a run repeatable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from acpbench.core.errors import InputError


class MilSettings(BaseModel):
    """Settings of one training run; all of them are stored in the model file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    aggregator: Literal["gated_abmil", "abmil", "mean"] = "gated_abmil"
    hidden_dim: int = Field(64, ge=1, le=4096)
    attention_dim: int = Field(32, ge=1, le=4096)
    dropout: float = Field(0.25, ge=0, lt=1)
    lr: float = Field(1e-3, gt=0, le=1)
    weight_decay: float = Field(1e-2, ge=0, le=10)
    max_epochs: int = Field(60, ge=1, le=10_000)
    patience: int = Field(12, ge=1, le=10_000)
    batch_size: int = Field(8, ge=1, le=4096, description="bags a step; survival always uses all bags")
    bag_size: int | None = Field(512, ge=1, description="tiles drawn from a bag in a step; None = all")
    eval_bag_size: int | None = Field(
        4096, ge=1, description="tiles of a bag that early stopping looks at, evenly spaced; None = all"
    )
    class_weighting: bool = True
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="bf16 multiplies in bfloat16; parameters, softmax, losses and predictions stay fp32",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = CUDA where there is a device")
    seed: int = Field(0, ge=0, lt=2**31)


def pick_device(wanted: str) -> torch.device:
    """Device of a run.

    Raises:
        InputError: CUDA asked for where there is none.
    """
    available = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError("no CUDA device on this machine", field="device")
    return torch.device("cuda" if available else "cpu")


@contextmanager
def deterministic(seed: int, device: torch.device | None = None) -> Iterator[torch.Generator]:
    """One thread, deterministic kernels and a seeded generator; process-wide settings are put back.

    On a CPU the same inputs give the same bytes. On CUDA kernels without a deterministic form are let
    through (with a warning), so results agree to rounding only.
    """
    on_cuda = device is not None and device.type == "cuda"
    if on_cuda:
        # Read by cuBLAS when it starts; without it deterministic mode refuses every matrix product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    state = torch.random.get_rng_state()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=on_cuda)
    # Filling fresh memory finds reads of it, at a cost per tensor; that is not what is guarded against here.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(seed)
    try:
        yield torch.Generator().manual_seed(seed)
    finally:
        torch.random.set_rng_state(state)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_num_threads(threads)
