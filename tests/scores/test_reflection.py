"""Reflection evidence and direction, on a hand-made record: AUROC 11/16, 13/16, 3/16 by round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from acpbench.core.files import sha256_bytes
from acpbench.scores.reflection import RoundValue, comparable, direction, metric_order, reflection_score
from acpbench.tasks.catalogue import load_task
from tests.adjudication.build import Record, diligent, label_rows


@pytest.fixture(scope="module")
def task(repository: Path):
    return load_task(repository / "tasks" / "demo" / "demo_pleomorphism.yaml")


@pytest.fixture
def record(tmp_path, task) -> Record:
    return diligent(tmp_path / "run", task)


def test_complete_rounds(record, task):
    score = reflection_score(record.close(), task, label_rows())
    assert score["evidence_score"] == 1.0 and score["evidence_class"] == "strong"
    assert set(score["parts"].values()) == {0.2} and score["n_rounds"] == 2
    assert score["metric"] == "AUROC"
    assert score["first"] == {"round": 0, "value": 0.6875}
    assert score["final"] == {"round": 2, "value": 0.1875}
    assert (score["delta"], score["direction"]) == (-0.5, "worse")
    assert score["values"][1] == {"round": 1, "value": 0.8125, "source": "recomputed", "n": 8}


def test_values_come_from_predictions_not_from_what_metrics_files_say(record, task):
    for folder in ("outputs/round_0", "reflection/round_1", "reflection/round_2"):
        record.put(f"{folder}/metrics.json", {"split": "validation", "n": 8, "metrics": {"AUROC": 0.99}})
    score = reflection_score(record.close(), task, label_rows())
    assert [value["value"] for value in score["values"]] == [0.6875, 0.8125, 0.1875]


def test_without_reference_labels_values_are_claims_and_named_so(record, task):
    score = reflection_score(record.close(), task, None)
    assert {value["source"] for value in score["values"]} == {"claimed"}
    assert score["delta"] == pytest.approx(-0.5) and "claimed" in score["reason"]


def test_no_round(tmp_path, task):
    record = Record(tmp_path / "run", task)
    record.plan()
    record.prepare()
    record.fit(0, 0.25)
    score = reflection_score(record.close("timeout"), task, label_rows())
    assert score["evidence_score"] == 0.0 and score["evidence_class"] == "weak"
    assert score["direction"] == "not_comparable" and score["delta"] is None and score["final"] is None
    assert score["reason"] == "no reflection round left an output"
    assert score["run_status"] == "timeout" and score["grade_status"] == "scored"


def test_a_round_on_paper_only(record, task):
    """Summaries without a rerun: no witnessed call, the same configuration, the same predictions."""
    record.tool_rows[:] = [r for r in record.tool_rows if r.get("round_id") == 0 or r["event"] == "end"]
    for name in ("config.yaml", "predictions.csv", "metrics.json"):
        text = (record.workspace / "outputs/round_0" / name).read_text()
        for k in (1, 2):
            record.put(f"reflection/round_{k}/{name}", text.replace("round_id: 0", f"round_id: {k}"))
    score = reflection_score(record.close(), task, label_rows())
    assert score["parts"] == {
        "real_round": 0.0,
        "summary": 0.2,
        "config_change": 0.0,
        "rerun_output": 0.0,
        "comparable_metrics": 0.2,
    }
    assert score["evidence_score"] == 0.4 and score["evidence_class"] == "partial"
    assert (score["delta"], score["direction"]) == (0.0, "unchanged")


def test_reading_a_table_is_no_real_round(record, task):
    kept = {
        r["call_id"]
        for r in record.tool_rows
        if r["event"] == "start" and (r["round_id"] == 0 or r["tool"] == "read_table")
    }
    record.tool_rows[:] = [r for r in record.tool_rows if r["call_id"] in kept]
    assert reflection_score(record.close(), task, label_rows())["parts"]["real_round"] == 0.0


def test_rounds_on_other_cases_are_not_comparable(record, task):
    for k, keep in ((1, 6), (2, 7)):
        path = record.workspace / f"reflection/round_{k}/predictions.csv"
        lines = path.read_text().splitlines()
        record.put(f"reflection/round_{k}/predictions.csv", "\n".join(lines[: keep + 1]) + "\n")
    score = reflection_score(record.close(), task, label_rows())
    assert score["direction"] == "not_comparable" and "same split and n" in score["reason"]
    assert score["parts"]["comparable_metrics"] == 0.0
    assert [value["n"] for value in score["values"]] == [8, 6, 7]


def test_a_second_family_serves_when_the_first_has_no_pair(record, task):
    """Without probabilities there is no AUROC, AUPRC; F1 is the next family."""
    for folder in ("outputs/round_0", "reflection/round_1", "reflection/round_2"):
        path = record.workspace / folder / "predictions.csv"
        lines = [",".join(line.split(",")[:4]) for line in path.read_text().splitlines()]
        record.put(f"{folder}/predictions.csv", "\n".join(lines) + "\n")
    score = reflection_score(record.close(), task, label_rows())
    assert score["metric"] == "F1" and score["direction"] != "not_comparable"


def test_config_change_needs_a_changed_value_not_a_changed_round_number(record, task):
    for k in (1, 2):
        path = f"reflection/round_{k}/config.yaml"
        config = yaml.safe_load((record.workspace / "outputs/round_0/config.yaml").read_text())
        record.put(path, yaml.safe_dump(config | {"round_id": k}))
    assert reflection_score(record.close(), task, label_rows())["parts"]["config_change"] == 0.0


@pytest.mark.parametrize(
    ("metric", "delta", "expected"),
    [
        ("AUROC", 0.0011, "improved"),
        ("AUROC", 0.701 - 0.700, "unchanged"),
        ("AUROC", -0.001, "unchanged"),
        ("AUROC", -0.0011, "worse"),
        ("MAE_ranks", -0.2, "improved"),
        ("brier", 0.01, "worse"),
        ("c_index", 0.01, "improved"),
    ],
)
def test_direction(metric, delta, expected):
    assert direction(metric, delta) == expected


def test_comparable_wants_one_source_split_and_n():
    def value(k, source="recomputed", split="validation", n=8):
        return RoundValue(k, 0.5, source, split, n)

    assert comparable([value(0)]) == []
    assert comparable([value(0), value(1, n=7)]) == []
    assert comparable([value(0), value(1, source="claimed")]) == []
    assert [v.round for v in comparable([value(2), value(0, n=7), value(1)])] == [1, 2]
    assert [v.round for v in comparable([value(0), value(2, n=9), value(1), value(3, n=9)])] == [0, 1]


def test_metric_order_follows_the_task(repository, task):
    assert metric_order(task)[:3] == ["AUROC", "macro_OvR_AUROC", "AUC"]
    survival = load_task(repository / "tasks" / "demo" / "demo_survival.yaml")
    assert metric_order(survival)[0] == "c_index"
    ordinal = load_task(repository / "tasks" / "demo" / "demo_gland_grade.yaml")
    assert metric_order(ordinal)[0] == "quadratic_weighted_kappa"


def test_twice_the_same_bytes_and_no_clock(record, task):
    run_dir = record.close()
    first = json.dumps(reflection_score(run_dir, task, label_rows()))
    assert first == json.dumps(reflection_score(run_dir, task, label_rows()))
    assert sha256_bytes(first.encode()) and "T" + "00:" not in first and str(run_dir) not in first
