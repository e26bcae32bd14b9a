"""Run every benchmark in a process of its own and write ``benchmarks/RESULTS.md``: one table, one machine.

    python benchmarks/run.py                    # all, in the order of their names
    python benchmarks/run.py --only tile_reading

A benchmark that fails does not stop the others: its line in the table says that it failed and why. Rows whose
target is not met, and peers that could not be measured, stay in the table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acpbench.core.files import write_text

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 3600.0
PACKAGES = (
    "h5py", "imagecodecs", "numpy", "openslide-bin", "openslide-python", "scikit-image", "scipy",
    "simplejpeg", "tifffile", "timm", "torch", "torchsurv",
)  # fmt: skip
"""Packages a figure of ours depends on; those of a peer are pinned in ``benchmarks/peers/<peer>.txt``."""


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark: rows of :class:`bench.Row` as dictionaries, or why there are none."""

    name: str
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""


def benchmarks(folder: Path = HERE) -> list[str]:
    """Names of the benchmarks of a folder, sorted: of the scripts that share ``bench.main``."""
    uses_main = re.compile(r"^(?:from bench import|import bench$)", re.MULTILINE)
    return sorted(path.stem for path in folder.glob("*.py") if uses_main.search(path.read_text()))


def run(name: str, folder: Path = HERE, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run one benchmark. A failure is an outcome, not an exception."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, tempfile.TemporaryFile("w+") as errors:
        output = Path(scratch) / "rows.json"
        command = [sys.executable, str(folder / f"{name}.py"), "--output", str(output)]
        # A group of its own: a peer that hangs is a child of the child.
        process = subprocess.Popen(command, stderr=errors, cwd=folder, start_new_session=True)
        try:
            code = process.wait(timeout_s)
            errors.seek(0)
            failure = "" if code == 0 else _last_line(errors.read()) or f"exit code {code}"
        except subprocess.TimeoutExpired:
            failure = f"took over {timeout_s:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        rows: list[dict[str, Any]] = []
        try:
            rows = json.loads(output.read_text())["rows"]
        except (OSError, ValueError, KeyError):
            failure = failure or "ended without rows"
    return Outcome(name, time.monotonic() - start, rows, failure)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


def machine() -> list[tuple[str, str]]:
    """What the figures were measured on. No host name and no path: neither changes a figure."""
    facts = [
        ("Processor", f"{_cpu_model()}, {os.cpu_count()} cores, {_available_cores()} of them available"),
        ("Memory", f"{_memory_gib():.0f} GiB"),
        ("System", f"{platform.system()} {platform.machine()}"),
        ("GPU", _gpu()),
        ("Python", platform.python_version()),
    ]
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    return [*facts, ("Packages", ", ".join(versions))]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _gpu() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        return ", ".join(done.stdout.split("\n")).strip(", ") or "none"
    except (OSError, subprocess.TimeoutExpired):
        return "none"


def page(outcomes: list[Outcome], facts: list[tuple[str, str]]) -> str:
    """The results as Markdown."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    with_target = [row for row in rows if row["must_reach"] is not None]
    met = sum(row["met"] is True for row in with_target)
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench`. A ratio says how many times better this project is than the peer; both",
        "were measured in one run, interleaved, on the same input, single-threaded unless the row says",
        "otherwise. Peers are the versions pinned in `benchmarks/peers/`. Absolute values change with the",
        "machine and its load.",
        "",
        *(f"- {name}: {text}" for name, text in facts),
        "",
        f"{met} of {len(with_target)} targets met; {len(outcomes)} benchmarks, "
        f"{sum(bool(outcome.failure) for outcome in outcomes)} failed.",
        "",
        "| benchmark | work | ours | peer | peer's | ratio | target | met | note |",
        "|---|---|--:|---|--:|--:|--:|---|---|",
    ]
    for outcome in outcomes:
        lines += [_line(outcome.name, row) for row in outcome.rows]
        if outcome.failure:
            lines.append(f"| {outcome.name} | failed | | | | | | no | {_cell(outcome.failure)} |")
    return "\n".join(lines) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    peer = row["peer"]
    peers = "" if peer is None else _number(row["peer_value"], row["unit"], "not measured")
    target = "" if row["must_reach"] is None else f"{row['must_reach']:g}"
    if target and peer is not None:
        target += " x"
    met = {True: "yes", False: "no", None: "" if row["must_reach"] is None else "not measured"}[row["met"]]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    cells = [
        name, _cell(row["work"]), _number(row["value"], row["unit"], "not measured"), _cell(peer or ""),
        peers, ratio, target, met, _cell(row["note"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, unit: str, missing: str) -> str:
    return missing if value is None else f"{value:,.4g} {unit}".strip()


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def main() -> int:
    """Command line. The exit code is 1 when a benchmark failed or a target was not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="run this one (may be repeated)")
    parser.add_argument("--output", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    found = benchmarks()
    unknown = [name for name in given.only or [] if name not in found]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(found)}")
    outcomes = []
    for name in [name for name in found if given.only is None or name in given.only]:
        print(f"== {name}", flush=True)
        outcomes.append(run(name))
        if outcomes[-1].failure:
            print(f"{name} FAILED: {outcomes[-1].failure}", flush=True)
        # After each one, so that a run that is stopped leaves what it has.
        write_text(given.output, page(outcomes, machine()))
    print(f"Results: {given.output}")
    missed = any(row["met"] is False for outcome in outcomes for row in outcome.rows)
    return int(missed or any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
