"""What happened in a run, as witnessed: the tool registry's log first, then the harness's stream.

The registry's log (``tools.jsonl``) is written outside the agent's reach. The normalised stream
(``trajectory.json``) adds reads, writes, commands and messages. The agent's own logs are claims and
are not read here.

Harnesses name the same things differently: Claude Code ``Read``, OpenCode ``read``, Codex ``exec_command``, a
registry tool as ``mcp__acp__X`` or ``acp_X``. Here each has one kind and one name; a tool of another server
keeps that server's name before it, so that nobody else's ``train_mil`` passes for the registry's.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from acpbench.trajectory.record import parse_time
from acpbench.trajectory.shell_text import typed_files

EventKind = Literal["tool", "read", "write", "command", "message", "think"]
MAX_LOG_BYTES = 256 * 1024 * 1024

REGISTRY_SERVER = "acp"
READ_FUNCTIONS = {
    "read_file",
    "Read",
    "read",
    "open_file",
    "NotebookRead",
    "view",
    "view_image",
    "Grep",
    "grep",
}
WRITE_FUNCTIONS = {"write_file", "Write", "Edit", "MultiEdit", "NotebookEdit", "write", "edit", "multiedit",
                   "apply_patch", "patch", "file_change"}  # fmt: skip
COMMAND_FUNCTIONS = {"run_command", "Bash", "bash", "shell", "local_shell", "exec_command",
                     "command_execution", "execute_bash"}  # fmt: skip
THINK_FUNCTIONS = {"TodoWrite", "todowrite", "update_plan"}

_PREFIXED = re.compile(r"mcp__(.+?)__(.+)", re.DOTALL)
_REGISTRY_PREFIX = re.compile(rf"{REGISTRY_SERVER}[_./](.+)", re.DOTALL)
_SHELL = re.compile(r"(?:/\S*/)?(?:ba|da|z|k)?sh\s+-[lic]*c\s+(.+)", re.DOTALL)
_SHELL_WORD = re.compile(r"(?:/\S*/)?(?:ba|da|z|k)?sh")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_PATH_KEYS = ("path", "file_path", "filePath", "notebook_path")


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
    cache: Literal["hit", "miss"] | None = None


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
                cache=end.get("cache") if end.get("cache") in ("hit", "miss") else None,
            )
        )
    return calls


def canonical_tool(name: str, server: str | None = None) -> tuple[str, str | None]:
    """Tool id and server of a function as a harness names it; the registry's tools have their bare id.

    Returns:
        ``("train_mil", "acp")`` for ``mcp__acp__train_mil``, ``acp_train_mil`` or ``train_mil`` of server
        ``acp``; ``("other/train_mil", "other")`` for another server's; ``(name, None)`` without a server.
    """
    if server is None:
        prefixed, own = _PREFIXED.fullmatch(name), _REGISTRY_PREFIX.fullmatch(name)
        if prefixed:
            server, name = prefixed[1], prefixed[2]
        elif own:
            server, name = REGISTRY_SERVER, own[1]
    if server is None or server == REGISTRY_SERVER:
        return name, server
    return f"{server}/{name}", server


def command_text(args: dict[str, Any]) -> str:
    """The shell line of a command's arguments, without the shell that runs it (``bash -lc '...'``)."""
    command = args.get("command", args.get("cmd", args.get("keystrokes", "")))
    if isinstance(command, list):
        parts = [str(part) for part in command]
        if len(parts) == 3 and _SHELL_WORD.fullmatch(parts[0]) and re.fullmatch(r"-[lic]*c", parts[1]):
            return parts[2]
        return " ".join(parts)
    text = str(command)
    wrapped = _SHELL.fullmatch(text.strip())
    if not wrapped:
        return text
    inner = wrapped[1].strip()
    if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "'\"":
        quote, inner = inner[0], inner[1:-1]
        # As a POSIX shell reads them: a backslash escapes these four in double quotes, nothing in single.
        if quote == '"':
            return re.sub(r'\\([\\"$`])', r"\1", inner)
        return inner.replace("'\\''", "'")
    return inner


def _named(function: str, server: str | None, args: dict[str, Any]) -> list[tuple[EventKind, str]]:
    """Kind and name of what a call does; several when one call writes several files."""
    name, server = canonical_tool(function, server)
    if server is not None:
        return [("tool", name)]
    path = next((str(args[key]) for key in _PATH_KEYS if isinstance(args.get(key), str) and args[key]), "")
    if name in WRITE_FUNCTIONS:
        patch = args.get("input", args.get("patchText", args.get("patch", "")))
        patched = _PATCHED.findall(patch) if isinstance(patch, str) and not path else []
        return [("write", found.strip()) for found in patched] or [("write", path)]
    if name in READ_FUNCTIONS and (path or name.lower() != "grep"):
        return [("read", path)]
    if name in COMMAND_FUNCTIONS:
        text = command_text(args)
        return [("command", text), *(("write", path) for path in typed_files(text))]
    return [("think" if name in THINK_FUNCTIONS else "tool", name)]


