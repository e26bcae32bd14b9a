"""Each deterministic rule passes on a good run and drops on a change that concerns it; little else does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from acpbench.rubric.case import RULES
from acpbench.rubric.models import Rubric
from tests.rubric.workspace import RunBuilder, predictions, report_text, table

SPEC = "plan/workflow_spec.json"
BASE = "outputs/round_0"
R1 = "reflection/round_1"
REPORT = "reports/report.json"
Mutation = Callable[[RunBuilder], Any]


def put(path: str, *keys: Any, value: Any) -> Mutation:
    """Set one field of a JSON or YAML file."""

    def mutate(run: RunBuilder) -> None:
        def change(document: Any) -> None:
            node = document
            for key in keys[:-1]:
                node = node[key]
            node[keys[-1]] = value

        run.edit(path, change)

    return mutate


def drop(path: str, *keys: Any) -> Mutation:
    """Delete one field of a JSON file."""

    def mutate(run: RunBuilder) -> None:
        def change(document: Any) -> None:
            node = document
            for key in keys[:-1]:
                node = node[key]
            del node[keys[-1]]

        run.edit(path, change)

    return mutate


def swap(path: str, old: str, new: str) -> Mutation:
    """Replace text that must be there."""

    def mutate(run: RunBuilder) -> None:
        def change(text: str) -> str:
            assert old in text
            return text.replace(old, new)

        run.edit(path, change)

    return mutate


def gone(*paths: str) -> Mutation:
    """Delete files."""
    return lambda run: [run.remove(path) for path in paths]


def moved(path: str, at: float) -> Mutation:
    """Change a file's time."""
    return lambda run: run.touch(path, at)


def calls(keep: Callable[[dict[str, Any]], bool]) -> Mutation:
    """Keep some registry calls only."""

    def mutate(run: RunBuilder) -> None:
        before = len(run.calls)
        run.calls = [call for call in run.calls if keep(call)]
        assert len(run.calls) < before

    return mutate


def failed_call(run: RunBuilder) -> None:
    run.call("tile_slides", "s2", 0, 55, args={"tile_size_px": 1}, status="error")
    for call in run.calls:
        if call["tool"] == "tile_slides" and call["status"] == "ok":
            call["args"] = {"tile_size_px": 1}


def identical_round(run: RunBuilder) -> None:
    run.write(f"{R1}/predictions.csv", predictions(0), 212)


def train_in_test(run: RunBuilder) -> None:
    run.edit(f"{BASE}/splits.csv", lambda text: text + "A1,test\n")


def other_config(run: RunBuilder) -> None:
    run.edit(f"{BASE}/config.yaml", lambda config: config | {"encoder": "another"})


def without_test_rows(n: int) -> Mutation:
    def mutate(run: RunBuilder) -> None:
        run.edit(f"{BASE}/predictions.csv", lambda text: "\n".join(text.strip().split("\n")[: 7 - n]) + "\n")

    return mutate


