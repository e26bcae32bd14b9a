"""Scoring a record in one pass: six files, the same bytes again, no crash on crashed or hostile records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from acpbench.cli.main import cli
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json
from acpbench.scores.bundle import FILES, score_trajectory
from tests.scores.record_builder import PREDICTION_COLUMNS, Record


@pytest.fixture
def score(repository: Path):
    def run(record: Record, output: Path, **kwargs) -> dict:
        return score_trajectory(
            record.run_dir,
            task_file=kwargs.pop("task_file", repository / "tasks" / "demo" / "demo_pleomorphism.yaml"),
            labels_file=kwargs.pop("labels_file", record.folder / "labels.csv"),
            adjudicated_file=record.folder / "adjudicated.jsonl",
            output_dir=output,
            n_resamples=20,
        )

    return run


def test_six_files_with_provenance(record, score, tmp_path) -> None:
    record.write()
    score(record, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)
    for name in FILES:
        if name.endswith(".json"):
            document = read_json(tmp_path / "out" / name)
            hashes = document["provenance"]["inputs_sha256"]
            assert set(hashes) == {"adjudicated", "labels", "task", "workspace"}
            assert (
                document["trajectory"] == "g1/demo_pleomorphism/1" and document["run_status"] == "completed"
            )
    rows = read_csv(tmp_path / "out" / "predictions.csv")
    assert len(rows) == 16 and rows[8]["y_true_reference"] == "low" and rows[8]["y_true_agent"] == ""
    assert [row["filter_reason"] for row in rows] == ["outside_headline_split"] * 8 + ["test_split"] * 8


def test_two_scorings_of_two_recordings_give_the_same_bytes(record, score, tmp_path) -> None:
    record.write()
    other = Record(tmp_path / "elsewhere").complete()
    # Another day, another folder: clocks and paths are in no score file.
    import tests.scores.record_builder as builder

    start, end = builder.START, builder.END
    builder.START, builder.END = start + 86_400.123, end + 86_400.123
    try:
        other.write()
    finally:
        builder.START, builder.END = start, end
    for one, folder in ((record, "a"), (record, "b"), (other, "c")):
        score(one, tmp_path / folder)
    for name in FILES:
        first = (tmp_path / "a" / name).read_bytes()
        assert first == (tmp_path / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes(), name


@pytest.mark.parametrize("status", ["timeout", "agent_error", "killed", "refused"])
def test_a_run_that_died_is_scored_with_nulls(status, record, score, tmp_path) -> None:
    record.files.clear()
    record.tables.clear()
    record.tool_outputs.clear()
    record.run_status = status
    record.write()
    (record.run_dir / "tools.jsonl").write_text('{"event":"start","call_id":"c1","tool":"tile_sl')
    (record.run_dir / "workspace").rmdir()
    documents = score(record, tmp_path / "out")
    assert documents["diagnostic.json"]["grade_status"] == "no_predictions"
    assert documents["diagnostic.json"]["primary_value"] is None
    assert documents["cwas3.json"]["score"] == 0.35 and documents["r6.json"]["grade_status"] == "no_evidence"
    assert {document["run_status"] for document in documents.values()} == {status}
    assert (tmp_path / "out" / "predictions.csv").read_text().startswith("trajectory,task_id,")


def test_hostile_files_are_findings(record, score, tmp_path) -> None:
    record.files |= {
        "reports/report.json": "[" * 100_000,
        "outputs/predictions_deep.json": "[" * 100_000,
        "outputs/predictions_huge_number.json": '[{"case_id": "p17", "y_pred": ' + "9" * 6000 + "}]",
        "outputs/predictions_binary.csv": bytes(range(256)) * 20,
        "outputs/predictions_bad.xlsx": b"PK\x03\x04 not a workbook",
        "outputs/metrics.json": '{"metrics": {"AUROC": NaN, "accuracy": 1e999, "F1": "x"}}',
        "plan/workflow_spec.json": '{"intent": 5, "steps": {"a": 1}, "evaluation": [1]}',
        "reflection/round_1/config_diff.json": '{"changed": [1, 2]}',
        "reflection/round_1/critique.json": '"text"',
    }
    formula = {
        "case_id": "=cmd()",
        "split": "test",
        "y_true": "",
        "y_pred": "=1+1",
        "prob_low": "nan",
        "prob_high": "inf",
    }
    record.tables["outputs/round_0/predictions.csv"] = (PREDICTION_COLUMNS, [formula])
    record.write()
    workspace = record.run_dir / "workspace"
    os.symlink("/etc/passwd", workspace / "outputs" / "predictions_link.csv")
    os.mkfifo(workspace / "outputs" / "predictions_pipe.csv")
    documents = score(record, tmp_path / "out")
    listed = {row["path"]: row["reason"] for row in documents["diagnostic.json"]["candidates"]}
    assert listed["outputs/predictions_deep.json"] == listed["outputs/predictions_bad.xlsx"] == "unreadable"
    assert not {"outputs/predictions_link.csv", "outputs/predictions_pipe.csv"} & set(listed)
    for name in FILES:
        if name.endswith(".json"):
            json.loads((tmp_path / "out" / name).read_text(), parse_constant=lambda text: pytest.fail(text))


def test_without_labels_nothing_is_compared(record, score, tmp_path) -> None:
    record.write()
    documents = score(record, tmp_path / "out", labels_file=None)
    assert documents["diagnostic.json"]["grade_status"] == "no_reference_pairs"
    assert "labels" not in documents["diagnostic.json"]["provenance"]["inputs_sha256"]


def test_a_record_of_another_task_is_refused(record, score, tmp_path, repository) -> None:
    record.write()
    with pytest.raises(InputError, match="demo_pleomorphism"):
        score(record, tmp_path / "out", task_file=repository / "tasks" / "demo" / "demo_survival.yaml")
    assert not (tmp_path / "out").exists()


def test_command_line(record, tmp_path, repository) -> None:
    record.write()
    arguments = [
        "score", str(record.run_dir), "--task", str(repository / "tasks/demo/demo_pleomorphism.yaml"),
        "--labels", str(record.folder / "labels.csv"),
        "--adjudicated", str(record.folder / "adjudicated.jsonl"),
        "--output-dir", str(tmp_path / "out"), "--bootstrap", "0",
    ]  # fmt: skip
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output == (
        "g1/demo_pleomorphism/1 (completed): item_weighted 1.000, AUROC 0.875, CWAS-3 1.000, R6 1.000\n"
    )
    assert read_json(tmp_path / "out" / "diagnostic.json")["primary_interval"] is None


VERDICTS = {
    "workflow_score.json": ("item_weighted", "stage_mean"),
    "diagnostic.json": ("accuracy", "primary_value", "primary_interval"),
    "cwas3.json": ("score",),
    "r6.json": ("score",),
    "reflection.json": ("evidence_score", "evidence_class", "direction"),
}


def leaves(value: object) -> list[object]:
    return (
        [leaf for entry in value.values() for leaf in leaves(entry)] if isinstance(value, dict) else [value]
    )


def test_a_run_that_the_infrastructure_broke_is_counted_and_not_graded(record, score, tmp_path) -> None:
    record.write()
    whole = score(record, tmp_path / "completed")
    run_file = record.run_dir / "run.json"
    run_file.write_text(json.dumps(read_json(run_file) | {"run_status": "infra_error"}))
    withheld = score(record, tmp_path / "broken")
    for name, fields in VERDICTS.items():
        assert withheld[name].keys() == whole[name].keys() | {"reason"}, name
        assert withheld[name]["grade_status"] == withheld[name]["run_status"] == "infra_error", name
        assert "infrastructure" in withheld[name]["reason"], name
        for field in fields:
            assert withheld[name][field] is None, (name, field)
    assert whole["workflow_score.json"]["item_weighted"] is not None
    assert set(leaves(withheld["workflow_score.json"]["passes"])) == {None}
    assert set(leaves(withheld["cwas3.json"]["components"])) == {None}
    # What was left behind stays readable: facts are kept, verdicts are not.
    assert withheld["diagnostic.json"]["funnel"] == whole["diagnostic.json"]["funnel"]


def test_a_run_that_the_agent_broke_is_graded(record, score, tmp_path) -> None:
    record.run_status = "killed"
    record.write()
    assert score(record, tmp_path / "out")["cwas3.json"]["score"] is not None
