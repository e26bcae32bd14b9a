"""Short excerpts of the evidence that a checkpoint cites (``path#L3-L9``, ``path#/json/pointer``)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.report.untrusted import read_head, short

_LINES = re.compile(r"L(\d{1,9})(?:-L?(\d{1,9}))?")
_MAX_BYTES = 1024 * 1024
_MAX_CHARACTERS = 280
_MAX_LINES = 4


class Snippets:
    """Resolve citations inside one run folder; each file is read once, bounded.

    Args:
        run_dir: the record; ``run:`` citations are relative to it, the others to ``run_dir/workspace``.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._texts: dict[str, str | None] = {}
        self._values: dict[str, Any] = {}

    def show(self, ref: object) -> dict[str, str | None]:
        """``{"ref", "text"}``; ``text`` is ``None`` when the citation names no part or does not resolve."""
        ref = ref if isinstance(ref, str) else str(ref)
        return {"ref": short(ref, 160), "text": self._resolve(ref)}

    def _text(self, path: str) -> str | None:
        if path not in self._texts:
            root = self._run_dir if path.startswith("run:") else self._run_dir / "workspace"
            try:
                self._texts[path] = read_head(root, path.removeprefix("run:"), _MAX_BYTES).text
            except InputError:
                self._texts[path] = None
        return self._texts[path]

    def _resolve(self, ref: str) -> str | None:
        path, mark, part = ref.partition("#")
        if not mark or len(path) > 400:
            return None
        text = self._text(path)
        if text is None:
            return None
        found = _LINES.fullmatch(part)
        if found:
            first = max(int(found.group(1)), 1)
            last = int(found.group(2) or first)
            lines = text.split("\n")[first - 1 : min(last, first + _MAX_LINES - 1)]
            excerpt = "\n".join(line[:_MAX_CHARACTERS] for line in lines)
            return excerpt[:_MAX_CHARACTERS] or None
        if part.startswith("/"):
            return self._pointer(path, text, part)
        return None

    def _pointer(self, path: str, text: str, pointer: str) -> str | None:
        if path not in self._values:
            try:
                self._values[path] = json.loads(text)
            except (ValueError, RecursionError):
                self._values[path] = None
        value = self._values[path]
        for token in pointer[1:].split("/"):
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isdecimal() and len(token) < 8 and int(token) < len(value):
                value = value[int(token)]
            else:
                return None
        try:
            return short(json.dumps(value, ensure_ascii=False), _MAX_CHARACTERS)
        except RecursionError:
            return None