def _stream_events(step: dict[str, Any], call: dict[str, Any], index: int) -> list[Event]:
    args = _dict(call.get("arguments"))
    extra = _dict(call.get("extra"))
    server = extra.get("server") if isinstance(extra.get("server"), str) else None
    named = _named(str(call.get("function_name")), server, args)
    of_registry = canonical_tool(str(call.get("function_name")), server)[1] == REGISTRY_SERVER
    step_id = args.get("step_id") if of_registry else None
    round_id = _int(extra.get("round_id"))
    if round_id is None and of_registry:
        round_id = _int(args.get("round_id"))
    t = _time(extra.get("t"))
    return [
        Event(
            seq=index,
            t=_time(step.get("timestamp")) if t is None else t,
            kind=kind,
            name=name,
            args=args,
            step_id=step_id if isinstance(step_id, str) else None,
            round_id=round_id,
            exit_status=extra.get("exit_status") if isinstance(extra.get("exit_status"), str) else None,
            t_end=_time(extra.get("t_end")),
            outputs=[],
            error=None,
            result={},
            ref=f"run:trajectory.json#/steps/{index}",
            source="stream",
        )
        for kind, name in named
    ]


def _said(step: dict[str, Any], kind: EventKind, name: str, text: str, index: int) -> Event:
    return Event(
        seq=index,
        t=_time(step.get("timestamp")),
        kind=kind,
        name=name,
        args={"text": text},
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


def _carries_event(step: dict[str, Any]) -> bool:
    """Whether a step stands for an event that the format has no place for (usage, notices, the end)."""
    return bool(_dict(_dict(step.get("extra")).get("acpbench")).get("event"))


def stream_events(run_dir: str | os.PathLike[str]) -> list[Event]:
    """Messages, thoughts, reads, writes, commands and tool requests of ``trajectory.json``, in its order.

    Empty when the file is missing or unreadable.
    """
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
        if _carries_event(step):
            continue
        calls = step.get("tool_calls")
        calls = [_dict(call) for call in calls] if isinstance(calls, list) else []
        reasoning, message = step.get("reasoning_content"), step.get("message")
        if isinstance(reasoning, str) and reasoning:
            events.append(_said(step, "think", "reasoning", reasoning, index))
        if isinstance(message, str) and (message or not (calls or reasoning)):
            events.append(_said(step, "message", str(step.get("source")), message, index))
        for call in calls:
            events.extend(_stream_events(step, call, index))
    return events


def load_events(run_dir: str | os.PathLike[str]) -> list[Event]:
    """All witnessed events in time order (registry before stream at equal times; undated ones last).

    A registry call that the stream also shows appears twice, once from each source: rules about what a
    tool *did* take ``source == "registry"``. An event of the stream that was received late (see
    :func:`_as_sent`) stands before the call it came before.
    """
    calls = tool_calls(run_dir)
    events = [(event, 1) for event in calls] + _as_sent(stream_events(run_dir), calls)
    ordered = sorted(
        enumerate(events),
        key=lambda pair: (pair[1][0].t is None, pair[1][0].t or 0.0, pair[1][1], pair[0]),
    )
    return [event._replace(seq=position) for position, (_, (event, _)) in enumerate(ordered)]


def _as_sent(stream: list[Event], calls: list[Event]) -> list[tuple[Event, int]]:
    """Events of the stream, each with its place among events of the same time: 0 before a call, 2 after it.

    The registry dates a call when it begins; the stream is dated when received, later on a busy machine.
    A request that was received after its call had begun shows the delay: what the stream says before that
    request was sent before the call, and its time becomes the call's. A request belongs to a call when both
    logs hold equally many of one tool, step and round.
    """
    begun = _begun(stream, calls)
    found: list[tuple[Event, int]] = []
    received = call_t = float("-inf")
    for index in range(len(stream) - 1, -1, -1):
        event, own = stream[index], begun.get(index)
        if own is not None and event.t is not None and own < event.t:
            received, call_t = event.t, own
        late = event.t is not None and call_t < event.t <= received
        found.append((event._replace(t=call_t), 0) if late else (event, 2))
    return found[::-1]


def _begun(stream: list[Event], calls: list[Event]) -> dict[int, float]:
    """Place of each registry request in the stream → when its call began."""
    asked: dict[tuple[str, str | None, int | None], list[int]] = {}
    made: dict[tuple[str, str | None, int | None], list[Event]] = {}
    for index, event in enumerate(stream):
        if event.kind == "tool":
            asked.setdefault((event.name, event.step_id, event.round_id), []).append(index)
    for call in calls:
        made.setdefault((call.name, call.step_id, call.round_id), []).append(call)
    return {
        index: call.t
        for key, places in asked.items()
        if len(places) == len(made.get(key, []))
        for index, call in zip(places, made[key])
        if call.t is not None
    }
