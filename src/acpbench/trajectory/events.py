"""What happened in a run, as witnessed: the tool registry's log first, then the harness's stream.

The registry's log (``tools.jsonl``) is written outside the agent's reach. The normalised stream
(``trajectory.json``) adds reads, writes, commands and messages. The agent's own logs are claims and
are not read here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

from acpbench.trajectory.record import parse_time

EventKind = Literal["tool", "read", "write", "command", "message", "think"]
MAX_LOG_BYTES = 256 * 1024 * 1024

READ_FUNCTIONS = {"read_file", "Read", "read", "open_file"}
WRITE_FUNCTIONS = {"write_file", "Write", "Edit", "write", "edit", "apply_patch"}
COMMAND_FUNCTIONS = {"run_command", "Bash", "bash", "shell", "command_execution"}


class Event(NamedTuple):
    """One witnessed event. Times are Unix seconds; ``exit_status`` is None when no end was seen."""

    seq: int
    t: float | None
    kind: EventKind
    name: str
    args: dict[str, Any]
    step_id: str | None
    round_id: int | None
    exit_status: str | None
    t_end: float | None
    outputs: list[dict[str, Any]]
    error: str | None
    result: dict[str, Any]
    ref: str
    source: Literal["registry", "stream"]


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Numbered JSON objects of a log. A half-written last line (a killed run) is skipped, not an error."""
    if not path.is_file() or path.is_symlink():
        return []
    with open(path, "rb") as handle:
        data = handle.read(MAX_LOG_BYTES)
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append((number, value))
    return found


def _time(value: Any) -> float | None:
    try:
        return parse_time(value)
    except (TypeError, ValueError):
        return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def tool_calls(run_dir: str | os.PathLike[str]) -> list[Event]:
    """Calls in the registry's log, in start order; a start without an end has ``exit_status`` None."""
    rows = _lines(Path(run_dir) / "tools.jsonl")
    ends = {str(row.get("call_id")): row for _, row in rows if row.get("event") == "end"}
    calls = []
    for number, row in rows:
        if row.get("event") != "start":
            continue
        end = _dict(ends.get(str(row.get("call_id"))))
        outputs = end.get("outputs")
        calls.append(
            Event(
                seq=len(calls),
                t=_time(row.get("t")),
                kind="tool",
                name=str(row.get("tool")),
                args=_dict(row.get("args")),
                step_id=row.get("step_id") if isinstance(row.get("step_id"), str) else None,
                round_id=_int(row.get("round_id")),
                exit_status=end.get("exit_status") if isinstance(end.get("exit_status"), str) else None,
                t_end=_time(end.get("t")),
                outputs=[item for item in outputs if isinstance(item, dict)]
                if isinstance(outputs, list)
                else [],
                error=end.get("error") if isinstance(end.get("error"), str) else None,
                result=_dict(end.get("result")),
                ref=f"run:tools.jsonl#L{number}",
                source="registry",
            )
        )
    return calls


def _stream_event(step: dict[str, Any], call: dict[str, Any], index: int) -> Event:
    function = str(call.get("function_name"))
    args = _dict(call.get("arguments"))
    if function in READ_FUNCTIONS:
        kind, name = "read", str(args.get("path") or args.get("file_path") or args.get("filePath") or "")
    elif function in WRITE_FUNCTIONS:
        kind, name = "write", str(args.get("path") or args.get("file_path") or args.get("filePath") or "")
    elif function in COMMAND_FUNCTIONS:
        command = args.get("command", "")
        kind, name = "command", " ".join(map(str, command)) if isinstance(command, list) else str(command)
    else:
        kind, name = "tool", function
    extra = _dict(call.get("extra"))
    return Event(
        seq=index,
        t=_time(step.get("timestamp")),
        kind=kind,  # type: ignore[arg-type]
        name=name,
        args=args,
        step_id=None,
        round_id=_int(extra.get("round_id")),
        exit_status=extra.get("exit_status") if isinstance(extra.get("exit_status"), str) else None,
        t_end=None,
        outputs=[],
        error=None,
        result={},
        ref=f"run:trajectory.json#/steps/{index}",
        source="stream",
    )


def stream_events(run_dir: str | os.PathLike[str]) -> list[Event]:
    """Messages, reads, writes, commands and tool requests of ``trajectory.json`` (empty when missing)."""
    path = Path(run_dir) / "trajectory.json"
    if not path.is_file() or path.is_symlink():
        return []
    with open(path, "rb") as handle:
        try:
            document = json.loads(handle.read(MAX_LOG_BYTES))
        except (ValueError, RecursionError):
            return []
    events = []
    steps = document.get("steps") if isinstance(document, dict) else None
    for index, step in enumerate(steps if isinstance(steps, list) else []):
        step = _dict(step)
        calls = step.get("tool_calls")
        calls = [_dict(call) for call in calls] if isinstance(calls, list) else []
        for call in calls:
            events.append(_stream_event(step, call, index))
        if not calls and isinstance(step.get("message"), str):
            events.append(
                Event(
                    seq=index,
                    t=_time(step.get("timestamp")),
                    kind="message",
                    name=str(step.get("source")),
                    args={"text": step["message"]},
                    step_id=None,
                    round_id=None,
                    exit_status=None,
                    t_end=None,
                    outputs=[],
                    error=None,
                    result={},
                    ref=f"run:trajectory.json#/steps/{index}",
                    source="stream",
                )
            )
    return events


def load_events(run_dir: str | os.PathLike[str]) -> list[Event]:
    """All witnessed events in time order (registry before stream at equal times; undated ones last).

    A registry call that the stream also shows appears twice, once from each source: rules about what a
    tool *did* take ``source == "registry"``.
    """
    events = tool_calls(run_dir) + stream_events(run_dir)
    ordered = sorted(
        enumerate(events),
        key=lambda pair: (pair[1].t is None, pair[1].t or 0.0, pair[1].source == "stream", pair[0]),
    )
    return [event._replace(seq=position) for position, (_, event) in enumerate(ordered)]