# checkpoint, mutation, status it drops to, and the other items that may drop with it
CASES: list[tuple[str, Mutation, str, set[str]]] = [
    ("P1.d1", put(SPEC, "intent", "endpoint", value="KRAS mutation"), "FAIL", set()),
    ("P1.d2", put(SPEC, "intent", "claim_boundary_type", value="staging_support"), "FAIL", set()),
    ("P1.d3", gone("plan/plan.md"), "FAIL", {"P2.d1"}),
    ("P2.d1", swap("plan/plan.md", "bladder", "some"), "FAIL", set()),
    ("P2.d1", lambda run: run.write("plan/plan.md", "TP53 in bladder.", 20), "FAIL", set()),
    ("P2.d2", drop(SPEC, "params", "tile_px"), "FAIL", set()),
    ("P3.d1", put(SPEC, "seed", value=1.5), "FAIL", {"P4.d3"}),
    ("P3.d1", drop(SPEC, "steps", 0, "params"), "FAIL", set()),
    ("P3.d2", put(SPEC, "steps", 5, "tool", value="magic"), "FAIL", {"A1.d3"}),
    ("P3.d3", lambda run: run.edit(SPEC, lambda d: d["steps"].pop() and None), "FAIL", set()),
    ("P4.d1", put(SPEC, "steps", 4, "inputs", value=["outputs/round_0/other.csv"]), "FAIL", set()),
    ("P4.d1", put(SPEC, "steps", 1, "inputs", value=["outputs/round_0/predictions.csv"]), "FAIL", set()),
    ("P4.d2", drop(SPEC, "expected_artifacts", "metrics"), "FAIL", set()),
    ("P4.d3", drop(SPEC, "seed"), "FAIL", {"P3.d1"}),
    ("P4.d4", moved(SPEC, 120), "FAIL", set()),
    ("A1.d1", calls(lambda call: call["tool"] != "tile_slides"), "FAIL", {"A1.d3"}),
    ("A1.d2", lambda run: run.call("read_table", None, 0, 600, status=None), "FAIL", {"A4.d2"}),
    ("A1.d3", calls(lambda call: call["tool"] != "tile_slides"), "PARTIAL", {"A1.d1"}),
    (
        "A2.d1",
        lambda run: run.write(f"{BASE}/config.yaml", "- a list\n", 90),
        "FAIL",
        {"A2.d2", "A2.d3", "R3.dk2@r1", "R4.dk1@r1"},
    ),
    ("A2.d2", put(f"{BASE}/config.yaml", "split_id", value="sha256:0123456789abcdef"), "FAIL", {"A2.d3"}),
    ("A2.d3", other_config, "FAIL", set()),
    ("A3.d1", lambda run: run.stream.pop(1), "FAIL", set()),
    ("A3.d2", lambda run: run.stream.pop(0), "FAIL", set()),
    (
        "A4.d1",
        lambda run: run.write("logs/run.log", "Traceback (most recent call last):\n  x\n", 130),
        "FAIL",
        set(),
    ),
    ("A4.d2", failed_call, "FAIL", set()),
    (
        "A4.d3",
        lambda run: run.write("memory/execution_memory.jsonl", '{"kind": "note"}\n', 410),
        "FAIL",
        set(),
    ),
    (
        "A5.d1",
        swap(f"{BASE}/predictions.csv", "y_true", "truth"),
        "FAIL",
        {"A6.d1"},
    ),
    ("A5.d2", without_test_rows(1), "PARTIAL", {"R5.dk3@r1", "R5.dk3@r2"}),
    ("A5.d2", without_test_rows(2), "FAIL", {"R5.dk3@r1", "R5.dk3@r2"}),
    ("A5.d3", swap(f"{BASE}/slide_manifest.csv", "status", "colour"), "FAIL", set()),
    ("A5.d4", swap(f"{BASE}/features_index.csv", "store:abc", "features/V1.h5"), "FAIL", set()),
    ("A5.d5", gone(f"{BASE}/model.pt"), "FAIL", set()),
    ("A5.d6", gone("scripts/run.sh"), "FAIL", set()),
    (
        "A6.d1",
        swap(f"{BASE}/predictions.csv", "V2,validation,wildtype", "V2,validation,mutant"),
        "FAIL",
        set(),
    ),
    ("A6.d2", train_in_test, "FAIL", set()),
    (
        "A6.d3",
        swap(f"{BASE}/predictions.csv", "X1,test,,wildtype,0.7,0.3", "X1,test,,wildtype,0.7,1.3"),
        "FAIL",
        set(),
    ),
    ("A6.d4", calls(lambda call: call["tool"] != "read_table"), "FAIL", set()),
    ("A6.d5", moved(f"{BASE}/tiles_index.csv", -60), "FAIL", set()),
    (
        "D1.d1",
        lambda run: run.write("reports/report.json", {}, 510),
        "FAIL",
        {
            "D1.d2",
            "D1.d3",
            "D1.d4",
            "D3.d4",
            "D4.d3",
            "D4.d5",
            "D5.d3",
        },
    ),
    ("D1.d2", put(REPORT, "artifacts", value=["outputs/round_0/heatmap.png"]), "FAIL", set()),
    ("D1.d2", put(REPORT, "artifacts", value=["reports/report.md"]), "FAIL", set()),
    ("D1.d3", put(REPORT, "round_selected", value=4), "FAIL", set()),
    ("D1.d4", moved("reports/report.md", 220), "FAIL", set()),
    ("D2.d1", put(f"{BASE}/metrics.json", "primary_metric", value="RMSE"), "FAIL", {"D3.d1"}),
    (
        "D2.d2",
        put(f"{BASE}/metrics.json", "metrics", value={"AUROC": 0.75}),
        "FAIL",
        {"D3.dc1"},
    ),
    ("D2.d3", drop(f"{BASE}/metrics.json", "n_per_class"), "FAIL", set()),
    (
        "D2.d4",
        put(f"{BASE}/metrics.json", "split", value="train"),
        "FAIL",
        {"D3.d1", "D3.dc1"},
    ),
    ("D3.d1", put(f"{BASE}/metrics.json", "metrics", "AUROC", value=0.765), "PARTIAL", {"R2.dk2@r1"}),
    ("D3.d1", put(f"{BASE}/metrics.json", "metrics", "AUROC", value=0.78), "FAIL", {"R2.dk2@r1"}),
    ("D3.d2", put(f"{BASE}/metrics.json", "intervals", value={}), "FAIL", set()),
    ("D3.d3", put(f"{BASE}/metrics.json", "metrics", "F1", value=1.2), "FAIL", set()),
    ("D3.d4", put(REPORT, "headline", "value", value=0.99), "FAIL", {"D5.d2"}),
    ("D3.d4", put(REPORT, "headline", "split", value="test"), "FAIL", set()),
    ("D4.d1", swap("reports/report.md", "## Method", "## Other"), "FAIL", set()),
    ("D4.d2", swap("reports/report.md", "(bladder_tp53)", ""), "FAIL", set()),
    ("D4.d3", put(REPORT, "claim_boundary_type", value="staging_support"), "FAIL", set()),
    (
        "D4.d4",
        lambda run: run.write(
            "reports/report.md", report_text(run.task) + "\nThe model diagnoses TP53 mutation.\n", 500
        ),
        "FAIL",
        set(),
    ),
    ("D4.d5", put(REPORT, "claims", 0, "evidence", value=["outputs/round_0/none.csv"]), "FAIL", set()),
    ("D4.d5", put(REPORT, "claims", 0, "evidence", value=["reports/report.md"]), "FAIL", set()),
    ("D5.d1", swap("reports/report.md", "- One cohort, so other sites are unknown.\n", ""), "FAIL", set()),
    ("D5.d2", swap("reports/report.md", ", 95% interval 0.250 to 1.000", ""), "FAIL", set()),
    ("D5.d2", swap("reports/report.md", "n = 4 validation", "many validation"), "FAIL", set()),
    ("D5.d3", drop(REPORT, "missing_evidence"), "FAIL", set()),
    ("R2.d1", lambda run: run.write("reflection/summary.json", [], 400), "FAIL", {"R3.d1", "R4.d1", "R5.d2"}),
    ("R3.d1", put("reflection/summary.json", "rounds", 2, "changed_step", value=""), "FAIL", set()),
    ("R4.d1", put("reflection/summary.json", "rounds", 2, "round_id", value=3), "FAIL", {"R3.d1"}),
    ("R5.d2", drop("reflection/summary.json", "stop_reason"), "FAIL", set()),
    ("R5.d2", put("reflection/summary.json", "selected_round", value=5), "FAIL", set()),
    ("R1.dk1@r1", gone(f"{R1}/critique.json"), "FAIL", {"R1.dk2@r1", "R1.dk3@r1", "R2.dk1@r1", "R2.dk2@r1"}),
    ("R1.dk2@r1", put(f"{R1}/critique.json", "weakest_link", "step", value="s99"), "FAIL", set()),
    ("R1.dk3@r1", put(f"{R1}/critique.json", "weakest_link", "evidence", value=[]), "FAIL", {"R2.dk1@r1"}),
    (
        "R2.dk1@r1",
        put(f"{R1}/critique.json", "weakest_link", "evidence", value=["logs/run.log#L9"]),
        "FAIL",
        set(),
    ),
    ("R2.dk2@r1", put(f"{R1}/critique.json", "metrics", "AUROC", value=0.7), "FAIL", set()),
    ("R3.dk1@r1", drop(f"{R1}/update.json", "expected_effect"), "FAIL", set()),
    ("R3.dk2@r1", put(f"{R1}/update.json", "old", value=0.3), "FAIL", set()),
    ("R4.dk1@r1", put(f"{R1}/update.json", "new", value=0.4), "FAIL", set()),
    (
        "R4.dk1@r1",
        put(f"{R1}/config_diff.json", "changed", value={"mil.seed": {"old": 1, "new": 2}}),
        "FAIL",
        set(),
    ),
    ("R4.dk2@r1", moved(f"{R1}/update.json", 250), "FAIL", set()),
    (
        "R4.dk3@r1",
        gone(f"{R1}/predictions.csv"),
        "FAIL",
        {"R4.dk4@r1", "R4.dk4@r2", "R5.dk2@r1", "R5.dk3@r1", "D1.d2"},
    ),
    ("R4.dk4@r1", identical_round, "FAIL", {"R5.dk2@r1"}),
    (
        "R5.dk1@r1",
        put(f"{R1}/metrics.json", "metrics", "AUROC", value=None),
        "FAIL",
        {"R5.dk2@r1", "R2.dk2@r2", "D3.d4"},
    ),
    ("R5.dk2@r1", put(f"{R1}/metrics.json", "metrics", "AUROC", value=0.99), "FAIL", {"R2.dk2@r2", "D3.d4"}),
    (
        "R5.dk3@r1",
        lambda run: run.edit(f"{R1}/predictions.csv", lambda t: t + "X3,test,,mutant,0.1,0.9\n"),
        "FAIL",
        set(),
    ),
    ("R5.dk4@r1", put(f"{R1}/summary.json", "verdict", value="unchanged"), "FAIL", set()),
    ("R5.dk4@r1", drop(f"{R1}/summary.json", "decision"), "FAIL", set()),
    ("D3.dc1", put(f"{BASE}/metrics.json", "metrics", "brier", value=0.21), "FAIL", set()),
    ("D3.dc1", drop(f"{BASE}/metrics.json", "metrics", "ECE"), "FAIL", set()),
]
WEIGHTS = {"PASS": 2, "SKIP": 2, "PARTIAL": 1, "FAIL": 0}


