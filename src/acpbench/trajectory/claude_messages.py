"""Anthropic message blocks as Claude Code writes them, common to its streams and its session files."""

from __future__ import annotations

import json
from typing import Any

from acpbench.trajectory.bounded import items, mapping, whole, words, yes
from acpbench.trajectory.parsing import Collector, add_numbers, summed
from acpbench.trajectory.typed import (
    AgentMessage,
    Reasoning,
    TodoList,
    ToolCall,
    ToolResult,
    Totals,
    UsageEvent,
    UserMessage,
)

NO_CALL = "(no call)"
_SYSTEM_NOTICES = {
    "api_error",
    "away_summary",
    "compact_boundary",
    "hook_progress",
    "hook_response",
    "hook_started",
    "informational",
    "local_command",
    "status",
    "stop_hook_summary",
    "task_notification",
    "task_progress",
    "task_started",
    "task_updated",
    "turn_duration",
}
_LINE_NOTICES = {"summary": "summary", "conversation_reset": "conversation_reset", "ai-title": "title"}
_BOOKKEEPING = {"file-history-snapshot", "queue-operation", "last-prompt", "stream_event", "keep_alive"}
"""Lines that repeat or index what others carry (partial messages of ``stream_event`` come again whole)."""


def split_server(name: str) -> tuple[str, str | None]:
    """Bare tool name and MCP server of ``mcp__<server>__<tool>``."""
    parts = name.split("__", 2)
    if len(parts) == 3 and parts[0] == "mcp" and parts[1] and parts[2]:
        return parts[2], parts[1]
    return name, None


def claude_usage(usage: Any) -> Totals | None:
    """Tokens of an Anthropic usage object: all input is fresh, cache-read and cache-written together."""
    found = mapping(usage)
    read = whole(found.get("cache_read_input_tokens"))
    fresh = whole(found.get("input_tokens"))
    total = add_numbers(add_numbers(fresh, read), whole(found.get("cache_creation_input_tokens")))
    totals = Totals(input_tokens=total, cached_tokens=read, output_tokens=whole(found.get("output_tokens")))
    return totals if totals.known() else None


