"""Tools that read what the agent wrote: tables, the step graph, the structured report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acpbench.harness import policy_texts
from acpbench.harness.document_tools import graph_problems
from acpbench.harness.policies import BASE_MODEL
from acpbench.harness.registry import call_tool
from acpbench.trajectory.documents import WorkflowSpec
from tests.harness.build import Side


def spec(*steps: tuple[str, list[str], list[str]]) -> WorkflowSpec:
    """A specification with steps (id, inputs, outputs)."""
    return WorkflowSpec.model_validate(
        {
            "schema": "acp-workflow-spec/0.1",
            "intent": {"task_id": "t", "endpoint": "e", "output_type": "binary", "claim_boundary_type": "c"},
            "steps": [
                {"id": name, "tool": "read_table", "role": "verification", "params": {},
                 "inputs": inputs, "outputs": outputs}
                for name, inputs, outputs in steps
            ],
            "params": {}, "split": {}, "evaluation": {}, "expected_artifacts": {}, "round_id": 0, "seed": 1,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([("a", ["data/x.csv", "task.json", "skills/s/SKILL.md"], ["o"]), ("b", ["o"], [])], []),
        ([("b", ["o"], []), ("a", ["data/x.csv"], ["o"])], []),
        ([("a", ["y"], ["x"]), ("b", ["x"], ["y"])], ["a, b", "cycle"]),
        ([("a", ["x"], ["x"])], ["a", "cycle"]),
        ([("s", [], ["t"]), ("a", ["y", "t"], ["x"]), ("b", ["x"], ["y"]), ("c", ["y"], [])],
         ["steps a, b, c form a cycle"]),
        ([("a", ["outputs/none.csv"], [])], ["outputs/none.csv", "step a", "made by no step"]),
        ([("a", [], []), ("a", [], [])], ["step ids repeat"]),
        ([("a", ["database/x.csv"], [])], ["made by no step"]),
    ],
)  # fmt: skip
def test_graph_problems_by_hand(steps: list[Any], words: list[str]) -> None:
    problems = graph_problems(spec(*steps))
    assert len(problems) == (1 if words else 0)
    for word in words:
        assert word in problems[0]


def scripted_spec(side: Side) -> dict[str, Any]:
    task = side.task.model_dump(mode="json")
    return policy_texts.workflow_spec(task, "color_stats", 0.5, 224, BASE_MODEL, 1)


def change(value: dict[str, Any], path: tuple[Any, ...], new: object) -> dict[str, Any]:
    """A deep copy with one place changed."""
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return copy


@pytest.mark.parametrize(
    ("path", "new", "words"),
    [
        (("seed",), "one", ["seed"]),
        (("steps", 0, "role"), "magic", ["steps.0.role"]),
        (("steps", 2, "tool"), "embed", ["steps.2.tool", "'embed'"]),
        (("steps", 3, "inputs"), ["nowhere.csv"], ["steps", "nowhere.csv", "made by no step"]),
        (("steps", 0, "inputs"), ["reports/report.md"], ["cycle"]),
        (("steps",), [], ["steps"]),
        (("schema",), "acp-workflow-spec/9", ["schema"]),
    ],
)
def test_a_wrong_specification_is_an_error_naming_file_and_field(
    side: Side, path: tuple[Any, ...], new: object, words: list[str]
) -> None:
    context = side.context()
    target = context.path("plan/workflow_spec.json")
    target.write_text(json.dumps(scripted_spec(side)))
    good = call_tool(context, "validate_spec", {"path": "plan/workflow_spec.json"})
    assert good["result"] == {"valid": True, "n_steps": 7}
    target.write_text(json.dumps(change(scripted_spec(side), path, new)))
    bad = call_tool(context, "validate_spec", {"path": "plan/workflow_spec.json"})
    assert bad["exit_status"] == "error"
    for word in ["plan/workflow_spec.json", *words]:
        assert word in bad["error"]


METRICS = {
    "primary_metric": "AUROC",
    "metrics": {"AUROC": 0.8125, "AUPRC": 0.7},
    "intervals": {"AUROC": [0.6, 0.9]},
    "split": "validation",
    "n": 9,
}


@pytest.mark.parametrize(
    ("path", "new", "words"),
    [
        (("headline", "value"), 0.9, ["headline.value", "0.9", "0.8125"]),
        (("headline", "value"), None, ["headline.value"]),
        (("headline", "metric"), "F1", ["headline.value"]),
        (("headline", "file"), "outputs/none.json", ["outputs/none.json"]),
        (("claim_boundary_type",), "diagnosis", ["claim_boundary_type", "tissue_phenotype_classification"]),
        (("artifacts",), ["outputs/none.csv"], ["artifacts", "outputs/none.csv"]),
        (("claims", 0, "evidence"), ["outputs/none.csv#L3"], ["outputs/none.csv"]),
        (("claims", 0, "evidence"), ["../../labels.csv"], ["leaves its folder"]),
        (("claims", 0, "text"), 3, ["claims.0.text"]),
    ],
)
def test_a_wrong_report_is_an_error_naming_file_and_field(
    side: Side, path: tuple[Any, ...], new: object, words: list[str]
) -> None:
    context = side.context()
    folder = "outputs/round_0"
    context.path(f"{folder}/metrics.json").write_text(json.dumps(METRICS))
    for name in ("predictions.csv", "slide_manifest.csv"):
        context.path(f"{folder}/{name}").write_text("a\n1\n")
    task = side.task.model_dump(mode="json")
    report = policy_texts.report_json(task, 0, folder, METRICS, [], None, False)
    target = context.path("reports/report.json")
    target.write_text(json.dumps(report))
    good = call_tool(context, "validate_report", {"path": "reports/report.json"})
    assert good["exit_status"] == "ok", good["error"]
    target.write_text(json.dumps(change(report, path, new)))
    bad = call_tool(context, "validate_report", {"path": "reports/report.json"})
    assert bad["exit_status"] == "error"
    for word in words:
        assert word in bad["error"]
    assert str(side.root) not in bad["error"]


def test_a_headline_may_be_rounded_to_three_places(side: Side) -> None:
    context = side.context()
    context.path("outputs/round_0/metrics.json").write_text(json.dumps(METRICS))
    for name in ("predictions.csv", "slide_manifest.csv"):
        context.path(f"outputs/round_0/{name}").write_text("a\n1\n")
    task = side.task.model_dump(mode="json")
    report = policy_texts.report_json(task, 0, "outputs/round_0", METRICS, [], None, False)
    for value, status in ((0.8125, "ok"), (0.812, "ok"), (0.813, "ok"), (0.811, "error"), (0.81, "error")):
        report["headline"]["value"] = value
        context.path("reports/report.json").write_text(json.dumps(report))
        answer = call_tool(context, "validate_report", {"path": "reports/report.json"})
        assert answer["exit_status"] == status, value


def test_an_undefined_headline_is_null_in_the_report_and_in_its_file(side: Side) -> None:
    context = side.context()
    for name in ("predictions.csv", "slide_manifest.csv"):
        context.path(f"outputs/round_0/{name}").write_text("a\n1\n")
    task = side.task.model_dump(mode="json")
    report = policy_texts.report_json(
        task, 0, "outputs/round_0", METRICS | {"metrics": {"AUROC": None}}, [], None, False
    )
    context.path("reports/report.json").write_text(json.dumps(report))
    for metrics, status in (({"AUROC": None}, "ok"), ({}, "error"), ({"AUROC": 0.5}, "error")):
        context.path("outputs/round_0/metrics.json").write_text(json.dumps(METRICS | {"metrics": metrics}))
        answer = call_tool(context, "validate_report", {"path": "reports/report.json"})
        assert answer["exit_status"] == status, metrics


def test_a_table_is_summarised_by_hand(side: Side) -> None:
    context = side.context()
    context.path("outputs/t.csv").write_text("id,p,mixed\na,0.25,1\nb,,x\nc,-1,\n")
    answer = call_tool(context, "read_table", {"path": "outputs/t.csv", "n_rows": 1})
    assert answer["result"] == {
        "n_rows": 3,
        "columns": {
            "id": {"missing": 0, "distinct": 3, "min": None, "max": None},
            "p": {"missing": 1, "distinct": 2, "min": -1.0, "max": 0.25},
            "mixed": {"missing": 1, "distinct": 2, "min": None, "max": None},
        },
        "head": [{"id": "a", "p": "0.25", "mixed": "1"}],
    }


def test_a_missing_or_broken_table_is_an_error_naming_it(side: Side) -> None:
    context = side.context()
    missing = call_tool(context, "read_table", {"path": "outputs/none.csv"})
    assert missing["error"] == "outputs/none.csv: file does not exist; outputs holds round_0"
    context.path("outputs/ragged.csv").write_text("a,b\n1,2,3\n")
    ragged = call_tool(context, "read_table", {"path": "outputs/ragged.csv"})
    assert "outputs/ragged.csv" in ragged["error"]
    assert "row 2" in ragged["error"]
    context.path("outputs/bad.json").write_text("{")
    broken = call_tool(context, "validate_spec", {"path": "outputs/bad.json"})
    assert "not valid JSON" in broken["error"]


def test_odd_numbers_in_a_table_still_give_a_json_answer(side: Side) -> None:
    context = side.context()
    context.path("outputs/t.csv").write_text("p\nnan\ninf\n1\n")
    answer = call_tool(context, "read_table", {"path": "outputs/t.csv"})
    json.loads(json.dumps(answer, allow_nan=False))


def check(context: Any, path: str, name: str) -> dict[str, Any]:
    return call_tool(context, "validate_schema", {"path": path, "schema_name": name})


def test_tables_lines_and_documents_are_checked_against_their_schema(side: Side) -> None:
    context = side.context()
    context.path("outputs/p.csv").write_text(
        "case_id,split,y_true,y_pred,prob_low\nP03,validation,low,low,0.9\n"
    )
    context.path("memory/m.jsonl").write_text(
        '{"kind": "failure", "text": "x"}\n\n{"kind": "success", "text": "y"}\n'
    )
    for path, name, n_records in [
        ("outputs/p.csv", "predictions", 1),
        ("memory/m.jsonl", "execution_memory", 2),
        ("task.json", "task_brief", 1),
    ]:
        answer = check(context, path, name)
        assert answer["exit_status"] == "ok", answer["error"]
        assert answer["result"] == {"valid": True, "schema_name": name, "n_records": n_records}


def test_every_problem_of_a_document_is_named_at_once(side: Side) -> None:
    context = side.context()
    context.path("outputs/p.csv").write_text("case_id,split\n,train\nP1,tset\nP2,test\n")
    error = check(context, "outputs/p.csv", "predictions")["error"]
    for word in ("outputs/p.csv", "row 2 case_id", "row 3 split", "'tset'"):
        assert word in error
    context.path("plan/u.json").write_text(json.dumps({"step": "", "old": 1, "new": 2, "expected_effect": 3}))
    error = check(context, "plan/u.json", "update")["error"]
    for word in ("step:", "parameter: Field required", "expected_effect:"):
        assert word in error
    context.path("memory/m.jsonl").write_text(
        "".join(f'{{"kind": "k{i}", "text": "x"}}\n' for i in range(30))
    )
    error = check(context, "memory/m.jsonl", "execution_memory")["error"]
    assert "line 1 kind" in error and "and 20 more" in error
    context.path("outputs/empty.csv").write_text("case_id,split\n")
    assert "holds no record" in check(context, "outputs/empty.csv", "predictions")["error"]
