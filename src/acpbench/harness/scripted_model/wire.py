"""What the three protocols have in common: a request as the player needs it, and the pieces of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from acpbench.harness.scripted_model.agent import Result
from acpbench.harness.scripted_model.toolkit import Toolkit

BYTES_PER_TOKEN = 4
"""Tokens are counted by bytes: the same request has the same count, and there is no tokeniser to ask."""


@dataclass(frozen=True)
class Request:
    """A request for an answer. ``results``: call id → result, in the order of the conversation."""

    model: str
    stream: bool
    toolkit: Toolkit
    results: dict[str, Result] = field(default_factory=dict)
    input_tokens: int = 1


def tokens(text: str) -> int:
    """Tokens of a text by the server's own count."""
    return max(1, len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def listed(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; nothing of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def plain(content: Any) -> str:
    """The text of a message's or a result's content, whichever of its forms it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return plain(content.get("content", content.get("text", "")))
    return "\n".join(item["text"] for item in listed(content) if isinstance(item.get("text"), str))


def events(rows: Iterable[dict[str, Any]], *, named: bool) -> list[bytes]:
    """Server-sent events; ``named``: each with its ``type`` as the event's name."""
    return [
        (f"event: {row['type']}\n" if named else "").encode()
        + b"data: "
        + json.dumps(row, ensure_ascii=False).encode("utf-8", "replace")
        + b"\n\n"
        for row in rows
    ]
