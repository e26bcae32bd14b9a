"""Which device a job computes on: one GPU and one context a job, chosen before CUDA is touched."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acpbench.core.errors import InputError

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def pick_device(wanted: str = "auto") -> str:
    """Return ``cuda`` or ``cpu``; ``auto`` takes CUDA when there is a device.

    Raises:
        InputError: ``cuda`` asked for without a device, or another name.
    """
    if wanted not in ("auto", "cuda", "cpu"):
        raise InputError(f"device {wanted!r}; expected auto, cuda or cpu", field="device")
    if wanted == "cpu":
        return "cpu"
    import torch

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError("no CUDA device on this machine", field="device")
    return "cuda" if available else "cpu"


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as CUDA names them, without starting CUDA.

    ``CUDA_VISIBLE_DEVICES`` decides where it is set (a cluster sets it to the job's own); otherwise the
    devices that the driver lists.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [part.strip() for part in named.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
    return [str(index) for index in range(len(list(_NVIDIA.glob("*"))))] if _NVIDIA.is_dir() else []


@contextmanager
def claim_gpu(lock_dir: str | os.PathLike[str] | None = None, *, poll_s: float = 0.2) -> Iterator[str | None]:
    """Take one free GPU for this process and show CUDA no other; yields its name, or None without any.

    Jobs on one machine agree by a file lock for each device, which the system releases however a process
    ends. With more jobs than devices the later ones wait; ask for the resource ``gpu`` to avoid that.
    Call it before anything starts CUDA: a context on a device that is not the job's own takes its memory.
    """
    devices = visible_gpus()
    if not devices:
        yield None
        return
    import fcntl

    folder = Path(lock_dir or Path(tempfile.gettempdir()) / f"acpbench-gpu-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    while True:
        for device in devices:
            name = "".join(letter if letter.isalnum() else "-" for letter in device)
            with open(folder / f"{name}.lock", "w") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                os.environ["CUDA_VISIBLE_DEVICES"] = device
                try:
                    yield device
                finally:
                    if before is None:
                        del os.environ["CUDA_VISIBLE_DEVICES"]
                    else:
                        os.environ["CUDA_VISIBLE_DEVICES"] = before
                return
        time.sleep(poll_s)