def block_text(content: Any) -> str:
    """Text of message content: a string, or the text blocks joined; other blocks are named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = []
    for block in items(content) if isinstance(content, list) else [content]:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            parts.append(block["text"])
        elif isinstance(block, dict):
            parts.append(f"[{block.get('type') or 'block'}]")
        else:
            parts.append(str(block)[:1_000])
    return "\n".join(parts)


class Messages:
    """Blocks of assistant and user messages, common to streams and sessions."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.usage: dict[tuple[str, str], Totals] = {}
        self.open_calls: dict[str, str | None] = {}
        self.answered: set[str] = set()
        self.stop_reason: str | None = None
        self.last_speaker: str | None = None

    # -- assistant --

    def assistant(self, row: dict[str, Any]) -> None:
        message = row.get("message")
        if not isinstance(message, dict):
            self.out.unknown(f"assistant/message:{type(message).__name__}", row)
            return
        identity = words(message.get("id"))
        model = words(message.get("model"))
        if model and model != "<synthetic>" and self.out.typed.model is None:
            self.out.typed.model = model
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            self.out.unknown("assistant/no content", row)
        for block in items(blocks):
            self._assistant_block(block, identity)
        if words(row.get("error")):
            self.out.notice("api_error", row["error"])
        used = claude_usage(message.get("usage"))
        if used is not None:
            # The usage of one request is repeated on each line of its message: the last one counts.
            key = (identity or f"line {self.out.line}", str(row.get("requestId") or ""))
            self.usage[key] = used
            self.out.add(UsageEvent, message_id=identity, **used.model_dump())
        if self.out.agent is None:
            self.stop_reason, self.last_speaker = words(message.get("stop_reason")), "assistant"

    def _assistant_block(self, block: Any, identity: str | None) -> None:
        found = mapping(block)
        kind = found.get("type")
        if kind == "text":
            self.out.add(AgentMessage, message_id=identity, text=self.out.text(found.get("text")))
        elif kind in ("thinking", "redacted_thinking"):
            self.out.add(Reasoning, message_id=identity, text=self.out.text(found.get("thinking")))
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            self._tool_use(found, identity)
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            self._tool_result(found, {})
        else:
            self.out.unknown(f"assistant/{kind if isinstance(block, dict) else type(block).__name__}", block)

    def _tool_use(self, block: dict[str, Any], identity: str | None) -> None:
        name, server = split_server(self.out.text(block.get("name"), 300))
        call_id = self.out.text(block.get("id") or f"line {self.out.line}", 300)
        arguments = self.out.bounds.mapping(block.get("input"))
        if call_id in self.answered:
            self.answered.discard(call_id)
        else:
            self.open_calls[call_id] = self.out.agent
        self.out.add(
            ToolCall,
            call_id=call_id,
            name=name,
            server=server or words(block.get("server_name")),
            arguments=arguments,
            message_id=identity,
        )
        todos = arguments.get("todos")
        if name == "TodoWrite" and isinstance(todos, list):
            listed = [todo if isinstance(todo, dict) else {"content": todo} for todo in todos]
            self.out.add(TodoList, items=listed, call_id=call_id)

    # -- user --

    def user(self, row: dict[str, Any], extra: Any) -> None:
        message = row.get("message")
        if not isinstance(message, dict):
            self.out.unknown(f"user/message:{type(message).__name__}", row)
            return
        content = message.get("content")
        if isinstance(content, str):
            self._said(content)
        elif not isinstance(content, list) or not content:
            self.out.unknown("user/no content", row)
        for block in items(content):
            found = mapping(block)
            kind = found.get("type")
            if kind == "tool_result":
                self._tool_result(found, extra)
            elif kind == "text":
                self._said(found.get("text"))
            elif kind in ("image", "document"):
                self._said(f"[{kind}]")
            else:
                self.out.unknown(f"user/{kind if isinstance(block, dict) else type(block).__name__}", block)

    def _said(self, text: Any) -> None:
        self.out.add(UserMessage, text=self.out.text(text))
        if self.out.agent is None:
            self.last_speaker = "user"

    def _tool_result(self, block: dict[str, Any], extra: Any) -> None:
        call_id = self.out.text(block.get("tool_use_id"), 300)
        if self.open_calls.pop(call_id, NO_CALL) == NO_CALL:
            self.answered.add(call_id)  # its call may come later
        self.out.add(
            ToolResult,
            call_id=call_id,
            content=self.out.text(block_text(block.get("content"))),
            is_error=yes(block.get("is_error")),
            structured=self.out.bounds.value(extra) if isinstance(extra, dict) and extra else None,
        )
        if self.out.agent is None:
            self.last_speaker = "tool"

    # -- the rest --

    def other(self, row: dict[str, Any]) -> None:
        """A line of a kind that streams and sessions share, or one without a name."""
        kind, subtype = words(row.get("type")), words(row.get("subtype"))
        if kind == "system" and subtype in _SYSTEM_NOTICES:
            self.out.notice(str(subtype), _said_by(row))
        elif kind in _LINE_NOTICES:
            self.out.notice(_LINE_NOTICES[kind], _said_by(row))
        elif kind in _BOOKKEEPING:
            self.out.fold(kind)
        elif kind == "rate_limit_event":
            self.out.notice("rate_limit", _said_by(mapping(row.get("rate_limit_info"))))
        elif kind == "progress" and isinstance(row.get("data"), dict):
            self.out.notice("progress", _said_by(row["data"]))
        else:
            name = kind or "(no type)"
            self.out.unknown(f"{name}/{subtype}" if subtype else name, row)

    def spent(self) -> Totals | None:
        """Sum over requests, each counted once."""
        return summed(self.usage.values())

    def pending(self) -> int:
        """Calls of the main agent without a result."""
        return sum(agent is None for agent in self.open_calls.values())


def _said_by(row: dict[str, Any]) -> str:
    for key in ("summary", "content", "message", "text", "aiTitle", "description", "hook_name"):
        if isinstance(row.get(key), str):
            return row[key]
    skip = ("type", "subtype", "uuid", "session_id", "sessionId", "parentUuid", "timestamp", "cwd", "version")
    rest = {key: value for key, value in row.items() if key not in skip}
    try:
        return json.dumps(rest, ensure_ascii=False)[:8_000] if rest else ""
    except (ValueError, RecursionError):
        return ""
