"""Bounded, link-safe reading of one file that an agent left: a value, or the reason why there is none.

Nothing here raises on hostile input: a link, a pipe, a huge or binary or half-written file is a problem
described in one line, without absolute paths.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.core.files import inside

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_PROSE_BYTES = 2 * 1024 * 1024
MAX_TAIL_BYTES = 4 * 1024 * 1024
MAX_ROWS = 500_000
MAX_FLAT_FIELDS = 5_000
MAX_FLAT_DEPTH = 12


class Loaded(NamedTuple):
    """A parsed value, or ``None`` and the reason."""

    value: Any
    problem: str | None


class Table(NamedTuple):
    """A CSV: its header and its rows as dictionaries of stripped text."""

    columns: list[str]
    rows: list[dict[str, str]]


def locate(root: Path, relative: str) -> tuple[Path | None, str | None]:
    """A regular file inside ``root``, or the reason why the path is none."""
    try:
        path = inside(root, relative)
        mode = os.lstat(path).st_mode
    except InputError as error:
        return None, error.message
    except (OSError, ValueError):
        return None, "is missing"
    if not stat.S_ISREG(mode):
        return None, "is a folder" if stat.S_ISDIR(mode) else "is not a regular file"
    return path, None


def read_bounded(path: Path, max_bytes: int) -> tuple[bytes | None, str | None]:
    """The bytes of a regular file of at most ``max_bytes``."""
    try:
        # O_NONBLOCK: a pipe put in the file's place after the check must not stop the checker.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            data = b"" if size > max_bytes else handle.read(max_bytes + 1)
    except OSError:
        return None, "cannot be read"
    if size > max_bytes or len(data) > max_bytes:
        return None, f"is larger than the {max_bytes} bytes read whole"
    return data, None


def read_tail(path: Path, max_bytes: int = MAX_TAIL_BYTES) -> tuple[str | None, str | None]:
    """The last ``max_bytes`` of a regular file as text."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            handle.seek(max(0, size - max_bytes))
            return handle.read(max_bytes).decode("utf-8", errors="backslashreplace"), None
    except OSError:
        return None, "cannot be read"


def decode_prose(data: bytes) -> Loaded:
    """Text meant for people: UTF-8 with few undecodable bytes and no NUL."""
    if b"\0" in data:
        return Loaded(None, "is binary, not text")
    text = data.decode("utf-8-sig", errors="replace")
    if text.count("�") > max(8, len(text) // 100):
        return Loaded(None, "is not UTF-8 text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Loaded(text, None) if text.strip() else Loaded(None, "is empty")


def parse_json(data: bytes) -> Loaded:
    """One JSON document. NaN and infinities are read as such: callers treat them as no number."""
    try:
        return Loaded(json.loads(data.decode("utf-8-sig", errors="backslashreplace")), None)
    except json.JSONDecodeError as error:
        return Loaded(None, f"is not valid JSON (line {error.lineno})")
    except RecursionError:
        return Loaded(None, "is JSON nested too deeply")
    except ValueError:
        return Loaded(None, "is not valid JSON")


def parse_jsonl(data: bytes) -> Loaded:
    """JSON objects, one a line; other lines are skipped. None at all is a problem."""
    rows = []
    for line in data.split(b"\n"):
        value = parse_json(line).value if line.strip() else None
        if isinstance(value, dict):
            rows.append(value)
    return Loaded(rows, None) if rows else Loaded(None, "holds no JSON record")


def parse_yaml(data: bytes) -> Loaded:
    """One YAML document, by the safe loader."""
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return Loaded(yaml.load(data.decode("utf-8-sig", errors="backslashreplace"), Loader=loader), None)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return Loaded(None, f"is not valid YAML{f' (line {mark.line + 1})' if mark else ''}")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return Loaded(None, "is not valid YAML")


def parse_table(data: bytes) -> Loaded:
    """A CSV or TSV with a header; a row longer than the header or a repeated column is a problem."""
    if b"\0" in data:
        return Loaded(None, "is binary, not a table")
    text = data.decode("utf-8-sig", errors="backslashreplace")
    first = text.split("\n", 1)[0]
    delimiter = "\t" if first.count("\t") > first.count(",") else ","
    rows: list[dict[str, str]] = []
    header: list[str] | None = None
    try:
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            if not cells:
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                if len(set(header)) != len(header):
                    return Loaded(None, "has a repeated column name")
                continue
            if len(cells) > len(header):
                return Loaded(None, f"has a row of {len(cells)} cells for {len(header)} columns")
            if len(rows) >= MAX_ROWS:
                return Loaded(None, f"has more than {MAX_ROWS} rows")
            cells += [""] * (len(header) - len(cells))
            rows.append({name: cell.strip() for name, cell in zip(header, cells, strict=True)})
    except csv.Error:
        return Loaded(None, "is not a readable table")
    if header is None:
        return Loaded(None, "is empty")
    return Loaded(Table(header, rows), None)


def number(value: Any) -> float | None:
    """A finite number that a JSON or YAML value is (booleans and text are none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def whole(value: Any) -> int | None:
    """A whole number that a JSON value is (``2`` or ``2.0``; booleans and text are none)."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def words(value: Any) -> str:
    """Stripped text, or empty for anything else."""
    return value.strip() if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    """The value when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value when it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def flatten(value: Any) -> dict[str, Any]:
    """Dotted field → leaf of nested mappings, bounded in depth and number (YAML aliases can explode)."""
    flat: dict[str, Any] = {}
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack and len(flat) < MAX_FLAT_FIELDS:
        prefix, node, depth = stack.pop()
        if isinstance(node, dict) and depth < MAX_FLAT_DEPTH:
            stack.extend(
                (f"{prefix}.{key}" if prefix else str(key), child, depth + 1)
                for key, child in list(node.items())[:MAX_FLAT_FIELDS]
            )
        elif not isinstance(node, dict):
            flat[prefix] = node
    return flat


def same_value(left: Any, right: Any) -> bool:
    """Equality of configuration values: numbers by value, text by content, the rest by canonical JSON."""
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(left, str) and isinstance(right, str):
        return left.strip() == right.strip()
    if type(left) is not type(right):
        return False
    try:
        return json.dumps(left, sort_keys=True, default=str) == json.dumps(right, sort_keys=True, default=str)
    except (ValueError, RecursionError, TypeError):
        return False


def pointer(document: Any, path: str) -> Loaded:
    """The value a JSON pointer (RFC 6901, starting with ``/``) names."""
    node = document
    for raw in path.split("/")[1:]:
        token = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and token in node:
            node = node[token]
        elif isinstance(node, list) and token.isdigit() and len(token) < 10 and int(token) < len(node):
            node = node[int(token)]
        else:
            return Loaded(None, "names no field")
    return Loaded(node, None)
