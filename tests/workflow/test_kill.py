"""A workflow killed again and again, and its end result against one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.study import (
    GRADE_FILES,
    GROUPS,
    RUN_FILES,
    SCORE_FILES,
    TASK,
    command,
    environment,
    plan,
    snakemake,
    trajectory,
    write_study,
)

SEED = 20260101
N_KILLS = 4


def start_and_kill(checkout: Path, folder: Path, after_s: float) -> int:
    """Start the workflow, kill Snakemake alone after a while, leave its jobs to themselves."""
    with open(folder / "killed.log", "ab") as log:
        process = subprocess.Popen(
            command(checkout, folder),
            cwd=folder,
            env=environment(checkout),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        return process.wait()


@pytest.mark.slow
def test_a_workflow_killed_at_any_moment_ends_with_the_same_scores(
    checkout: Path, mini: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    write_study(folder)
    rng = random.Random(SEED)
    moments = [rng.uniform(low, low + 8) for low in (4, 10, 14, 18)]
    ends = []
    for after_s in moments:
        ends.append(start_and_kill(checkout, folder, after_s))
        snakemake(checkout, folder, "--unlock")
    assert len(ends) == N_KILLS
    assert ends.count(-signal.SIGKILL) >= 3, ends
    # Orphans of the last kill may still write; what they publish late must not count double or half.
    time.sleep(1)
    done = snakemake(checkout, folder)
    assert done.returncode == 0, done.stdout[-4000:]
    assert plan(checkout, folder) == {}
    different = []
    for group in GROUPS:
        for name in [*SCORE_FILES, *GRADE_FILES]:
            left, right = (trajectory(place, group) / name for place in (mini, folder))
            if left.read_bytes() != right.read_bytes():
                different.append(f"{group}/{name}")
    assert different == []
    for name in ("labels.csv", "color_stats/predictions.csv", "color_stats/metrics.json"):
        left, right = (place / "results" / "reference" / TASK / name for place in (mini, folder))
        assert left.read_bytes() == right.read_bytes(), name
    assert not list((folder / "results").rglob("*.tmp*"))


def wait_for(path: Path, timeout_s: float) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def attempts(folder: Path) -> list[str]:
    """Numbers of a trajectory's attempts."""
    return sorted(
        path.name for path in (folder / "attempts").iterdir() if path.is_dir() and path.name.isdigit()
    )


@pytest.mark.slow
@pytest.mark.parametrize("restart_at", ["while the orphan works", "after it has finished"])
def test_a_run_finished_by_an_orphan_is_taken_over_instead_of_paid_again(
    checkout: Path, mini: Path, mini_copy: Path, restart_at: str
) -> None:
    group = "scripted_complete"
    lost = trajectory(mini_copy, group)
    subprocess.run(["rm", "-rf", str(lost)], check=True)
    with open(mini_copy / "killed.log", "ab") as log:
        process = subprocess.Popen(
            command(checkout, mini_copy),
            cwd=mini_copy,
            env=environment(checkout),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        wait_for(lost / "attempts" / "1" / "workspace" / "TASK.md", 60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    if restart_at == "after it has finished":
        wait_for(lost / "run" / "run.json", 60)
    assert snakemake(checkout, mini_copy, "--unlock").returncode == 0
    done = snakemake(checkout, mini_copy)
    assert done.returncode == 0, done.stdout[-3000:]
    assert attempts(lost) == ["1"]
    for name in RUN_FILES:
        assert (lost / "run" / name).stat().st_mode & 0o222 == 0, name
    assert plan(checkout, mini_copy) == {}
    for name in [*SCORE_FILES, *GRADE_FILES]:
        assert (lost / name).read_bytes() == (trajectory(mini, group) / name).read_bytes(), name


@pytest.mark.slow
def test_a_deleted_run_is_run_again_and_the_old_attempt_is_kept(
    checkout: Path, mini: Path, mini_copy: Path
) -> None:
    group = "scripted_report_only"
    lost = trajectory(mini_copy, group)
    subprocess.run(["rm", "-rf", str(lost / "run")], check=True)
    done = snakemake(checkout, mini_copy)
    assert done.returncode == 0, done.stdout[-3000:]
    assert attempts(lost) == ["1", "2"]
    for name in [*SCORE_FILES, *GRADE_FILES]:
        assert (lost / name).read_bytes() == (trajectory(mini, group) / name).read_bytes(), name
