"""OpenCode: the stream of ``opencode run --format json`` and the document of ``opencode export``.

The stream shows finished tool parts only, has no end record and no model name. What it does show about its
end goes into ``evidence``: whether a step is open, how the last one finished, an error after it.
``tokens.input`` leaves out cached tokens and ``tokens.output`` leaves out reasoning; a cost of 0 means that
no price is known.
"""

from __future__ import annotations

import json
from typing import Any

from acpbench.trajectory.bounded import dollars, items, mapping, whole, words
from acpbench.trajectory.parsing import Collector, add_numbers, summed
from acpbench.trajectory.typed import (
    AgentMessage,
    FileChange,
    Reasoning,
    SessionEvent,
    Terminal,
    TodoList,
    ToolCall,
    ToolResult,
    Totals,
    TypedTrajectory,
    UsageEvent,
    UserMessage,
)

ACP_PREFIX = "acp_"
_BOOKKEEPING = ("step-start", "snapshot", "compaction", "agent")


def opencode_usage(tokens: Any) -> Totals | None:
    """Tokens of a step: all input is fresh, cache-read and cache-written input together."""
    found = mapping(tokens)
    cache = mapping(found.get("cache"))
    read = whole(cache.get("read"))
    total = add_numbers(add_numbers(whole(found.get("input")), read), whole(cache.get("write")))
    totals = Totals(
        input_tokens=total,
        cached_tokens=read,
        output_tokens=whole(found.get("output")),
        reasoning_tokens=whole(found.get("reasoning")),
    )
    return totals if totals.known() else None


def error_text(error: Any) -> str:
    """``name: message`` of an error object."""
    found = mapping(error)
    data = mapping(found.get("data"))
    name = str(found.get("name") or "error")
    status = data.get("statusCode")
    text = data.get("message") or found.get("message") or ""
    return (
        f"{name}{f' {status}' if status else ''}: {text}"
        if text
        else f"{name}{f' {status}' if status else ''}"
    )


