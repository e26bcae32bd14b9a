"""What a run starts from, and above all what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_jsonl, walk_files
from acpbench.harness.mounts import SLIDES_FOLDER
from acpbench.harness.workspace import LAYOUTS, contents_digest, skills_digest
from acpbench.trajectory.documents import DOCUMENTS, MemoryEntry, TaskBrief
from tests.harness.build import REPOSITORY, Side


@pytest.mark.parametrize("task_id", ["demo_pleomorphism", "demo_gland_grade", "demo_survival"])
def test_a_heldout_workspace_has_no_label_of_a_test_patient_in_any_byte(tmp_path: Path, task_id: str) -> None:
    side = Side(tmp_path, task_id)
    workspace = side.workspace(skills=True)
    tested = [row for row in side.rows if row["split"] == "test"]
    assert len(tested) >= 6
    for relative, path in walk_files(workspace):
        data = path.read_bytes()
        for row in tested:
            # A label is leaked by a line that holds the patient or slide together with it.
            for line in data.splitlines():
                if row["patient_id"].encode() not in line and row["slide_id"].encode() not in line:
                    continue
                cells = line.decode().split(",")
                assert row["label"] == "" or row["label"] not in cells, f"{relative}: {line!r}"
                assert set(cells) <= {row["slide_id"], row["patient_id"], "test", ""}, f"{relative}: {line!r}"
            if row["time"]:
                assert row["time"].encode() not in data, relative


def test_labels_of_training_and_validation_patients_are_there(side: Side) -> None:
    truth = {row["slide_id"]: row for row in side.rows}
    shown = read_csv(side.workspace() / "data" / "slide_manifest.csv")
    assert len(shown) == len(side.rows)
    for row in shown:
        known = truth[row["slide_id"]]
        assert row["label"] == ("" if known["split"] == "test" else known["label"])
        assert (row["patient_id"], row["split"]) == (known["patient_id"], known["split"])


def test_the_search_above_would_find_the_labels_of_open_access(side: Side) -> None:
    shown = read_csv(side.workspace(label_access="open") / "data" / "slide_manifest.csv")
    labels = {row["slide_id"]: row["label"] for row in side.rows}
    assert {row["slide_id"]: row["label"] for row in shown} == labels


def test_survival_columns_are_time_and_event(tmp_path: Path) -> None:
    shown = read_csv(Side(tmp_path, "demo_survival").workspace() / "data" / "slide_manifest.csv")
    assert list(shown[0]) == ["slide_id", "patient_id", "split", "time", "event"]
    assert all((row["time"] == "") == (row["split"] == "test") for row in shown)
    assert all((row["event"] == "") == (row["split"] == "test") for row in shown)


def test_slides_that_are_not_usable_are_not_shown(side: Side) -> None:
    rows = read_csv(side.slides_csv)
    side.slides_csv.write_text(
        "slide_id\n" + "".join(row["slide_id"] + "\n" for row in rows if row["slide_id"] != "S03")
    )
    shown = {row["slide_id"] for row in read_csv(side.workspace() / "data" / "slide_manifest.csv")}
    assert shown == {row["slide_id"] for row in side.rows} - {"S03"}


def test_task_text_states_endpoint_boundary_classes_metric_and_budget(side: Side) -> None:
    text = (side.workspace() / "TASK.md").read_text()
    assert f"`{SLIDES_FOLDER}`" in text
    boundary = side.task.claim_boundary_statement
    for part in (side.task.target, boundary, "low, high", "AUROC", "test labels are held back",
                 "answers `evaluate_test` 1 time(s)"):  # fmt: skip
        assert part in text
    assert "{" not in text
    opened = (side.workspace("open", label_access="open") / "TASK.md").read_text()
    assert "held back" not in opened
    assert "All labels are visible" in opened


def test_folders_schemas_registry_and_task_are_in_place(side: Side) -> None:
    workspace = side.workspace()
    schemas = {path.name for path in (workspace / "schemas").iterdir()}
    assert schemas == {f"{name}.schema.json" for name in DOCUMENTS}
    for folder in ("plan", "scripts", "outputs/round_0", "reports", "reflection", "logs", "memory"):
        assert (workspace / folder).is_dir()
    assert json.loads((workspace / "task.json").read_text())["task_id"] == "demo_pleomorphism"
    splits = {row["patient_id"]: row["split"] for row in read_csv(workspace / "data" / "splits.csv")}
    assert splits == {row["patient_id"]: row["split"] for row in side.rows}


def test_skills_come_and_go_with_the_setting(side: Side) -> None:
    assert not (side.workspace("without") / "skills").exists()
    with_skills = side.workspace("with", skills=True) / "skills"
    copied = {relative: path.read_bytes() for relative, path in walk_files(with_skills)}
    source = {relative: path.read_bytes() for relative, path in walk_files(REPOSITORY / "skills")}
    assert copied == source
    assert any(name.endswith("SKILL.md") for name in copied)
    assert skills_digest(None) != skills_digest(REPOSITORY / "skills")


def test_two_workspaces_of_one_study_are_the_same_bytes(side: Side) -> None:
    assert contents_digest(side.workspace("a")) == contents_digest(side.workspace("b"))
    opened = side.workspace("c", label_access="open")
    assert contents_digest(opened) != contents_digest(side.root / "a" / "workspace")


def test_an_existing_workspace_is_not_written_over(side: Side) -> None:
    side.workspace()
    with pytest.raises(InputError, match="exists already"):
        side.workspace()


@pytest.mark.parametrize("harness", list(LAYOUTS))
def test_skills_are_mirrored_where_the_harness_looks_and_nowhere_else(side: Side, harness: str) -> None:
    workspace = side.workspace(harness, skills=True, harness=harness)
    layout = LAYOUTS[harness]
    source = {relative: path.read_bytes() for relative, path in walk_files(REPOSITORY / "skills")}
    mirrors = [
        name
        for name in (".agents/skills", ".claude/skills", ".opencode/skills")
        if (workspace / name).exists()
    ]
    # OpenCode reads all three: a second one would offer every skill twice.
    assert mirrors == ([] if layout.skills is None else [layout.skills])
    for folder in ["skills", *mirrors]:
        copied = {relative: path.read_bytes() for relative, path in walk_files(workspace / folder)}
        assert copied == source


def test_each_family_finds_its_own_folder_and_instruction() -> None:
    assert LAYOUTS["claude_code"] == (".claude/skills", "CLAUDE.md")
    assert LAYOUTS["codex"] == LAYOUTS["opencode"] == (".agents/skills", "AGENTS.md")
    assert LAYOUTS["scripted"] == (None, None)


@pytest.mark.parametrize("harness", list(LAYOUTS))
def test_a_standing_instruction_is_a_pointer_to_the_task_and_the_same_for_all(
    side: Side, harness: str
) -> None:
    workspace = side.workspace(harness, harness=harness)
    found = [name for name in ("AGENTS.md", "CLAUDE.md") if (workspace / name).exists()]
    assert found == [name for name in [LAYOUTS[harness].instructions] if name]
    for name in found:
        text = (workspace / name).read_text()
        assert "TASK.md" in text
        assert len(text) < 200


def test_the_task_text_names_the_way_to_the_tools(side: Side) -> None:
    shell = (side.workspace("a") / "TASK.md").read_text()
    assert "MCP" not in shell and "acp-bench tool call" in shell
    served = (side.workspace("b", harness="codex", skills=True) / "TASK.md").read_text()
    assert "MCP server `acp`" in served and "skills/" in served
    assert "skills/" not in (side.workspace("c", harness="codex") / "TASK.md").read_text()


def test_an_unknown_harness_is_refused_before_anything_is_made(side: Side) -> None:
    with pytest.raises(InputError, match="claude_code"):
        side.workspace("x", harness="claude")
    assert not (side.root / "x").exists()


def test_the_brief_says_goal_endpoint_boundary_and_outputs_beside_the_task(side: Side) -> None:
    brief = json.loads((side.workspace() / "task.json").read_text())
    checked = TaskBrief.model_validate(brief)
    assert checked.endpoint == side.task.target
    assert side.task.target in checked.goal
    assert checked.claim_boundary.type == side.task.claim_boundary_type
    assert checked.claim_boundary.statement == side.task.claim_boundary_statement
    assert (checked.label_access, checked.test_evaluations, checked.max_rounds) == ("heldout", 1, 5)
    assert {"plan/workflow_spec.json", "reports/report.json"} <= set(checked.expected_outputs)
    task = side.task.model_dump(mode="json")
    assert {name: brief[name] for name in task} == task


def test_memory_is_there_when_the_setting_is_group_even_if_it_is_empty(side: Side) -> None:
    without = side.workspace("none")
    assert not (without / "memory" / "group_memory.jsonl").exists()
    assert "group_memory" not in (without / "TASK.md").read_text()
    first = side.workspace("first", memory=[])
    assert (first / "memory" / "group_memory.jsonl").read_bytes() == b""
    entry = MemoryEntry(kind="failure", text="a lesson", source="witnessed")
    second = side.workspace("second", memory=[entry])
    assert read_jsonl(second / "memory" / "group_memory.jsonl") == [
        {"kind": "failure", "text": "a lesson", "source": "witnessed"}
    ]
    assert "group_memory.jsonl" in (second / "TASK.md").read_text()
    assert len({contents_digest(folder) for folder in (without, first, second)}) == 3


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_every_schema_of_a_workspace_is_a_valid_schema(side: Side, name: str) -> None:
    schema = json.loads((side.workspace() / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_the_schemas_of_a_workspace_are_the_published_ones(side: Side, name: str) -> None:
    published = json.loads((REPOSITORY / "workflow" / "schemas" / f"{name}.schema.json").read_text())
    assert published.pop("$schema") == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads((side.workspace() / "schemas" / f"{name}.schema.json").read_text()) == published
