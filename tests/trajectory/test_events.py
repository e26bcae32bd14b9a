"""Witnessed events: pairing of starts and ends, killed runs, hostile lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory import events, record

START = {"event": "start", "seq": 1, "call_id": "c0001", "tool": "train_mil", "args": {"seed": 1},
         "step_id": "s4", "round_id": 0, "t": "2026-01-01T00:00:01.000Z", "inputs": []}  # fmt: skip
END = {"event": "end", "seq": 2, "call_id": "c0001", "tool": "train_mil", "exit_status": "ok",
       "t": "2026-01-01T00:00:03.500Z", "outputs": [{"path": "model.pt", "sha256": "x"}], "error": None,
       "result": {"n": 3}}  # fmt: skip


def write_lines(path: Path, *rows: object) -> None:
    path.write_bytes(
        b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
    )


def test_a_call_is_its_start_joined_to_its_end(tmp_path: Path) -> None:
    write_lines(tmp_path / "tools.jsonl", START, END)
    (call,) = events.load_events(tmp_path)
    assert (call.kind, call.name, call.exit_status, call.step_id, call.round_id) == (
        "tool", "train_mil", "ok", "s4", 0)  # fmt: skip
    assert call.t_end - call.t == pytest.approx(2.5)
    assert call.ref == "run:tools.jsonl#L1"
    assert call.result == {"n": 3}


def test_a_start_without_an_end_is_a_call_that_never_ended(tmp_path: Path) -> None:
    write_lines(tmp_path / "tools.jsonl", START, b'{"event": "end", "call_id": "c00')
    (call,) = events.load_events(tmp_path)
    assert call.exit_status is None
    assert call.t_end is None


def test_hostile_lines_lose_no_other_event(tmp_path: Path) -> None:
    hostile = [
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"null",
        b"[" * 100_000,
        {"event": "start", "round_id": "x", "args": 3},
    ]
    write_lines(tmp_path / "tools.jsonl", *hostile, START, END)
    calls = events.load_events(tmp_path)
    assert [call.name for call in calls if call.exit_status == "ok"] == ["train_mil"]


def _shown(place: int, t_s: float, function: str, **arguments: object) -> dict[str, object]:
    """A step of the stream with one call, received ``t_s`` seconds into the run."""
    call = {"tool_call_id": f"c{place}", "function_name": function, "arguments": arguments,
            "extra": {"t": f"2026-01-01T00:00:{t_s:06.3f}Z"}}  # fmt: skip
    return {"step_id": place, "source": "agent", "message": "", "tool_calls": [call]}


def _order(folder: Path, *steps: dict[str, object], calls: int = 1) -> list[tuple[str, str]]:
    """Source and name of the events of a stream beside train_mil calls that began at 1 s, 2 s, ..."""
    starts = [START | {"call_id": f"c{n}", "t": f"2026-01-01T00:00:{n + 1:02d}.000Z"} for n in range(calls)]
    write_lines(folder / "tools.jsonl", *starts)
    (folder / "trajectory.json").write_text(json.dumps({"steps": list(steps)}))
    found = events.load_events(folder)
    assert [event.seq for event in found] == list(range(len(found)))
    return [(event.source, event.name) for event in found]


TRAIN = {"step_id": "s4", "round_id": 0}


def test_what_the_stream_says_before_a_request_came_before_the_call(tmp_path: Path) -> None:
    """Received late on a busy machine: the call began at 1 s, the write before it was read at 1.03 s."""
    steps = [
        _shown(1, 1.02, "Read", file_path="TASK.md"),
        _shown(2, 1.03, "Write", file_path="update.json"),
        _shown(3, 1.04, "mcp__acp__train_mil", **TRAIN),
        _shown(4, 1.05, "Write", file_path="after.json"),
    ]
    assert _order(tmp_path, *steps) == [
        ("stream", "TASK.md"), ("stream", "update.json"), ("stream", "train_mil"),
        ("registry", "train_mil"), ("stream", "after.json")]  # fmt: skip
    found = {event.name: event.t for event in events.load_events(tmp_path)}
    begun = events.tool_calls(tmp_path)[0].t
    assert found["update.json"] == found["TASK.md"] == begun
    assert found["after.json"] > begun


@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        # The request was received before its call: nothing was late, the write is a later one.
        ([_shown(1, 0.9, "mcp__acp__train_mil", **TRAIN), _shown(2, 1.03, "Write", file_path="u")], 1),
        # The request shown is not the call's: another round, another tool, or one of two calls.
        ([_shown(1, 1.03, "Write", file_path="u"), _shown(2, 1.04, "mcp__acp__train_mil", round_id=1)], 1),
        ([_shown(1, 1.03, "Write", file_path="u"), _shown(2, 1.04, "mcp__acp__tile_slides", **TRAIN)], 1),
        ([_shown(1, 1.03, "Write", file_path="u"), _shown(2, 2.04, "mcp__acp__train_mil", **TRAIN)], 2),
        # Times of the harness's own: the write began after the request that stands behind it.
        ([_shown(1, 1.5, "Write", file_path="u"), _shown(2, 1.04, "mcp__acp__train_mil", **TRAIN)], 1),
    ],
)
def test_a_write_after_a_call_never_moves_before_it(
    tmp_path: Path, steps: list[dict[str, object]], calls: int
) -> None:
    order = _order(tmp_path, *steps, calls=calls)
    assert order.index(("registry", "train_mil")) < order.index(("stream", "u"))


def test_each_request_belongs_to_its_own_call(tmp_path: Path) -> None:
    steps = [
        _shown(1, 1.2, "mcp__acp__train_mil", **TRAIN),
        _shown(2, 1.3, "Write", file_path="between"),
        _shown(3, 2.2, "mcp__acp__train_mil", **TRAIN),
        _shown(4, 2.3, "Write", file_path="last"),
    ]
    named = [
        name
        for source, name in _order(tmp_path, *steps, calls=2)
        if (source, name) != ("stream", "train_mil")
    ]
    assert named == ["train_mil", "between", "train_mil", "last"]


def test_no_record_no_events(tmp_path: Path) -> None:
    assert events.load_events(tmp_path) == []


def test_stream_reads_writes_commands_and_messages(tmp_path: Path) -> None:
    steps = [
        {"step_id": 1, "source": "agent", "message": "hello", "timestamp": "2026-01-01T00:00:00Z"},
        {"step_id": 2, "source": "agent", "message": "", "tool_calls": [
            {"tool_call_id": "a", "function_name": "Read", "arguments": {"file_path": "TASK.md"}}]},
        {"step_id": 3, "source": "agent", "message": "", "tool_calls": [
            {"tool_call_id": "b", "function_name": "Bash", "arguments": {"command": ["ls", "-l"]}}]},
        {"step_id": 4, "source": "agent", "message": "", "tool_calls": "broken"},
    ]  # fmt: skip
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": steps}))
    found = [(event.kind, event.name) for event in events.load_events(tmp_path)]
    assert found == [("message", "agent"), ("read", "TASK.md"), ("command", "ls -l"), ("message", "agent")]


def test_manifest_round_trip_and_digest_without_times(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "plan").mkdir(parents=True)
    (workspace / "plan" / "plan.md").write_text("x")
    (workspace / "link").symlink_to("/etc/passwd")
    record.write_manifest(workspace, tmp_path / "manifest.csv")
    first = record.load_manifest(tmp_path)
    assert list(first) == ["plan/plan.md"]
    assert first["plan/plan.md"].size == 1
    later = {path: row._replace(mtime=row.mtime + 100) for path, row in first.items()}
    assert record.workspace_digest(first) == record.workspace_digest(later)
    changed = {path: row._replace(sha256="0" * 64) for path, row in first.items()}
    assert record.workspace_digest(first) != record.workspace_digest(changed)


def test_a_record_without_run_json_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: file does not exist"):
        record.load_run(tmp_path)


# -- names of real harnesses --


def named(*calls: dict) -> list[tuple[str, str]]:
    from acpbench.trajectory.events import _named

    return [found for call in calls for found in _named(call["f"], call.get("server"), call.get("a", {}))]


@pytest.mark.parametrize(
    ("function", "server", "arguments", "expected"),
    [
        ("Read", None, {"file_path": "/w/TASK.md"}, ("read", "/w/TASK.md")),
        ("read", None, {"filePath": "TASK.md"}, ("read", "TASK.md")),
        ("Write", None, {"file_path": "a"}, ("write", "a")),
        ("Edit", None, {"file_path": "a"}, ("write", "a")),
        ("MultiEdit", None, {"file_path": "a"}, ("write", "a")),
        ("NotebookEdit", None, {"notebook_path": "a"}, ("write", "a")),
        ("edit", None, {"filePath": "a"}, ("write", "a")),
        ("file_change", None, {"path": "a", "change": "add"}, ("write", "a")),
        ("Grep", None, {"pattern": "x", "path": "TASK.md"}, ("read", "TASK.md")),
        ("Grep", None, {"pattern": "x"}, ("tool", "Grep")),
        ("Glob", None, {"pattern": "*"}, ("tool", "Glob")),
        ("Skill", None, {"skill": "planning"}, ("tool", "Skill")),
        ("TodoWrite", None, {"todos": []}, ("think", "TodoWrite")),
        ("Bash", None, {"command": "cat TASK.md"}, ("command", "cat TASK.md")),
        ("bash", None, {"command": "tee a <<EOF"}, ("command", "tee a <<EOF")),
        ("command_execution", None, {"command": "/bin/bash -lc 'cat a; ls'"}, ("command", "cat a; ls")),
        (
            "command_execution",
            None,
            {"command": '/bin/bash -lc "sort \\"x\\" > a"'},
            ("command", 'sort "x" > a'),
        ),
        ("shell", None, {"command": ["bash", "-lc", "ls -l"]}, ("command", "ls -l")),
        ("shell", None, {"command": ["ls", "-l"]}, ("command", "ls -l")),
        ("exec_command", None, {"cmd": "ls"}, ("command", "ls")),
        ("mcp__acp__train_mil", None, {}, ("tool", "train_mil")),
        ("acp_train_mil", None, {}, ("tool", "train_mil")),
        ("train_mil", "acp", {}, ("tool", "train_mil")),
        ("train_mil", None, {}, ("tool", "train_mil")),
        ("mcp__evil__train_mil", None, {}, ("tool", "evil/train_mil")),
        ("train_mil", "evil", {}, ("tool", "evil/train_mil")),
        ("read", "fs", {"path": "TASK.md"}, ("tool", "fs/read")),
    ],
)
def test_a_call_has_one_kind_and_name(function: str, server: str, arguments: dict, expected: tuple) -> None:
    assert named({"f": function, "server": server, "a": arguments}) == [expected]


def test_a_patch_writes_each_file_it_names() -> None:
    patch = "*** Begin Patch\n*** Add File: a.py\n+x\n*** Update File: b/c.md\n@@\n*** End Patch"
    assert named({"f": "apply_patch", "a": {"input": patch}}) == [("write", "a.py"), ("write", "b/c.md")]


def test_a_registry_call_on_the_stream_keeps_its_step_round_and_end(tmp_path: Path) -> None:
    call = {
        "tool_call_id": "a",
        "function_name": "mcp__acp__train_mil",
        "arguments": {"seed": 1, "step_id": "s4", "round_id": 2},
        "extra": {"exit_status": "error", "t": "2026-01-01T00:00:05Z", "t_end": "2026-01-01T00:00:09Z"},
    }
    step = {
        "step_id": 1,
        "source": "agent",
        "message": "I train",
        "reasoning_content": "hm",
        "tool_calls": [call],
        "timestamp": "2026-01-01T00:00:01Z",
    }
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": [step]}))
    thought, said, asked = events.load_events(tmp_path)
    assert (thought.kind, thought.args) == ("think", {"text": "hm"})
    assert (said.kind, said.args) == ("message", {"text": "I train"})
    assert (asked.name, asked.step_id, asked.round_id, asked.exit_status) == ("train_mil", "s4", 2, "error")
    assert asked.t is not None and asked.t_end is not None
    assert (asked.t - (said.t or 0), asked.t_end - asked.t) == (4.0, 4.0)


def test_steps_that_carry_notices_are_no_messages(tmp_path: Path) -> None:
    notice = {"kind": "notice", "level": "error", "text": "429"}
    step = {"step_id": 1, "source": "system", "message": "429", "extra": {"acpbench": {"event": notice}}}
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": [step]}))
    assert events.load_events(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "expected"), [("hit", "hit"), ("miss", "miss"), (None, None), ("evil", None)]
)
def test_a_call_says_whether_the_store_was_hit(
    tmp_path: Path, said: str | None, expected: str | None
) -> None:
    write_lines(tmp_path / "tools.jsonl", START, {**END, "cache": said})
    assert events.load_events(tmp_path)[0].cache == expected
