"""The identity of a split, and the refusal to grade by another one."""

from __future__ import annotations

from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.mil.splits import split_id
from acpbench.trajectory.record import Digests, RunRecord, require_same_split

ROWS = [
    {"slide_id": "s1", "patient_id": "a", "split": "train", "label": "x"},
    {"slide_id": "s2", "patient_id": "b", "split": "test", "label": "y"},
]


def record(split: str | None) -> RunRecord:
    digests = Digests(task="0", skills="0", tools="0", workspace_initial="0", split=split)
    values: dict[str, Any] = {
        "trajectory_id": "g/t/1", "group": "g", "task_id": "t", "replicate": "1", "attempt": 1,
        "harness": {"name": "scripted", "version": "0"}, "label_access": "heldout", "run_status": "completed",
        "status_reason": "", "t_start": "", "t_end": "", "wall_s": 1, "sandbox": "unsandboxed",
        "package_version": "0", "seed": 0,
    }  # fmt: skip
    return RunRecord(**values, digests=digests)


def test_a_split_is_who_is_where_whatever_the_order_slides_and_labels() -> None:
    more = [{**ROWS[1], "label": "z", "slide_id": "s9"}, *reversed(ROWS)]
    assert split_id(more) == split_id(ROWS)
    assert split_id([ROWS[0], {**ROWS[1], "split": "validation"}]) != split_id(ROWS)
    assert split_id(ROWS[:1]) != split_id(ROWS)


def test_a_run_is_graded_by_its_own_split_alone() -> None:
    require_same_split("run", record(split_id(ROWS)), ROWS)
    moved = [ROWS[0], {**ROWS[1], "split": "train"}]
    with pytest.raises(InputError, match=r"run\.json.*g/t/1 ran on split"):
        require_same_split("run", record(split_id(ROWS)), moved)


@pytest.mark.parametrize("rows", [ROWS, []])
def test_a_record_without_a_recorded_split_is_let_through(rows: list[dict[str, str]]) -> None:
    require_same_split("run", record(None), rows)


def test_no_label_table_compares_nothing() -> None:
    require_same_split("run", record(split_id(ROWS)), [])


SOURCE = {"file_name": "x.jsonl", "source_format": "codex_exec", "sha256": "0" * 64, "size_bytes": 1,
          "importer_version": "0", "lines": 1, "kept": 1, "malformed": 0}  # fmt: skip
NOTHING = {"task": None, "skills": None, "tools": None, "workspace_initial": None}
UNKNOWN = {"t_start": None, "t_end": None, "wall_s": None, "seed": None, "label_access": "unknown"}


def test_an_imported_record_may_not_know_and_then_has_an_empty_window() -> None:
    known = record(None).model_dump(by_alias=True)
    imported = RunRecord.model_validate(known | UNKNOWN | {"digests": NOTHING, "imported": SOURCE})
    start, end = imported.window_s
    assert not start <= 0.0 <= end
    require_same_split("run", imported, ROWS)


@pytest.mark.parametrize("field", [*UNKNOWN, "digests"])
def test_a_collected_record_must_know(field: str) -> None:
    known = record(None).model_dump(by_alias=True)
    value = NOTHING if field == "digests" else UNKNOWN[field]
    with pytest.raises(ValueError, match="may be unknown in an imported record only"):
        RunRecord.model_validate(known | {field: value})
