"""Questions about witnessed events that several rules ask."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from acpbench.rubric.case import Case
from acpbench.rubric.formats import words
from acpbench.trajectory.events import Event
from acpbench.trajectory.shell_text import without_documents

_GUIDANCE = re.compile(r"(^|/)(skills/|SKILL\.md|README)|(^|/)docs?/.+\.(md|txt|rst)$", re.IGNORECASE)
_HELP = re.compile(r"(^|\s)(--help|-h|help|man|acp-bench tool list|acp-bench skills?)(\s|$)")
_WRITERS = frozenset({"rm", "mv", "cp", "touch", "tee", "mkdir", "chmod", "echo", "printf", "ln", "dd"})


def usable(event: Event) -> bool:
    """Whether an event is not known to have failed (streams do not always say)."""
    return event.exit_status not in ("error", "cancelled")


MTIME_TICK_S = 0.02
"""How far a file's time may lie before the clock's: kernels stamp files by their timer tick (up to 10 ms)."""
RECEIPT_LAG_S = 1.0
"""How much later than it was sent an event of the stream may be dated on a busy machine."""


def not_after(event: Event, mtime: float) -> bool:
    """Whether an event is known to have begun at or before a file was written."""
    lag_s = RECEIPT_LAG_S if event.source == "stream" else MTIME_TICK_S
    return event.t is not None and event.t <= mtime + lag_s


def tidy(path: str) -> str:
    """A path as agents write it, relative to the workspace where that can be told."""
    text = path.strip().strip("'\"")
    if "/workspace/" in text:
        text = text.rsplit("/workspace/", 1)[1]
    while text.startswith("./"):
        text = text[2:]
    return text


def is_path(written: str, wanted: str) -> bool:
    """Whether a path in an event is the workspace path ``wanted`` (absolute spellings included)."""
    text = tidy(written)
    return text == wanted or text.endswith("/" + wanted)


def command_words(command: str) -> list[str]:
    """Words of a shell line, without what it redirects into."""
    text = re.sub(r"\d?>>?\s*\S+", " ", without_documents(command))
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def reads(event: Event, paths: Iterable[str]) -> list[str]:
    """Which of the workspace paths an event read: a read, a reading command, or a verification tool."""
    wanted = list(paths)
    if not usable(event):
        return []
    if event.kind == "read":
        return [path for path in wanted if is_path(event.name, path)]
    if event.kind == "command":
        found = command_words(event.name)
        if not found or found[0].rsplit("/", 1)[-1] in _WRITERS:
            return []
        return [path for path in wanted if any(is_path(word, path) or path in word for word in found)]
    if event.kind == "tool" and event.name in ("read_table", "read_file"):
        return [path for path in wanted if is_path(words(event.args.get("path")), path)]
    return []


def reads_guidance(event: Event) -> bool:
    """Whether an event read a skill, a README or a help page."""
    if not usable(event):
        return False
    if event.kind == "read":
        return bool(_GUIDANCE.search(tidy(event.name)))
    if event.kind == "command":
        return bool(_HELP.search(event.name)) or any(
            _GUIDANCE.search(tidy(word)) for word in command_words(event.name)
        )
    return event.kind == "tool" and event.source == "stream" and event.name.lower() in ("skill", "load_skill")


def match_steps(steps: Sequence[dict[str, Any]], events: Sequence[Event]) -> dict[str, Event]:
    """Step id → a successful call of its tool.

    A call that names its step serves that step; a call that names none serves one step of its tool.
    """
    done = [event for event in events if event.exit_status == "ok"]
    matched: dict[str, Event] = {}
    for step in steps:
        name, tool = words(step.get("id")), words(step.get("tool"))
        found = next((event for event in done if event.step_id == name and event.name == tool), None)
        if found is not None:
            matched[name] = found
    free = [event for event in done if event.step_id is None]
    for step in steps:
        name, tool = words(step.get("id")), words(step.get("tool"))
        if name not in matched:
            found = next((event for event in free if event.name == tool), None)
            if found is not None:
                free.remove(found)
                matched[name] = found
    return matched


def cite_events(case: Case, events: Iterable[Event], most: int = 5) -> None:
    """Cite the first few events."""
    for _, event in zip(range(most), events):
        case.cite(event.ref)
