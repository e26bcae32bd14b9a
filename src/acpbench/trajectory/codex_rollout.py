"""Codex rollout files: ``sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl``.

Each line has ``timestamp``, ``type`` and ``payload``. ``response_item`` lines are what the model saw and
said; many ``event_msg`` lines repeat them for display and are folded into them. A ``token_count`` gives the
running total and that of the last call. Older versions write no ``task_complete``.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from acpbench.trajectory.bounded import items, mapping, words
from acpbench.trajectory.claude_messages import block_text, split_server
from acpbench.trajectory.codex import codex_usage, message_of
from acpbench.trajectory.parsing import Collector, RunningTotal, summed
from acpbench.trajectory.typed import (
    AgentMessage,
    Reasoning,
    SessionEvent,
    Terminal,
    ToolCall,
    ToolResult,
    Totals,
    UsageEvent,
    UserMessage,
)

_DISPLAY = {
    "agent_reasoning_raw_content",
    "agent_reasoning_section_break",
    "exec_command_begin",
    "exec_command_end",
    "exec_command_output_delta",
    "item_completed",
    "item_started",
    "mcp_tool_call_begin",
    "mcp_tool_call_end",
    "patch_apply_begin",
    "patch_apply_end",
    "raw_response_item",
    "web_search_begin",
    "web_search_end",
}
_TASK_START = ("task_started", "turn_started")
_TASK_END = ("task_complete", "turn_complete")


def decoded(arguments: Any) -> Any:
    """Arguments that a model gave as JSON text, decoded; text that is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return {"input": arguments}


