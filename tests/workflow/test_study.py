"""A small study from generated slides to the report, and what a second run does and does not do again."""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from acpbench.core.files import read_csv, read_jsonl, walk_files
from acpbench.rubric.catalogue import load_rubric
from tests.workflow.study import (
    BAD_SLIDES,
    GRADE_FILES,
    GROUPS,
    MINI,
    REPOSITORY,
    RUN_FILES,
    SCORE_FILES,
    SLIDES,
    TASK,
    changed,
    plan,
    planned,
    snakemake,
    trajectory,
    write_study,
)

RESCORED = {"score_trajectory": 1, "render_report": 1, "all": 1}


def load(folder: Path, group: str, name: str) -> dict[str, Any]:
    return json.loads((trajectory(folder, group) / name).read_text())


def test_bad_slides_are_excluded_with_their_reasons_and_every_other_is_used(mini: Path) -> None:
    cohort = mini / "results" / "cohorts" / "demo"
    dropped = {row["slide_id"]: row for row in read_csv(cohort / "exclusions.csv")}
    assert {name: row["reason"] for name, row in dropped.items()} == BAD_SLIDES
    assert all(row["stage"] == "inspect" and row["detail"] for row in dropped.values())
    kept = read_csv(cohort / "slides.csv")
    assert {row["slide_id"] for row in kept} == set(SLIDES) - set(BAD_SLIDES)
    assert all(int(row["n_tiles"]) >= 4 and float(row["mpp"]) == 0.5 for row in kept)


def test_a_bad_slide_still_has_every_file_of_its_stage(mini: Path) -> None:
    for slide_id, reason in BAD_SLIDES.items():
        folder = mini / "results" / "slides" / "demo" / slide_id
        quality = json.loads((folder / "quality.json").read_text())
        assert quality["status"] == reason
        assert {path.name for path in folder.iterdir()} == {
            "quality.json", "tissue.geojson", "coords.h5", "thumbnail.jpg"}  # fmt: skip
        sidecar = mini / "results" / "features" / "demo" / "color_stats" / f"{slide_id}.h5.json"
        assert json.loads(sidecar.read_text())["n_tiles"] == 0


def test_folds_hold_each_patient_once_and_both_classes_in_every_split(mini: Path) -> None:
    rows = read_csv(mini / "results" / "reference" / TASK / "labels.csv")
    assert len({row["patient_id"] for row in rows}) == len(rows) == 12
    assert {row["fold"] for row in rows} == {"0", "1", "2", "3"}
    for split in ("train", "validation", "test"):
        assert {row["label"] for row in rows if row["split"] == split} == {"low", "high"}


def test_the_reference_predicts_every_patient_held_out(mini: Path) -> None:
    folder = mini / "results" / "reference" / TASK / "color_stats"
    predicted = read_csv(folder / "predictions.csv")
    assert len({row["patient_id"] for row in predicted}) == len(predicted) == 12
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["n"] == 12
    assert metrics["primary_metric"] == "AUROC"
    low, high = metrics["intervals"]["AUROC"]
    assert 0 <= low <= metrics["metrics"]["AUROC"] <= high <= 1


@pytest.mark.parametrize("group", GROUPS)
def test_every_file_of_the_contract_is_there_for_every_trajectory(mini: Path, group: str) -> None:
    folder = trajectory(mini, group)
    for name in [*SCORE_FILES, *GRADE_FILES, *(f"run/{name}" for name in RUN_FILES)]:
        assert (folder / name).is_file(), name
    items = [[row["item_id"] for row in read_jsonl(folder / name)] for name in GRADE_FILES]
    checks, judgements, adjudicated = items
    assert len(set(adjudicated)) == len(adjudicated)
    assert set(checks) | set(judgements) == set(adjudicated)
    assert not set(checks) & set(judgements)
    for name in ("workflow_score.json", "diagnostic.json", "cwas3.json", "r6.json", "reflection.json"):
        document = json.loads((folder / name).read_text())
        assert document["trajectory"] == f"{group}/{TASK}/1"
        assert {"schema", "grade_status", "provenance"} <= set(document)


@pytest.mark.parametrize("group", GROUPS)
def test_graded_files_hold_no_path_of_this_machine(mini: Path, checkout: Path, group: str) -> None:
    for name in [*SCORE_FILES, *GRADE_FILES]:
        text = (trajectory(mini, group) / name).read_text()
        assert str(mini) not in text, name
        assert str(checkout) not in text, name


