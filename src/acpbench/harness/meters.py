"""What a running harness has used so far, read from its stream as it comes: one meter per family.

A meter sees each line once, keeps numbers only, and follows the family's own rule of counting. What a stream
does not show is None, and a limit on it cannot fire.
"""

from __future__ import annotations

from typing import Any

from acpbench.trajectory.bounded import dollars, mapping, words
from acpbench.trajectory.claude_messages import claude_usage
from acpbench.trajectory.codex import codex_usage
from acpbench.trajectory.opencode import opencode_usage
from acpbench.trajectory.parsing import RunningTotal
from acpbench.trajectory.typed import Totals

_TASK_OVER = ("completed", "failed", "stopped", "killed", "cancelled", "canceled")


def spent(totals: Totals | None) -> int:
    """Input and output tokens together (reasoning is part of the output, or apart in OpenCode)."""
    return 0 if totals is None else (totals.input_tokens or 0) + (totals.output_tokens or 0)


class Meter:
    """Base: a harness that calls no model. ``terminal``: the last line said that the work is over."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.cost_usd: float | None = None
        self.turns: int | None = None
        self.terminal = False
        self.open_work = 0

    def feed(self, row: dict[str, Any]) -> None:
        """Take one JSON object of the stream."""
        self.terminal = row.get("type") == "result"


class ClaudeMeter(Meter):
    """Usage is repeated on each line of a message (the last counts); a result carries the session's sums."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, int] = {}
        self._answers: set[str] = set()
        self._tasks: set[str] = set()

    def feed(self, row: dict[str, Any]) -> None:
        kind = row.get("type")
        if kind == "assistant":
            self.terminal = False
            message = mapping(row.get("message"))
            identity = words(message.get("id")) or f"line {len(self._messages)}"
            used = claude_usage(message.get("usage"))
            if used is not None:
                self._messages[identity] = spent(used)
                self.tokens = sum(self._messages.values())
            if row.get("parent_tool_use_id") is None:
                self._answers.add(identity)
                self.turns = len(self._answers)
        elif kind == "result":
            self.terminal = True
            self.cost_usd = dollars(row.get("total_cost_usd"))
            self.tokens = max(self.tokens or 0, spent(claude_usage(row.get("usage")))) or self.tokens
        elif kind == "user":
            self.terminal = False
        elif kind == "system":
            self._task(row)

    def _task(self, row: dict[str, Any]) -> None:
        """Background work: begun, and its end told or not."""
        task, what = str(row.get("task_id")), row.get("subtype")
        status = mapping(row.get("patch")).get("status", row.get("status"))
        if what == "task_started":
            self._tasks.add(task)
        elif what == "task_notification" or (what == "task_updated" and status in _TASK_OVER):
            self._tasks.discard(task)
        self.open_work = len(self._tasks)


class CodexMeter(Meter):
    """Usage is a running total at the end of a turn. An item is the nearest thing to a model's answer."""

    _ITEMS = ("agent_message", "command_execution", "mcp_tool_call", "file_change", "web_search")

    def __init__(self) -> None:
        super().__init__()
        self._total = RunningTotal()

    def feed(self, row: dict[str, Any]) -> None:
        kind = row.get("type")
        if kind in ("turn.completed", "turn.failed"):
            self.terminal = True
            used = codex_usage(row.get("usage"))
            if used is not None:
                self._total.update(used)
                self.tokens = spent(self._total.value)
        elif kind in ("turn.started", "item.started", "item.completed"):
            self.terminal = False
            if kind == "item.completed" and mapping(row.get("item")).get("type") in self._ITEMS:
                self.turns = (self.turns or 0) + 1


class OpenCodeMeter(Meter):
    """Steps are summed. No line ends a run: a step that stopped without a tool call is the nearest to it."""

    def __init__(self) -> None:
        super().__init__()
        self._tools = 0
        self._steps: set[str] = set()

    def feed(self, row: dict[str, Any]) -> None:
        kind, part = row.get("type"), mapping(row.get("part"))
        self.terminal = kind == "done"
        if kind == "step_start":
            self._tools = 0
        elif kind == "tool_use":
            self._tools += 1
        elif kind == "step_finish" and (identity := words(part.get("id"))) not in self._steps:
            self._steps |= {identity} if identity else set()
            used, cost = opencode_usage(part.get("tokens")), dollars(part.get("cost"))
            self.tokens = (self.tokens or 0) + spent(used) if used is not None else self.tokens
            # A cost of 0 means that OpenCode knows no price.
            self.cost_usd = (self.cost_usd or 0) + cost if cost else self.cost_usd
            self.turns = (self.turns or 0) + 1
            self.terminal = part.get("reason") == "stop" and not self._tools