class _Parts:
    """Message parts, common to the stream and the export."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.steps: set[str] = set()
        self.used: list[Totals] = []
        self.costs: list[float] = []

    def text(self, part: dict[str, Any], *, user: bool = False) -> None:
        text = self.out.text(part.get("text"))
        if user:
            self.out.add(UserMessage, text=text)
        else:
            self.out.add(AgentMessage, message_id=words(part.get("messageID")), text=text)

    def reasoning(self, part: dict[str, Any]) -> None:
        self.out.add(Reasoning, message_id=words(part.get("messageID")), text=self.out.text(part.get("text")))

    def tool(self, part: dict[str, Any]) -> None:
        state = mapping(part.get("state"))
        name = self.out.text(part.get("tool") or "(no name)", 300)
        server = None
        if name.startswith(ACP_PREFIX) and len(name) > len(ACP_PREFIX):
            name, server = name[len(ACP_PREFIX) :], "acp"
        call_id = self.out.text(part.get("callID") or part.get("id") or f"line {self.out.line}", 300)
        arguments = self.out.bounds.mapping(state.get("input"))
        self.out.add(
            ToolCall,
            call_id=call_id,
            name=name,
            server=server,
            arguments=arguments,
            message_id=words(part.get("messageID")),
        )
        if name == "todowrite" and isinstance(arguments.get("todos"), list):
            listed = [todo if isinstance(todo, dict) else {"content": todo} for todo in arguments["todos"]]
            self.out.add(TodoList, items=listed, call_id=call_id)
        status, metadata = state.get("status"), mapping(state.get("metadata"))
        if status in ("completed", "error"):
            code = metadata.get("exit", metadata.get("exitCode"))
            known = isinstance(code, int) and not isinstance(code, bool)
            content = state.get("error") if status == "error" else state.get("output")
            self.out.add(
                ToolResult,
                call_id=call_id,
                content=self.out.text(content if isinstance(content, str) else json.dumps(content)),
                is_error=status == "error" or (known and code != 0),
                structured=self.out.bounds.value({"exit_code": code}) if known else None,
            )

    def step_finish(self, part: dict[str, Any]) -> None:
        used, cost = opencode_usage(part.get("tokens")), dollars(part.get("cost"))
        identity = words(part.get("id"))
        if (used is None and cost is None) or identity in self.steps:
            self.out.fold("step_finish")
            return
        self.steps |= {identity} if identity else set()
        self.used += [used] if used else []
        self.costs += [cost] if cost is not None else []
        self.out.add(
            UsageEvent,
            message_id=words(part.get("messageID")),
            cost_usd=cost or None,
            **(used or Totals()).model_dump(),
        )

    def finish(self) -> None:
        """Totals: the sum of the steps."""
        cost = sum(self.costs)
        self.out.total(summed(self.used), cost or None, "opencode step costs")
        if self.costs and not cost:
            self.out.problem("every step says cost 0: no price is known for this model")


class OpenCodeRun:
    """``opencode run --format json``."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.parts = _Parts(collector)
        self.step_open = False
        self.step_tools = 0
        self.last_finish: str | None = None
        self.steps = 0
        self.error_after: str | None = None

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind, part = row.get("type"), mapping(row.get("part"))
        self.out.at(row.get("timestamp"))
        identity = words(row.get("sessionID"))
        if self.out.typed.session_id is None and identity:
            self.out.typed.session_id = identity
            self.out.add(SessionEvent, session_id=identity)
        if kind == "step_start":
            self.step_open, self.step_tools, self.error_after = True, 0, None
            self.out.fold("step_start")
        elif kind == "step_finish":
            self.step_open, self.steps = False, self.steps + 1
            self.last_finish = words(part.get("reason"))
            self.parts.step_finish(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            self.parts.text(part)
        elif kind == "reasoning" and part:
            self.parts.reasoning(part)
        elif kind == "tool_use" and part:
            self.step_tools += 1
            self.parts.tool(part)
        elif kind == "error":
            self.error_after = self.out.text(error_text(row.get("error")), 2_000)
            self.out.notice("error", self.error_after)
        elif kind == "done":
            reason = self.out.text(row.get("reason") or "done", 200)
            self.out.add(
                Terminal,
                outcome="success" if reason == "idle" else "error",
                reason=reason,
                detail=self.out.text(", ".join(map(str, items(row.get("rejected"))[:50]))),
            )
        else:
            self.out.unknown(kind if isinstance(kind, str) else "(no type)", row)

    def finish(self) -> None:
        """Totals and what is known about the end."""
        self.parts.finish()
        self.out.typed.evidence |= {
            "steps_finished": self.steps,
            "step_open": self.step_open,
            "last_finish": self.last_finish,
            "last_step_tools": self.step_tools,
            "error_after_last_step": self.error_after,
        }


def parse_export(document: dict[str, Any]) -> TypedTrajectory:
    """The typed trajectory of an ``opencode export`` document; ``line`` is the message's index from 1."""
    collector = Collector("opencode_export", "opencode")
    parts = _Parts(collector)
    info = mapping(document.get("info"))
    typed = collector.typed
    typed.session_id, typed.harness_version = words(info.get("id")), words(info.get("version"))
    collector.at(mapping(info.get("time")).get("created"))
    collector.add(
        SessionEvent,
        session_id=typed.session_id,
        harness_version=typed.harness_version,
        cwd=words(info.get("directory")),
    )
    last: dict[str, Any] = {}
    for number, entry in enumerate(items(document.get("messages")), start=1):
        collector.enter(number)
        try:
            last = _export_message(collector, parts, entry) or last
        except Exception as error:  # as for stream lines: one odd message must not lose the others
            collector.problem(f"message {number}: cannot be read ({type(error).__name__})")
            collector.unknown("message", entry)
    todos = [todo for todo in items(document.get("todos")) if isinstance(todo, dict)]
    if todos:
        collector.add(TodoList, items=collector.bounds.value(todos))
    parts.finish()
    error = last.get("error")
    typed.evidence |= {
        "completed": mapping(last.get("time")).get("completed") is not None,
        "last_finish": words(last.get("finish")),
        "last_role": words(last.get("role")),
        "error_after_last_step": error_text(error) if error else None,
    }
    return collector.done()


def _export_message(collector: Collector, parts: _Parts, entry: Any) -> dict[str, Any] | None:
    info = mapping(mapping(entry).get("info"))
    role = info.get("role")
    if role not in ("user", "assistant"):
        collector.unknown(f"message/{role}", entry)
        return None
    clock = mapping(info.get("time"))
    collector.at(clock.get("created"))
    if role == "assistant":
        collector.typed.model = collector.typed.model or words(info.get("modelID"))
    found = [part for part in items(mapping(entry).get("parts")) if isinstance(part, dict)]
    stepped = len(parts.used)
    for part in found:
        _export_part(collector, parts, part, user=role == "user")
    if role == "assistant" and len(parts.used) == stepped:
        # No step-finish part: the message's own sums.
        parts.step_finish(
            {"tokens": info.get("tokens"), "cost": info.get("cost"), "messageID": info.get("id")}
        )
    if info.get("error"):
        collector.notice("error", error_text(info["error"]))
    if not found:
        collector.fold(f"message/{role} without parts")
    return info


def _export_part(collector: Collector, parts: _Parts, part: dict[str, Any], *, user: bool) -> None:
    kind = part.get("type")
    clock = mapping(part.get("time")) or mapping(mapping(part.get("state")).get("time"))
    if clock.get("start"):
        collector.at(clock["start"])
    if kind == "text":
        parts.text(part, user=user)
    elif kind == "reasoning":
        parts.reasoning(part)
    elif kind == "tool":
        parts.tool(part)
    elif kind == "step-finish":
        parts.step_finish(part)
    elif kind == "file":
        collector.add(
            UserMessage, text=collector.text(f"[file {part.get('filename') or part.get('url')}]", 1_000)
        )
    elif kind == "patch":
        for path in items(part.get("files"))[:10_000]:
            collector.add(FileChange, path=collector.text(path, 4_000), change="patch")
    elif kind == "retry":
        collector.notice("retry", error_text(part.get("error")))
    elif kind == "subtask":
        collector.notice("subtask", part.get("prompt") or part.get("description"))
    elif kind in _BOOKKEEPING:
        collector.fold(f"part/{kind}")
    else:
        collector.unknown(f"part/{kind}", part)