@pytest.mark.parametrize("group", GROUPS)
def test_the_record_is_write_protected(mini: Path, group: str) -> None:
    for name, path in walk_files(trajectory(mini, group) / "run"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0, name


def test_each_run_ended_as_its_policy_makes_it_end(mini: Path) -> None:
    status = {group: load(mini, group, "run/run.json")["run_status"] for group in GROUPS}
    assert status == dict.fromkeys(GROUPS, "completed") | {"scripted_crash": "killed"}


def test_complete_ranks_first_by_both_aggregations(mini: Path) -> None:
    scores = {group: load(mini, group, "workflow_score.json") for group in GROUPS}
    assert all(score["grade_status"] == "scored" for score in scores.values())
    for name in ("item_weighted", "stage_mean"):
        ranked = sorted(GROUPS, key=lambda group: -scores[group][name])
        assert ranked[0] == "scripted_complete"
        assert scores[ranked[0]][name] > scores[ranked[1]][name]
        assert ranked[-1] == "scripted_report_only"
    stages = {group: score["stages"] for group, score in scores.items()}
    assert stages["scripted_no_reflection"]["reflection"] < stages["scripted_complete"]["reflection"]
    assert stages["scripted_no_reflection"]["planning"] == stages["scripted_complete"]["planning"]


def test_a_report_alone_passes_nothing_that_needs_another_file(mini: Path) -> None:
    rubric = load_rubric(REPOSITORY / "tasks" / "rubric.yaml")
    evidence = {checkpoint.id: set(checkpoint.evidence) for checkpoint in rubric.checkpoints}
    rows = read_jsonl(trajectory(mini, "scripted_report_only") / "adjudicated.jsonl")
    passed = [row for row in rows if row["final_status"] == "PASS"]
    assert passed
    for row in passed:
        needed = {ref.partition("#")[0] for ref in evidence[row["checkpoint"]]}
        assert needed == {"reports/report.md"}, row["item_id"]
    cwas3 = load(mini, "scripted_report_only", "cwas3.json")
    assert cwas3["components"]["U"]["status"] == "FAIL"
    diagnostic = load(mini, "scripted_report_only", "diagnostic.json")
    assert diagnostic["grade_status"] == "no_predictions"
    assert diagnostic["primary_value"] is None


def test_unsafe_words_cost_the_overclaim_component_and_no_metric(mini: Path) -> None:
    honest, unsafe = "scripted_complete", "scripted_overclaim"
    values = {group: load(mini, group, "r6.json")["components"] for group in (honest, unsafe)}
    assert values[unsafe]["O"]["value"] < values[honest]["O"]["value"]
    for component in "DCT":
        assert values[unsafe][component]["value"] == values[honest][component]["value"]
    diagnostics = [load(mini, group, "diagnostic.json") for group in (honest, unsafe)]
    for document in diagnostics:
        assert document["primary_value"] is not None
        del document["trajectory"], document["provenance"]
    assert diagnostics[0] == diagnostics[1]


def test_a_crashed_run_is_scored_not_dropped(mini: Path) -> None:
    run = load(mini, "scripted_crash", "run/run.json")
    score = load(mini, "scripted_crash", "workflow_score.json")
    assert (run["run_status"], run["signal"], score["run_status"]) == ("killed", 9, "killed")
    assert score["grade_status"] == "scored"
    assert (
        0 < score["item_weighted"] < load(mini, "scripted_complete", "workflow_score.json")["item_weighted"]
    )
    listed = read_csv(mini / "results" / "report" / "tables" / "trajectories.csv")
    assert "scripted_crash" in json.dumps(listed)


def test_invented_numbers_are_scored_as_such(mini: Path) -> None:
    failed = "scripted_silent_failure"
    assert load(mini, failed, "cwas3.json")["score"] < load(mini, "scripted_complete", "cwas3.json")["score"]
    # The predictions table is there and is scored against the evaluator's labels, not by its own 0.912.
    diagnostic = load(mini, failed, "diagnostic.json")
    assert diagnostic["grade_status"] == "scored"
    assert diagnostic["primary_value"] != 0.912


def test_the_evaluators_metrics_come_from_its_own_labels(mini: Path) -> None:
    labels = {row["patient_id"]: row for row in read_csv(mini / "results/reference" / TASK / "labels.csv")}
    rows = read_csv(trajectory(mini, "scripted_complete") / "predictions.csv")
    tested = [row for row in rows if row["split"] == "test"]
    assert len(tested) == sum(row["split"] == "test" for row in labels.values())
    for row in tested:
        assert row["y_true_reference"] == labels[row["patient_id"]]["label"]
        assert row["y_true_agent"] == ""
    by_class = {name: [float(row["prob_high"]) for row in tested if row["y_true_reference"] == name]
                for name in ("low", "high")}  # fmt: skip
    pairs = [(h > low) + 0.5 * (h == low) for h in by_class["high"] for low in by_class["low"]]
    test_level = load(mini, "scripted_complete", "diagnostic.json")["levels"]["test"]
    assert test_level["metrics"]["AUROC"] == pytest.approx(sum(pairs) / len(pairs))


def test_no_test_label_is_in_a_recorded_workspace(mini: Path) -> None:
    rows = read_csv(mini / "results" / "reference" / TASK / "labels.csv")
    tested = {row["patient_id"] for row in rows if row["split"] == "test"}
    for group in GROUPS:
        for name, path in walk_files(trajectory(mini, group) / "run" / "workspace"):
            if not name.endswith(".csv"):
                continue
            for row in read_csv(path):
                if (row.get("patient_id") or row.get("case_id")) in tested:
                    assert not row.get("label"), (group, name)
                    assert not row.get("y_true"), (group, name)


def test_the_report_links_every_trajectory_and_every_link_leads_somewhere(mini: Path) -> None:
    report = mini / "results" / "report"
    text = (report / "index.html").read_text()
    links = set(re.findall(r'href="([^"#:]+)"', text))
    for group in GROUPS:
        assert f"trajectories/{group}__{TASK}__1.html" in links
    for link in links:
        assert (report / link).is_file(), link
    assert not re.search(r'(?:src|href)="(?:https?:)?//(?!github\.com)', text)


def test_a_second_run_has_nothing_to_do(checkout: Path, mini_copy: Path) -> None:
    before = {name: path.stat().st_mtime_ns for name, path in walk_files(mini_copy / "results")}
    done = snakemake(checkout, mini_copy)
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout
    assert {name: path.stat().st_mtime_ns for name, path in walk_files(mini_copy / "results")} == before


ADJUDICATED = {"adjudicate_trajectory": 1, **RESCORED}


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        *((name, RESCORED) for name in SCORE_FILES),
        ("adjudicated.jsonl", ADJUDICATED),
        ("judgements.jsonl", {"judge_trajectory": 1, **ADJUDICATED}),
        ("run", {"run_agent": 1, "check_trajectory": 1, "judge_trajectory": 1, **ADJUDICATED}),
    ],
)
def test_a_lost_file_is_made_again_with_what_rests_on_it_and_nothing_before_it(
    checkout: Path, shared_copy: Path, name: str, jobs: dict[str, int]
) -> None:
    lost = trajectory(shared_copy, "scripted_complete") / name
    aside = lost.with_name(f"{lost.name}.aside")
    lost.rename(aside)
    try:
        assert plan(checkout, shared_copy) == jobs
    finally:
        aside.rename(lost)


