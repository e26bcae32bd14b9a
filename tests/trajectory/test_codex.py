"""Codex streams and rollouts: calls from start or end, running totals, displayed repeats folded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import TypedTrajectory, parse


def exec_stream(*rows: Any) -> TypedTrajectory:
    return parse("codex_exec", [json.dumps(row).encode() for row in rows])


def item(phase: str, kind: str, identity: str = "i1", **fields: Any) -> dict:
    return {"type": f"item.{phase}", "item": {"id": identity, "type": kind, **fields}}


STARTED = {"type": "thread.started", "thread_id": "th"}
DONE = {
    "type": "turn.completed",
    "usage": {"input_tokens": 9, "cached_input_tokens": 4, "output_tokens": 2, "reasoning_output_tokens": 1},
}


def test_a_call_is_seen_at_its_start_and_answered_at_its_end() -> None:
    typed = exec_stream(
        STARTED,
        {"type": "turn.started"},
        item("started", "command_execution", command="ls", status="in_progress"),
        item("updated", "command_execution", command="ls", status="in_progress"),
        item(
            "completed",
            "command_execution",
            command="ls",
            aggregated_output="x",
            exit_code=3,
            status="failed",
        ),
        item(
            "completed",
            "mcp_tool_call",
            "i2",
            server="acp",
            tool="train_mil",
            arguments={"seed": 1},
            result={"content": [{"type": "text", "text": "ok"}], "structured_content": {"n": 1}},
            error=None,
            status="completed",
        ),
        DONE,
    )
    assert [event.kind for event in typed.events] == [
        "session", "tool_call", "tool_result", "tool_call", "tool_result", "usage", "terminal"]  # fmt: skip
    _, ran, failed, asked, got, _, _ = typed.events
    assert (ran.name, ran.arguments, ran.server) == ("command_execution", {"command": "ls"}, None)
    assert (failed.content, failed.is_error, failed.structured) == ("x", True, {"exit_code": 3})
    assert (asked.name, asked.server) == ("train_mil", "acp")
    assert (got.content, got.is_error, got.structured) == ("ok", False, {"n": 1})
    assert typed.counts.folded == {"turn.started": 1, "item.updated/command_execution": 1}
    assert stream_status(typed) == ("completed", "terminal event turn.completed")


def test_the_threads_running_total_replaces_and_is_not_summed() -> None:
    later = {"type": "turn.completed", "usage": {"input_tokens": 30, "output_tokens": 5}}
    typed = exec_stream(STARTED, DONE, {"type": "turn.started"}, later)
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 30, "output_tokens": 5}
    assert typed.cost_usd is None


def test_only_a_failed_turn_is_fatal() -> None:
    noise = [
        {"type": "error", "message": "Reconnecting... 1/5"},
        item("completed", "error", message="metadata"),
    ]
    typed = exec_stream(STARTED, *noise, DONE)
    assert stream_status(typed)[0] == "completed"
    assert [event.level for event in typed.events if event.kind == "notice"] == ["error", "error_item"]
    failed = exec_stream(STARTED, *noise, {"type": "turn.failed", "error": {"message": "429"}})
    assert stream_status(failed) == ("agent_error", "terminal event turn.failed: 429")


def test_a_turn_that_does_not_end_is_incomplete_also_after_one_that_did() -> None:
    assert stream_status(exec_stream(STARTED, {"type": "turn.started"}))[0] == "incomplete_stream"
    assert stream_status(exec_stream(STARTED, DONE, {"type": "turn.started"}))[0] == "incomplete_stream"


def test_file_changes_todos_and_cancelled_calls() -> None:
    typed = exec_stream(
        item(
            "completed",
            "file_change",
            changes=[{"path": "a", "kind": "add"}, {"path": "b", "kind": "delete"}],
            status="failed",
        ),
        item("updated", "todo_list", items=[{"text": "x", "completed": True}, "y"]),
        item(
            "completed",
            "mcp_tool_call",
            "i3",
            server="acp",
            tool="t",
            arguments=None,
            result=None,
            error={"message": "user cancelled MCP tool call"},
            status="failed",
        ),
        item("completed", "of_tomorrow", "i4"),
    )
    changes = [(e.path, e.change, e.is_error) for e in typed.events if e.kind == "file_change"]
    assert changes == [("a", "add", True), ("b", "delete", True)]
    assert typed.events[2].items == [{"text": "x", "completed": True}, {"text": "y"}]
    assert (typed.events[4].content, typed.events[4].is_error) == ("user cancelled MCP tool call", True)
    assert typed.counts.unknown == {"item.completed/of_tomorrow": 1}


def test_the_legacy_shape_has_no_name() -> None:
    typed = exec_stream({"id": "0", "msg": {"type": "agent_message", "message": "x"}})
    assert typed.counts.unknown == {"(no type)": 1}


# -- rollouts --


def rollout(*rows: tuple[str, dict]) -> TypedTrajectory:
    return parse(
        "codex_rollout",
        [
            json.dumps({"timestamp": f"2026-01-01T00:00:{n:02d}Z", "type": kind, "payload": payload}).encode()
            for n, (kind, payload) in enumerate(rows)
        ],
    )


META = ("session_meta", {"id": "th", "cli_version": "0.40.0", "cwd": "/w"})


def message(role: str, *texts: str) -> tuple[str, dict]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return "response_item", {"type": "message", "role": role, "content": content}


def shown(kind: str, text: str) -> tuple[str, dict]:
    return "event_msg", {"type": kind, "message": text, "text": text}


def tokens(total: int, last: int) -> tuple[str, dict]:
    return "event_msg", {"type": "token_count", "info": {
        "total_token_usage": {"input_tokens": total, "output_tokens": 1},
        "last_token_usage": {"input_tokens": last, "output_tokens": 1}}}  # fmt: skip


def test_what_is_displayed_and_said_is_one_event_in_either_order() -> None:
    typed = rollout(
        META,
        ("turn_context", {"model": "gpt", "cwd": "/w"}),
        message("user", "task", "[image]"),
        shown("user_message", "task"),
        shown("agent_reasoning", "think"),
        ("response_item", {"type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]}),
        shown("agent_message", "hi"),
        message("assistant", "hi"),
        shown("agent_message", "only displayed"),
        shown("agent_message", "hi"),
    )
    assert [(event.kind, getattr(event, "text", None)) for event in typed.events] == [
        ("session", None), ("user_message", "task\n[image]"), ("reasoning", "think"), ("agent_message", "hi"),
        ("agent_message", "only displayed"), ("agent_message", "hi")]  # fmt: skip
    assert [event.seq for event in typed.events] == list(range(6))
    assert typed.model == "gpt"
    assert typed.counts.folded == {
        "turn_context": 1,
        "event_msg/user": 1,
        "event_msg/reasoning": 1,
        "event_msg/assistant": 1,
    }


def test_calls_of_a_rollout() -> None:
    typed = rollout(
        META,
        (
            "response_item",
            {
                "type": "function_call",
                "name": "shell",
                "call_id": "c1",
                "arguments": '{"command":["bash","-lc","ls"]}',
            },
        ),
        (
            "response_item",
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": '{"output":"x","metadata":{"exit_code":2}}',
            },
        ),
        (
            "response_item",
            {
                "type": "function_call",
                "name": "train_mil",
                "namespace": "mcp__acp",
                "call_id": "c2",
                "arguments": "not json",
            },
        ),
        (
            "response_item",
            {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c3", "input": "*** x"},
        ),
        ("response_item", {"type": "custom_tool_call_output", "call_id": "c3", "output": "plain"}),
    )
    calls = [(e.name, e.server, e.arguments) for e in typed.events if e.kind == "tool_call"]
    assert calls == [
        ("shell", None, {"command": ["bash", "-lc", "ls"]}),
        ("train_mil", "acp", {"input": "not json"}),
        ("apply_patch", None, {"input": "*** x"}),
    ]
    results = [(e.call_id, e.content, e.is_error) for e in typed.events if e.kind == "tool_result"]
    assert results == [("c1", "x", True), ("c3", "plain", False)]
    assert stream_status(typed) == ("incomplete_stream", "no end record; 1 calls have no output")


def test_a_rollouts_total_is_the_last_running_total() -> None:
    typed = rollout(META, tokens(10, 10), tokens(25, 15))
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 25, "output_tokens": 1}
    assert [event.input_tokens for event in typed.events if event.kind == "usage"] == [10, 15]


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([message("assistant", "done")], "completed"),
        ([message("user", "more")], "incomplete_stream"),
        ([("event_msg", {"type": "task_started"}), message("assistant", "done")], "incomplete_stream"),
        ([("event_msg", {"type": "task_started"}), ("event_msg", {"type": "task_complete"})], "completed"),
        ([("event_msg", {"type": "turn_aborted", "reason": "interrupted"})], "agent_error"),
        (
            [("event_msg", {"type": "task_complete"}), ("event_msg", {"type": "task_started"})],
            "incomplete_stream",
        ),
    ],
)
def test_how_a_rollout_ends(rows: list, status: str) -> None:
    assert stream_status(rollout(META, *rows))[0] == status


def test_a_spawned_threads_events_carry_its_name() -> None:
    spawned = {"id": "child", "source": {"subagent": {"thread_spawn": {"parent_thread_id": "th"}}}}
    typed = rollout(("session_meta", spawned), message("assistant", "hi"))
    assert [event.agent for event in typed.events] == ["child", "child"]
