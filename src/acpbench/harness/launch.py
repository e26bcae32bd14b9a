"""Run one harness as a child: recorded as it comes, watched, and ended with all it started.

The child runs under :mod:`acpbench.harness.supervisor`. Watchdogs look at the clock, the stream and the disk;
which one fired is part of how the run ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from acpbench.core.groups import Limits
from acpbench.harness import supervisor
from acpbench.harness.meters import Meter
from acpbench.harness.recorder import Recorder, Reserve
from acpbench.harness.scrub import Scrubber

TERMINATE_GRACE_S = 10.0
LOOK_S = 0.1
RECORDING_END_S = 60.0
"""How long the recording may take to end after the child has."""
MAX_STDERR_BYTES = 64 * 1024 * 1024
LOW_DISK_BYTES = 32 * 1024 * 1024
"""Free space below which a run is stopped while its record can still be written."""
RESERVE_BYTES = 8 * 1024 * 1024

Watchdog = Literal["wall", "idle", "post_result", "output", "tokens", "cost", "turns", "disk"]


@dataclass(frozen=True)
class Launch:
    """What to start. ``secrets``: variable of the child → the collector's variable that holds the value."""

    command: list[str]
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()


@dataclass
class Ending:
    """How the child ended. ``failed``: why it could not be started.

    ``terminal_seen``: the last thing the stream said was that the work is over. ``open_work``: background
    tasks whose end the stream never told. ``disk_full``: the disk ended it, or was full when it failed.
    ``lost_output``: part of the stream could not be recorded.
    """

    exit_code: int | None = None
    signal: int | None = None
    watchdog: Watchdog | None = None
    failed: str | None = None
    terminal_seen: bool = False
    lost_output: bool = False
    disk_full: bool = False
    open_work: int = 0
    notes: list[str] = field(default_factory=list)


def _fired(
    limits: Limits,
    meter: Meter,
    outputs: tuple[Recorder, Recorder],
    started_s: float,
    wall_s: float,
    active_s: float,
    folder: Path,
) -> Watchdog | None:
    """The first limit that is passed.

    Args:
        outputs: standard output and standard error.
        active_s: when something else than output last showed life, on the monotonic clock.
        folder: where the record is written.
    """
    stream, _ = outputs
    now = time.monotonic()
    quiet_s = now - max(active_s, *(output.last_byte_s for output in outputs))
    passed: list[tuple[Watchdog, bool]] = [
        ("disk", _disk_is_low(outputs, folder)),
        ("wall", now - started_s > wall_s),
        ("post_result", meter.terminal and now - stream.last_byte_s > limits.post_result_s),
        ("idle", limits.idle_s is not None and quiet_s > limits.idle_s),
        ("output", stream.n_bytes > limits.output_mb * 1e6),
        ("tokens", limits.tokens is not None and (meter.tokens or 0) > limits.tokens),
        ("cost", limits.cost_usd is not None and (meter.cost_usd or 0) > limits.cost_usd),
        ("turns", limits.turns is not None and (meter.turns or 0) > limits.turns),
    ]
    return next((name for name, is_passed in passed if is_passed), None)


def _disk_is_low(outputs: tuple[Recorder, Recorder], folder: Path) -> bool:
    return any(output.full for output in outputs) or shutil.disk_usage(folder).free < LOW_DISK_BYTES


class _Child:
    """The supervisor's process and its two pipes."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], out: int, err: int) -> None:
        control_read, self.control = os.pipe()
        self.status, status_write = os.pipe()
        os.set_blocking(self.status, False)
        words = [sys.executable, "-I", "-S", supervisor.__file__, str(control_read), str(status_write)]
        self.process = subprocess.Popen(
            [*words, str(TERMINATE_GRACE_S), "--", *command],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=(control_read, status_write),
        )
        os.close(control_read)
        os.close(status_write)
        self._text = b""
        self.last: list[list[str]] = []

    def order(self, word: str) -> None:
        """Tell the supervisor."""
        with contextlib.suppress(OSError):
            os.write(self.control, word.encode())

    def said(self) -> list[list[str]]:
        """What the supervisor has said so far, by words."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.status, 4096):
                self._text += part
        return [line.split(" ", 1) for line in self._text.decode(errors="replace").splitlines()]

    def close(self) -> None:
        """End whatever is left and reap."""
        os.close(self.control)
        try:
            self.process.wait(TERMINATE_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # A supervisor that was killed itself left the agent's session behind.
        self.last = self.said()
        for words in self.last:
            if words[0] == "started" and ["gone"] not in self.last:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(words[1]), signal.SIGKILL)
        os.close(self.status)

    @property
    def ended(self) -> bool:
        """Whether the command itself has ended (what it left behind may still be ending)."""
        return any(words[0] in ("exited", "signaled", "failed") for words in self.said())