def test_scoring_again_gives_the_same_bytes(checkout: Path, mini: Path, mini_copy: Path) -> None:
    lost = trajectory(mini_copy, "scripted_complete") / "r6.json"
    lost.unlink()
    done = snakemake(checkout, mini_copy)
    assert done.returncode == 0, done.stdout[-3000:]
    assert planned(done.stdout) == RESCORED
    for name in SCORE_FILES:
        old, new = (trajectory(folder, "scripted_complete") / name for folder in (mini, mini_copy))
        assert new.read_bytes() == old.read_bytes(), name


def test_touching_every_source_file_repeats_no_agent_run(checkout: Path, shared_copy: Path) -> None:
    times = {path: path.stat() for _, path in walk_files(checkout)}
    assert len(times) > 150
    try:
        for path in times:
            os.utime(path)
        jobs = plan(checkout, shared_copy)
    finally:
        for path, status in times.items():
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "run_agent" not in jobs
    # Code is no reason to run anything again; the touched rubric and task files are read by these alone.
    assert set(jobs) <= {"check_trajectory", "judge_trajectory", "adjudicate_trajectory", "score_trajectory",
                         "assign_labels", "train_fold", "pool_folds", "render_report", "all"}  # fmt: skip


ONE_CHANGE: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 8}, "assign_labels"),
    "agents' encoder": (
        {"encoders": ["color_stats", "efficientnet_lite0"], "agent_encoder": "efficientnet_lite0"},
        "list_agent_inputs",
    ),
    "task file": (
        {"tasks": {TASK: MINI["tasks"][TASK] | {"definition": "tasks/demo/../demo/demo_pleomorphism.yaml"}}},
        "list_agent_inputs",
    ),
    "tiling": ({"tiling": {"spacing_um": 1.0, "min_tissue": 0.2}}, "tile_slide"),
    "everything else": (
        {"bootstrap_resamples": 200, "mil": {"max_epochs": 6}, "study": "other", "offline": False,
         "trajectories": {"test_evaluations": 2, "wall_limit_s": 60, "label_access": "open", "skills": None,
                          "memory": "group"}},
        "pool_folds",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ONE_CHANGE))
