"""Claude Code streams and sessions: blocks, sub-agents, usage counted once, how a run ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import TypedTrajectory, parse

INIT = {"type": "system", "subtype": "init", "session_id": "s1", "cwd": "/w", "model": "m", "tools": ["Bash"],
        "mcp_servers": [{"name": "acp", "status": "connected"}], "claude_code_version": "2.1.0"}  # fmt: skip
RESULT = {"type": "result", "subtype": "success", "is_error": False, "session_id": "s1", "result": "done",
          "total_cost_usd": 0.5, "duration_ms": 1500,
          "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2,
                    "output_tokens": 7}}  # fmt: skip


def assistant(*blocks: dict, identity: str = "m1", usage: dict | None = None, **fields: Any) -> dict:
    message: dict[str, Any] = {"id": identity, "role": "assistant", "model": "m", "content": list(blocks)}
    if usage:
        message["usage"] = usage
    return {"type": "assistant", "session_id": "s1", "message": message, **fields}


def call(identity: str, name: str, **arguments: Any) -> dict:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def answer(identity: str, content: Any = "ok", **fields: Any) -> dict:
    block = {"type": "tool_result", "tool_use_id": identity, "content": content, **fields}
    return {"type": "user", "session_id": "s1", "message": {"role": "user", "content": [block]}}


def stream(*rows: Any, times: list[float] | None = None) -> TypedTrajectory:
    return parse("claude_code_stream", [json.dumps(row).encode() + b"\n" for row in rows], times)


def kinds(typed: TypedTrajectory) -> list[str]:
    return [event.kind for event in typed.events]


def test_a_whole_stream() -> None:
    typed = stream(
        INIT,
        assistant({"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}),
        assistant(call("t1", "mcp__acp__train_mil", seed=1, round_id=2)),
        answer("t1", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], is_error=True),
        RESULT,
    )
    assert kinds(typed) == [
        "session",
        "reasoning",
        "agent_message",
        "tool_call",
        "tool_result",
        "usage",
        "terminal",
    ]
    session, _, _, asked, got, _, end = typed.events
    assert (session.mcp_servers, session.tools, session.cwd) == ({"acp": "connected"}, ["Bash"], "/w")
    assert (asked.name, asked.server, asked.arguments) == ("train_mil", "acp", {"seed": 1, "round_id": 2})
    assert (got.call_id, got.content, got.is_error) == ("t1", "a\nb", True)
    assert (end.outcome, end.reason, end.detail) == ("success", "success", "done")
    assert [event.seq for event in typed.events] == list(range(7))
    assert [event.line for event in typed.events] == [1, 2, 2, 3, 4, 5, 5]
    assert (typed.model, typed.harness_version, typed.session_id) == ("m", "2.1.0", "s1")
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 17, "cached_tokens": 5, "output_tokens": 7}
    assert (typed.cost_usd, typed.cost_source) == (0.5, "claude_code result.total_cost_usd")
    assert stream_status(typed) == ("completed", "terminal event success")


def test_receipt_times_date_each_line_blank_ones_counted() -> None:
    lines = [
        json.dumps(INIT).encode() + b"\n",
        b"\n",
        json.dumps(RESULT | {"timestamp": "2020-01-01"}).encode(),
    ]
    typed = parse("claude_code_stream", lines, [0.25, 1.0, 2.000001])
    assert [event.t for event in typed.events] == [
        "1970-01-01T00:00:00.250000Z",
        "1970-01-01T00:00:02.000001Z",
        "1970-01-01T00:00:02.000001Z",
    ]
    assert typed.counts.lines == 2
    assert [event.line for event in typed.events] == [1, 3, 3]


def test_usage_repeated_for_each_block_of_a_message_counts_once_and_the_last_counts() -> None:
    first, last = {"input_tokens": 3, "output_tokens": 1}, {"input_tokens": 3, "output_tokens": 20}
    typed = stream(
        INIT,
        assistant({"type": "text", "text": "a"}, usage=first),
        assistant(call("t1", "Bash"), usage=last),
        assistant({"type": "text", "text": "b"}, identity="m2", usage=first),
    )
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 6, "output_tokens": 21}
    assert typed.cost_usd is None and typed.cost_source is None


def test_a_stream_without_usage_has_no_totals_not_zero() -> None:
    typed = stream(INIT, assistant({"type": "text", "text": "a"}))
    assert typed.totals is None
    assert typed.cost_usd is None


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({}, "completed", "success"),
        ({"is_error": True, "api_error_status": 529}, "agent_error", "api_error 529"),
        ({"is_error": True}, "agent_error", "is_error"),
        ({"subtype": "error_during_execution", "is_error": True}, "agent_error", "error_during_execution"),
        ({"subtype": "error_max_turns", "is_error": True}, "budget", "error_max_turns"),
        ({"subtype": "error_max_budget_usd"}, "budget", "error_max_budget_usd"),
        ({"subtype": "error_of_tomorrow"}, "agent_error", "error_of_tomorrow"),
        ({"stop_reason": "refusal"}, "refused", "refused"),
    ],
)
def test_how_a_result_ends_the_run(changes: dict, status: str, reason: str) -> None:
    found = stream_status(stream(INIT, RESULT | changes))
    assert found[0] == status
    assert reason in found[1]


def test_without_a_result_the_stream_is_incomplete() -> None:
    assert stream_status(stream(INIT, assistant({"type": "text", "text": "done"})))[0] == "incomplete_stream"


def test_the_last_of_several_results_counts_and_work_after_it_is_not_an_end() -> None:
    failed = RESULT | {"subtype": "error_during_execution", "is_error": True}
    assert stream_status(stream(INIT, failed, RESULT))[0] == "completed"
    assert stream_status(stream(INIT, RESULT, failed))[0] == "agent_error"
    after = stream(INIT, RESULT, assistant(call("t1", "Bash")))
    assert stream_status(after) == (
        "incomplete_stream", "the agent went on after its last terminal event (success)")  # fmt: skip


def test_background_work_that_the_results_usage_leaves_out_is_said() -> None:
    typed = stream(INIT, RESULT | {"modelUsage": {"m": {"outputTokens": 70}}})
    assert typed.problems == ["the result's usage has 7 output tokens, its modelUsage 70"]


def test_a_subagents_lines_carry_its_name_and_end_nothing() -> None:
    typed = stream(
        INIT,
        assistant(call("task1", "Task")),
        assistant(call("t2", "Bash"), parent_tool_use_id="task1"),
        answer("task1"),
        RESULT,
    )
    assert [event.agent for event in typed.events if event.kind == "tool_call"] == [None, "task1"]
    assert typed.evidence["pending_calls"] == 0


def test_what_has_no_name_is_kept_raw_and_counted() -> None:
    typed = stream(
        {"type": "system", "subtype": "of_tomorrow", "x": 1},
        {"type": "future", "y": float("nan")},
        {"z": 1},
        assistant({"type": "future_block", "deep": 1}),
        {"type": "user", "message": {"content": ["text in a list"]}},
        {"type": "assistant", "message": "text"},
    )
    assert typed.counts.unknown == {
        "system/of_tomorrow": 1, "future": 1, "(no type)": 1, "assistant/future_block": 1, "user/str": 1,
        "assistant/message:str": 1}  # fmt: skip
    assert typed.events[1].raw == {"type": "future", "y": None}
    assert typed.counts.kept == 0


def test_printed_text_and_torn_lines_lose_no_event() -> None:
    typed = parse(
        "claude_code_stream",
        [
            b"[SandboxDebug] up",
            json.dumps(INIT).encode(),
            b'{"type":"assistant","mess',
            json.dumps(RESULT).encode(),
        ],
    )
    assert kinds(typed) == ["notice", "session", "unknown", "usage", "terminal"]
    assert typed.counts.malformed == 1
    assert typed.problems[0].startswith("line 3: does not parse as JSON")
    assert typed.events[2].raw == '{"type":"assistant","mess'


def test_notices() -> None:
    typed = stream(
        {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected"}},
        {"type": "system", "subtype": "compact_boundary", "compactMetadata": {"preTokens": 9}},
        assistant({"type": "text", "text": "x"}, error="rate_limit"),
        RESULT | {"permission_denials": [{"tool_name": "Write"}]},
        {"type": "stream_event", "event": {}},
    )
    notices = [(event.level, event.text) for event in typed.events if event.kind == "notice"]
    assert notices == [
        ("rate_limit", '{"status": "rejected"}'),
        ("compact_boundary", '{"compactMetadata": {"preTokens": 9}}'),
        ("api_error", "rate_limit"),
        ("permission_denied", "Write"),
    ]
    assert typed.counts.folded == {"stream_event": 1}


def test_a_todo_list_names_the_call_that_set_it() -> None:
    typed = stream(assistant(call("t1", "TodoWrite", todos=[{"content": "a", "status": "pending"}, "b"])))
    todo = typed.events[1]
    assert (todo.kind, todo.call_id, todo.items) == (
        "todo", "t1", [{"content": "a", "status": "pending"}, {"content": "b"}])  # fmt: skip


# -- sessions --


def line(kind: str, second: int, content: Any, **fields: Any) -> bytes:
    message: dict[str, Any] = {"role": kind, "content": content}
    for key in ("id", "usage", "stop_reason"):
        if key in fields:
            message[key] = fields.pop(key)
    row = {
        "type": kind,
        "sessionId": "s1",
        "timestamp": f"2026-01-01T00:00:{second:02d}.5Z",
        "version": "2.0",
        "cwd": "/w",
        "message": message,
        **fields,
    }
    return json.dumps(row).encode() + b"\n"


def test_a_session_has_times_and_ends_with_the_turn_of_its_last_message() -> None:
    said = [{"type": "text", "text": "done"}]
    rows = [line("user", 1, "do it"), line("assistant", 2, said, id="m1", stop_reason="end_turn")]
    typed = parse("claude_code_session", rows)
    assert kinds(typed) == ["session", "user_message", "agent_message"]
    assert typed.times == ("2026-01-01T00:00:01.500000Z", "2026-01-01T00:00:02.500000Z")
    assert stream_status(typed)[0] == "completed"
    rows[1] = line("assistant", 2, said, id="m1")
    assert stream_status(parse("claude_code_session", rows))[0] == "incomplete_stream"
    rows.append(line("user", 3, "more"))
    assert "the last turn is the user's" in stream_status(parse("claude_code_session", rows))[1]


def test_a_session_with_an_open_call_is_incomplete_but_a_subagents_open_call_is_not_its() -> None:
    end = line("assistant", 9, [{"type": "text", "text": "done"}], id="m9", stop_reason="end_turn")
    opened = line("assistant", 2, [call("t1", "Bash")], id="m1")
    assert stream_status(parse("claude_code_session", [opened, end]))[0] == "incomplete_stream"
    side = line("assistant", 2, [call("t1", "Bash")], id="m1", isSidechain=True)
    typed = parse("claude_code_session", [side, end])
    assert stream_status(typed)[0] == "completed"
    assert typed.events[1].agent == "sidechain"


def test_subagents_files_join_the_session_in_time_and_repeat_no_usage() -> None:
    from acpbench.trajectory.parsing import parse_sources

    used = {"input_tokens": 4, "output_tokens": 2}
    main = [
        line("assistant", 1, [call("t1", "Task")], id="m1", requestId="r1", usage=used),
        line("user", 5, [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]),
    ]
    sub = [
        line(
            "assistant",
            3,
            [{"type": "text", "text": "look"}],
            id="m2",
            requestId="r2",
            usage=used,
            agentId="a7",
            isSidechain=True,
        ),
        line(
            "assistant",
            3,
            [{"type": "text", "text": "look"}],
            id="m1",
            requestId="r1",
            usage=used,
            agentId="a7",
            isSidechain=True,
        ),
    ]
    typed = parse_sources("claude_code_session", [main, sub])
    assert [
        event.agent for event in typed.events if event.kind in ("tool_call", "agent_message", "tool_result")
    ] == [None, "a7", "a7", None]
    assert [event.seq for event in typed.events] == list(range(len(typed.events)))
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 8, "output_tokens": 4}
