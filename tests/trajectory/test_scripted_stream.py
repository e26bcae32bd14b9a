"""The built-in harness's stream, and what every stream format shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.trajectory.events import stream_events
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import STREAM_FORMATS, parse, to_atif
from tests.trajectory.atif_rules import broken_rules

ROWS = [
    {"type": "message", "t": "2026-01-01T00:00:00.000001Z", "text": "I plan"},
    {"type": "read", "t": "2026-01-01T00:00:01Z", "path": "TASK.md", "outcome": "10 characters"},
    {"type": "write", "t": "2026-01-01T00:00:02Z", "path": "plan/plan.md", "outcome": "9 characters"},
    {"type": "tool", "t": "2026-01-01T00:00:03Z", "tool": "train_mil", "args": {"seed": 1}, "round_id": 1,
     "exit_status": "error", "outcome": "no features"},
    {"type": "command", "t": "2026-01-01T00:00:04Z", "command": "ls", "outcome": "x"},
    {"type": "result", "t": "2026-01-01T00:00:05Z", "outcome": "finished"},
]  # fmt: skip


def test_the_scripted_stream(tmp_path: Path) -> None:
    typed = parse("scripted_stream", [json.dumps(row).encode() for row in ROWS])
    assert stream_status(typed) == ("completed", "terminal event finished")
    assert (typed.totals, typed.cost_usd) == (None, 0.0)
    document = to_atif(typed, session_id="g/t/1", extra={"acpbench": {"trajectory_id": "g/t/1"}})
    assert broken_rules(document) == []
    assert document["extra"]["acpbench"]["trajectory_id"] == "g/t/1"
    (tmp_path / "trajectory.json").write_text(json.dumps(document))
    found = [(event.kind, event.name, event.exit_status) for event in stream_events(tmp_path)]
    assert found == [
        ("message", "agent", None),
        ("read", "TASK.md", "ok"),
        ("write", "plan/plan.md", "ok"),
        ("tool", "train_mil", "error"),
        ("command", "ls", "ok"),
    ]
    call = stream_events(tmp_path)[3]
    assert (call.round_id, call.args["seed"]) == (1, 1)


def test_a_killed_scripted_run_is_incomplete() -> None:
    typed = parse("scripted_stream", [json.dumps(row).encode() for row in ROWS[:-1]])
    assert stream_status(typed)[0] == "incomplete_stream"


@pytest.mark.parametrize("source_format", STREAM_FORMATS)
def test_no_lines_are_an_empty_incomplete_trajectory(source_format: str) -> None:
    typed = parse(source_format, [])
    assert (typed.events, typed.counts.lines, typed.totals, typed.times) == ([], 0, None, None)
    assert stream_status(typed)[0] == "incomplete_stream"


@pytest.mark.parametrize("source_format", STREAM_FORMATS)
def test_each_entry_gives_an_event_or_is_folded_or_malformed(source_format: str) -> None:
    rows = [b'{"type":"x"}', b"{torn", b"7", b"", b"printed", b'{"type":"error","message":"m"}']
    typed = parse(source_format, rows)
    assert typed.counts.lines == 5
    assert typed.counts.malformed == 2
    assert len(typed.events) + sum(typed.counts.folded.values()) >= 5
    assert typed.counts.events["unknown"] == typed.counts.unnamed + typed.counts.malformed


def test_another_format_is_no_format() -> None:
    with pytest.raises(ValueError, match="'atif' is no stream format"):
        parse("atif", [])
