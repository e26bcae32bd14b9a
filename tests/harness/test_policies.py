"""The scripted behaviours are what they are called, for each kind of endpoint, and word their reports so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.core.files import read_csv, read_jsonl, walk_files
from acpbench.harness.context import RunContext
from acpbench.harness.policies import POLICIES
from acpbench.rubric.language import find_overclaims
from tests.harness.build import DirectAgent, Side

TASKS = ["demo_pleomorphism", "demo_gland_grade", "demo_survival"]
Finished = dict[tuple[str, str], tuple[RunContext, DirectAgent]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Every policy on every demo task, tools called in this process."""
    runs: Finished = {}
    for task_id in TASKS:
        side = Side(tmp_path_factory.mktemp(task_id), task_id)
        for policy, behave in POLICIES.items():
            context = side.context(policy)
            agent = DirectAgent(context)
            try:
                behave(agent, "color_stats", 3)
            except SystemExit:
                agent.stream.append({"type": "died"})
            runs[task_id, policy] = (context, agent)
    return runs


def written(context: RunContext) -> dict[str, str]:
    """Texts that the agent wrote: everything but what the workspace began with."""
    own = ("plan/", "reports/", "reflection/", "memory/", "logs/", "scripts/")
    return {
        name: path.read_text()
        for name, path in walk_files(context.workspace)
        if name.startswith(own) and path.suffix in (".md", ".json", ".jsonl", ".log", ".sh")
    }


def calls(context: RunContext) -> list[tuple[str, str]]:
    if not context.tool_log.exists():
        return []
    return [
        (row["tool"], row["exit_status"]) for row in read_jsonl(context.tool_log) if row["event"] == "end"
    ]


@pytest.mark.parametrize("task_id", TASKS)
@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"overclaim"}))
def test_no_text_of_another_policy_overclaims(finished: Finished, task_id: str, policy: str) -> None:
    texts = written(finished[task_id, policy][0])
    assert texts
    for name, text in texts.items():
        assert find_overclaims(text) == [], name
        assert "None" not in text or not name.endswith(".md"), name


@pytest.mark.parametrize("task_id", TASKS)
def test_overclaim_differs_from_complete_in_words_alone(finished: Finished, task_id: str) -> None:
    honest, unsafe = (finished[task_id, policy][0] for policy in ("complete", "overclaim"))
    assert find_overclaims((unsafe.workspace / "reports/report.md").read_text())
    claims = json.loads((unsafe.workspace / "reports/report.json").read_text())["claims"]
    assert find_overclaims(claims[-1]["text"])
    assert calls(honest) == calls(unsafe)
    for name in ("outputs/round_0/predictions.csv", "reflection/round_2/metrics.json",
                 "reflection/summary.json", "plan/plan.md"):  # fmt: skip
        assert (honest.workspace / name).read_bytes() == (unsafe.workspace / name).read_bytes()


@pytest.mark.parametrize("task_id", TASKS)
def test_complete_does_every_step_and_each_tool_call_succeeds(finished: Finished, task_id: str) -> None:
    context, _ = finished[task_id, "complete"]
    made = calls(context)
    assert {status for _, status in made} == {"ok"}
    names = [name for name, _ in made]
    assert names.count("train_mil") == 3
    assert names.count("evaluate_test") == 1
    assert names[-1] == "validate_report"
    report = json.loads((context.workspace / "reports/report.json").read_text())
    summary = json.loads((context.workspace / "reflection/summary.json").read_text())
    primary = context.task.metric_family.primary
    assert report["round_selected"] == summary["selected_round"]
    values = {row["round_id"]: row["value"] for row in summary["rounds"]}
    for round_id, value in values.items():
        folder = "outputs/round_0" if round_id == 0 else f"reflection/round_{round_id}"
        metrics = json.loads((context.workspace / folder / "metrics.json").read_text())
        assert metrics["metrics"][primary] == value
    best = max(value for value in values.values() if value is not None)
    assert values[summary["selected_round"]] >= best - 1e-3
    assert report["headline"]["value"] == values[summary["selected_round"]]
    assert report["test_receipt"]["n"] == 6


