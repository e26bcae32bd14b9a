"""The context file: found by the environment, checked, never trusted half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.harness.context import CONTEXT_VARIABLE, load_context
from tests.harness.build import Side


def test_it_is_found_by_argument_or_environment(
    side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = side.context()
    file = tmp_path / "c.json"
    file.write_text(made.model_dump_json())
    assert load_context(file) == made
    monkeypatch.setenv(CONTEXT_VARIABLE, str(file))
    assert load_context() == made
    assert load_context().task.task_id == side.task_id
    monkeypatch.delenv(CONTEXT_VARIABLE)
    with pytest.raises(InputError, match="no run context"):
        load_context()


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"labels": 3}'])
def test_another_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=r"c\.json"):
        load_context(tmp_path / "c.json")


@pytest.mark.parametrize(
    "key", ["reference/x.h5", "store:elsewhere/x", "store:reference/../x", "store:runs//etc/../..", "store:"]
)
def test_keys_that_are_none_or_leave_the_store_are_refused(side: Side, key: str) -> None:
    with pytest.raises(InputError):
        side.context().stored(key)


def test_slides_without_a_place_in_the_cohort_are_no_part_of_the_run(side: Side) -> None:
    context = side.context()
    extra = json.loads(json.dumps(side.rows[0])) | {"slide_id": "GHOST"}
    side.labels.write_text(
        side.labels.read_text() + ",".join(str(extra[name]) for name in side.rows[0]) + "\n"
    )
    rows = context.slide_rows()
    assert "GHOST" not in {row["slide_id"] for row in rows}
    assert rows[0]["path"] == "S00.svs"
    assert rows[0]["split"] == "train"
