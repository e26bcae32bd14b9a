"""Bounded, printable, JSON-safe copies of values that a harness or an agent wrote."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from acpbench.trajectory.record import iso_time

MAX_TEXT_CHARS = 256 * 1024
"""Longest text kept of one field."""
MAX_TOTAL_BYTES = 48 * 1024 * 1024
"""Kept of one trajectory; beyond it texts are cut to ``TIGHT_TEXT_CHARS``, objects to ``TIGHT_NODES``."""
TIGHT_TEXT_CHARS = 200
TIGHT_NODES = 50
NODE_BYTES = 16
MAX_NAME_CHARS = 2_000
MAX_DEPTH = 48
MAX_NODES = 20_000
MAX_INT = 2**63


def printable(text: str) -> str:
    """The same text; lone surrogates (also those standing for invalid bytes) as backslash escapes."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


class Bounds:
    """Copies values within limits and counts what it had to shorten."""

    def __init__(self) -> None:
        self.shortened = 0
        self._spent = 0
        self._nodes = 0
        self._most = MAX_NODES

    @property
    def tight(self) -> bool:
        """Whether so much is kept that further texts are cut short."""
        return self._spent > MAX_TOTAL_BYTES

    def text(self, value: Any, limit: int = MAX_TEXT_CHARS) -> str:
        """Text of at most about ``limit`` characters: its head and tail, with the number left out."""
        text = value if isinstance(value, str) else "" if value is None else str(value)[:limit]
        if self.tight:
            limit = min(limit, TIGHT_TEXT_CHARS)
        if len(text) > limit:
            self.shortened += 1
            tail = limit // 4
            text = f"{text[: limit - tail]}...[{len(text) - limit} characters cut]...{text[-tail:]}"
        text = printable(text)
        self._spent += len(text) if text.isascii() else len(text.encode("utf-8"))
        return text

    def value(self, value: Any, limit: int = MAX_TEXT_CHARS) -> Any:
        """A JSON value bounded in depth, number of nodes and length of texts; NaN and infinities are null."""
        self._nodes = 0
        self._most = TIGHT_NODES if self.tight else MAX_NODES
        return self._copy(value, limit, 0)

    def mapping(self, value: Any) -> dict[str, Any]:
        """The value as an object: anything else is kept under ``value`` (null gives an empty one)."""
        if value is None:
            return {}
        copied = self.value(value)
        return copied if isinstance(copied, dict) else {"value": copied}

    def _copy(self, value: Any, limit: int, depth: int) -> Any:
        self._nodes += 1
        self._spent += NODE_BYTES
        if isinstance(value, str):
            return self.text(value, limit)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if -MAX_INT <= value < MAX_INT else str(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if not isinstance(value, (list, tuple, dict)):
            return self.text(str(value), limit)
        if depth >= MAX_DEPTH or self._nodes > self._most:
            self.shortened += 1
            return "[cut: nested too deeply or too large]"
        if isinstance(value, dict):
            copied: dict[str, Any] = {}
            for key, item in value.items():
                if self._nodes > self._most:
                    self.shortened += 1
                    copied["[cut]"] = f"{len(value) - len(copied)} fields"
                    break
                copied[self.text(key, 1_000)] = self._copy(item, limit, depth + 1)
            return copied
        items: list[Any] = []
        for item in value:
            if self._nodes > self._most:
                self.shortened += 1
                items.append(f"[cut: {len(value) - len(items)} items]")
                break
            items.append(self._copy(item, limit, depth + 1))
        return items


def whole(value: Any) -> int | None:
    """A non-negative whole number below 2**63 (``3`` or ``3.0``), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return None
    return int(value) if 0 <= value < MAX_INT else None


def yes(value: Any) -> bool:
    """Whether a flag is set, however it is written: ``true``, ``1`` or ``"true"``."""
    return value is True or (isinstance(value, int) and value == 1) or str(value).lower() == "true"


def dollars(value: Any) -> float | None:
    """A finite, non-negative amount, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def moment(value: Any) -> str | None:
    """ISO 8601 UTC with microseconds, of ISO text (UTC where it names no zone) or Unix seconds or
    milliseconds; None for anything else."""
    try:
        if isinstance(value, str) and len(value) <= 64:
            parsed = datetime.fromisoformat(value.strip().upper())
            return iso_time((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            # Unix seconds pass 10**11 in the year 5138; milliseconds did so in 1973.
            return iso_time(value / 1000 if value >= 1e11 else value)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def mapping(value: Any) -> dict[str, Any]:
    """The value when it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value when it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def words(value: Any) -> str | None:
    """Non-blank text, a name or an identity and so not a long one, else None."""
    return printable(value[:MAX_NAME_CHARS]) if isinstance(value, str) and value.strip() else None
