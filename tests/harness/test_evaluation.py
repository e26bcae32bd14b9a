"""Metrics for the agent: validation freely, test within a budget, labels never."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpbench.core.files import read_jsonl, sha256_file, write_csv
from acpbench.harness.registry import call_tool
from tests.harness.build import Side, write_predictions

PREDICTIONS = "outputs/round_0/predictions.csv"


def perfect(side: Side, *splits: str) -> dict[str, float]:
    return {
        row["patient_id"]: 0.9 if row["label"] == "high" else 0.2
        for row in side.rows
        if row["split"] in splits
    }


def keys_and_texts(value: Any) -> list[str]:
    """Every key and every text in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in keys_and_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in keys_and_texts(item)]
    return [value] if isinstance(value, str) else []


def test_a_second_question_is_refused_and_the_refusal_is_witnessed(side: Side) -> None:
    context = side.context()
    write_predictions(context, PREDICTIONS, perfect(side, "test"), side)
    first = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert first["exit_status"] == "ok"
    assert first["result"]["metrics"]["AUROC"] == 1.0
    assert first["result"]["n"] == 6
    second = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert second["exit_status"] == "error"
    assert "1 of 1 time(s)" in second["error"]
    assert second["result"] == {}
    assert len(read_jsonl(context.receipts)) == 1
    assert len(read_jsonl(context.tool_log)) == 4


@pytest.mark.parametrize("budget", [0, 2])
def test_the_budget_is_the_studys(side: Side, budget: int) -> None:
    context = side.context(test_evaluations=budget)
    write_predictions(context, PREDICTIONS, perfect(side, "test"), side)
    answers = [call_tool(context, "evaluate_test", {"predictions": PREDICTIONS}) for _ in range(budget + 1)]
    assert [answer["exit_status"] for answer in answers] == ["ok"] * budget + ["error"]
    receipts = {answer["result"]["receipt_id"] for answer in answers[:budget]}
    assert len(receipts) == budget


def test_the_receipt_follows_from_run_order_and_predictions_alone(side: Side) -> None:
    receipts = []
    for name in ("one", "two", "three"):
        context = side.context(name)
        probability = perfect(side, "test") | ({"P04": 0.31} if name == "three" else {})
        write_predictions(context, PREDICTIONS, probability, side)
        result = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})["result"]
        assert result["predictions_sha256"] == sha256_file(context.path(PREDICTIONS))
        receipts.append(result["receipt_id"])
    assert receipts[0] == receipts[1]
    assert receipts[2] != receipts[0]


def test_no_label_is_in_the_answer_or_the_workspace_afterwards(side: Side) -> None:
    context = side.context()
    before = {path: path.read_bytes() for path in context.workspace.rglob("*") if path.is_file()}
    write_predictions(context, PREDICTIONS, perfect(side, "validation", "test"), side)
    predictions = context.path(PREDICTIONS).read_bytes()
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    told = keys_and_texts({key: answer[key] for key in ("result", "outputs", "error")})
    assert not {"per_class", "n_per_class", "y_true", "labels", "low", "high"} & set(told)
    assert not [text for text in told if any(row["patient_id"] in text for row in side.rows)]
    after = {path: path.read_bytes() for path in context.workspace.rglob("*") if path.is_file()}
    assert after == before | {context.path(PREDICTIONS): predictions}


def test_labels_come_from_the_evaluator_not_from_the_table(side: Side) -> None:
    context = side.context()
    write_predictions(context, PREDICTIONS, {k: 1 - v for k, v in perfect(side, "test").items()}, side)
    text = context.path(PREDICTIONS).read_text().replace("test,,", "validation,high,")
    context.path(PREDICTIONS).write_text(text)
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert answer["result"]["metrics"]["AUROC"] == 0.0
    assert answer["result"]["n"] == 6


def test_the_label_of_a_patient_comes_from_a_slide_that_has_one(side: Side) -> None:
    context = side.context()
    second = [row | {"slide_id": f"{row['slide_id']}b", "label": ""} for row in side.rows]
    write_csv(side.labels, list(side.rows[0]), side.rows + second)
    write_predictions(context, PREDICTIONS, perfect(side, "test"), side)
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert answer["error"] is None
    assert (answer["result"]["metrics"]["AUROC"], answer["result"]["n"]) == (1.0, 6)


@pytest.mark.parametrize("split", ["validation", "train"])
def test_a_table_without_a_test_row_spends_nothing(side: Side, split: str) -> None:
    context = side.context()
    write_predictions(context, PREDICTIONS, perfect(side, split), side)
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert answer["exit_status"] == "error"
    assert "no row of a test patient" in answer["error"]
    assert not context.receipts.exists() or not read_jsonl(context.receipts)


def test_a_case_that_appears_twice_is_refused_and_spends_nothing(side: Side) -> None:
    context = side.context()
    write_predictions(context, PREDICTIONS, perfect(side, "test"), side)
    lines = context.path(PREDICTIONS).read_text().splitlines()
    context.path(PREDICTIONS).write_text("\n".join([*lines, lines[1]]) + "\n")
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert answer["exit_status"] == "error"
    assert "appears twice" in answer["error"]
    assert not context.receipts.exists()


def test_validation_metrics_name_their_split_and_miss_nothing_silently(side: Side) -> None:
    context = side.context()
    write_predictions(context, PREDICTIONS, perfect(side, "validation", "test"), side)
    output = "outputs/round_0/metrics.json"
    answer = call_tool(context, "evaluate_predictions", {"predictions": PREDICTIONS, "output": output})
    document = json.loads(context.path(output).read_text())
    assert answer["exit_status"] == "ok"
    assert document["split"] == "validation"
    assert document["n"] == 3
    assert document["n_per_class"] == {"low": 2, "high": 1}
    assert document["metrics"]["AUROC"] == 1.0
    family = [side.task.metric_family.primary, *side.task.metric_family.secondary]
    for name in family:
        assert document["metrics"][name] is not None or document["notes"][name]
    assert document["config_sha256"] is None


def test_a_single_class_gives_null_with_its_reason_not_a_number(side: Side) -> None:
    context = side.context()
    only = [row["patient_id"] for row in side.rows if row["split"] == "test" and row["label"] == "low"]
    write_predictions(context, PREDICTIONS, dict.fromkeys(only, 0.3), side)
    answer = call_tool(context, "evaluate_test", {"predictions": PREDICTIONS})
    assert answer["result"]["metrics"]["AUROC"] is None
    assert answer["result"]["notes"]["AUROC"]
