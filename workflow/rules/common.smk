# Everything the stages share: the typed configuration, the grid of slides and trajectories, path helpers.
import json
import os
from pathlib import Path

from acpbench.core.config import load_groups, parse_study
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_yaml
from acpbench.core.ids import check_id
from snakemake.exceptions import WorkflowError

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


def slide_sources(name, cohort):
    """slide_id -> slide file of a cohort. Rows with bad or repeated ids are left to the join's exclusions."""
    manifest = study_file(cohort.manifest)
    base = f"results/generated/{name}" if cohort.generator else os.path.dirname(manifest)
    sources = {}
    for row in read_csv(manifest):
        try:
            slide_id = check_id(row.get(cohort.columns.slide_id, ""), "slide_id")
        except InputError:
            continue
        sources.setdefault(slide_id, os.path.join(base, row.get(cohort.columns.path, "")))
    return sources


try:
    STUDY = parse_study(config, "study configuration")
    GROUPS = load_groups(study_file(STUDY.groups_config))
    ENCODERS = read_yaml(study_file(STUDY.encoders_config))
    SOURCES = {name: slide_sources(name, cohort) for name, cohort in STUDY.cohorts.items()}
    for group in STUDY.trajectories.groups:
        if group not in GROUPS:
            raise InputError("is not in the groups file", field=f"trajectories.groups: {group}")
    for encoder in STUDY.encoders:
        if encoder not in ENCODERS:
            raise InputError("is not in the encoders file", field=f"encoders: {encoder}")
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
    return [pattern.format(cohort=cohort, slide_id=slide_id) for slide_id in SOURCES[cohort]]


def trajectory_files(name):
    """The file ``name`` of every trajectory of the study."""
    return expand(
        "results/trajectories/{group}/{task}/{replicate}/" + name,
        group=STUDY.trajectories.groups,
        task=STUDY.agent_tasks,
        replicate=range(1, STUDY.trajectories.replicates + 1),
    )


def attention_slides(cohort):
    """The slides whose attention is drawn for the report; any other can be asked for by name."""
    return list(SOURCES[cohort])[: STUDY.attention_pictures]


def reference_targets():
    """Metrics and pictures of the reference pipeline."""
    targets = []
    for task, binding in STUDY.tasks.items():
        targets += expand(
            "results/reference/{task}/{encoder}/metrics.json", task=task, encoder=STUDY.encoders
        )
        targets += expand(
            "results/reference/{task}/{encoder}/attention/{slide_id}.jpg",
            task=task,
            encoder=[name for name in STUDY.encoders if name != STUDY.control_encoder],
            slide_id=attention_slides(binding.cohort),
        )
    return targets
