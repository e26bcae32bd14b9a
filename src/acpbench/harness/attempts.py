"""Attempts of one trajectory, and the one that is shown as ``run/``.

Every attempt lives in ``attempts/<n>/`` and stays there. A finished attempt is published by hard links,
``run.json`` last; readers trust ``run.json``. A second collector waits for the first (file lock). A finished
record is never paid for twice: it is taken as it is, or shown again when the workflow has cleared the files
of an attempt that it had not yet accepted. Snakemake accepts by write-protecting (``protected()``).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acpbench.core.files import walk_files

DECLARED = ("run.json", "stream.jsonl", "tools.jsonl", "trajectory.json", "manifest.csv")
"""Files of ``run/`` that the workflow declares as outputs, and write-protects itself."""


@contextmanager
def collecting(trajectory_dir: Path) -> Iterator[None]:
    """Hold the trajectory's lock: one collector at a time, also after a killed workflow left one behind."""
    trajectory_dir.mkdir(parents=True, exist_ok=True)
    with open(trajectory_dir / ".collect.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def last_attempt(trajectory_dir: Path) -> int:
    """Number of the newest attempt, 0 when there is none."""
    attempts = trajectory_dir / "attempts"
    numbers = (
        [int(path.name) for path in attempts.iterdir() if path.name.isdigit()] if attempts.is_dir() else []
    )
    return max(numbers, default=0)


def show(attempt: Path, run_dir: Path) -> None:
    """Link the files of an attempt into ``run/`` that are not there yet, ``run.json`` last.

    The declared files stay writable until the workflow has accepted them: Snakemake refuses to start over a
    read-only output that a killed workflow left behind, unless the user is root.
    """
    for relative, path in sorted(walk_files(attempt), key=lambda item: item[0] == "run.json"):
        target = run_dir / relative
        if target.exists():
            continue
        path.chmod(0o644 if relative in DECLARED else 0o444)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def unaccepted(attempt: Path, run_dir: Path) -> bool:
    """Whether ``run/`` is what is left of this finished attempt, which no workflow has accepted yet."""
    record, witness = attempt / "run.json", run_dir / "stderr.log"
    return (
        record.is_file()
        and bool(record.stat().st_mode & stat.S_IWUSR)
        and witness.is_file()
        and witness.samefile(attempt / "stderr.log")
    )
