"""Long-horizon score L(t): how much a task asks of a workflow, from its metadata alone.

``L_raw = 25 N_subnode + 50 N_stage + 60 D_dependency + 70 D_label + 55 C_output + 60 C_metric + 70 C_claim
+ 75 H_pan`` and ``L = 10 L_raw / max L_raw`` are the published formula. How the eight inputs follow from a
task's metadata is this project's choice and is written at each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from acpbench.tasks.models import Task
from acpbench.tasks.requirements import Requirements, assigned_subnodes

WEIGHTS = {
    "n_subnode": 25,
    "n_stage": 50,
    "d_dependency": 60,
    "d_label": 70,
    "c_output": 55,
    "c_metric": 60,
    "c_claim": 70,
    "h_pan": 75,
}
TIERS = ("lower", "middle", "high", "highest")
TIER_CUTPOINTS = (6.0, 7.5, 9.0)
"""A score at a cutpoint belongs to the tier above it."""

BASE_STAGES = 7
"""Executable stages of every reference workflow: QC, tile, embed, aggregate, head, evaluate, report."""

LABEL_DISTANCE = {
    "generator_parameter": 1,
    "pathologist_diagnosis": 1,
    "pathologist_adjudicated": 1,
    "ihc": 2,
    "clinical_stage_record": 2,
    "molecular_assay": 3,
    "outcome_record": 4,
    "derived_expression": 5,
}
"""How far the reference label lies from what a reader sees on the slide."""

OUTPUT_COMPLEXITY = {"binary": 1, "ordinal": 2, "multiclass": 3, "continuous": 4, "survival": 4}
METRIC_COMPLEXITY = {"binary": 1, "ordinal": 3, "multiclass": 3, "continuous": 3, "survival": 4}


@dataclass(frozen=True)
class HorizonInputs:
    """The eight integer inputs of one task.

    Attributes:
        n_subnode: assigned requirement subnodes.
        n_stage: :data:`BASE_STAGES`, and one each for the off-slide label join, the expression-label build,
            calibration, censoring and cross-entity harmonisation.
        d_dependency: 1, and one each for the off-slide label join, a computed label (expression, censored
            time) and a second fit on predictions (calibration).
        d_label: :data:`LABEL_DISTANCE`.
        c_output: :data:`OUTPUT_COMPLEXITY`.
        c_metric: :data:`METRIC_COMPLEXITY`, and one for calibration.
        c_claim: diagnosis or phenotype 1, prediction of an off-slide biomarker 2, any prognosis 3,
            research-only biomarker 4.
        h_pan: 1 for pan-cancer tasks, else 0.
    """

    n_subnode: int
    n_stage: int
    d_dependency: int
    d_label: int
    c_output: int
    c_metric: int
    c_claim: int
    h_pan: int


@dataclass(frozen=True)
class Horizon:
    """Inputs, raw sum, score on 0..10 and tier of one task."""

    task_id: str
    inputs: HorizonInputs
    raw: int
    score: float
    tier: str


def horizon_inputs(task: Task, n_subnode: int) -> HorizonInputs:
    """Derive the eight inputs of a task from its metadata and its number of assigned subnodes."""
    computed_label = task.expression_like or task.output_type == "survival"
    return HorizonInputs(
        n_subnode=n_subnode,
        n_stage=BASE_STAGES
        + task.wsi_to_label
        + task.expression_like
        + task.calibration_bearing
        + (task.output_type == "survival")
        + task.pan_cancer,
        d_dependency=1 + task.wsi_to_label + computed_label + task.calibration_bearing,
        d_label=LABEL_DISTANCE[task.label_reference_type],
        c_output=OUTPUT_COMPLEXITY[task.output_type],
        c_metric=METRIC_COMPLEXITY[task.output_type] + task.calibration_bearing,
        c_claim=_claim_complexity(task),
        h_pan=int(task.pan_cancer),
    )


def _claim_complexity(task: Task) -> int:
    if task.reference_group == "prognosis":
        return 3
    if task.reference_group == "morphology":
        return 1
    return 4 if task.claim_boundary_type == "research_only_prediction" else 2


def raw_horizon(inputs: HorizonInputs) -> int:
    """Weighted sum of the inputs (published weights)."""
    return sum(WEIGHTS[name] * value for name, value in asdict(inputs).items())


def horizon_tier(score: float) -> str:
    """``lower`` below 6, ``middle`` below 7.5, ``high`` below 9, else ``highest``."""
    return TIERS[sum(score >= cutpoint for cutpoint in TIER_CUTPOINTS)]


def long_horizon(
    tasks: Sequence[Task], requirements: Requirements, *, maximum: int | None = None
) -> list[Horizon]:
    """Score tasks, in the order given.

    Args:
        tasks: the tasks.
        requirements: the requirement map.
        maximum: raw sum that scores 10; by default the largest among ``tasks``. Pass the benchmark's own
            maximum to place other tasks on its scale.

    Raises:
        ValueError: ``maximum`` is not positive.
    """
    inputs = [horizon_inputs(task, len(assigned_subnodes(requirements, task))) for task in tasks]
    raw = [raw_horizon(values) for values in inputs]
    top = max(raw, default=1) if maximum is None else maximum
    if top <= 0:
        raise ValueError(f"maximum must be positive, got {top}")
    scores = [10 * value / top for value in raw]
    return [
        Horizon(task.task_id, values, total, score, horizon_tier(score))
        for task, values, total, score in zip(tasks, inputs, raw, scores, strict=True)
    ]