@pytest.fixture(scope="module")
def good(tmp_path_factory, task, rubric) -> dict[str, str]:
    from acpbench.rubric.engine import check_run
    from tests.rubric.workspace import good_run, label_rows

    run = good_run(tmp_path_factory.mktemp("good") / "run", task)
    rows = check_run(run.finish(), task, label_rows(), rubric, strict=True)
    return {row["item_id"]: row["status"] for row in rows}


def test_the_good_run_passes_all_it_attempted(good: dict[str, str]) -> None:
    attempted = {item: status for item, status in good.items() if not item.endswith(("@r3", "@r4", "@r5"))}
    assert {item for item, status in attempted.items() if status != "PASS"} == {"A4.d2"}
    assert good["A4.d2"] == "SKIP"
    assert {status for item, status in good.items() if item not in attempted} == {"FAIL"}
    assert len(good) == 136


@pytest.mark.parametrize(
    ("item", "mutation", "status", "others"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)]
)
def test_a_change_drops_the_rule_it_concerns(
    run: RunBuilder, check, good: dict[str, str], item: str, mutation: Mutation, status: str, others: set[str]
) -> None:
    mutation(run)
    rows = check(run)
    assert rows[item]["status"] == status, rows[item]["reason"]
    dropped = {name for name, row in rows.items() if WEIGHTS[row["status"]] < WEIGHTS[good[name]]}
    assert dropped == {item} | others
    assert "\n" not in rows[item]["reason"] and rows[item]["reason"]


