"""What one task of a group leaves to the next: failures, repairs, configurations; no test value, no case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import write_json
from acpbench.harness.memory import (
    GIVEN_FILE,
    MAX_CARRIED,
    OWN_FILE,
    carried_memory,
    memory_digest,
    read_memory,
    record_entries,
    write_memory,
)
from acpbench.harness.registry import call_tool
from acpbench.trajectory.documents import MemoryEntry
from tests.harness.build import Side

INDEX = "outputs/round_0/features_index.csv"
GRID = {"spacing_um": 0.5, "tile_size_px": 224, "encoder": "color_stats"}


def record(side: Side, name: str, calls: list[tuple[str, dict[str, Any]]], notes: list[Any] = ()) -> Path:  # type: ignore[assignment]
    """A record whose calls were really made."""
    context = side.context(name)
    for tool, args in calls:
        call_tool(context, tool, args, step_id="s1", round_id=0)
    lines = [note if isinstance(note, str) else json.dumps(note) for note in notes]
    (context.workspace / OWN_FILE).write_text("".join(line + "\n" for line in lines))
    run = context.workspace.parent
    write_json(run / "run.json", {"task_id": side.task_id, "trajectory_id": f"group/{side.task_id}/1"})
    return run


def texts(entries: list[MemoryEntry]) -> list[str]:
    return [entry.text for entry in entries]


def test_a_failure_is_told_with_the_call_that_repaired_it(side: Side) -> None:
    run = record(
        side,
        "run",
        [
            ("read_table", {"path": "data/none.csv"}),
            ("read_table", {"path": "data/none.csv"}),
            ("read_table", {"path": "data/splits.csv", "n_rows": 2}),
            ("train_mil", {"features_index": "x.csv"}),
        ],
    )
    first, second = record_entries(run)
    assert first.kind == second.kind == "failure"
    assert first.text.startswith("read_table failed: data/none.csv: file does not exist")
    assert first.text.endswith('It worked with {"path": "data/splits.csv", "n_rows": 2}.')
    assert second.text.endswith("It was not repaired in that run.")
    assert (first.tool, first.step_id, first.round_id, first.source) == ("read_table", "s1", 0, "witnessed")
    assert (first.task_id, first.run) == (side.task_id, f"group/{side.task_id}/1")


def test_a_configuration_is_told_with_its_validation_value_and_no_test_value(side: Side) -> None:
    predictions = "outputs/round_0/predictions.csv"
    run = record(
        side,
        "run",
        [
            ("extract_features", GRID),
            ("train_mil", {"features_index": INDEX, "max_epochs": 2, "dropout": 0.5}),
            ("evaluate_predictions", {"predictions": predictions, "output": "outputs/round_0/metrics.json"}),
            ("evaluate_test", {"predictions": predictions}),
            ("evaluate_test", {"predictions": predictions}),
        ],
    )
    (entry,) = record_entries(run)
    assert entry.kind == "success"
    assert entry.args == GRID | {"max_epochs": 2, "dropout": 0.5}
    assert "on 3 validation patients" in entry.text
    assert '"dropout": 0.5' in entry.text
    receipt = json.loads((run / "receipts.jsonl").read_text().split("\n")[0])
    whole = json.dumps([one.model_dump() for one in record_entries(run)])
    assert receipt["receipt_id"] not in whole
    assert "test" not in whole.replace(str(run), "")


def test_a_call_cut_short_is_a_failure_too(side: Side) -> None:
    run = record(side, "run", [("read_table", {"path": "data/splits.csv"})])
    log = run / "tools.jsonl"
    log.write_bytes(log.read_bytes().split(b"\n")[0] + b"\n")
    (entry,) = record_entries(run)
    assert "did not end" in entry.text


def test_the_agents_notes_go_on_unless_they_name_a_case_or_the_test(side: Side) -> None:
    notes: list[Any] = [
        {"kind": "success", "text": "Mean pooling did as well as attention.", "round_id": 2, "extra": 1},
        {"kind": "failure", "text": "P03 is blurred and P09 is high."},
        {"kind": "failure", "text": "Slide S04, the pale one."},
        {"kind": "success", "text": "The test AUROC was 0.9."},
        {"kind": "success", "text": "evaluate_test answered 0.9."},
        {"kind": "advice", "text": "of another kind"},
        {"kind": "success", "text": ""},
        {"kind": "success", "text": "two\nlines"},
        "not json",
        "[1]",
        '{"kind": "success", "text": "' + "x" * 700 + '"}',
    ]
    run = record(side, "run", [], notes)
    entries = record_entries(run)
    assert texts(entries) == ["Mean pooling did as well as attention.", "two lines"]
    assert {entry.source for entry in entries} == {"agent"}
    assert entries[0].model_extra == {}


def test_notes_are_bounded_and_a_link_is_no_note(side: Side, tmp_path: Path) -> None:
    many = [{"kind": "success", "text": f"lesson {number}"} for number in range(500)]
    run = record(side, "run", [], many)
    assert len(record_entries(run)) == 40
    own = run / "workspace" / OWN_FILE
    own.unlink()
    (tmp_path / "elsewhere.jsonl").write_text(json.dumps(many[0]))
    own.symlink_to(tmp_path / "elsewhere.jsonl")
    assert record_entries(run) == []


def test_memory_grows_along_the_chain_and_forgets_the_oldest(side: Side) -> None:
    assert carried_memory(None) == []
    first = record(side, "one", [("read_table", {"path": "data/one.csv"})])
    write_memory(first / GIVEN_FILE, carried_memory(None))
    second = record(side, "two", [("read_table", {"path": "data/two.csv"})])
    given = carried_memory(first)
    write_memory(second / GIVEN_FILE, given)
    both = carried_memory(second)
    assert both[: len(given)] == given
    assert len(both) == 2
    long = [MemoryEntry(kind="success", text=f"lesson {number}") for number in range(MAX_CARRIED)]
    write_memory(second / GIVEN_FILE, long)
    kept = carried_memory(second)
    assert len(kept) == MAX_CARRIED
    assert texts(kept)[0] == "lesson 1"
    assert "two.csv" in texts(kept)[-1]


def test_a_lesson_learned_twice_is_carried_once_where_it_was_last_seen(side: Side) -> None:
    run = record(side, "one", [("read_table", {"path": "data/one.csv"})])
    (again,) = record_entries(run)
    other = MemoryEntry(kind="success", text="other")
    write_memory(run / GIVEN_FILE, [again.model_copy(update={"task_id": "earlier"}), other])
    assert carried_memory(run) == [other, again]


def test_what_the_agent_did_to_its_copy_changes_nothing(side: Side) -> None:
    run = record(side, "one", [])
    entry = MemoryEntry(kind="success", text="kept")
    write_memory(run / GIVEN_FILE, [entry])
    (run / "workspace" / "memory" / "group_memory.jsonl").write_text(
        '{"kind": "success", "text": "forged"}\n'
    )
    assert carried_memory(run) == [entry]


def test_files_and_digests_follow_the_entries(tmp_path: Path) -> None:
    entries = [MemoryEntry(kind="success", text="é\u2028ß", args={"lr": 0.1})]
    write_memory(tmp_path / "m.jsonl", entries)
    assert read_memory(tmp_path / "m.jsonl") == entries
    assert memory_digest(entries) == memory_digest(read_memory(tmp_path / "m.jsonl"))
    assert memory_digest(entries) != memory_digest([])
    assert read_memory(tmp_path / "none.jsonl") == []
    (tmp_path / "bad.jsonl").write_text('{"kind": "maybe", "text": "x"}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl"):
        read_memory(tmp_path / "bad.jsonl")
