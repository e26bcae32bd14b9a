"""The log of tool calls: one JSON row a line, appended under a lock and flushed to disk."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TAIL_BYTES = 4 * 1024 * 1024


def append_row(log: Path, make_row: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Append one row; ``make_row`` gets its sequence number (1, 2, ...). Returns the row.

    A line that a killed writer left half-written is closed first, so that it costs no other row; a row that
    does not fit on the disk is taken back whole.

    Raises:
        OSError: the log cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.fstat(descriptor).st_size
        last, closed = _last_row(descriptor, end)
        row = make_row(last + 1)
        data = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str).encode(
            "utf-8", "backslashreplace"
        )
        try:
            _write(descriptor, (b"" if closed else b"\n") + data + b"\n")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
        return row
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _last_row(descriptor: int, end: int) -> tuple[int, bool]:
    """Sequence number of the last whole row (0 in an empty log), and whether the last line is closed."""
    if end == 0:
        return 0, True
    tail = os.pread(descriptor, min(end, _TAIL_BYTES), max(0, end - _TAIL_BYTES))
    lines = tail.split(b"\n")
    for line in reversed(lines):
        try:
            return int(json.loads(line)["seq"]), not lines[-1]
        except (ValueError, KeyError, TypeError):
            continue
    # One row longer than the tail, or a log that others wrote: lines are all there is to count.
    n_lines, start = 0, 0
    while block := os.pread(descriptor, _TAIL_BYTES, start):
        n_lines, start = n_lines + block.count(b"\n"), start + len(block)
    return n_lines, not lines[-1]