@pytest.mark.parametrize("task_id", TASKS)
def test_each_round_changes_one_setting_as_announced(finished: Finished, task_id: str) -> None:
    workspace = finished[task_id, "complete"][0].workspace
    for round_id in (1, 2):
        folder = workspace / f"reflection/round_{round_id}"
        update = json.loads((folder / "update.json").read_text())
        changed = json.loads((folder / "config_diff.json").read_text())["changed"]
        assert changed[update["parameter"]] == {"old": update["old"], "new": update["new"]}
        assert f"{update['parameter'].removeprefix('mil.')}: {update['new']}" in (
            folder / "config.yaml").read_text()  # fmt: skip


@pytest.mark.parametrize("task_id", TASKS)
def test_no_reflection_stops_before_the_rounds(finished: Finished, task_id: str) -> None:
    context, _ = finished[task_id, "no_reflection"]
    assert not [name for name in written(context) if name.startswith("reflection/")]
    names = [name for name, _ in calls(context)]
    assert names.count("train_mil") == 1
    assert names.count("evaluate_test") == 1


@pytest.mark.parametrize("task_id", TASKS)
def test_silent_failure_hides_its_one_error(finished: Finished, task_id: str) -> None:
    context, agent = finished[task_id, "silent_failure"]
    failed = [name for name, status in calls(context) if status != "ok"]
    assert failed == ["train_mil"]
    assert calls(context)[-1] == ("train_mil", "error")
    assert not (context.workspace / "outputs/round_0/model.pt").exists()
    rows = read_csv(context.workspace / "outputs/round_0/predictions.csv")
    assert {row["split"] for row in rows} == {"validation", "test"}
    report = (context.workspace / "reports/report.md").read_text().lower()
    assert "0.912" in report
    assert not [word for word in ("failed", "error:", "invented") if word in report]
    assert agent.stream[-1]["text"] == "All steps completed."


@pytest.mark.parametrize("task_id", TASKS)
def test_crash_dies_before_training(finished: Finished, task_id: str) -> None:
    context, agent = finished[task_id, "crash"]
    assert agent.stream[-1] == {"type": "died"}
    assert [name for name, _ in calls(context)][-1] == "read_table"
    assert not (context.workspace / "reports/report.md").exists()
    assert not list(Path(context.workspace).rglob("predictions.csv"))


@pytest.mark.parametrize("task_id", TASKS)
def test_report_only_writes_a_report_and_nothing_else(finished: Finished, task_id: str) -> None:
    context, _ = finished[task_id, "report_only"]
    assert list(written(context)) == ["reports/report.md"]
    assert calls(context) == []


@pytest.mark.parametrize("task_id", TASKS)
def test_no_run_ends_with_a_test_label_in_its_workspace(finished: Finished, task_id: str) -> None:
    for policy in POLICIES:
        context, _ = finished[task_id, policy]
        tested = {row["patient_id"] for row in read_csv(context.labels) if row["split"] == "test"}
        tables = [path for _, path in walk_files(context.workspace) if path.suffix == ".csv"]
        for path in tables:
            for row in read_csv(path):
                if (row.get("case_id") or row.get("patient_id")) in tested:
                    hidden = [row.get(name) for name in ("y_true", "label", "time", "event")]
                    assert not any(hidden), (policy, path)


def test_a_policy_gives_the_same_files_twice(finished: Finished, tmp_path: Path) -> None:
    first, _ = finished["demo_pleomorphism", "complete"]
    side = Side(tmp_path)
    second = side.context("complete")
    POLICIES["complete"](DirectAgent(second), "color_stats", 3)
    one, two = dict(walk_files(first.workspace)), dict(walk_files(second.workspace))
    assert set(one) == set(two)
    assert [name for name in one if one[name].read_bytes() != two[name].read_bytes()] == []
