"""Everything one run depends on, from the resolved study and the fixed layout of ``results/``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acpbench.core.config import TaskBinding, parse_study
from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_file
from acpbench.core.groups import Group, parse_group
from acpbench.core.ids import trajectory_id
from acpbench.harness.context import EvaluatorSide, TilerSettings, VisionEndpoint


class RunSettings(EvaluatorSide):
    """One group on one task. Paths are the evaluator's.

    ``harness``: the group's entry. ``memory_from``: the record before this one in a chain of execution memory
    (None for the first); ``memory``: whether there is a chain.
    """

    group: str
    replicate: str
    harness: Group
    encoder: str
    skills: Path | None
    memory: bool = False
    memory_from: Path | None = None
    wall_limit_s: float = 1800.0


def agent_inputs(
    task_id: str, binding: TaskBinding, encoder: str, labels: Path, slides_csv: Path, features_index: Path
) -> dict[str, Any]:
    """``agent_inputs.json``: what agents on a task are given, with hashes, under a name that never changes.

    The rule of an agent run depends on this file alone, so that a study's other cohort, encoder or task file
    makes a new one of these but repeats no finished run.

    Args:
        binding: the study's entry of the task.
        encoder: the encoder whose features agents get.
        labels: the evaluator's label table of the task.
        slides_csv: the validated cohort table.
        features_index: list of the agents' feature files.
    """
    return {
        "schema": "acp-agent-inputs/0.1",
        "task_id": task_id,
        "cohort": binding.cohort,
        "encoder": encoder,
        "task_file": str(binding.definition),
        "labels": str(labels),
        "slides": str(slides_csv),
        "sha256": {
            "task_file": sha256_file(checkout_path(str(binding.definition))),
            "labels": sha256_file(labels),
            "slides": sha256_file(slides_csv),
            "features_index": sha256_file(features_index),
        },
    }


def checkout_path(path: str) -> Path:
    """A path of the study: in the working directory, else in the checkout this package lies in."""
    here = Path(path)
    return here if here.is_absolute() or here.exists() else Path(__file__).resolve().parents[3] / path


def settings_from_study(
    study_file: Path, inputs_file: Path, group: str, replicate: str, results: Path
) -> RunSettings:
    """Settings of one run.

    Raises:
        InputError: the group or the task is not part of the study, or a file is not the one that was listed.
    """
    document = read_json(study_file)
    study = parse_study(document["config"], study_file)
    groups = {entry["id"]: entry for entry in document["groups"]}
    if group not in groups:
        raise InputError(f"{group!r} is not a group of the study", file=study_file, field="groups")
    entry = {name: value for name, value in groups[group].items() if name != "id"}
    spec = parse_group(entry, f"{study_file}: groups.{group}")
    inputs = read_json(inputs_file)
    task_id = inputs["task_id"]
    if task_id not in study.agent_tasks:
        raise InputError(f"{task_id!r} is not a task of the study", file=study_file, field="tasks")
    files = {
        "task_file": checkout_path(inputs["task_file"]),
        "labels": Path(inputs["labels"]),
        "slides": Path(inputs["slides"]),
    }
    for name, path in files.items():
        if sha256_file(path) != inputs["sha256"][name]:
            raise InputError(f"has changed since {inputs_file.name} was written", file=path, field=name)
    cohort = study.cohorts[inputs["cohort"]]
    rules = study.trajectories
    before = study.task_before(task_id)
    skills = rules.skills if spec.skills == "study" else None
    return RunSettings(
        group=group,
        task_file=files["task_file"],
        replicate=replicate,
        harness=Group(spec),
        labels=files["labels"],
        slides_csv=files["slides"],
        exclusions_csv=files["slides"].with_name("exclusions.csv"),
        slides_base=results / "generated" / inputs["cohort"]
        if cohort.generator
        else checkout_path(cohort.manifest).parent,
        slides_dir=results / "slides" / inputs["cohort"],
        features_dir=results / "features" / inputs["cohort"],
        store_dir=results / "store" / inputs["cohort"],
        encoders_config=checkout_path(study.encoders_config),
        encoder=inputs["encoder"],
        skills=None if skills is None else checkout_path(skills),
        memory=rules.memory == "group",
        memory_from=None
        if before is None
        else results / "trajectories" / trajectory_id(group, before, replicate) / "run",
        tiler=TilerSettings(**study.tiling.model_dump(exclude={"min_tiles"})),
        label_column="time, event" if study.tasks[task_id].time_column else "label",
        label_access=rules.label_access,
        test_evaluations=rules.test_evaluations,
        wall_limit_s=rules.wall_limit_s,
        vision=None if rules.vision is None else VisionEndpoint(**rules.vision.model_dump()),
        offline=study.offline,
        seed=study.seed,
    )