def _ending(said: list[list[str]], wrapped: bool) -> Ending:
    """How the supervisor says that the command ended."""
    ending = Ending()
    for words in said:
        if words[0] == "failed":
            ending.failed = words[1]
        elif words[0] == "signaled":
            ending.signal = int(words[1])
        elif words[0] == "exited":
            ending.exit_code = int(words[1])
    if wrapped and ending.exit_code is not None and 128 < ending.exit_code < 160:
        # A wrapper (bwrap, docker, a shell) reports a signal of its command as an exit code.
        ending.exit_code, ending.signal = None, ending.exit_code - 128
    if ending.exit_code is None and ending.signal is None and ending.failed is None:
        ending.signal = signal.SIGKILL
        ending.notes.append("the supervisor was killed")
    return ending


def run_child(
    launch: Launch,
    attempt: Path,
    *,
    wrap: Callable[[list[str]], list[str]] | None = None,
    limits: Limits,
    wall_s: float,
    meter: Meter,
    scrubber: Scrubber,
    secret_values: Mapping[str, str],
    on_look: Callable[[], bool] | None = None,
) -> Ending:
    """Run the child to its end, its output in ``attempt`` as it comes.

    Args:
        launch: command, folder and environment.
        attempt: gets ``stream.jsonl``, ``stream.times.csv`` and ``stderr.log``.
        wrap: puts the command into a sandbox.
        wall_s: wall limit in force.
        secret_values: the collector's variables → values.
        on_look: called at each look of the watchdogs; says whether a tool is at work, which is no idleness.
    """
    reserve = Reserve(attempt.with_name(f"{attempt.name}.reserve"), RESERVE_BYTES)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    env = launch.env | {name: secret_values[source] for name, source in launch.secrets.items()}
    stream = Recorder(
        out_read,
        attempt / "stream.jsonl",
        scrubber=scrubber,
        reserve=reserve,
        times=attempt / "stream.times.csv",
        on_row=meter.feed,
        limit_bytes=limits.output_mb * 1e6 + 16e6,
    )
    errors = Recorder(
        err_read, attempt / "stderr.log", scrubber=scrubber, reserve=reserve, limit_bytes=MAX_STDERR_BYTES
    )
    command = launch.command if wrap is None else wrap(launch.command)
    child = _Child(command, launch.cwd, env, out_write, err_write)
    os.close(out_write)
    os.close(err_write)
    stream.start()
    errors.start()
    started_s = active_s = time.monotonic()
    watchdog = None
    try:
        while child.process.poll() is None:
            time.sleep(LOOK_S)
            if on_look is not None and on_look():
                active_s = time.monotonic()
            if watchdog is None and not child.ended:
                watchdog = _fired(limits, meter, (stream, errors), started_s, wall_s, active_s, attempt)
                if watchdog is not None:
                    child.order("term")
    finally:
        child.close()
        for recorder in (stream, errors):
            recorder.join(2.0)
            if recorder.is_alive():
                recorder.halt()
                # The child is gone: no hurry, a slow disk or a line of many megabytes may take its time.
                recorder.join(RECORDING_END_S)
        low = _disk_is_low((stream, errors), attempt)
        reserve.release()
    ending = _ending(child.last, wrap is not None)
    ending.watchdog, ending.terminal_seen = watchdog, meter.terminal
    # A child that found the disk full first may be gone before the watchdog looks.
    ending.disk_full = watchdog == "disk" or (low and ending.exit_code != 0)
    ending.open_work = meter.open_work
    ending.lost_output = stream.error is not None or stream.sink.lost > 0 or stream.is_alive()
    for recorder in (stream, errors):
        ending.notes += _troubles(recorder)
    return ending


def _troubles(recorder: Recorder) -> list[str]:
    """What the recording of one output could not keep."""
    name = recorder.sink.path.name
    told: list[tuple[Any, str]] = [
        (recorder.error, f"{name}: recording failed ({recorder.error})"),
        (recorder.is_alive(), f"{name}: recording did not end within {RECORDING_END_S:g} s"),
        (recorder.dropped, f"{name}: {recorder.dropped} bytes beyond the limit were not kept"),
        (recorder.sink.lost, f"{name}: {recorder.sink.lost} bytes did not fit on the disk"),
    ]
    return [text for happened, text in told if happened]
