"""The tool log as the collector saw it grow: what was written once cannot be unwritten.

In a sandbox no agent reaches the log. Without one it may, so the collector keeps every whole line it has
seen; a log that no longer begins with them was edited, and is put back as it was.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from acpbench.core.files import write_bytes

MAX_KEPT_BYTES = 256 * 1024 * 1024
WHOLE_CHECK_BYTES = 8 * 1024 * 1024
TAIL_CHECK_BYTES = 64 * 1024
EDITED_NAME = "tools.edited.jsonl"


class LogWitness:
    """Follows one append-only log. Once an edit was seen nothing more is believed of it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._seen = bytearray()
        self._edited = False
        self._open: set[str] = set()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Take in the whole lines that are new. Edits are left to :meth:`settle`."""
        with self._lock:
            self._take()

    def _take(self) -> None:
        try:
            if self._edited or self.log.is_symlink() or self.log.stat().st_size <= len(self._seen):
                return
            # Before the new lines must stand what was there: all of a small log, the end of a large one.
            start = 0 if len(self._seen) <= WHOLE_CHECK_BYTES else len(self._seen) - TAIL_CHECK_BYTES
            with open(self.log, "rb") as handle:
                handle.seek(start)
                data = handle.read(MAX_KEPT_BYTES - start)
        except OSError:
            return
        known = len(self._seen) - start
        self._edited = data[:known] != self._seen[start:]
        if not self._edited:
            fresh = data[known:]
            fresh = fresh[: fresh.rfind(b"\n") + 1]
            self._seen += fresh
            for line in fresh.split(b"\n"):
                self._note(line)

    def _note(self, line: bytes) -> None:
        """Follow which calls have begun and not ended."""
        try:
            row = json.loads(line)
            call, event = str(row["call_id"]), row["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if event == "start":
            self._open.add(call)
        elif event == "end":
            self._open.discard(call)

    @property
    def open_calls(self) -> int:
        """Calls that have begun and not ended."""
        return len(self._open)

    def settle(self) -> str | None:
        """At the end: put an edited log back, keep the edited one beside it. Returns what was found."""
        regular = self.log.is_file() and not self.log.is_symlink()
        found = b""
        if regular:
            with open(self.log, "rb") as handle:
                found = handle.read(len(self._seen))
        if regular and found == self._seen:
            return None
        if regular:
            self.log.rename(self.log.with_name(EDITED_NAME))
        else:
            self.log.unlink(missing_ok=True)
        write_bytes(self.log, bytes(self._seen))
        lines = self._seen.count(b"\n")
        return f"tools.jsonl was edited during the run; the {lines} lines witnessed are restored"
