"""Codex: the ``codex exec --json`` stream. Rollout files are in :mod:`acpbench.trajectory.codex_rollout`.

The stream has no times, no model name and no cost. ``usage`` of ``turn.completed`` is the thread's running
total: a later one replaces an earlier one, unless it is smaller (it began anew). Only ``turn.failed`` is
fatal; an ``error`` line or item is not.
"""

from __future__ import annotations

import json
from typing import Any

from acpbench.trajectory.bounded import items, mapping, whole, words, yes
from acpbench.trajectory.claude_messages import block_text
from acpbench.trajectory.parsing import Collector, RunningTotal
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
    UsageEvent,
)

_FAILED = ("failed", "declined")


def codex_usage(usage: Any) -> Totals | None:
    """Tokens of a Codex usage object; ``input_tokens`` counts cached input already."""
    found = mapping(usage)
    totals = Totals(
        input_tokens=whole(found.get("input_tokens")),
        cached_tokens=whole(found.get("cached_input_tokens")),
        output_tokens=whole(found.get("output_tokens")),
        reasoning_tokens=whole(found.get("reasoning_output_tokens")),
    )
    return totals if totals.known() else None


def message_of(error: Any) -> str:
    """Text of an error that is an object with a message, or text."""
    if isinstance(error, dict):
        return str(error.get("message") or json.dumps(error, default=str)[:2_000])
    return "" if error is None else str(error)


class CodexExec:
    """``codex exec --json``."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.open: dict[str, str] = {}
        self.totals = RunningTotal()
        self.thread: str | None = None
        self.completed: set[int] = set()
        self.turn_open = False

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind = row.get("type")
        if kind == "thread.started":
            thread = words(row.get("thread_id"))
            if self.thread is not None and thread != self.thread:
                self.totals.begin_anew()
            self.thread = thread
            self.out.typed.session_id = self.out.typed.session_id or thread
            self.out.add(SessionEvent, session_id=thread)
        elif kind == "turn.started":
            self.turn_open = True
            self.out.fold(kind)
        elif kind == "turn.completed":
            self._completed(row)
        elif kind == "turn.failed":
            self.turn_open = False
            self.out.add(
                Terminal,
                outcome="error",
                reason="turn.failed",
                is_error=True,
                detail=self.out.text(message_of(row.get("error"))),
            )
        elif kind == "error":
            self.out.notice("error", message_of(row.get("message") or row.get("error")))
        elif kind in ("item.started", "item.updated", "item.completed"):
            self._item(row, kind.partition(".")[2])
        else:
            self.out.unknown(kind if isinstance(kind, str) else "(no type)", row)

    def _completed(self, row: dict[str, Any]) -> None:
        self.turn_open = False
        used = codex_usage(row.get("usage"))
        if used is not None:
            self.totals.update(used)
            self.out.add(UsageEvent, cumulative=True, **used.model_dump())
        self.out.add(Terminal, outcome="success", reason="turn.completed")

    def _item(self, row: dict[str, Any], phase: str) -> None:
        item = mapping(row.get("item"))
        if phase == "completed":
            # The same line again (a stream that was written twice); ids alone come again in a resumed thread.
            line = hash((self.thread, json.dumps(item, sort_keys=True)))
            if line in self.completed:
                self.out.fold("item.completed/repeated")
                return
            self.completed.add(line)
        kind = item.get("type") or item.get("item_type")
        identity = self.out.text(item.get("id") or f"line {self.out.line}", 300)
        if kind in ("agent_message", "assistant_message", "reasoning"):
            if phase != "completed":
                self.out.fold(f"item.{phase}/{kind}")
                return
            model = Reasoning if kind == "reasoning" else AgentMessage
            self.out.add(model, message_id=identity, text=self.out.text(item.get("text")))
        elif kind == "todo_list":
            listed = [todo if isinstance(todo, dict) else {"text": todo} for todo in items(item.get("items"))]
            self.out.add(TodoList, items=self.out.bounds.value(listed))
        elif kind == "error":
            self.out.notice("error_item", message_of(item))
        elif kind == "file_change":
            self._file_change(item, phase)
        elif kind == "command_execution":
            self._call(identity, kind, {"command": item.get("command")}, None, phase)
            if phase == "completed":
                self._command_result(identity, item)
        elif kind == "mcp_tool_call":
            server = words(item.get("server"))
            self._call(identity, item.get("tool"), item.get("arguments"), server, phase)
            if phase == "completed":
                self._mcp_result(identity, item)
        elif kind in ("web_search", "collab_tool_call"):
            rest = {key: item[key] for key in ("query", "action", "tool", "prompt") if key in item}
            self._call(identity, kind, rest, None, phase)
            if phase == "completed":
                content = (
                    json.dumps(item.get("agents_states"), default=str) if "agents_states" in item else ""
                )
                self._result(identity, content, item.get("status") in _FAILED, None)
        else:
            self.out.unknown(f"item.{phase}/{kind}", row)

    def _call(self, identity: str, name: Any, arguments: Any, server: str | None, phase: str) -> None:
        """A call when it is first seen: at its start, or at its end when the start was not shown."""
        if identity in self.open:
            if phase != "completed":
                self.out.fold(f"item.{phase}/{name}")
            return
        self.open[identity] = phase
        self.out.add(
            ToolCall,
            call_id=identity,
            name=self.out.text(name or "(no name)", 300),
            arguments=self.out.bounds.mapping(arguments),
            server=server,
        )

    def _result(self, identity: str, content: Any, failed: bool, structured: dict[str, Any] | None) -> None:
        self.open.pop(identity, None)
        self.out.add(
            ToolResult,
            call_id=identity,
            content=self.out.text(content),
            is_error=failed,
            structured=self.out.bounds.value(structured) if structured else None,
        )

    def _command_result(self, identity: str, item: dict[str, Any]) -> None:
        code = item.get("exit_code")
        failed = item.get("status") in _FAILED or (isinstance(code, int) and code != 0)
        self._result(identity, item.get("aggregated_output"), failed, {"exit_code": code})

    def _mcp_result(self, identity: str, item: dict[str, Any]) -> None:
        result, error = mapping(item.get("result")), item.get("error")
        structured = result.get("structured_content")
        content = message_of(error) if error else block_text(result.get("content"))
        failed = bool(error) or item.get("status") in _FAILED or yes(result.get("is_error"))
        self._result(identity, content, failed, structured if isinstance(structured, dict) else None)

    def _file_change(self, item: dict[str, Any], phase: str) -> None:
        changes = [change for change in items(item.get("changes")) if isinstance(change, dict)]
        if phase != "completed" or not changes:
            self.out.fold(f"item.{phase}/file_change")
            return
        for change in changes:
            self.out.add(
                FileChange,
                path=self.out.text(change.get("path"), 4_000),
                change=self.out.text(change.get("kind") or "change", 100),
                is_error=item.get("status") in _FAILED,
            )

    def finish(self) -> None:
        """Totals: the last running total. The stream gives no cost."""
        self.out.total(self.totals.value)
        if self.totals.restarts:
            self.out.problem(f"the running token total began anew ({self.totals.restarts}); all are summed")
        self.out.typed.evidence |= {
            "pending_calls": len(self.open),
            "active_after_terminal": self.turn_open,
        }
