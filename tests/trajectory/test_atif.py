"""The normalised record keeps the rules of its format, and the event reader finds everything in it."""

from __future__ import annotations

import json
from pathlib import Path

from acpbench.trajectory.atif import SCHEMA_VERSION, AtifBuilder
from acpbench.trajectory.events import stream_events

AGENT_ONLY = {"tool_calls", "observation", "reasoning_content", "metrics", "model_name"}


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


def test_agent_only_fields_stand_on_agent_steps_only() -> None:
    for step in sample()["steps"]:
        assert step["source"] in ("system", "user", "agent")
        assert isinstance(step["message"], str)
        if step["source"] != "agent":
            assert not AGENT_ONLY & set(step)


def test_every_observation_answers_a_call_of_its_own_step() -> None:
    ids = []
    for step in sample()["steps"]:
        own = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        ids.extend(own)
        for result in step.get("observation", {}).get("results", []):
            assert result["source_call_id"] in own
    assert len(ids) == len(set(ids)) == 2


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
