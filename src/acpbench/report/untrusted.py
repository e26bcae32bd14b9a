"""Bounded reading of files that an agent wrote, and text made safe to show.

Nothing here raises on bad content: a report is made of whatever a run left behind, and says what it could not
read. Escaping itself is done by the templates (autoescape); this module bounds sizes and makes invisible
characters visible, so that hostile text cannot reorder or hide what stands beside it.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import inside

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
# Bidirectional overrides, zero-width marks and lone surrogates: invisible, or not encodable.
_INVISIBLE = re.compile("[\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Show control characters as pictures (NUL is ␀), invisible ones as ``[U+202E]``; lines end in LF."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub(lambda found: chr(0x2400 + ord(found.group())), text)
    return _INVISIBLE.sub(lambda found: f"[U+{ord(found.group()):04X}]", text)


def short(text: object, limit: int = 300) -> str:
    """``text`` on one line, cleaned, at most ``limit`` characters (an ellipsis marks a cut)."""
    line = " ".join(clean(str(text)[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def number(value: Any) -> float | None:
    """``value`` as a finite float, or ``None`` for anything else (booleans and strings included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def mapping(value: Any) -> dict[str, Any]:
    """``value`` when it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Any]:
    """``value`` when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Head:
    """The first part of a text file.

    Attributes:
        text: cleaned text.
        size_bytes: size of the whole file.
        shown_bytes: how many bytes of it ``text`` stands for.
    """

    text: str
    size_bytes: int
    shown_bytes: int

    @property
    def truncated(self) -> bool:
        """Whether the file is longer than what is shown."""
        return self.size_bytes > self.shown_bytes


def read_raw(root: Path, relative: str, max_bytes: int) -> tuple[bytes, int]:
    """First ``max_bytes`` bytes of a regular file below ``root`` and the file's whole size.

    Raises:
        InputError: the path leaves ``root``, passes a symbolic link, or is not a readable regular file.
    """
    path = inside(root, relative)
    try:
        if not path.is_file():
            raise InputError("is missing" if not path.exists() else "is not a regular file", file=relative)
        with open(path, "rb") as handle:
            return handle.read(max_bytes), os.fstat(handle.fileno()).st_size
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot be read ({getattr(error, 'strerror', None) or error})", file=relative
        ) from None


def read_head(root: Path, relative: str, max_bytes: int = 64 * 1024) -> Head:
    """Clean text of the first ``max_bytes`` bytes of a file below ``root``. Raises :class:`InputError`."""
    data, size = read_raw(root, relative, max_bytes)
    # A character cut in the middle stays in the decoder: an escape would be text that is not there.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    text = decoder.decode(data, final=size <= len(data)).removeprefix("\ufeff")
    return Head(text=clean(text), size_bytes=size, shown_bytes=len(data) - len(decoder.getstate()[0]))


def read_json_head(root: Path, relative: str, max_bytes: int = 4 * 1024 * 1024) -> Any:
    """Bounded JSON below ``root``. Raises :class:`InputError` when missing, too large or not JSON."""
    data, size = read_raw(root, relative, max_bytes)
    if size > len(data):
        raise InputError(f"is larger than {max_bytes} bytes", file=relative)
    try:
        return json.loads(data.decode("utf-8-sig", errors="backslashreplace"))
    except (json.JSONDecodeError, RecursionError, ValueError):
        raise InputError("is not valid JSON", file=relative) from None


def read_jsonl_head(
    root: Path, relative: str, max_rows: int = 5000, max_bytes: int = 32 * 1024 * 1024
) -> tuple[list[dict[str, Any]], int, bool]:
    """JSON lines that are objects, the number of other lines, and whether the file was cut.

    A run that crashed leaves a torn last line; that is counted and skipped. Raises :class:`InputError`
    when the file is missing.
    """
    data, size = read_raw(root, relative, max_bytes)
    rows: list[dict[str, Any]] = []
    bad = 0
    for line in data.decode("utf-8", errors="backslashreplace").split("\n"):
        if not line.strip():
            continue
        if len(rows) >= max_rows:
            return rows, bad, True
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError, ValueError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad += 1
    return rows, bad, size > len(data)
