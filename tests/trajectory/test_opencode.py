"""OpenCode streams and exports: no end record, sums over steps, cost 0 is no price."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpbench.trajectory.opencode import parse_export
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import TypedTrajectory, parse

TOKENS = {"input": 10, "output": 4, "reasoning": 3, "cache": {"read": 5, "write": 2}}


def row(kind: str, second: int = 0, **part: Any) -> dict:
    found: dict[str, Any] = {"type": kind, "timestamp": 1_767_000_000_000 + second * 1000, "sessionID": "ses"}
    return found | ({"part": part} if part else {})


def run(*rows: Any) -> TypedTrajectory:
    return parse(
        "opencode_run", [item if isinstance(item, bytes) else json.dumps(item).encode() for item in rows]
    )


def tool(name: str = "bash", status: str = "completed", **state: Any) -> dict:
    state = {"status": status, "input": {"command": "ls"}, **state}
    return row("tool_use", 1, type="tool", tool=name, callID="c1", state=state, messageID="m1")


START, STOP = (
    row("step_start", type="step-start"),
    row("step_finish", 2, reason="stop", cost=0.25, tokens=TOKENS),
)
TEXT = row("text", 1, type="text", text="done", messageID="m1")


def test_a_step() -> None:
    typed = run(START, tool(output="x", metadata={"exit": 1}), TEXT, STOP)
    assert [event.kind for event in typed.events] == [
        "session", "tool_call", "tool_result", "agent_message", "usage"]  # fmt: skip
    assert typed.session_id == "ses"
    assert typed.events[1].t == "2025-12-29T09:20:01.000000Z"
    assert (typed.events[2].content, typed.events[2].is_error) == ("x", True)
    assert typed.counts.folded == {"step_start": 1}


def test_tokens_and_costs_are_summed_over_steps() -> None:
    typed = run(START, STOP, START, STOP)
    assert typed.totals is not None
    assert typed.totals.known() == {
        "input_tokens": 34, "cached_tokens": 10, "output_tokens": 8, "reasoning_tokens": 6}  # fmt: skip
    assert (typed.cost_usd, typed.cost_source) == (0.5, "opencode step costs")


def test_a_cost_of_0_is_no_known_price() -> None:
    typed = run(START, row("step_finish", reason="stop", cost=0, tokens=TOKENS))
    assert typed.cost_usd is None and typed.cost_source is None
    assert typed.problems == ["every step says cost 0: no price is known for this model"]


def test_a_registry_tool_and_a_failed_one() -> None:
    typed = run(tool("acp_tile_slides", "error", error="no slide"), tool("acp_"))
    assert [(e.name, e.server) for e in typed.events if e.kind == "tool_call"] == [
        ("tile_slides", "acp"), ("acp_", None)]  # fmt: skip
    assert (typed.events[2].content, typed.events[2].is_error) == ("no slide", True)


ERROR = {"type": "error", "timestamp": 1, "sessionID": "ses",
         "error": {"name": "APIError", "data": {"message": "slow down", "statusCode": 429}}}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([START, TEXT, STOP], "completed"),
        ([START, TEXT], "incomplete_stream"),
        ([START, tool(), row("step_finish", reason="tool-calls", tokens=TOKENS)], "incomplete_stream"),
        ([START, tool(), STOP], "incomplete_stream"),  # some providers say stop beside a tool call
        ([START, TEXT, row("step_finish", tokens=TOKENS)], "incomplete_stream"),
        ([START, TEXT, row("step_finish", reason="length", tokens=TOKENS)], "agent_error"),
        ([START, TEXT, row("step_finish", reason="content-filter", tokens=TOKENS)], "refused"),
        ([START, TEXT, STOP, ERROR], "agent_error"),
        ([START, ERROR, START, TEXT, STOP], "completed"),  # the error was retried
        ([ERROR], "agent_error"),
        ([], "incomplete_stream"),
        ([START, TEXT, STOP, row("done") | {"reason": "idle", "rejected": []}], "completed"),
        ([START, TEXT, STOP, row("done") | {"reason": "rejected", "rejected": ["bash"]}], "agent_error"),
    ],
)
def test_the_evidence_that_stands_for_an_end_record(rows: list, status: str) -> None:
    found = stream_status(run(*rows))
    assert found[0] == status
    assert "end record" in found[1] or "terminal event" in found[1]


def test_text_between_events_is_kept() -> None:
    typed = run(START, b"permission requested: bash (ls); auto-rejecting", TEXT)
    assert typed.events[1].level == "text"
    assert typed.counts.malformed == 0


# -- export --


def export(*messages: dict, **more: Any) -> dict:
    return {
        "info": {
            "id": "ses",
            "version": "1.18.33",
            "directory": "/w",
            "time": {"created": 1_767_000_000_000},
        },
        "messages": list(messages),
        **more,
    }


USER = {"info": {"id": "m0", "role": "user", "time": {"created": 1_767_000_000_000}},
        "parts": [{"type": "text", "text": "do it"}]}  # fmt: skip


def reply(**info: Any) -> dict:
    base = {
        "id": "m1",
        "role": "assistant",
        "modelID": "gpt",
        "providerID": "p",
        "cost": 0.1,
        "tokens": TOKENS,
        "finish": "stop",
        "time": {"created": 1_767_000_001_000, "completed": 1_767_000_002_000},
    }
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm"},
        {
            "type": "tool",
            "tool": "acp_train_mil",
            "callID": "c1",
            "state": {"status": "completed", "input": {}, "output": "ok"},
        },
        {"type": "patch", "hash": "h", "files": ["/w/a"]},
        {"type": "text", "text": "done"},
        {"type": "of_tomorrow"},
    ]
    return {"info": base | info, "parts": parts}


def test_an_export() -> None:
    typed = parse_export(export(USER, reply(), todos=[{"content": "x"}]))
    assert [event.kind for event in typed.events] == [
        "session", "user_message", "reasoning", "tool_call", "tool_result", "file_change", "agent_message",
        "unknown", "usage", "todo"]  # fmt: skip
    assert (typed.model, typed.session_id, typed.harness_version) == ("gpt", "ses", "1.18.33")
    assert typed.totals is not None and typed.totals.input_tokens == 17
    assert typed.cost_usd == pytest.approx(0.1)
    assert stream_status(typed)[0] == "completed"


@pytest.mark.parametrize(
    ("info", "status"),
    [
        ({"time": {"created": 1}}, "incomplete_stream"),
        ({"finish": "tool-calls"}, "incomplete_stream"),
        ({"error": {"name": "MessageAbortedError", "data": {}}}, "agent_error"),
        ({"finish": "length"}, "agent_error"),
    ],
)
def test_how_an_export_ends(info: dict, status: str) -> None:
    assert stream_status(parse_export(export(USER, reply(**info))))[0] == status


def test_an_export_that_ends_with_the_user_is_incomplete() -> None:
    assert stream_status(parse_export(export(reply(), USER)))[0] == "incomplete_stream"
