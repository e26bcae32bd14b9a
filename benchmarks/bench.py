"""What every benchmark shares: rows of ratios, peers in throw-away environments, timing.

A benchmark is a script ``benchmarks/<name>.py`` that calls :func:`main` with a function returning rows. A
peer
is measured by ``benchmarks/peers/<peer>_<work>.py``, run by the Python of its own environment
(``benchmarks/peers/<peer>.txt`` lists what is installed there), which prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acpbench.core.files import write_json

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
INSTALL_TIMEOUT_S = 1200.0


class PeerMissing(Exception):
    """A peer cannot be installed or does not run here; the message says why."""


@dataclass(frozen=True)
class Row:
    """One comparison: ``ratio`` is how many times better we are than the peer (> 1 is better for us).

    ``value`` and ``peer_value`` share ``unit``. ``must_reach`` is the smallest acceptable ratio (or, where
    ``peer`` is None, the smallest acceptable value). A None ``peer_value`` was not measured;
    ``note`` says why.
    """

    work: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    must_reach: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when there is none or nothing was measured."""
        measured = self.ratio if self.peer is not None else self.value
        return None if self.must_reach is None or measured is None else measured >= self.must_reach


def compare(
    work: str,
    value: float,
    unit: str,
    peer: str,
    peer_value: float | None,
    *,
    must_reach: float | None = None,
    lower_is_better: bool = False,
    note: str = "",
) -> Row:
    """A row against a peer; the ratio is turned so that more is better."""
    ratio = None
    if peer_value:
        ratio = peer_value / value if lower_is_better else value / peer_value
    return Row(work, value, unit, peer, peer_value, ratio, must_reach, note)


def best_seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    """Shortest wall time of ``repeats`` calls: the least disturbed one on a shared machine."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peer_python(peer: str) -> Path:
    """Python of a peer's environment, made on first use.

    Raises:
        PeerMissing: it cannot be installed.
    """
    folder, wanted = PEERS / peer, HERE / "peers" / f"{peer}.txt"
    python, mark = folder / "bin" / "python", folder / "installed.txt"
    if mark.is_file() and mark.read_text() == wanted.read_text():
        return python
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{peer}: installation took over {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise PeerMissing(f"{peer}: {lines[-1][:200]}")
    mark.write_text(wanted.read_text())
    return python


def run_peer(peer: str, work: str, *arguments: str, timeout_s: float = 600) -> dict[str, Any]:
    """Run ``benchmarks/peers/<peer>_<work>.py`` in the peer's environment; its last line is a JSON object.

    Raises:
        PeerMissing: it cannot be installed, fails, or takes too long.
    """
    script = HERE / "peers" / f"{peer}_{work}.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [str(peer_python(peer)), str(script), *arguments],
            capture_output=True, text=True, timeout=timeout_s, check=False, env=environment,
        )  # fmt: skip
        return json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{peer}: took over {timeout_s:.0f} s") from None
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode} without output"]
        raise PeerMissing(f"{peer}: {lines[-1][:200]}") from None


def main(measure: Callable[[], list[Row]], description: str | None) -> None:
    """Command line of a benchmark: print its rows, and write them as JSON with ``--output``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = measure()
    for row in rows:
        print(describe(row))
    if given.output is not None:
        write_json(given.output, {"rows": [asdict(row) | {"met": row.met} for row in rows]})
    sys.exit(0)


def describe(row: Row) -> str:
    """One line of text."""
    text = f"{row.work}: {row.value:,.4g} {row.unit}"
    if row.peer is not None:
        other = "not measured" if row.peer_value is None else f"{row.peer_value:,.4g} {row.unit}"
        text += f"; {row.peer} {other}"
    if row.ratio is not None:
        text += f"; ratio {row.ratio:.2f}"
    if row.must_reach is not None:
        text += f" (must reach {row.must_reach:g}: {'met' if row.met else 'NOT MET'})"
    return text + (f"; {row.note}" if row.note else "")
