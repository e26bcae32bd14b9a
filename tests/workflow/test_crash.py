"""A job killed at any moment: nothing half made is trusted, and the restart gives the same bytes.

The job's process kills itself with SIGKILL, alone or together with Snakemake as a machine that loses power
does. The moments are exact, just before and just after each rename by which a file appears, and random ones
in between. What arms the process is a ``sitecustomize`` module on its path; the code under test is untouched.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from acpbench.features.store import is_complete, sidecar_path
from tests.workflow.slide_slice import write_slice
from tests.workflow.study import TASK, command, environment, plan, snakemake

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ARM = """
import atexit, os, signal, sys, threading, time

_START = time.monotonic()

def _tell_duration():
    with open(os.environ["ACP_CRASH_NOTE"] + ".ran", "w") as note:
        note.write(str(time.monotonic() - _START))

def _die():
    with open(os.environ["ACP_CRASH_NOTE"], "a") as note:
        note.write("died\\n")
    if os.environ["ACP_CRASH_VICTIM"] == "all":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

def _arm(script, moment):
    if not any(part.endswith(script) for part in sys.orig_argv):
        return
    atexit.register(_tell_duration)
    kind, _, value = moment.partition(":")
    if kind == "never":
        return
    if kind == "after_s":
        timer = threading.Timer(float(value), _die)
        timer.daemon = True
        timer.start()
        return
    real, calls = os.replace, 0
    def replace(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == int(value) and kind == "before":
            _die()
        real(*arguments, **options)
        if calls == int(value) and kind == "after":
            _die()
    os.replace = replace

if os.environ.get("ACP_CRASH_SCRIPT"):
    _arm(os.environ["ACP_CRASH_SCRIPT"], os.environ["ACP_CRASH_MOMENT"])
"""

SLIDE = "DEMO-06-1"
FEATURES = f"results/features/demo/color_stats/{SLIDE}.h5"
FOLD = f"results/reference/{TASK}/color_stats/folds/1"
STAGES = {
    "tile_slide.py": [f"results/slides/demo/{SLIDE}/coords.h5"],
    "extract_features.py": [FEATURES, f"{FEATURES}.json"],
    "train_fold.py": [
        f"{FOLD}/{name}"
        for name in ("predictions.csv", "model.pt", "history.csv", "attention.h5", "fold.json")
    ],
}
"""Script of the workflow → the files that its job makes, the one that vouches for the others last."""

SEED = 20260101


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """The finished study; its files of one stage at a time are taken away, killed over and made again."""
    folder = write_slice(tmp_path_factory.mktemp("crash") / "study")
    done = snakemake(checkout, folder, "reference")
    assert done.returncode == 0, done.stdout[-4000:]
    return folder


@pytest.fixture(scope="module")
def truth(whole: Path) -> dict[str, bytes]:
    """Bytes of every file of the stages, of the run that was left alone."""
    return {name: (whole / name).read_bytes() for names in STAGES.values() for name in names}


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the module that Python imports at its start."""
    folder = tmp_path_factory.mktemp("armed")
    (folder / "sitecustomize.py").write_text(ARM)
    return folder


def crash(checkout: Path, folder: Path, armed: Path, script: str, moment: str, victim: str) -> bool:
    """Make a stage's files anew with a job that dies; whether it did."""
    note = folder / "died.txt"
    note.unlink(missing_ok=True)
    for name in STAGES[script]:
        (folder / name).unlink(missing_ok=True)
    env = environment(checkout)
    env |= {
        "PYTHONPATH": os.pathsep.join([str(armed), env["PYTHONPATH"]]),
        "ACP_CRASH_SCRIPT": script, "ACP_CRASH_MOMENT": moment, "ACP_CRASH_VICTIM": victim,
        "ACP_CRASH_NOTE": str(note),
    }  # fmt: skip
    with open(folder / "crash.log", "ab") as log:
        process = subprocess.Popen(
            command(checkout, folder, *STAGES[script]), cwd=folder, env=env, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        code = process.wait(300)
    died = note.exists()
    # A job that outlived its moment is a run like any other; one that died is never a success.
    assert code == (0 if not died else -signal.SIGKILL if victim == "all" else 1), moment
    return died


def assert_nothing_half_made(folder: Path, script: str, truth: dict[str, bytes]) -> None:
    """Whatever lies under its final name is whole."""
    for name in STAGES[script]:
        if (folder / name).exists():
            assert (folder / name).read_bytes() == truth[name], name
    if script == "extract_features.py":
        features = folder / FEATURES
        # The features may be there without their voucher; then nobody takes them.
        assert is_complete(features) == (features.exists() and sidecar_path(features).exists())
    if script == "train_fold.py" and (folder / STAGES[script][-1]).exists():
        assert all((folder / name).exists() for name in STAGES[script])


def assert_restart_gives_the_same(
    checkout: Path, folder: Path, script: str, truth: dict[str, bytes], victim: str
) -> None:
    if victim == "all":
        assert snakemake(checkout, folder, "--unlock").returncode == 0
    done = snakemake(checkout, folder, *STAGES[script])
    assert done.returncode == 0, done.stdout[-3000:]
    different = [name for name in STAGES[script] if (folder / name).read_bytes() != truth[name]]
    assert different == []


@pytest.mark.parametrize("script", STAGES)
def test_killed_around_every_rename(
    checkout: Path, whole: Path, truth: dict[str, bytes], armed: Path, script: str
) -> None:
    """Each file's rename in turn, until the job has no further one; before it all dies, after it the job."""
    number = 0
    while True:
        number += 1
        assert number < 20, "renames without end"
        if not crash(checkout, whole, armed, script, f"before:{number}", "all"):
            break
        assert_nothing_half_made(whole, script, truth)
        assert_restart_gives_the_same(checkout, whole, script, truth, "all")
        assert crash(checkout, whole, armed, script, f"after:{number}", "job")
        assert_nothing_half_made(whole, script, truth)
        assert_restart_gives_the_same(checkout, whole, script, truth, "job")
    # Every file was met, so nothing is written past the renames.
    assert number - 1 >= len(STAGES[script])
    assert plan(checkout, whole, *STAGES[script]) == {}


@pytest.mark.parametrize("script", STAGES)
def test_killed_at_random_moments(
    checkout: Path, whole: Path, truth: dict[str, bytes], armed: Path, script: str
) -> None:
    """At times from the later part of what the job takes when it is left alone: the first is imports."""
    assert not crash(checkout, whole, armed, script, "never", "job")
    assert_nothing_half_made(whole, script, truth)
    takes_s = float((whole / "died.txt.ran").read_text())
    rng = random.Random(f"{SEED}/{script}")
    for victim in ("job", "all", "all"):
        share = rng.uniform(0.4, 0.95)
        # A job that ended before its moment says nothing of a kill; the next one is killed earlier.
        for _ in range(6):
            if crash(checkout, whole, armed, script, f"after_s:{share * takes_s:.3f}", victim):
                break
            share *= 0.8
        else:
            pytest.fail(f"no kill reached the job, the last one {share * takes_s:.3f} s after its start")
        assert_nothing_half_made(whole, script, truth)
        assert_restart_gives_the_same(checkout, whole, script, truth, victim)