class CodexRollout:
    """One rollout file."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.totals = RunningTotal()
        self.of_calls: Totals | None = None
        self.open: set[str] = set()
        self.answered: set[str] = set()
        self.shown: dict[tuple[str, str], list[Any]] = {}
        self.carried: Counter[tuple[str, str]] = Counter()
        self.task_open: bool | None = None
        self.last_speaker: str | None = None
        self.thread: str | None = None

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind, payload = row.get("type"), row.get("payload")
        self.out.at(row.get("timestamp") or mapping(payload).get("timestamp"))
        self.out.agent = self.thread
        if not isinstance(payload, dict):
            self.out.unknown(kind if isinstance(kind, str) else "(no type)", row)
        elif kind == "session_meta":
            self._meta(payload)
        elif kind == "turn_context":
            self.out.typed.model = self.out.typed.model or words(payload.get("model"))
            self.out.fold("turn_context")
        elif kind == "response_item":
            self._response_item(payload)
        elif kind == "event_msg":
            self._event(payload)
        elif kind == "compacted":
            self.out.notice("compacted", payload.get("message"))
        else:
            self.out.unknown(kind if isinstance(kind, str) else "(no type)", row)

    def _meta(self, payload: dict[str, Any]) -> None:
        spawned = mapping(mapping(mapping(payload.get("source")).get("subagent")).get("thread_spawn"))
        identity = words(payload.get("id"))
        if spawned.get("parent_thread_id"):
            self.thread = self.out.agent = identity
        typed = self.out.typed
        typed.session_id = typed.session_id or identity
        typed.harness_version = typed.harness_version or words(payload.get("cli_version"))
        self.out.add(
            SessionEvent,
            session_id=identity,
            harness_version=words(payload.get("cli_version")),
            model=words(payload.get("model")),
            cwd=words(payload.get("cwd")),
        )

    # -- what the model saw and said --

    def _response_item(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            self._reasoning(item)
        elif kind in ("function_call", "custom_tool_call", "local_shell_call", "web_search_call"):
            self._call(item, kind)
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            self._output(item)
        elif kind in ("ghost_snapshot", "compaction", "compaction_summary"):
            self.out.fold(f"response_item/{kind}")
        else:
            self.out.unknown(f"response_item/{kind}", item)

    def _message(self, item: dict[str, Any]) -> None:
        role, text = item.get("role"), self.out.text(block_text(item.get("content")))
        if role in ("assistant", "user"):
            # What is displayed is one part of the message; others are images or added context.
            content = item.get("content")
            for part in items(content) if isinstance(content, list) else [{"text": content}]:
                if words(mapping(part).get("text")):
                    self._carry(role, mapping(part)["text"])
        if role == "assistant":
            self.out.add(AgentMessage, message_id=words(item.get("id")), text=text)
            self.last_speaker = "assistant"
        elif role == "user":
            self.out.add(UserMessage, text=text)
            self.last_speaker = "user"
        elif role in ("developer", "system"):
            self.out.notice("system", text)
        else:
            self.out.unknown(f"response_item/message:{role}", item)

    def _reasoning(self, item: dict[str, Any]) -> None:
        text = self.out.text(block_text(item.get("summary") or item.get("content")))
        for part in items(item.get("summary")):
            self._carry("reasoning", block_text([part]))
        self.out.add(Reasoning, message_id=words(item.get("id")), text=text)

    def _call(self, item: dict[str, Any], kind: str) -> None:
        name = item.get("name") or kind.removesuffix("_call")
        bare, server = split_server(self.out.text(name, 300))
        namespace = words(item.get("namespace"))
        if server is None and namespace and namespace.startswith("mcp__"):
            server = namespace.removeprefix("mcp__").strip("_") or None
        call_id = self.out.text(item.get("call_id") or item.get("id") or f"line {self.out.line}", 300)
        given = item.get("arguments", item.get("input", item.get("action")))
        if kind != "web_search_call":  # a hosted tool: its output is not in the file
            if call_id not in self.answered:
                self.open.add(call_id)
            self.answered.discard(call_id)
        self.last_speaker = "tool"
        self.out.add(
            ToolCall,
            call_id=call_id,
            name=bare,
            server=server,
            arguments=self.out.bounds.mapping(decoded(given)),
        )

    def _output(self, item: dict[str, Any]) -> None:
        call_id = self.out.text(item.get("call_id"), 300)
        if call_id in self.open:
            self.open.discard(call_id)
        else:
            self.answered.add(call_id)  # its call may come later
        output = item.get("output")
        content, code, failed = block_text(output), None, False
        parsed = decoded(output) if isinstance(output, str) and output.startswith("{") else output
        if isinstance(parsed, dict) and set(parsed) & {"output", "content", "success"}:
            body = parsed.get("output", parsed.get("content"))
            content = block_text(body)
            code = mapping(parsed.get("metadata")).get("exit_code")
            failed = parsed.get("success") is False
        known = isinstance(code, int) and not isinstance(code, bool)
        self.last_speaker = "tool"
        self.out.add(
            ToolResult,
            call_id=call_id,
            content=self.out.text(content),
            is_error=failed or (known and code != 0),
            structured=self.out.bounds.value({"exit_code": code}) if known else None,
        )

    # -- events for display --

    def _event(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "token_count":
            self._tokens(event)
        elif kind == "user_message":
            self._show("user", UserMessage, event.get("message"))
        elif kind == "agent_message":
            self._show("assistant", AgentMessage, event.get("message"))
        elif kind == "agent_reasoning":
            self._show("reasoning", Reasoning, event.get("text"))
        elif kind in _TASK_START:
            self.task_open = True
            self.out.fold(f"event_msg/{kind}")
        elif kind in _TASK_END:
            self.task_open = False
            self.out.add(
                Terminal,
                outcome="success",
                reason=kind,
                detail=self.out.text(event.get("last_agent_message")),
            )
        elif kind == "turn_aborted":
            self.task_open = False
            reason = self.out.text(event.get("reason") or "aborted", 200)
            self.out.add(Terminal, outcome="error", reason=f"turn_aborted: {reason}", is_error=True)
        elif kind in ("error", "stream_error", "warning", "background_event", "context_compacted"):
            self.out.notice(kind, message_of(event.get("message")))
        elif kind in _DISPLAY:
            self.out.fold(f"event_msg/{kind}")
        else:
            self.out.unknown(f"event_msg/{kind}", event)

    def _show(self, role: str, model: type[Any], text: Any) -> None:
        """A message as displayed: an event until, or unless, a response item carries the same text."""
        key = (role, text.strip() if isinstance(text, str) else "")
        if self.carried[key] > 0:
            self.carried[key] -= 1
            self.out.fold(f"event_msg/{role}")
        else:
            self.shown.setdefault(key, []).append(self.out.add(model, text=self.out.text(text)))

    def _carry(self, role: str, text: str) -> None:
        """Note a text that a response item carries; fold what displayed it before."""
        key = (role, text.strip())
        if self.shown.get(key):
            self.out.retract(self.shown[key].pop(0))
            self.out.fold(f"event_msg/{role}")
        else:
            self.carried[key] += 1

    def _tokens(self, event: dict[str, Any]) -> None:
        info = mapping(event.get("info"))
        total, last = codex_usage(info.get("total_token_usage")), codex_usage(info.get("last_token_usage"))
        if total is None and last is None:
            self.out.fold("event_msg/token_count")
            return
        if total is not None:
            self.totals.update(total)
        if last is not None:
            self.of_calls = summed(filter(None, (self.of_calls, last)))
            self.out.add(UsageEvent, **last.model_dump())
        else:
            self.out.add(UsageEvent, cumulative=True, **(total or Totals()).model_dump())

    def finish(self) -> None:
        """Totals: the last running total, else the sum over calls. The file gives no cost."""
        self.out.total(self.totals.value or self.of_calls)
        if self.totals.restarts:
            self.out.problem(f"the running token total began anew ({self.totals.restarts}); all are summed")
        self.out.typed.evidence |= {
            "pending_calls": len(self.open),
            "active_after_terminal": self.task_open is True,
            "writes_task_events": self.task_open is not None,
            "last_speaker": self.last_speaker,
        }
