"""Bounded, read-only view of one trajectory, as a judge may see it.

Everything read here was left by an agent: files are read up to a limit, links are not followed, JSON that
does not parse is simply absent, and lines that address the judge are blanked (their numbers stay).
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.adjudication.injection import Finding, blank_lines, find_addresses
from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes, walk_files
from acpbench.trajectory.events import Event, load_events
from acpbench.trajectory.record import load_manifest, load_run

MAX_FILE_BYTES = 2 * 1024 * 1024
TEXT_SUFFIXES = frozenset(
    {"", ".md", ".txt", ".json", ".jsonl", ".yaml", ".yml", ".csv", ".tsv", ".log", ".py", ".sh", ".r"}
    | {".toml", ".cfg"}
)
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+|\s*\||\s*#{1,6}\s")


class Unit(NamedTuple):
    """A paragraph, list item, table row or heading of a text file, with the lines it spans (from 1)."""

    path: str
    start: int
    end: int
    text: str
    section: str

    @property
    def ref(self) -> str:
        """Citation of the unit."""
        return f"{self.path}#L{self.start}" + (f"-L{self.end}" if self.end > self.start else "")


class RecordView:
    """Files and witnessed events of one run. Reads lazily, keeps what it read."""

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.run_dir = Path(run_dir)
        self.workspace = self.run_dir / "workspace"
        self._bytes: dict[str, bytes] = {}
        self._lines: dict[str, list[str]] = {}
        self._findings: dict[str, list[Finding]] = {}
        self._hashes: dict[str, str] = {}

    # ---- files -------------------------------------------------------------------------------------
    @cached_property
    def files(self) -> dict[str, int]:
        """Workspace path → size in bytes of every regular file, sorted."""
        if not self.workspace.is_dir() or self.workspace.is_symlink():
            return {}
        return {relative: path.stat().st_size for relative, path in walk_files(self.workspace)}

    def has(self, path: str) -> bool:
        """Whether the workspace holds a non-empty file of this name."""
        return self.files.get(path, 0) > 0

    def matching(self, pattern: str) -> list[str]:
        """Non-empty workspace files a pattern names: a file, a folder (``outputs/``) or a glob, which may
        name folders too (``reflection/round_*``)."""
        pattern = pattern.rstrip("/")
        depth = pattern.count("/") + 1
        found = []
        for path, size in self.files.items():
            prefix = "/".join(path.split("/")[:depth])
            if size and (fnmatch.fnmatchcase(prefix, pattern) or prefix == pattern):
                found.append(path)
        return found

    def raw(self, path: str) -> bytes:
        """First ``MAX_FILE_BYTES`` of a workspace file, empty when it is not there."""
        if path not in self._bytes:
            data = b""
            if path in self.files:
                with open(self.workspace / path, "rb") as handle:
                    data = handle.read(MAX_FILE_BYTES)
            self._bytes[path] = data
        return self._bytes[path]

    def sha256(self, path: str) -> str | None:
        """Hash of a workspace file read whole, None when it is absent."""
        if path not in self.files:
            return None
        if path not in self._hashes:
            from acpbench.core.files import sha256_file

            self._hashes[path] = sha256_file(self.workspace / path)
        return self._hashes[path]

    def is_text(self, path: str) -> bool:
        """Whether a file is read as text (by its suffix, and no NUL in its head)."""
        return Path(path).suffix.lower() in TEXT_SUFFIXES and b"\0" not in self.raw(path)[:4096]

    def lines(self, path: str) -> list[str]:
        """Lines of a text file with those that address the judge blanked."""
        if path not in self._lines:
            text = self.raw(path).decode("utf-8-sig", errors="backslashreplace") if self.is_text(path) else ""
            lines = text.split("\n")
            self._findings[path] = find_addresses(path, lines)
            self._lines[path] = blank_lines(lines, self._findings[path])
        return self._lines[path]

    def findings(self, path: str) -> list[Finding]:
        """Attempts to address the judge in one file."""
        self.lines(path)
        return self._findings[path]

    def text(self, path: str) -> str:
        """The whole bounded text of a file, judge-addressing lines blanked."""
        return "\n".join(self.lines(path))

    def json(self, path: str) -> Any:
        """Parsed JSON of a file, None when absent, too large or invalid."""
        if self.files.get(path, 0) > MAX_FILE_BYTES:
            return None
        try:
            return json.loads(self.raw(path).decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return None

    def object(self, path: str) -> dict[str, Any]:
        """Parsed JSON object of a file, empty when it is anything else."""
        value = self.json(path)
        return value if isinstance(value, dict) else {}

    def yaml(self, path: str) -> dict[str, Any]:
        """Parsed YAML mapping of a file, empty when it is anything else."""
        if not self.has(path) or self.files[path] > MAX_FILE_BYTES:
            return {}
        from acpbench.core.errors import InputError
        from acpbench.core.files import read_yaml

        try:
            value = read_yaml(self.workspace / path)
        except (InputError, RecursionError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def table(self, path: str) -> list[dict[str, str]]:
        """Rows of a CSV file; empty when absent or unreadable."""
        text = self.raw(path).decode("utf-8-sig", errors="backslashreplace")
        try:
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            return [{k: v or "" for k, v in row.items() if isinstance(k, str)} for row in reader]
        except csv.Error:
            return []

    @cached_property
    def _changed(self) -> set[str]:
        """Workspace files last changed after the run began."""
        try:
            begun = load_run(self.run_dir).window_s[0]
            return {path for path, row in load_manifest(self.run_dir).items() if row.mtime > begun}
        except InputError:
            return set(self.files)

    def untouched(self, path: str) -> bool:
        """Whether a file lies as the run was given it."""
        return path in self.files and path not in self._changed

    def given_table(self, path: str) -> list[dict[str, str]]:
        """Rows of a table the run was given; empty once the agent changed it."""
        return self.table(path) if self.untouched(path) else []

    # ---- text units --------------------------------------------------------------------------------
    def units(self, path: str) -> list[Unit]:
        """Paragraphs, list items, table rows and headings of a text file, each with its section heading."""
        units: list[Unit] = []
        section, start, parts = "", 0, []

        def flush(end: int) -> None:
            if parts:
                units.append(Unit(path, start, end, " ".join(parts), section))
                parts.clear()

        for number, line in enumerate(self.lines(path), start=1):
            if not line.strip():
                flush(number - 1)
                continue
            if _ITEM.match(line):
                flush(number - 1)
            if line.lstrip().startswith("#"):
                section = line.strip("# \t\r").lower()
                units.append(Unit(path, number, number, line.strip("# \t\r"), section))
                continue
            if not parts:
                start = number
            parts.append(line.strip())
        flush(len(self.lines(path)))
        return units

    def find(self, paths: str | Iterable[str], *patterns: str, limit: int = 2) -> list[str]:
        """Citations of the first lines of files in which every pattern occurs (case-insensitive regex)."""
        compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
        refs: list[str] = []
        for path in [paths] if isinstance(paths, str) else paths:
            for number, line in enumerate(self.lines(path), start=1):
                if all(pattern.search(line) for pattern in compiled):
                    refs.append(f"{path}#L{number}")
                    if len(refs) >= limit:
                        return refs
        return refs

    def find_unit(
        self,
        path: str,
        *patterns: str,
        section: str | None = None,
        where: Callable[[str], bool] | None = None,
    ) -> list[str]:
        """Citation of the first unit (not a heading) in which every pattern occurs, as a list of 0 or 1."""
        compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
        for unit in self.units(path):
            if unit.text.lower() == unit.section or (section and not re.search(section, unit.section)):
                continue
            if all(pattern.search(unit.text) for pattern in compiled) and (where is None or where(unit.text)):
                return [unit.ref]
        return []

    # ---- witnessed events --------------------------------------------------------------------------
    @cached_property
    def events(self) -> list[Event]:
        """Every witnessed event, in time order."""
        return load_events(self.run_dir)

    @cached_property
    def calls(self) -> list[Event]:
        """Tool calls in the registry's own log."""
        return [event for event in self.events if event.kind == "tool" and event.source == "registry"]

    def ok_calls(self, *tools: str, round_id: int | None = None) -> list[Event]:
        """Witnessed calls that ended well, of the named tools (any when none is named)."""
        return [
            call
            for call in self.calls
            if call.exit_status == "ok"
            and (not tools or call.name in tools)
            and (round_id is None or call.round_id == round_id)
        ]

    @cached_property
    def witnessed_hashes(self) -> dict[str, str]:
        """sha256 of each output of a successful call → citation of that call."""
        found: dict[str, str] = {}
        for call in self.ok_calls():
            for output in call.outputs:
                if isinstance(output.get("sha256"), str):
                    found.setdefault(output["sha256"], call.ref)
        return found

    def digest(self, paths: Iterable[str]) -> str:
        """One hash over the named files' paths and bytes."""
        listed = "\n".join(f"{path} {self.sha256(path)}" for path in sorted(set(paths)))
        return sha256_bytes(listed.encode())
