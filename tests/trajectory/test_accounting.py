"""Tokens and cost of small streams that are counted by hand, and texts of long logs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from acpbench.harness.meters import CodexMeter, OpenCodeMeter
from acpbench.trajectory import inspect_eval
from acpbench.trajectory.atif_reader import from_atif
from acpbench.trajectory.bounded import MAX_TEXT_CHARS
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import (
    AgentMessage,
    Terminal,
    ToolCall,
    TypedTrajectory,
    UserMessage,
    parse,
    to_atif,
)


def parsed(source_format: str, *rows: dict[str, Any]) -> TypedTrajectory:
    return parse(source_format, [json.dumps(row).encode() + b"\n" for row in rows])


def tokens(typed: TypedTrajectory) -> tuple[int | None, int | None]:
    assert typed.totals is not None
    return typed.totals.input_tokens, typed.totals.output_tokens


# -- Codex: a running total --


def turn(given: int, said: int) -> dict[str, Any]:
    return {"type": "turn.completed", "usage": {"input_tokens": given, "output_tokens": said}}


def thread(name: str) -> dict[str, Any]:
    return {"type": "thread.started", "thread_id": name}


@pytest.mark.parametrize(
    ("rows", "expected", "told"),
    [
        ([thread("a"), turn(100, 10), turn(300, 30)], (300, 30), False),
        ([thread("a"), turn(1000, 100), turn(200, 20)], (1200, 120), True),
        ([thread("a"), turn(1000, 100), turn(0, 0), turn(50, 5)], (1050, 105), True),
        ([thread("a"), turn(100, 10), thread("b"), turn(300, 30)], (400, 40), False),
        ([thread("a"), turn(100, 10), thread("a"), turn(300, 30)], (300, 30), False),
    ],
)
def test_codex_totals_that_begin_anew_are_summed(rows: list, expected: tuple, told: bool) -> None:
    typed = parsed("codex_exec", *rows)
    assert tokens(typed) == expected
    assert any("began anew" in problem for problem in typed.problems) == told
    if not any(row == thread("b") for row in rows):
        meter = CodexMeter()
        for row in rows:
            meter.feed(row)
        assert meter.tokens == sum(expected)


def count(total: tuple[int, int] | None, last: tuple[int, int] | None) -> dict[str, Any]:
    def usage(pair: tuple[int, int] | None) -> dict[str, int] | None:
        return None if pair is None else {"input_tokens": pair[0], "output_tokens": pair[1]}

    info = {"total_token_usage": usage(total), "last_token_usage": usage(last)}
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "event_msg",
            "payload": {"type": "token_count", "info": info}}  # fmt: skip


def test_rollout_totals() -> None:
    assert tokens(parsed("codex_rollout", count((9, 1), (9, 1)), count((29, 3), (20, 2)))) == (29, 3)
    assert tokens(parsed("codex_rollout", count(None, (10, 1)), count(None, (20, 2)))) == (30, 3)
    assert tokens(parsed("codex_rollout", count((900, 90), None), count((0, 0), None))) == (900, 90)


def test_a_codex_item_that_is_written_twice_is_one() -> None:
    item = {"type": "item.completed", "item": {"id": "item_0", "type": "command_execution", "command": "ls",
                                               "exit_code": 0, "status": "completed"}}  # fmt: skip
    other = {"type": "item.completed", "item": item["item"] | {"command": "pwd"}}
    calls = [e for e in parsed("codex_exec", item, item, other, other).events if isinstance(e, ToolCall)]
    assert [call.arguments["command"] for call in calls] == ["ls", "pwd"]


# -- OpenCode: a sum of steps --


def test_an_opencode_step_that_is_written_twice_counts_once() -> None:
    def step(identity: str | None) -> dict[str, Any]:
        used = {"input": 10, "output": 2, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        part = {"type": "step-finish", "reason": "stop", "cost": 0.5, "tokens": used}
        part |= {"id": identity} if identity else {}
        return {"type": "step_finish", "sessionID": "s", "part": part}

    rows = [step("p1"), step("p1"), step("p2"), step(None), step(None)]
    typed = parsed("opencode_run", *rows)
    assert tokens(typed) == (40, 8) and typed.cost_usd == 2.0
    meter = OpenCodeMeter()
    for row in rows:
        meter.feed(row)
    assert (meter.tokens, meter.cost_usd) == (48, 2.0)


# -- Claude Code: the result's sums, else the messages' --


def said(identity: str, given: int, out: int) -> dict[str, Any]:
    message = {"id": identity, "role": "assistant", "content": [{"type": "text", "text": "I"}],
               "usage": {"input_tokens": given, "output_tokens": out}}  # fmt: skip
    return {"type": "assistant", "session_id": "s", "message": message}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "result", "session_id": "s", "subtype": "success", "is_error": False} | fields


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 500, "output_tokens": 70}, (500, 70)),
        ({"input_tokens": 0, "output_tokens": 0}, (300, 30)),
        ({"input_tokens": -5, "output_tokens": 70}, (300, 70)),
        ({"input_tokens": None, "output_tokens": "x"}, (300, 30)),
        (None, (300, 30)),
    ],
)
def test_claude_totals(usage: Any, expected: tuple[int, int]) -> None:
    typed = parsed("claude_code_stream", said("m1", 100, 10), said("m2", 200, 20), result(usage=usage))
    assert tokens(typed) == expected


@pytest.mark.parametrize("subtype", ["error_max_turns", "error_during_execution"])
def test_what_an_agent_said_last_is_no_reason_of_the_harness(subtype: str) -> None:
    rows = [said("m", 1, 1), result(subtype=subtype, is_error=True, result="rate limit 500, content policy")]
    last = parsed("claude_code_stream", *rows).events[-1]
    assert isinstance(last, Terminal) and last.detail == "" and last.reason == subtype
    rows[-1] |= {"errors": ["API Error: 529 overloaded"]}
    last = parsed("claude_code_stream", *rows).events[-1]
    assert isinstance(last, Terminal) and last.detail == "API Error: 529 overloaded"


@pytest.mark.parametrize(
    ("flag", "outcome"), [(True, "error"), (1, "error"), ("true", "error"), (0, "success")]
)
def test_an_error_flag_counts_however_it_is_written(flag: Any, outcome: str) -> None:
    last = parsed("claude_code_stream", result(is_error=flag, duration_ms=2**62)).events[-1]
    assert isinstance(last, Terminal) and last.outcome == outcome
    assert "duration_s" not in parsed("claude_code_stream", result(duration_ms=2**62)).evidence


# -- a result that is written down before its call --


def test_a_result_before_its_call_answers_it() -> None:
    def block(kind: str, **fields: Any) -> dict[str, Any]:
        role = "assistant" if kind == "tool_use" else "user"
        message = {"role": role, "content": [{"type": kind} | fields], "stop_reason": "end_turn"}
        return {"type": role, "sessionId": "s", "timestamp": "2026-01-01T00:00:00Z", "message": message}

    rows = [
        block("tool_result", tool_use_id="b", content="late"),
        block("tool_use", id="a", name="Bash", input={}),
        block("tool_use", id="b", name="Read", input={}),
        block("tool_result", tool_use_id="a", content="done", is_error=True),
        block("tool_result", tool_use_id="never", content="lost"),
    ]
    typed = parsed("claude_code_session", *rows)
    assert typed.evidence["pending_calls"] == 0
    steps = to_atif(typed)["steps"]
    calls = {call["tool_call_id"]: call for step in steps for call in step.get("tool_calls", [])}
    assert {name: call["extra"]["exit_status"] for name, call in calls.items()} == {"a": "error", "b": "ok"}
    results = [
        (result.get("source_call_id"), result["content"])
        for step in steps
        for result in step.get("observation", {}).get("results", [])
    ]
    assert set(results) == {(None, "lost"), ("a", "done"), ("b", "late")} and len(results) == 3


def test_a_rollout_output_before_its_call_leaves_none_open() -> None:
    def item(**fields: Any) -> dict[str, Any]:
        return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": fields}

    out = item(type="function_call_output", call_id="a", output="x")
    call = item(type="function_call", call_id="a", name="shell", arguments="{}")
    assert parsed("codex_rollout", out, call).evidence["pending_calls"] == 0
    assert parsed("codex_rollout", call, out).evidence["pending_calls"] == 0
    assert parsed("codex_rollout", call).evidence["pending_calls"] == 1


# -- ATIF: the document's sums, else those of its steps --


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        (None, (30, 3, pytest.approx(0.3), "ATIF step costs")),
        ({"total_completion_tokens": 9}, (30, 9, pytest.approx(0.3), "ATIF step costs")),
        (
            {"total_prompt_tokens": 7, "total_completion_tokens": 9, "total_cost_usd": 5.0},
            (7, 9, 5.0, "ATIF final_metrics.total_cost_usd"),
        ),
    ],
)
def test_atif_totals(final: dict | None, expected: tuple) -> None:
    steps = [
        {"step_id": n, "source": "agent", "message": "I",
         "metrics": {"prompt_tokens": 10 * n, "completion_tokens": n, "cost_usd": 0.1 * n}}
        for n in (1, 2)
    ]  # fmt: skip
    document = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "a", "version": "1"},
                "steps": steps} | ({"final_metrics": final} if final else {})  # fmt: skip
    typed = from_atif(document)
    assert (*tokens(typed), typed.cost_usd, typed.cost_source) == expected


# -- Inspect: each call of the model sends the conversation again --


def eval_log(path: Path, sample: dict[str, Any], status: str = "success") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"status": status, "eval": {"model": "m"}}))
        archive.writestr("samples/1_epoch_1.json", json.dumps({"id": 1, "epoch": 1} | sample))
    return path


@pytest.mark.parametrize("ids", [True, False])
def test_a_conversation_that_is_sent_again_and_again_keeps_its_texts(tmp_path: Path, ids: bool) -> None:
    words = 2_000
    heard = [
        {"role": "user", "content": f"{number:04d}" + "u" * words} | ({"id": f"u{number}"} if ids else {})
        for number in range(250)
    ]
    answers = [{"role": "assistant", "id": f"a{n}", "content": f"{n:04d}" + "a" * words} for n in range(250)]
    events = [
        {"event": "model", "input": [m for pair in zip(heard[:n], answers[:n]) for m in pair] + [heard[n]],
         "output": {"choices": [{"message": answers[n], "stop_reason": "stop"}]}}
        for n in range(250)
    ]  # fmt: skip
    typed = inspect_eval.parse_eval(eval_log(tmp_path / "x.eval", {"events": events, "scores": {}}))
    for kind in (UserMessage, AgentMessage):
        texts = [event.text for event in typed.events if isinstance(event, kind)]
        assert len(texts) == 250 and {len(text) for text in texts} == {words + 4}
    assert typed.counts.shortened == 0 and typed.problems == []


def test_many_references_to_a_large_attachment_take_no_memory(tmp_path: Path) -> None:
    import tracemalloc

    content = [{"type": "text", "text": "attachment://big"} for _ in range(200)]
    message = {"role": "assistant", "id": "a", "content": content}
    sample = {
        "events": [{"event": "model", "input": [], "output": {"choices": [{"message": message}]}}],
        "attachments": {"big": "x" * 4_000_000},
    }
    path = eval_log(tmp_path / "x.eval", sample)
    inspect_eval.MAX_RATIO, ratio = 10**6, inspect_eval.MAX_RATIO
    tracemalloc.start()
    try:
        typed = inspect_eval.parse_eval(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        inspect_eval.MAX_RATIO = ratio
    (text,) = [event.text for event in typed.events if isinstance(event, AgentMessage)]
    assert MAX_TEXT_CHARS <= len(text) < 1.1 * MAX_TEXT_CHARS and typed.counts.shortened >= 1
    assert peak < 40e6


@pytest.mark.parametrize(
    ("sample", "run_status"),
    [
        ({"events": []}, "incomplete_stream"),
        ({"events": {}, "messages": "x"}, "incomplete_stream"),
        ({"events": [], "scores": {"s": 1}}, "completed"),
        ({"events": [], "messages": [{"role": "assistant", "content": "done"}]}, "completed"),
    ],
)
def test_a_sample_in_which_nothing_happened_is_not_completed(
    tmp_path: Path, sample: dict, run_status: str
) -> None:
    typed = inspect_eval.parse_eval(eval_log(tmp_path / "x.eval", sample))
    assert stream_status(typed)[0] == run_status
