"""Write what a child prints to disk as it comes: whole lines, with the time each was received.

The bytes are the child's own, but for known secrets. Nothing waits for a line's end for long, no line is too
long, and a disk that is full loses nothing: what could not be written is held, and written when there is
room.
"""

from __future__ import annotations

import errno
import os
import selectors
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acpbench.harness.scrub import Scrubber
from acpbench.trajectory.jsonl import decode_line, shorten
from acpbench.trajectory.record import iso_time

SYNC_S = 0.2
"""Longest time that received bytes stay out of the file."""
READ_BYTES = 256 * 1024
PIPE_BYTES = 2 * 1024 * 1024
"""More than a pipe holds: what is read after the order to stop."""
LONG_LINE_BYTES = 1024 * 1024
"""An unfinished line of this size is written in parts."""
METER_LINE_BYTES = 64 * 1024 * 1024
HELD_BYTES = 64 * 1024 * 1024
"""What is kept in memory while the disk is full."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Reserve:
    """Disk space set aside at a run's start, given back when the disk is full: enough to write the record."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        with open(path, "wb") as handle:
            for _ in range(size // 65536):
                handle.write(b"\xa5" * 65536)
            handle.flush()
            os.fsync(handle.fileno())

    def release(self) -> None:
        """Free the space."""
        self.path.unlink(missing_ok=True)


class Sink:
    """An append-only file that survives a full disk. One thread writes; another may flush meanwhile."""

    def __init__(self, path: Path, reserve: Reserve | None = None) -> None:
        self.path, self.reserve = path, reserve
        self.full = False
        self.lost = 0
        self._held = bytearray()
        self._dirty = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, data: bytes) -> None:
        """Append; on a full disk the bytes are held."""
        self._held += data
        self._drain()
        if len(self._held) > HELD_BYTES:
            self.lost += len(self._held) - HELD_BYTES
            del self._held[HELD_BYTES:]

    def _drain(self) -> None:
        while self._held:
            try:
                written = os.write(self._descriptor, self._held)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                first, self.full = not self.full, True
                if first and self.reserve is not None:
                    self.reserve.release()
                    continue
                return
            self._dirty = True
            del self._held[:written]

    def retry(self) -> None:
        """Write what the full disk has held up, when there is room again."""
        if self._held:
            self._drain()

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.full = True

    def close(self) -> None:
        """Write what is held, if there is room by now, and close."""
        self.retry()
        self.flush()
        self.lost += len(self._held)
        os.close(self._descriptor)


class Recorder(threading.Thread):
    """Copy a pipe to a file by lines.

    Args:
        pipe: file descriptor to read; closed at its end.
        target: the file.
        scrubber: takes known secrets out.
        reserve: disk space to give back when the disk is full.
        times: table of receipt times by line, or None.
        on_row: called with each JSON object.
        limit_bytes: where recording stops; what comes after is read, counted and dropped.
    """

    def __init__(
        self,
        pipe: int,
        target: Path,
        *,
        scrubber: Scrubber,
        reserve: Reserve | None = None,
        times: Path | None = None,
        on_row: Callable[[dict[str, Any]], None] | None = None,
        limit_bytes: float = float("inf"),
    ) -> None:
        super().__init__(daemon=True)
        self.pipe, self.scrubber, self.on_row, self.limit_bytes = pipe, scrubber, on_row, limit_bytes
        self.sink = Sink(target, reserve)
        self.times = None if times is None else Sink(times, reserve)
        if self.times is not None:
            self.times.write(b"line,t_wall,t_mono_s\n")
        self.n_bytes = 0
        self.n_lines = 0
        self.dropped = 0
        self.unmetered = 0
        self.last_byte_s, self._last_byte_wall_s = time.monotonic(), time.time()
        self.error: BaseException | None = None
        self._pending = bytearray()
        self._line = bytearray()
        self._halt = threading.Event()
        self._ended = threading.Event()

    @property
    def full(self) -> bool:
        """Whether the disk was found full."""
        return self.sink.full or (self.times is not None and self.times.full)

    def run(self) -> None:
        """Read to the end of the pipe."""
        try:
            self._read()
        except BaseException as error:  # the thread's end would be silent otherwise
            self.error = error
        finally:
            os.close(self.pipe)

    def halt(self) -> None:
        """Stop when what the pipe holds by now is read, although someone still holds it open."""
        self._halt.set()

    def _read(self) -> None:
        # A disk may take its time; what comes meanwhile is still dated when it comes.
        flusher = threading.Thread(target=self._flush, daemon=True)
        flusher.start()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self.pipe, selectors.EVENT_READ)
                after_halt = 0
                while after_halt < PIPE_BYTES:
                    halted = self._halt.is_set()
                    if not selector.select(0 if halted else SYNC_S):
                        if halted:
                            break
                        for sink in self._sinks:
                            sink.retry()
                        continue
                    chunk = os.read(self.pipe, READ_BYTES)
                    if not chunk:
                        break
                    after_halt += len(chunk) if halted else 0
                    self._take(chunk)
        finally:
            self._ended.set()
            flusher.join()
        if self._pending:
            self.sink.write(self.scrubber.clean(bytes(self._pending)))
            self._note_line()
        self._meter(bytes(self._line))
        for sink in self._sinks:
            sink.close()

    @property
    def _sinks(self) -> list[Sink]:
        return [self.sink] if self.times is None else [self.sink, self.times]

    def _flush(self) -> None:
        try:
            while not self._ended.wait(SYNC_S):
                for sink in self._sinks:
                    sink.flush()
        except BaseException as error:  # the thread's end would be silent otherwise
            self.error = error

    def _take(self, chunk: bytes) -> None:
        self.last_byte_s, self._last_byte_wall_s = time.monotonic(), time.time()
        if self.n_bytes >= self.limit_bytes:
            self.n_bytes += len(chunk)
            self.dropped += len(chunk)
            return
        self.n_bytes += len(chunk)
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            self._extend(piece)
            self.sink.write(self.scrubber.clean(bytes(self._pending)) + b"\n")
            self._pending.clear()
            self._note_line()
            self._meter(bytes(self._line))
            self._line.clear()
        self._extend(pieces[-1])
        if len(self._pending) > LONG_LINE_BYTES:
            # A secret may lie across the cut: the bytes that could begin one wait for the next part.
            clean = self.scrubber.clean(bytes(self._pending))
            cut = len(clean) - self.scrubber.hold_bytes
            self.sink.write(clean[:cut])
            self._pending = bytearray(clean[cut:])

    def _extend(self, piece: bytes) -> None:
        self._pending += piece
        if self.on_row is not None and len(self._line) < METER_LINE_BYTES:
            self._line += piece

    def _note_line(self) -> None:
        self.n_lines += 1
        if self.times is not None:
            row = f"{self.n_lines},{iso_time(self._last_byte_wall_s)},{self.last_byte_s:.6f}\n"
            self.times.write(row.encode())

    def _meter(self, line: bytes) -> None:
        if self.on_row is None or not line:
            return
        for row in decode_line(shorten(line)[0]).objects:
            try:
                self.on_row(row)
            except Exception:  # what an agent printed must not end the recording of it
                self.unmetered += 1