def test_every_deterministic_checkpoint_has_a_rule_and_a_case(rubric: Rubric) -> None:
    deterministic = {point.id for point in rubric.checkpoints if point.kind == "deterministic"}
    assert set(RULES) == deterministic
    here = {item.split("@")[0] for item, *_ in CASES}
    elsewhere = {"R1.d1", "R5.d1"} | {
        point.id for point in rubric.checkpoints if point.condition not in (None, "calibration_bearing")
    }
    assert deterministic - here <= elsewhere


def test_no_round_fails_the_whole_loop(run: RunBuilder, check) -> None:
    for path in sorted(run.workspace.glob("reflection/round_*/*")):
        path.unlink()
    rows = check(run)
    for item in ("R1.d1", "R3.d1", "R4.d1", "R5.d1", "R5.d2", "D1.d3"):
        assert rows[item]["status"] == "FAIL", item


def test_rounds_are_comparable_only_when_predictions_reproduce_them(run: RunBuilder, check) -> None:
    for k in (0, 2):
        folder = BASE if k == 0 else f"reflection/round_{k}"
        run.edit(f"{folder}/metrics.json", lambda d: d["metrics"].update(AUROC=0.9))
    rows = check(run)
    assert rows["R5.d1"]["status"] == "FAIL"
    assert rows["R5.dk1@r2"]["status"] == "PASS"


def test_an_equal_rerun_with_a_recorded_reason_is_partial(run: RunBuilder, check) -> None:
    identical_round(run)
    run.edit(f"{R1}/summary.json", lambda d: d.update(statement="Predictions are identical: no effect."))
    assert check(run)["R4.dk4@r1"]["status"] == "PARTIAL"


def test_a_failed_call_is_handled_by_a_changed_retry_or_a_stop_record(
    run: RunBuilder, check, tmp_path
) -> None:
    run.call("tile_slides", "s2", 0, 55, args={"tile_size_px": 1}, status="error")
    rows = check(run)
    assert rows["A4.d2"]["status"] == "PASS"
    assert rows["A1.d3"]["status"] == "PASS"


