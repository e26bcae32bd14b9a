"""The engine on crashed, empty and hostile records, and its command."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from acpbench.cli.check import check as command
from acpbench.core.errors import InputError
from acpbench.core.files import write_csv
from acpbench.rubric.engine import check_run
from acpbench.rubric.evidence import Evidence, resolve_ref
from tests.rubric.workspace import (
    END,
    RunBuilder,
    given_files,
    good_run,
    label_rows,
    report_document,
    report_text,
)

PASSING = {"PASS", "PARTIAL"}


def test_nothing_passes_in_an_empty_workspace(tmp_path: Path, task, check) -> None:
    rows = check(RunBuilder(tmp_path / "run", task))
    assert {row["status"] for row in rows.values()} == {"FAIL"}
    assert all(row["evidence"] == [] for row in rows.values())


def test_nothing_passes_on_the_given_files_alone(tmp_path: Path, task, check) -> None:
    run = RunBuilder(tmp_path / "run", task)
    given_files(run)
    assert {row["status"] for row in check(run).values()} == {"FAIL"}


def test_a_report_alone_earns_only_what_is_in_the_report(tmp_path: Path, task, check) -> None:
    run = RunBuilder(tmp_path / "run", task)
    given_files(run)
    run.write("reports/report.md", report_text(task), 500)
    run.write("reports/report.json", report_document(task), 510)
    passing = {name for name, row in check(run).items() if row["status"] in PASSING | {"SKIP"}}
    assert passing == {"D1.d1", "D4.d1", "D4.d2", "D4.d3", "D4.d4", "D5.d1", "D5.d2", "D5.d3"}


def test_a_crash_leaves_a_start_without_an_end(tmp_path: Path, task, check) -> None:
    run = RunBuilder(tmp_path / "run", task)
    given_files(run)
    run.run_status = "killed"
    run.call("inspect_slides", "s1", 0, 50)
    run.call("train_mil", "s4", 0, 60, status=None)
    run_dir = run.finish()
    (run_dir / "trajectory.json").unlink()
    rows = {row["item_id"]: row for row in check_run(run_dir, task, label_rows(), _rubric(), strict=True)}
    assert {row["status"] for row in rows.values()} == {"FAIL"}
    assert "1 of 2 calls" in rows["A1.d2"]["reason"]
    assert "no changed retry" in rows["A4.d2"]["reason"]


def _rubric():
    from acpbench.rubric.catalogue import load_rubric

    return load_rubric(Path(__file__).resolve().parents[2] / "tasks" / "rubric.yaml")


def test_two_executions_give_the_same_rows_without_paths_or_times(tmp_path: Path, task) -> None:
    texts = []
    for name in ("one", "two"):
        run_dir = good_run(tmp_path / name / "run", task).finish()
        rows = check_run(run_dir, task, label_rows(), _rubric(), strict=True)
        texts.append("\n".join(json.dumps(row) for row in rows))
        assert all(resolve_ref(run_dir, ref) is not None for row in rows for ref in row["evidence"])
    assert texts[0] == texts[1]
    assert str(tmp_path) not in texts[0] and "2025-" not in texts[0]


def test_rows_have_the_contract_fields_in_catalogue_order(run: RunBuilder, task) -> None:
    rubric = _rubric()
    rows = check_run(run.finish(), task, label_rows(), rubric)
    assert list(rows[0]) == [
        "trajectory", "item_id", "checkpoint", "stage", "subcapability", "kind", "round", "critical",
        "weight", "rule", "status", "evidence", "reason",
    ]  # fmt: skip
    order = [point.id for point in rubric.checkpoints]
    positions = [order.index(row["checkpoint"]) for row in rows]
    assert positions == sorted(positions)
    assert rows[0]["trajectory"] == "g/bladder_tp53/1"


def test_a_checkpoint_without_a_rule_is_not_implemented(run: RunBuilder, task) -> None:
    rubric = _rubric()
    unknown = rubric.checkpoints[-1].model_copy(
        update={"id": "P1.d99", "kind": "deterministic", "per_round": False, "condition": None}
    )
    rows = check_run(run.finish(), task, label_rows(), rubric.model_copy(update={"checkpoints": [unknown]}))
    assert [row["status"] for row in rows] == ["not_implemented"]


def test_outputs_outside_the_window_do_not_count(run: RunBuilder, check) -> None:
    for path in run.workspace.rglob("*"):
        if path.is_file():
            run.touch(path.relative_to(run.workspace).as_posix(), END + 60)
    rows = check(run)
    # Those two rest on witnessed events alone.
    file_backed = {
        name for name, row in rows.items() if row["status"] in PASSING and name not in ("A1.d2", "A3.d1")
    }
    assert file_backed == set()


def test_a_file_changed_after_the_record_does_not_count(run: RunBuilder, task) -> None:
    run_dir = run.finish()
    report = run.workspace / "reports/report.json"
    report.write_text(report.read_text().replace('"round_selected": 1', '"round_selected": 2'))
    rows = {row["item_id"]: row for row in check_run(run_dir, task, label_rows(), _rubric(), strict=True)}
    assert rows["D1.d3"]["status"] == "FAIL"
    assert "manifest" in rows["D1.d3"]["reason"]


HOSTILE = {
    "deep JSON": b"[" * 200_000,
    "NaN": b'{"intent": NaN, "steps": [{"id": NaN, "inputs": {"a": 1}}], "metrics": {"AUROC": NaN}, '
    b'"rounds": [1, {}], "n": 1e999}',
    "wrong shapes": b'{"intent": [], "steps": {"a": 1}, "params": 3, "metrics": [], "headline": "x", '
    b'"claims": [null, 3], "artifacts": [{}, null, "../../etc/passwd", "/etc/passwd"], '
    b'"weakest_link": 4, "changed": 3, "rounds": {"a": 1}, '
    b'"round_selected": "1", "intervals": 3, "per_class": [1], '
    b'"primary_metric": {"a": []}, "split": ["validation"]}',
    "big integers": b'{"n": ' + b"9" * 6_000 + b"}",
    "huge numbers": b'{"round_id": 1e400, "seed": '
    + b"9" * 400
    + b', "selected_round": -1e300, "stop_reason": "x", "rounds": []}',
    "binary": bytes(range(256)) * 40,
    "array": b"[1, 2, 3]",
    "long line": b"case_id,split\n" + b"x" * 10_000_000,
    "YAML aliases": b"a: &a [x,x]\nb: &b [*a,*a,*a]\nc: &c {k: *b, l: *b}\nd: &d {k: *c, l: *c}\n"
    b"mil: {dropout: *d}\n",
    "empty": b"",
    "repeated header": b"case_id,case_id,split\n1,2,3\n",
    "ragged": b"case_id,split,y_true,y_pred\nV1,validation,a,b,c,d\n",
    "lone surrogate": b'{"task_id": "\\ud800", "text": "\\ud800"}\n',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_content_never_raises_and_never_passes_what_it_replaces(
    run: RunBuilder, check, content: bytes
) -> None:
    for path in sorted(run.workspace.rglob("*")):
        relative = path.relative_to(run.workspace).as_posix()
        if path.is_file() and not relative.startswith(("data/", "registry", "task", "skills")):
            run.write(relative, content, path.stat().st_mtime - 1_750_000_000)
    (run.workspace / "registry.json").write_bytes(content)
    (run.workspace / "task.json").write_bytes(content)
    rows = check(run)
    earned = {name for name, row in rows.items() if row["status"] == "PASS"}
    content_free = {
        "A1.d2", "A3.d1", "A3.d2", "A4.d1", "A5.d5", "A5.d6", "A6.d4", "A6.d5", "P1.d3", "D4.d4",
        "R1.d1", "R2.d1", "D1.d1",
        "A2.d1", "P4.d4", "R5.d2",
    }  # fmt: skip
    assert {name for name in earned if "@" not in name} <= content_free


def test_links_pipes_and_folders_are_no_evidence(tmp_path: Path, run: RunBuilder, check) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text((run.workspace / "reports/report.json").read_text())
    for path in ("reports/report.json", "plan/plan.md", "outputs/round_0/config.yaml"):
        run.remove(path)
    (run.workspace / "reports/report.json").symlink_to(outside)
    os.mkfifo(run.workspace / "plan/plan.md")
    (run.workspace / "outputs/round_0/config.yaml").mkdir()
    rows = check(run)
    assert [rows[name]["status"] for name in ("D1.d1", "P1.d3", "A2.d1")] == ["FAIL"] * 3


def test_a_huge_sparse_file_is_not_read_whole(run: RunBuilder, check, monkeypatch) -> None:
    with open(run.workspace / "outputs/round_0/metrics.json", "r+b") as handle:
        handle.truncate(300 * 1024 * 1024)
    run.touch("outputs/round_0/metrics.json", 112)
    rows = check(run)
    assert rows["D2.d1"]["status"] == "FAIL"
    assert "larger than" in rows["D2.d1"]["reason"]


def test_an_unforeseen_error_fails_the_item_and_not_the_study(run: RunBuilder, task, monkeypatch) -> None:
    from acpbench.rubric.case import RULES

    def broken(case):
        raise KeyError("x")

    monkeypatch.setitem(RULES, "P1.d1", broken)
    rows = check_run(run.finish(), task, label_rows(), _rubric())
    assert rows[0]["status"] == "FAIL"
    assert "KeyError" in rows[0]["reason"]


# -- citations --


def test_citations_resolve_inside_the_record_only(run: RunBuilder, tmp_path: Path) -> None:
    run_dir = run.finish()
    (tmp_path / "secret").write_text("secret")
    (run.workspace / "link").symlink_to(tmp_path / "secret")
    assert resolve_ref(run_dir, "plan/plan.md#L1") == "# Plan"
    assert resolve_ref(run_dir, "plan/plan.md#L1-L2").startswith("# Plan\nPredict TP53")
    assert resolve_ref(run_dir, "outputs/round_0/metrics.json#/metrics/AUROC") == "0.75"
    assert resolve_ref(run_dir, "outputs/round_0/config.yaml#/mil/dropout") == "0.25"
    assert "inspect_slides" in resolve_ref(run_dir, "run:tools.jsonl#L1")
    assert resolve_ref(run_dir, "run:trajectory.json#/steps/0/step_id") == "1"
    assert resolve_ref(run_dir, "logs/run.log") == "all steps ran\n"
    for ref in (
        "plan/plan.md#L0", "plan/plan.md#L99", "plan/plan.md#L3-L2", "plan/plan.md#x", "plan/none.md", "plan",
        "outputs/round_0/metrics.json#/metrics/none", "../run.json", "/etc/passwd",
        "run:../secret", "link", "link#L1",
        "", "#L1", "run:", "a\0b", "workspace/plan/plan.md",
    ):  # fmt: skip
        assert resolve_ref(run_dir, ref) is None, ref


def test_a_reverted_round_is_compared_with_the_state_that_was_kept(run: RunBuilder, task) -> None:
    evidence = Evidence(run.finish(), task, label_rows())
    assert evidence.bases(1) == [0]
    assert evidence.bases(2) == [1]
    assert evidence.bases(3) == [2, 1]  # round 2 was reverted, round 1 kept


def test_a_record_without_run_json_is_no_record(run: RunBuilder, task) -> None:
    run_dir = run.finish()
    (run_dir / "run.json").unlink()
    with pytest.raises(InputError, match="does not exist"):
        check_run(run_dir, task, label_rows(), _rubric())


# -- command --


def test_the_command_writes_the_rows(run: RunBuilder, repository: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    write_csv(labels, list(label_rows()[0]), label_rows())
    output = tmp_path / "checks.jsonl"
    arguments = [
        str(run.finish()),
        "--task", str(repository / "tasks/bladder_tp53.yaml"),
        "--labels", str(labels),
        "--rubric", str(repository / "tasks/rubric.yaml"),
        "--output", str(output),
    ]  # fmt: skip
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 136
    assert result.output.startswith("136 items: 45 FAIL, 90 PASS, 1 SKIP")
    with open(labels) as handle:
        assert len(list(csv.reader(handle))) == 11
    labels.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="patient_id"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
