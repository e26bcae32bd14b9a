"""Which GPU a job takes, and that nothing starts CUDA before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from acpbench.features.devices import claim_gpu, visible_gpus


def test_visible_gpus_are_the_ones_the_cluster_gave(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8a6f")
    assert visible_gpus() == ["3", "GPU-8a6f"]
    for none in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert visible_gpus() == []


def test_every_job_sees_one_gpu_of_its_own(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with claim_gpu(tmp_path) as first:
        assert (first, os.environ["CUDA_VISIBLE_DEVICES"]) == ("0", "0")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # another process has the list anew
        with claim_gpu(tmp_path) as second:
            assert (second, os.environ["CUDA_VISIBLE_DEVICES"]) == ("1", "1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    with claim_gpu(tmp_path) as again:
        assert again == "0"


def test_without_a_gpu_nothing_is_claimed(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with claim_gpu(tmp_path) as device:
        assert device is None and os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert list(tmp_path.iterdir()) == []


def _hold(folder: str, queue: multiprocessing.Queue) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    with claim_gpu(folder):
        queue.put("held")
        time.sleep(60)


def test_a_killed_job_gives_its_gpu_back(monkeypatch, tmp_path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    holder = context.Process(target=_hold, args=(str(tmp_path), queue))
    holder.start()
    try:
        assert queue.get(timeout=60) == "held"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        start = time.monotonic()
        os.kill(holder.pid, signal.SIGSTOP)  # it holds on while it lives, also when it does nothing
        waiting = subprocess.Popen(
            [sys.executable, "-c", f"from acpbench.features.devices import claim_gpu\n"
             f"with claim_gpu({str(tmp_path)!r}) as name: print(name)"], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1.5)
        holder.kill()
        assert waiting.communicate(timeout=30)[0].strip() == "0"
        assert time.monotonic() - start < 60
    finally:
        holder.kill()
        holder.join()


def test_imports_and_reading_start_no_cuda_and_no_torch() -> None:
    """Snakemake parses rules in a parent process: a CUDA context there would sit on every GPU."""
    code = (
        "import sys\n"
        "import acpbench.features.registry, acpbench.features.weights, acpbench.features.devices\n"
        "import acpbench.features.extract, acpbench.features.exchange, acpbench.features.foreign\n"
        "import acpbench.cli.features\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
