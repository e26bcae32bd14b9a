"""An imported record goes through check, judge, adjudicate and score: what it cannot show is FAIL or null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from acpbench.cli.main import cli
from acpbench.core.files import read_jsonl, write_csv
from acpbench.trajectory.importer import import_file

TASK = "demo_pleomorphism"
LABELS = [
    {
        "slide_id": f"s{n}",
        "patient_id": f"p{n}",
        "fold": n % 3,
        "split": ("test", "validation", "train")[n % 3],
        "label": ("low", "high")[n % 2],
        "time": "",
        "event": "",
    }
    for n in range(12)
]
CLAUDE = [
    {"type": "system", "subtype": "init", "session_id": "s", "model": "m", "claude_code_version": "2"},
    {"type": "assistant", "message": {"id": "m1", "content": [
        {"type": "text", "text": "\udcb2 AUROC 0.99, a diagnosis"},
        {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "TASK.md"}},
        {"type": "tool_use", "id": "t2", "name": "mcp__acp__train_mil", "input": {"round_id": 0}}]}},
    {"type": "user", "timestamp": "2026-01-01T00:00:05Z", "message": {"content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": "\x00\x1b[31m"}]}},
    {"type": "result", "subtype": "error_max_turns", "is_error": True, "session_id": "s"},
]  # fmt: skip
ATIF = {"schema_version": "ATIF-v1.6", "agent": {"name": "other/agent <b>", "version": "1"}, "steps": [
    {"step_id": 1, "source": "agent", "message": "x", "tool_calls": [
        {"tool_call_id": "a", "function_name": "train_mil", "arguments": {}}]}]}  # fmt: skip


def run(*arguments: Any) -> None:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def grade(record: Path, repository: Path) -> tuple[list[dict], dict[str, dict]]:
    """Adjudicated rows and the score documents of one record, by the commands."""
    folder, task = record.parent, repository / "tasks" / "demo" / f"{TASK}.yaml"
    rubric = repository / "tasks" / "rubric.yaml"
    write_csv(folder / "labels.csv", list(LABELS[0]), LABELS)
    run("check", record, "--task", task, "--labels", folder / "labels.csv", "--rubric", rubric,
        "--output", folder / "checks.jsonl")  # fmt: skip
    run("judge", record, "--task", task, "--rubric", rubric, "--output", folder / "judgements.jsonl")
    run("adjudicate", "--checks", folder / "checks.jsonl", "--judgements", folder / "judgements.jsonl",
        "--output", folder / "adjudicated.jsonl")  # fmt: skip
    run("score", record, "--task", task, "--labels", folder / "labels.csv", "--adjudicated",
        folder / "adjudicated.jsonl", "--output-dir", folder, "--bootstrap", 5)  # fmt: skip
    documents = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return read_jsonl(folder / "adjudicated.jsonl"), documents


def check_graded(rows: list[dict], documents: dict[str, dict], status: str) -> None:
    assert documents["workflow_score.json"]["run_status"] == status
    # Nothing was left and nobody was watching: no checkpoint passes, none crashed its rule, none is left out.
    assert len(rows) > 100
    assert not {row["final_status"] for row in rows} & {"PASS", "PARTIAL"}
    assert not [row for row in rows if "cannot read" in row["why"]]
    assert documents["workflow_score.json"]["item_weighted"] == 0
    diagnostic = documents["diagnostic.json"]
    assert diagnostic["primary_value"] is None
    assert diagnostic["primary_note"]
    assert documents["r6.json"]["run_status"] == documents["cwas3.json"]["run_status"] == status


@pytest.mark.parametrize("kind", ["claude", "atif"])
def test_a_foreign_record_is_graded_without_a_crash(kind: str, repository: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    rows = CLAUDE if kind == "claude" else [ATIF]
    source.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    record = import_file(source, tmp_path / "t" / "run", group="g", task=TASK)
    graded = grade(tmp_path / "t" / "run", repository)
    check_graded(*graded, record.run_status)


SHARED = [
    "claude_code_session/daaain_edge_cases.jsonl",
    "codex_rollout/agentcmd_rollout-2025-09-24T20-12-23-01997ea4-a70d-7da3-8c20-c736db82a7c5.jsonl",
    "opencode_run/takopi_opencode_run_json.jsonl",
    "atif/polylogue_nemo_relay_atif_v1.7_real_redacted.json",
    "inspect_eval/log_read_sample.eval",
]


@pytest.mark.parametrize("name", SHARED)
def test_a_real_record_is_graded_without_a_crash(
    name: str, repository: Path, shared_data: Path, tmp_path: Path
) -> None:
    path = shared_data / "trajectories" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    record = import_file(path, tmp_path / "t" / "run", group="g", task=TASK)
    graded = grade(tmp_path / "t" / "run", repository)
    check_graded(*graded, record.run_status)


def test_a_record_of_another_task_is_not_graded(repository: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(json.dumps(ATIF))
    import_file(source, tmp_path / "run", task="lung_egfr")
    done = CliRunner().invoke(
        cli,
        ["judge", str(tmp_path / "run"), "--task", str(repository / "tasks" / "demo" / f"{TASK}.yaml"),
         "--rubric", str(repository / "tasks" / "rubric.yaml"), "--output", str(tmp_path / "j.jsonl")],
    )  # fmt: skip
    assert "is a record of task lung_egfr, not of demo_pleomorphism" in str(done.exception)
