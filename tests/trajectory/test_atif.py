"""The normalised record keeps the rules of its format, and the event reader finds everything in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory.atif import SCHEMA_VERSION, AtifBuilder
from acpbench.trajectory.events import stream_events
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import TypedTrajectory, from_atif, parse, to_atif
from tests.trajectory.atif_rules import broken_rules


def builder(model: str | None = "m") -> AtifBuilder:
    return AtifBuilder(session_id="g/t/1", agent_name="scripted", agent_version="1", model=model)


def sample() -> dict:
    atif = builder()
    atif.message("system", "rules", None)
    atif.message("user", "do it", "2026-01-01T00:00:00.000Z")
    atif.message("agent", "I will", "2026-01-01T00:00:01.000Z")
    atif.call("read_file", {"path": "TASK.md"}, "10 characters", "2026-01-01T00:00:02.000Z")
    atif.call("train_mil", {"seed": 1}, "ok", None, extra={"exit_status": "ok", "round_id": 0})
    return atif.document(extra={"acpbench": {"trajectory_id": "g/t/1"}})


def test_the_head_names_format_session_and_agent() -> None:
    document = sample()
    assert document["schema_version"] == SCHEMA_VERSION == "ATIF-v1.7"
    assert document["session_id"] == "g/t/1"
    assert document["agent"] == {"name": "scripted", "version": "1", "model_name": "m"}
    assert "model_name" not in builder(None).document()["agent"]
    assert document["extra"] == {"acpbench": {"trajectory_id": "g/t/1"}}


def test_steps_count_from_1_without_gaps() -> None:
    document = sample()
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4, 5]
    assert document["final_metrics"] == {"total_steps": 5}


def test_a_built_document_keeps_the_rules_of_the_format() -> None:
    assert broken_rules(sample()) == []
    assert broken_rules(builder().document()) == []


def test_a_time_is_given_or_absent_never_null() -> None:
    steps = sample()["steps"]
    assert "timestamp" not in steps[0]
    assert steps[1]["timestamp"] == "2026-01-01T00:00:00.000Z"
    assert "timestamp" not in steps[4]


def test_a_silent_run_is_one_system_step_that_says_so() -> None:
    document = builder().document()
    (step,) = document["steps"]
    assert (step["step_id"], step["source"]) == (1, "system")
    assert "no event" in step["message"]
    assert document["final_metrics"]["total_steps"] == 1


def test_the_event_reader_finds_messages_reads_and_tools_again(tmp_path: Path) -> None:
    (tmp_path / "trajectory.json").write_text(json.dumps(sample()))
    events = stream_events(tmp_path)
    assert [(event.kind, event.name) for event in events] == [
        ("message", "system"), ("message", "user"), ("message", "agent"), ("read", "TASK.md"),
        ("tool", "train_mil")]  # fmt: skip
    assert events[4].args == {"seed": 1}
    assert (events[4].exit_status, events[4].round_id) == ("ok", 0)
    assert events[3].ref == "run:trajectory.json#/steps/3"


# -- the exporter --

CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "s1", "model": "m", "claude_code_version": "2"},
    {"type": "user", "message": {"content": "do it"}},
    {
        "type": "assistant",
        "message": {
            "id": "m1",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "TASK.md"}},
                {
                    "type": "tool_use",
                    "id": "t2",
                    "name": "mcp__acp__train_mil",
                    "input": {"seed": 1, "round_id": 2},
                },
            ],
            "usage": {"input_tokens": 5, "output_tokens": 3},
        },
    },
    {
        "type": "user",
        "message": {
            "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True}]
        },
    },
    {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}]},
    },
    {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t9", "content": "lost"}]},
    },
    # The same call id again, and the same message id after an answer.
    {
        "type": "assistant",
        "message": {
            "id": "m1",
            "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}],
            "usage": {"input_tokens": 5, "output_tokens": 9},
        },
    },
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a"}]}},
    {"type": "future", "x": 1},
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "session_id": "s1",
        "total_cost_usd": 0.1,
        "usage": {"input_tokens": 5, "output_tokens": 9},
    },
]
CODEX = [
    {"type": "thread.started", "thread_id": "th"},
    {
        "type": "item.completed",
        "item": {
            "id": "i1",
            "type": "file_change",
            "status": "completed",
            "changes": [{"path": "a.py", "kind": "add"}],
        },
    },
    {"type": "item.updated", "item": {"id": "i2", "type": "todo_list", "items": [{"text": "x"}]}},
    {"type": "item.started", "item": {"id": "i3", "type": "command_execution", "command": "ls"}},
    {"type": "turn.failed", "error": {"message": "429"}},
]


def typed_of(source_format: str, rows: list) -> TypedTrajectory:
    return parse(
        source_format, [json.dumps(row).encode() for row in rows], [float(n) for n in range(len(rows))]
    )


@pytest.mark.parametrize(("source_format", "rows"), [("claude_code_stream", CLAUDE), ("codex_exec", CODEX)])
def test_an_exported_trajectory_keeps_the_rules_of_the_format(source_format: str, rows: list) -> None:
    assert broken_rules(to_atif(typed_of(source_format, rows))) == []


def test_an_empty_trajectory_exports_one_step() -> None:
    document = to_atif(parse("codex_exec", []))
    assert broken_rules(document) == []
    assert len(document["steps"]) == 1


def test_a_turn_is_one_step_and_answers_stand_with_their_calls() -> None:
    steps = to_atif(typed_of("claude_code_stream", CLAUDE))["steps"]
    first = next(step for step in steps if step.get("tool_calls"))
    assert (first["message"], first["reasoning_content"]) == ("I look", "hm")
    assert [call["function_name"] for call in first["tool_calls"]] == ["Read", "train_mil"]
    assert [(r["source_call_id"], r["content"]) for r in first["observation"]["results"]] == [
        ("t2", "no"), ("t1", "text")]  # fmt: skip
    extra = first["tool_calls"][1]["extra"]
    assert (extra["exit_status"], extra["server"], extra["round_id"]) == ("error", "acp", 2)
    again = [step for step in steps if step.get("tool_calls")][1]
    assert again["tool_calls"][0]["tool_call_id"] == "t1#2"
    assert again["observation"]["results"][0] == {
        "source_call_id": "t1#2",
        "content": "a",
        "extra": {"is_error": False, "t": "1970-01-01T00:00:07.000000Z"},
    }


def test_a_messages_usage_stands_once_whatever_its_steps() -> None:
    document = to_atif(typed_of("claude_code_stream", CLAUDE))
    metrics = [step["metrics"] for step in document["steps"] if "metrics" in step]
    assert metrics == [{"prompt_tokens": 5, "completion_tokens": 9}]
    final = document["final_metrics"]
    assert (final["total_prompt_tokens"], final["total_completion_tokens"], final["total_cost_usd"]) == (
        5,
        9,
        0.1,
    )
    assert "total_cached_tokens" not in final


@pytest.mark.parametrize(("source_format", "rows"), [("claude_code_stream", CLAUDE), ("codex_exec", CODEX)])
def test_reading_back_an_export_finds_the_same_events(source_format: str, rows: list) -> None:
    typed = typed_of(source_format, rows)
    back = from_atif(json.loads(json.dumps(to_atif(typed))))
    kept = [event for event in typed.events if event.kind != "usage" or event.cumulative]

    def told(event) -> tuple:
        body = event.model_dump(exclude={"seq", "line", "t", "call_id"})
        return tuple(sorted((key, repr(value)) for key, value in body.items()))

    assert sorted(told(e) for e in back.events if e.kind != "usage" or e.cumulative) == sorted(
        map(told, kept)
    )
    assert back.totals == typed.totals
    assert back.cost_usd == typed.cost_usd
    assert back.cost_source == typed.cost_source
    assert stream_status(back)[0] == stream_status(typed)[0]


# -- the reader --


def document(*steps: dict, version: str = "ATIF-v1.8", **more) -> dict:
    return {"schema_version": version, "agent": {"name": "a", "version": "1"}, "steps": list(steps), **more}


@pytest.mark.parametrize("version", ["ATIF-v1.5", "ATIF-v1.6", "ATIF-v1.7", "ATIF-v1.8"])
def test_versions_that_are_read(version: str) -> None:
    assert (
        from_atif(document({"step_id": 1, "source": "user", "message": "x"}, version=version)).counts.kept
        == 2
    )


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ([], "is not a JSON object"),
        ({}, "'None' is not an ATIF version"),
        (document({"source": "user"}, version="ATIF-v1.4"), "schema_version: ATIF-v1.4 is not read"),
        (document({"source": "user"}, version="ATIF-v2.0"), "ATIF-v2.0 is not read; versions 1.5 to 1.8 are"),
        (document({"source": "user"}, version="1.7"), "'1.7' is not an ATIF version"),
        (document(), "steps: must be a list with at least one step"),
        ({**document({"source": "user"}), "agent": "a"}, "agent: is missing or not an object"),
    ],
)
def test_what_is_no_document_is_refused(broken, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        from_atif(broken)


def test_steps_that_break_the_rules_are_kept_and_counted() -> None:
    typed = from_atif(
        document(
            {"step_id": 7, "source": "<redacted>", "message": "x"},
            "text",
            {
                "source": "agent",
                "message": None,
                "tool_calls": [{"function_name": "f", "arguments": "<redacted>"}, 3],
                "observation": {"results": [{"content": "r"}, 5]},
                "metrics": {"prompt_tokens": -1},
            },
            {
                "source": "system",
                "message": "s",
                "timestamp": "<redacted>",
                "observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_path": "sub.json"}]}]},
            },
        )
    )
    assert typed.counts.unknown == {"step/source:<redacted>": 1}
    assert typed.counts.malformed == 1
    call = next(event for event in typed.events if event.kind == "tool_call")
    assert (call.name, call.arguments) == ("f", {"value": "<redacted>"})
    assert [e.text for e in typed.events if e.kind == "notice"] == ["s", "sub.json"]
    assert typed.totals is None


def test_embedded_subagents_carry_their_name() -> None:
    nested = document({"source": "agent", "message": "sub"}, trajectory_id="sub1")
    typed = from_atif(document({"source": "agent", "message": "main"}, subagent_trajectories=[nested]))
    assert [(e.text, e.agent) for e in typed.events if e.kind == "agent_message"] == [
        ("main", None), ("sub", "sub1")]  # fmt: skip


def test_without_final_metrics_the_steps_are_summed() -> None:
    step = {"source": "agent", "message": "x", "metrics": {"prompt_tokens": 5, "completion_tokens": 2}}
    typed = from_atif(document(step, step))
    assert typed.totals is not None
    assert typed.totals.known() == {"input_tokens": 10, "output_tokens": 4}
    assert typed.cost_usd is None
    assert stream_status(typed) == ("incomplete_stream", "ATIF holds no end record")
