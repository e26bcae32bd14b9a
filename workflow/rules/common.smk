# Everything the stages share: the typed configuration, the grid of slides and trajectories, path helpers.
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

from acpbench.core.config import load_groups, parse_study
from acpbench.core.errors import InputError
from acpbench.core.files import read_yaml
from snakemake.exceptions import WorkflowError

SPARE_MINUTES = 30  # of an agent's job: to start, to end and to record
GRADE_FILES = ["checks.jsonl", "judgements.jsonl", "adjudicated.jsonl"]
SCORE_FILES = [
    "workflow_score.json",
    "predictions.csv",
    "diagnostic.json",
    "cwas3.json",
    "r6.json",
    "reflection.json",
]


def study_file(path):
    """A path of the study: in the working directory, else in the checkout."""
    if os.path.isabs(path) or os.path.exists(path):
        return path
    return str(Path(workflow.basedir) / path)


try:
    CONFIG_FILE = ", ".join(map(str, workflow.configfiles)) or "study configuration"
    STUDY = parse_study(config, CONFIG_FILE)
    GROUPS = load_groups(study_file(STUDY.groups_config))
    ENCODERS = read_yaml(study_file(STUDY.encoders_config))
    for group in STUDY.trajectories.groups:
        if group not in GROUPS:
            raise InputError(
                f"{group!r} is not in {STUDY.groups_config}",
                file=CONFIG_FILE,
                field="trajectories.groups",
            )
    for encoder in STUDY.encoders:
        if encoder not in ENCODERS:
            raise InputError(
                f"{encoder!r} is not in {STUDY.encoders_config}",
                file=CONFIG_FILE,
                field="encoders",
            )
except InputError as error:
    raise WorkflowError(str(error))


wildcard_constraints:
    cohort="[A-Za-z0-9._-]+",
    slide_id="[A-Za-z0-9._-]+",
    encoder="[A-Za-z0-9._-]+",
    task="[A-Za-z0-9._-]+",
    group="[A-Za-z0-9._-]+",
    replicate="[0-9]+",
    fold="[0-9]+",


def canonical(value):
    """A byte-stable text of a parameter, so that only a changed value counts as a change."""
    return json.dumps(value, sort_keys=True, default=str)


def cohort_of(wildcards):
    """Cohort name of a task."""
    return STUDY.tasks[wildcards.task].cohort


def task_file(wildcards):
    """Definition file of a task."""
    return study_file(STUDY.tasks[wildcards.task].definition)


def per_slide(pattern, cohort):
    """One path a slide of a cohort."""
    return [
        pattern.format(cohort=cohort, slide_id=slide_id) for slide_id in SLIDES[cohort]
    ]


def trajectory_files(name):
    """The file ``name`` of every trajectory of the study."""
    return expand(
        "results/trajectories/{group}/{task}/{replicate}/{name}",
        group=STUDY.trajectories.groups,
        task=STUDY.agent_tasks,
        replicate=range(1, STUDY.trajectories.replicates + 1),
        name=name,
    )


def attention_slides(cohort):
    """The slides whose attention is drawn for the report; any other can be asked for by name."""
    return list(SLIDES[cohort])[: STUDY.attention_pictures]


def reference_targets():
    """Metrics and pictures of the reference pipeline."""
    targets = expand(
        "results/reference/{task}/{encoder}/{name}",
        name=["metrics.json", "reliability.csv"],
        task=STUDY.tasks,
        encoder=STUDY.encoders,
    )
    for task, binding in STUDY.tasks.items():
        targets.extend(
            expand(
                "results/reference/{task}/{encoder}/attention/{slide_id}.jpg",
                task=task,
                encoder=[
                    name for name in STUDY.encoders if name != STUDY.control_encoder
                ],
                slide_id=attention_slides(binding.cohort),
            )
        )
    return targets


def review_files():
    """Human judgements of single checkpoints, one file a reviewer."""
    return sorted(str(path) for path in Path(study_file(STUDY.reviews)).glob("*.jsonl"))


def earlier_record(wildcards):
    """With `memory: group`, the record of the group's task before this one; else nothing."""
    before = STUDY.task_before(wildcards.task)
    if before is None:
        return []
    folder = f"results/trajectories/{wildcards.group}/{before}/{wildcards.replicate}"
    return [f"{folder}/run/run.json"]


def agent_minutes(wildcards):
    """The wall limit in force, and time to start, to end and to record."""
    group = GROUPS.get(wildcards.group)
    own = getattr(group, "limits", None)
    seconds = (own and own.wall_s) or STUDY.trajectories.wall_limit_s
    return math.ceil(seconds / 60) + SPARE_MINUTES


def control_file(name):
    """A result of the colour control for the same task; nothing for the control itself."""
    return lambda wildcards: (
        f"results/reference/{wildcards.task}/{STUDY.control_encoder}/{name}"
        if STUDY.control_encoder in STUDY.encoders
        and wildcards.encoder != STUDY.control_encoder
        else []
    )


def slide_of(wildcards):
    """Cohort and slide, as the slide rules name them."""
    return SimpleNamespace(cohort=cohort_of(wildcards), slide_id=wildcards.slide_id)
