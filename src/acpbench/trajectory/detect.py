"""Which format a record is in, by its content; its name says nothing."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.trajectory.bounded import mapping, words
from acpbench.trajectory.inspect_eval import looks_like_eval
from acpbench.trajectory.jsonl import decode_document, decode_line, open_regular, read_lines
from acpbench.trajectory.typed import DOCUMENT_FORMATS, STREAM_FORMATS

FORMATS = (*STREAM_FORMATS, *DOCUMENT_FORMATS)
MAX_SNIFFED_LINES = 200
MAX_SNIFFED_BYTES = 16 * 1024 * 1024
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_ZIP = b"PK\x03\x04"
_OTHERS = {
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"PK\x05\x06": "an empty zip archive",
    b"SQLite format 3\x00": "an SQLite database",
    b"\xff\xfe": "UTF-16 text, not UTF-8",
    b"\xfe\xff": "UTF-16 text, not UTF-8",
    b"version https://git-lfs.github.com/spec/": "a Git LFS pointer, not the file it stands for",
}
_OPENS_LIST = re.compile(rb"\s*\[\s*(?:\{|\Z)")

_ROLLOUT = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}
_EXEC = {"thread.started", "turn.started", "turn.completed", "turn.failed",
         "item.started", "item.updated", "item.completed"}  # fmt: skip
_OPENCODE = {"step_start", "step_finish", "text", "reasoning", "tool_use", "error", "done"}
_CLAUDE_SUBTYPES = {"init", "compact_boundary", "hook_started", "hook_response", "status", "task_started",
                    "task_progress", "task_notification", "task_updated"}  # fmt: skip
_SCRIPTED = {"message", "read", "write", "command", "tool", "result"}


class Detected(NamedTuple):
    """A format, and the parsed document where the file is one JSON value rather than lines."""

    source_format: str
    document: Any
    is_lines: bool


def row_format(row: dict[str, Any]) -> str | None:
    """The stream format one JSON object belongs to, None when it could be anything."""
    kind = row.get("type")
    if not isinstance(kind, str):
        return None
    if kind in _ROLLOUT and isinstance(row.get("payload"), dict):
        return "codex_rollout"
    if kind in _EXEC:
        return "codex_exec"
    if kind in _OPENCODE and isinstance(row.get("sessionID"), str):
        return "opencode_run"
    if isinstance(row.get("sessionId"), str) or (kind == "summary" and "leafUuid" in row):
        return "claude_code_session"
    if kind == "file-history-snapshot":
        return "claude_code_session"
    if kind in ("assistant", "user") and isinstance(row.get("message"), dict):
        return "claude_code_stream"
    if kind == "system" and words(row.get("subtype")) in _CLAUDE_SUBTYPES:
        return "claude_code_stream"
    if kind == "result" and isinstance(row.get("subtype"), str):
        return "claude_code_stream"
    if kind in ("stream_event", "rate_limit_event") and isinstance(row.get("session_id"), str):
        return "claude_code_stream"
    if kind in _SCRIPTED and isinstance(row.get("t"), str):
        return "scripted_stream"
    if kind == "error" and isinstance(row.get("message"), str):
        return "codex_exec"
    return None


def document_format(document: Any) -> str | None:
    """The format of one JSON document: ATIF, an OpenCode export, or entries of a stream format."""
    if isinstance(document, list):
        votes = Counter(filter(None, (row_format(row) for row in document[:1_000] if isinstance(row, dict))))
        return votes.most_common(1)[0][0] if votes else None
    if not isinstance(document, dict):
        return None
    version = document.get("schema_version")
    if isinstance(version, str) and version.upper().startswith("ATIF"):
        return "atif"
    if isinstance(document.get("messages"), list) and "id" in mapping(document.get("info")):
        return "opencode_export"
    return row_format(document)


def read_document(path: str | os.PathLike[str]) -> tuple[Any, str | None]:
    """The file as one JSON document, or why it is none.

    Raises:
        InputError: the file cannot be opened.
    """
    with open_regular(path) as handle:
        data = handle.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        return None, f"is larger than the {MAX_DOCUMENT_BYTES} bytes that a document is read up to"
    return decode_document(data)


def detect(path: str | os.PathLike[str]) -> Detected:
    """The format of a file.

    Raises:
        InputError: it cannot be read, or is of no format known here: what it is instead.
    """
    with open_regular(path) as handle:
        head = handle.read(4096)
        size = os.fstat(handle.fileno()).st_size
    _refuse_others(Path(path), head, size)
    if head.startswith(_ZIP):
        if looks_like_eval(path):
            return Detected("inspect_eval", None, False)
        raise InputError("is a zip archive without an Inspect log's journal and samples", file=path)
    votes, seen, several, first_alone = _vote(path)
    # A pretty-printed document has lines that are no objects of their own.
    if not votes or not first_alone:
        document, problem = read_document(path)
        found = document_format(document) if problem is None else None
        if found is not None and (found in DOCUMENT_FORMATS or not several):
            return Detected(found, document, False)
        if problem is None and not votes:
            raise InputError(f"is of no known record format: {_described(document)}", file=path)
        if not votes:
            what = f"; lines of type {', '.join(seen)}" if seen else ""
            raise InputError(f"is of no known record format: it {problem}{what}", file=path)
    return Detected(votes.most_common(1)[0][0], None, True)


def _refuse_others(path: Path, head: bytes, size: int) -> None:
    if not head.strip(b"\x00 \t\r\n"):
        raise InputError("is empty" if size <= len(head) else "begins with blank bytes only", file=path)
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"is {name}", file=path)


def _vote(path: str | os.PathLike[str]) -> tuple[Counter[str], list[str], bool, bool]:
    """Votes of the first lines; types seen; whether several lines hold objects; whether the first does."""
    votes: Counter[str] = Counter()
    seen: list[str] = []
    objects = sniffed = 0
    first_alone: bool | None = None
    for line in read_lines(path):
        sniffed += len(line.data)
        if (votes and line.number > MAX_SNIFFED_LINES) or sniffed > MAX_SNIFFED_BYTES:
            break
        if line.number > 10 * MAX_SNIFFED_LINES:
            break
        if not line.data.strip():
            continue
        rows = decode_line(line.data).objects
        if first_alone is None and (line.data.lstrip()[:1] == b"{" or _OPENS_LIST.match(line.data)):
            first_alone = bool(rows)
        for row in rows:
            objects += 1
            if isinstance(row.get("type"), str) and row["type"][:40] not in seen and len(seen) < 8:
                seen.append(row["type"][:40])
            if isinstance(row.get("schema_version"), str) and objects == 1:
                first_alone = False  # a document on one line
            if isinstance(row.get("messages"), list) and objects == 1:
                first_alone = False
            found = row_format(row)
            if found:
                votes[found] += 1
    return votes, seen, objects > 1, first_alone is not False


def _described(document: Any) -> str:
    if isinstance(document, dict):
        kind = document.get("type")
        fields = ", ".join(str(key)[:30] for key in list(document)[:6])
        return (
            f"one JSON object of type {kind[:60]!r}"
            if isinstance(kind, str)
            else f"one JSON object with {fields}"
        )
    return f"one JSON {type(document).__name__}"