def test_a_changed_configuration_repeats_its_own_stage_and_no_agent_run(
    checkout: Path, shared_copy: Path, name: str
) -> None:
    changes, stage = ONE_CHANGE[name]
    write_study(shared_copy, changed(**changes), "other.yaml")
    jobs = plan(checkout, shared_copy, config="other.yaml")
    assert stage in jobs
    assert "run_agent" not in jobs


def test_another_split_is_refused_by_checks_and_scores_instead_of_graded(
    checkout: Path, mini_copy: Path
) -> None:
    write_study(mini_copy, changed(seed=8, trajectories={"groups": ["scripted_complete"]}), "other.yaml")
    lost = trajectory(mini_copy, "scripted_complete")
    targets = [str((lost / name).relative_to(mini_copy)) for name in ("checks.jsonl", "r6.json")]
    done = snakemake(checkout, mini_copy, *targets, config="other.yaml")
    assert done.returncode == 1
    assert re.search(r"digests.split: scripted_complete/demo_pleomorphism/1 ran on split \w+, the label table",
                     done.stdout)  # fmt: skip
    assert "run_agent" not in planned(done.stdout)
    # What stood there was graded by the old split and is gone, not kept as if it were current.
    assert not (lost / "checks.jsonl").exists()
    log = mini_copy / "results/logs/check_trajectory/scripted_complete" / TASK / "1.log"
    assert log.read_text().count("\n") == 1


def test_one_more_replicate_runs_that_one_alone(checkout: Path, shared_copy: Path) -> None:
    write_study(shared_copy, changed(trajectories={"replicates": 2}), "other.yaml")
    jobs = plan(checkout, shared_copy, config="other.yaml")
    assert jobs["run_agent"] == len(GROUPS)
    assert not {"draw_slide", "tile_slide", "extract_features", "train_fold"} & set(jobs)


def test_an_audit_changes_its_item_and_the_basis_without_judging_again(
    checkout: Path, mini: Path, mini_copy: Path
) -> None:
    group = "scripted_complete"
    rows = read_jsonl(trajectory(mini, group) / "adjudicated.jsonl")
    item = next(
        row for row in rows if row["kind"] == "semantic" and row["final_status"] in ("FAIL", "PARTIAL")
    )
    before = load(mini, group, "workflow_score.json")
    assert before["basis"] == "first_pass"
    record = {
        "trajectory": f"{group}/{TASK}/1", "checkpoint": item["item_id"], "status": "PASS",
        "confidence": "high", "evidence_refs": ["reports/report.md#L1"], "rationale": "read by a person",
        "reviewer": "reader_a", "time": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    (mini_copy / "reviews" / "checkpoints" / "reader_a.jsonl").write_text(json.dumps(record) + "\n")
    done = snakemake(checkout, mini_copy)
    assert done.returncode == 0, done.stdout[-3000:]
    assert planned(done.stdout) == {"adjudicate_trajectory": 6, "score_trajectory": 6, "render_report": 1,
                                    "all": 1}  # fmt: skip
    after = {row["item_id"]: row for row in read_jsonl(trajectory(mini_copy, group) / "adjudicated.jsonl")}
    audited = after.pop(item["item_id"])
    assert (audited["final_status"], audited["decided_by"], audited["audit_status"]) == (
        "PASS", "audit", "PASS")  # fmt: skip
    assert audited["first_pass_status"] == item["final_status"]
    assert after == {row["item_id"]: row for row in rows if row["item_id"] != item["item_id"]}
    score = load(mini_copy, group, "workflow_score.json")
    assert score["basis"] == "expert_adjudicated"
    assert 0 < score["audited_share"] < 0.02
    assert score["item_weighted"] > before["item_weighted"]
    other = "scripted_crash"
    assert load(mini_copy, other, "workflow_score.json") == load(mini, other, "workflow_score.json")


def test_the_workflow_report_is_one_archive(checkout: Path, mini_copy: Path) -> None:
    done = snakemake(checkout, mini_copy, "--report", "report.zip")
    assert done.returncode == 0, done.stdout[-3000:]
    with zipfile.ZipFile(mini_copy / "report.zip") as archive:
        assert archive.testzip() is None
        assert any(name.endswith("report.html") for name in archive.namelist())


def test_the_resolved_study_is_kept_with_the_results(mini: Path) -> None:
    document = json.loads((mini / "results" / "study.json").read_text())
    given = yaml.safe_load((mini / "study.yaml").read_text())
    assert [group["id"] for group in document["groups"]] == GROUPS
    assert document["synthetic"] is True
    for key in ("seed", "folds", "encoders", "study"):
        assert document["config"][key] == given[key]
