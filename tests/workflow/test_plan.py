"""The plan of the workflow without running it: what would be done, what is refused with one clear line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from acpbench.core.config import load_groups, load_study
from acpbench.core.files import read_csv, write_csv
from tests.workflow.study import MINI, REPOSITORY, TASK, changed, plan, snakemake, write_study

SHIPPED = sorted(path.name for path in (REPOSITORY / "config").glob("*.yaml")
                 if "study" in yaml.safe_load(path.read_text()))  # fmt: skip


def rules() -> dict[str, str]:
    """Text of every rule of the workflow that makes something."""
    found = {}
    for path in sorted((REPOSITORY / "workflow" / "rules").glob("*.smk")):
        for block in re.split(r"^(?=(?:rule|checkpoint) )", path.read_text(), flags=re.MULTILINE)[1:]:
            found[block.split()[1].rstrip(":")] = block
    return found


def section(block: str, name: str) -> str:
    """One section of a rule, for example its inputs."""
    match = re.search(rf"^    {name}:(.*?)(?=^    \w+:|\Z)", block, re.MULTILINE | re.DOTALL)
    return match.group(1) if match else ""


def test_the_demo_plans_one_job_for_each_thing_to_make(tmp_path: Path) -> None:
    config = load_study(REPOSITORY / "config" / "config.yaml")
    (tmp_path / "study.yaml").write_text((REPOSITORY / "config" / "config.yaml").read_text())
    jobs = plan(REPOSITORY, tmp_path)
    n_slides = len(read_csv(REPOSITORY / "tasks" / "demo" / "cohort.csv"))
    runs = len(config.trajectories.groups) * len(config.agent_tasks) * config.trajectories.replicates
    assert (n_slides, runs) == (38, 18)
    models = len(config.tasks) * len(config.encoders)
    assert jobs == {
        "draw_slide": n_slides,
        "inspect_slide": n_slides,
        "tile_slide": n_slides,
        "join_cohort": 1,
        "extract_features": n_slides * len(config.encoders),
        "index_features": 1,
        "assign_labels": len(config.tasks),
        "train_fold": models * config.folds,
        "pool_folds": models,
        "draw_attention": len(config.tasks) * config.attention_pictures,
        "write_study": 1,
        "list_agent_inputs": len(config.agent_tasks),
        "wait_for_memory": runs,
        "run_agent": runs,
        "check_trajectory": runs,
        "judge_trajectory": runs,
        "adjudicate_trajectory": runs,
        "score_trajectory": runs,
        "render_report": 1,
        "all": 1,
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_study_is_valid_and_names_known_groups(name: str) -> None:
    study = load_study(REPOSITORY / "config" / name)
    groups = load_groups(REPOSITORY / study.groups_config)
    assert set(study.trajectories.groups) <= set(groups)
    for binding in study.tasks.values():
        assert binding.definition is None or (REPOSITORY / binding.definition).is_file()
    for cohort in study.cohorts.values():
        if cohort.generator:
            assert (REPOSITORY / cohort.manifest).is_file()


def test_a_manifest_with_a_label_column_is_a_study_without_agents(tmp_path: Path) -> None:
    write_csv(
        tmp_path / "slides.csv",
        ["slide_id", "patient_id", "path", "grade"],
        [
            {"slide_id": f"s{i}", "patient_id": f"p{i}", "path": f"s{i}.svs", "grade": "ab"[i % 2]}
            for i in range(8)
        ],
    )
    config = {
        "study": "own",
        "cohorts": {"mine": {"manifest": str(tmp_path / "slides.csv")}},
        "tasks": {"grade": {"cohort": "mine", "label_column": "grade", "classes": ["a", "b"]}},
        "encoders": ["color_stats"],
        "folds": 3,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(config))
    jobs = plan(REPOSITORY, tmp_path, "reference")
    assert jobs["inspect_slide"] == 8
    assert jobs["train_fold"] == 3
    assert jobs["pool_folds"] == 1
    assert not {"draw_slide", "run_agent", "score_trajectory"} & set(jobs)
    whole = plan(REPOSITORY, tmp_path)
    assert whole["render_report"] == 1
    assert "run_agent" not in whole


def test_the_papers_study_is_nine_groups_on_forty_one_tasks(tmp_path: Path) -> None:
    text = (REPOSITORY / "config" / "paper.yaml").read_text()
    study = load_study(REPOSITORY / "config" / "paper.yaml")
    groups = load_groups(REPOSITORY / study.groups_config)
    families = [groups[name].harness for name in study.trajectories.groups]
    assert sorted(families) == ["claude_code"] * 3 + ["codex"] * 3 + ["opencode"] * 3
    assert len(study.agent_tasks) == 41
    (tmp_path / "study.yaml").write_text(text)
    for cohort_id, cohort in study.cohorts.items():
        labels = {
            column: 1
            for binding in study.tasks.values()
            if binding.cohort == cohort_id
            for column in binding.columns.values()
        }
        rows = [
            {"slide_id": f"{cohort_id}-{i}", "patient_id": f"p{i}", "path": f"{i}.svs", **labels}
            for i in range(2)
        ]
        write_csv(tmp_path / cohort.manifest, list(rows[0]), rows)
    jobs = plan(REPOSITORY, tmp_path)
    assert jobs["run_agent"] == 369
    assert jobs["list_agent_inputs"] == 41
    assert jobs["inspect_slide"] == 2 * len(study.cohorts)
    assert jobs["score_trajectory"] == 369


def test_runs_that_share_a_memory_wait_for_each_other_in_the_stated_order(tmp_path: Path) -> None:
    tasks = {
        name: {"definition": f"tasks/demo/{name}.yaml", "cohort": "demo", "label_column": column}
        for name, column in (("demo_pleomorphism", "pleomorphism"), ("demo_gland_grade", "gland_grade"))
    }
    rules = {"groups": ["scripted_complete"], "memory": "group", "tasks": ["demo_gland_grade", TASK]}
    write_study(tmp_path / "chain", changed(tasks=tasks, trajectories=rules))
    last = f"results/trajectories/scripted_complete/{TASK}/1/run/run.json"
    first = "results/trajectories/scripted_complete/demo_gland_grade/1/run/run.json"
    assert plan(REPOSITORY, tmp_path / "chain", last)["run_agent"] == 2
    assert plan(REPOSITORY, tmp_path / "chain", first)["run_agent"] == 1
    write_study(tmp_path / "apart", changed(tasks=tasks, trajectories=rules | {"memory": "none"}))
    assert plan(REPOSITORY, tmp_path / "apart", last)["run_agent"] == 1


def test_replicates_multiply_runs_and_nothing_before_them(tmp_path: Path) -> None:
    write_study(tmp_path / "one")
    write_study(tmp_path / "three", changed(trajectories={"replicates": 3}))
    one, three = plan(REPOSITORY, tmp_path / "one"), plan(REPOSITORY, tmp_path / "three")
    per_run = {"wait_for_memory", "run_agent", "check_trajectory", "judge_trajectory", "adjudicate_trajectory",
               "score_trajectory"}  # fmt: skip
    assert one["run_agent"] == 6
    for rule, count in three.items():
        assert count == (3 * one[rule] if rule in per_run else one[rule]), rule


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in MINI.items() if key not in keys}


def task(**changes: object) -> dict[str, Any]:
    return changed(tasks={TASK: {**MINI["tasks"][TASK], **changes}})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: changed(trajectories={"groups": ["nobody"]}),
         ["study.yaml", "trajectories.groups", "'nobody'", "config/groups.yaml"]),
        (lambda: changed(encoders=["color_stats", "uni9"]),
         ["study.yaml", "encoders", "'uni9'", "config/encoders.yaml"]),
        (lambda: changed(folds="two"), ["study.yaml", "folds", "integer", "'two'"]),
        (lambda: changed(folds=2), ["study.yaml", "folds", "greater than or equal to 3"]),
        (lambda: changed(fold=4), ["study.yaml", "fold", "not permitted"]),
        (lambda: changed(tiling={"spacing": 0.5}), ["study.yaml", "tiling.spacing", "not permitted"]),
        (lambda: changed(agent_encoder="uni"), ["study.yaml", "agent_encoder", "'uni'"]),
        (lambda: task(cohort="elsewhere"), ["study.yaml", "elsewhere"]),
        (lambda: task(label_column=None), ["study.yaml", f"tasks.{TASK}", "label_column"]),
        (lambda: changed(trajectories={"tasks": ["lung_os"]}), ["study.yaml", "trajectories.tasks"]),
        (lambda: changed(cohorts={"demo": {"manifest": "none.csv"}}), ["none.csv", "does not exist"]),
        (lambda: changed(groups_config="none.yaml"), ["none.yaml", "does not exist"]),
        (lambda: changed(groups_config="groups.yaml"),
         ["groups.yaml", "groups.g.policy", "'brilliant'"]),
        (lambda: changed(groups_config="families.yaml"),
         ["families.yaml", "groups.g.harness", "'aider'", "claude_code"]),
        (lambda: changed(judge="oracle"), ["study.yaml", "judge", "'oracle'"]),
        (lambda: without("cohorts"), ["study.yaml", "cohorts", "required"]),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_one_line_naming_file_and_field(
    tmp_path: Path, make: Callable[[], dict[str, Any]], words: list[str]
) -> None:
    write_study(tmp_path, make())
    for name, entry in (
        ("groups", {"harness": "scripted", "policy": "brilliant"}),
        ("families", {"harness": "aider"}),
    ):
        text = yaml.safe_dump({"groups": {"g": {"label": "g"} | entry}})
        (tmp_path / f"{name}.yaml").write_text(text)
    done = snakemake(REPOSITORY, tmp_path, "--dry-run")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    told = [line for line in done.stdout.splitlines() if all(word in line for word in words)]
    assert len(told) == 1, done.stdout
    assert not (tmp_path / "results").exists()


def test_every_rule_logs_and_none_runs_code_of_its_own() -> None:
    found = rules()
    assert len(found) >= 16
    for name, block in found.items():
        assert section(block, "log").strip(), name
        assert section(block, "output").strip(), name
        assert bool(section(block, "shell")) != bool(section(block, "script")), name
    for path in [*(REPOSITORY / "workflow").rglob("*.smk"), REPOSITORY / "Snakefile"]:
        assert not re.search(r"^\s*run:", path.read_text(), re.MULTILINE), path


def test_a_log_has_every_wildcard_of_its_rule_so_that_no_two_jobs_share_one() -> None:
    for name, block in rules().items():
        wildcards = set(re.findall(r"(?<!\{)\{(\w+)\}(?!\})", section(block, "output")))
        assert wildcards == set(re.findall(r"\{(\w+)\}", section(block, "log"))), name


def test_an_agent_run_depends_on_no_time_stamp_and_is_never_retried_or_overwritten() -> None:
    block = rules()["run_agent"]
    inputs = re.findall(r"^        (\w+)=(.*?)(?=^        \w+=|\Z)", section(block, "input"),
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    outputs = re.findall(r"^        (\w+)=(.*?)(?=^        \w+=|\Z)", section(block, "output"),
                         re.MULTILINE | re.DOTALL)  # fmt: skip
    # Names that no configuration changes: a changed set of inputs is a reason to run again.
    assert [" ".join(text.split()) for _, text in inputs] == [
        'ancient("results/study.json"),',
        'ancient("results/reference/{task}/agent_inputs.json"),',
        'ancient("results/trajectories/{group}/{task}/{replicate}/runs_after.txt"),',
    ]
    assert {name for name, _ in outputs} == {"record", "stream", "tools", "trajectory", "manifest"}
    for name, text in outputs:
        assert text.strip().startswith("protected("), name
    assert section(block, "retries").strip() == "0"
    assert not section(block, "params")


@pytest.mark.parametrize("name", ["default", "slurm"])
def test_profiles_hold_known_options_and_never_repeat_a_paid_run(name: str) -> None:
    from snakemake.cli import get_argument_parser

    profile = yaml.safe_load((REPOSITORY / "profiles" / name / "config.yaml").read_text())
    known = {
        option.removeprefix("--")
        for action in get_argument_parser()._actions
        for option in action.option_strings
    }
    assert {key for key in profile if key not in known and not key.startswith("slurm-")} == set()
    assert profile["retries"] == 0
    assert not {"code", "software-env"} & set(profile["rerun-triggers"])
    assert profile["rerun-incomplete"] is True