def test_a_stop_record_names_the_tool(run: RunBuilder, check) -> None:
    failed_call(run)
    run.write(
        "memory/execution_memory.jsonl",
        json.dumps({"kind": "failure", "round_id": 0, "step_id": "s2", "text": "tile_slides: 1 px refused"}),
        410,
    )
    assert check(run)["A4.d2"]["status"] == "PASS"


def test_a_test_headline_needs_the_witnessed_evaluation(run: RunBuilder, check) -> None:
    run.edit(REPORT, lambda d: d["headline"].update(split="test", value=0.5, n=2))
    run.call("evaluate_test", "s5", 1, 450, result={"metrics": {"AUROC": 0.5}, "receipt_id": "r"})
    rows = check(run)
    assert rows["D3.d4"]["status"] == "PASS"
    assert rows["D5.d2"]["status"] == "FAIL"  # the text still gives the validation figure


def test_rows_of_another_split_do_not_count_as_validation(run: RunBuilder, check) -> None:
    run.edit(f"{BASE}/predictions.csv", lambda t: t + "A3,validation,mutant,mutant,0.1,0.9\n")
    rows = check(run)
    assert rows["D3.d1"]["status"] == "FAIL"
    assert "another split" in rows["D3.d1"]["reason"]


def test_training_on_the_benchmarks_test_patients_fails(run: RunBuilder, check) -> None:
    run.edit(f"{BASE}/splits.csv", lambda t: t.replace("X1,test", "X1,train"))
    assert check(run)["A6.d2"]["status"] == "FAIL"


def test_the_agents_own_labels_do_not_change_the_recomputation(run: RunBuilder, check) -> None:
    """Flipping y_true in the table would make the agent's AUROC 0.25; the reference keeps 0.75."""
    flipped = (
        predictions(0)
        .replace(",wildtype,wildtype,", ",mutant,wildtype,")
        .replace(",mutant,mutant,", ",wildtype,mutant,")
    )
    run.write(f"{BASE}/predictions.csv", flipped, 92)
    rows = check(run)
    assert rows["D3.d1"]["status"] == "PASS"
    assert rows["A6.d1"]["status"] == "FAIL"


def test_calls_without_a_step_id_serve_one_step_of_their_tool(run: RunBuilder, check) -> None:
    for call in run.calls:
        call["step_id"] = None
    rows = check(run)
    assert rows["A1.d1"]["status"] == rows["A1.d3"]["status"] == "PASS"


def test_claimed_events_are_not_witnessed_events(run: RunBuilder, check) -> None:
    run.calls = []
    run.write("logs/events.jsonl", '{"tool": "train_mil", "exit": "ok"}\n', 130)
    rows = check(run)
    for item in (
        "A1.d1",
        "A1.d2",
        "A1.d3",
        "A2.d3",
        "A3.d1",
        "A4.d2",
        "A5.d4",
        "A6.d4",
        "P4.d4",
        "R4.dk2@r1",
    ):
        assert rows[item]["status"] == "FAIL", item


def test_a_rewritten_registry_does_not_legalise_a_tool(run: RunBuilder, check) -> None:
    run.edit(SPEC, lambda d: d["steps"][5].update(tool="magic"))
    run.edit("registry.json", lambda d: d["tools"].append({"id": "magic", "role": "report"}))
    run.touch("registry.json", 40)
    rows = check(run)
    assert rows["P3.d2"]["status"] == "FAIL"


@pytest.mark.parametrize("what", ["roles", "removed", "emptied", "surrogate"])
def test_a_changed_registry_changes_no_role(run: RunBuilder, check, what: str) -> None:
    """With roles of the agent's own making, training would be no modelling and reading would be a rerun."""
    honest = {item: row["status"] for item, row in check(run).items()}
    if what == "removed":
        (run.workspace / "registry.json").unlink()
    else:
        forged = {
            "roles": {
                "tools": [{"id": "read_table", "role": "model"}, {"id": "train_mil", "role": "report"}]
            },
            "emptied": {"tools": []},
            "surrogate": {"tools": "\ud800"},
        }[what]
        (run.workspace / "registry.json").write_text(json.dumps(forged))
        run.touch("registry.json", 40)
    found = {item: row["status"] for item, row in check(run).items()}
    assert {item for item in found if found[item] != honest[item]} <= {"P3.d2"}


def test_entity_table_helper() -> None:
    assert table(["a", "b"], [[1, "x,y"]]) == 'a,b\n1,"x,y"\n'
