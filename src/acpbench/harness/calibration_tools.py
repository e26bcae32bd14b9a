"""Evaluation on validation patients: are probabilities right on average, is one table better than another."""

from __future__ import annotations

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import write_json
from acpbench.harness.context import RunContext
from acpbench.harness.evaluation_tools import N_RESAMPLES, reference_rows
from acpbench.harness.tool_args import AssessCalibration, ComparePredictions
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import AssessCalibrationResult, ComparePredictionsResult, ReliabilityBin

LOWER_IS_BETTER = ("brier", "ECE", "MAE", "MAE_ranks")
CALIBRATION_METRICS = ("ECE", "brier")
_CLIP = 1e-6


def assess_calibration(context: RunContext, args: AssessCalibration) -> ToolOutcome:
    """Reliability of predicted probabilities on validation patients.

    A binary endpoint is judged by the probability of its second class, others by that of the likeliest class.

    Raises:
        InputError: the endpoint has no probabilities, or the table lacks them.
    """
    from acpbench.mil.class_metrics import ClassTable
    from acpbench.mil.metric_values import METRICS
    from acpbench.mil.metrics import bootstrap_intervals, score_predictions
    from acpbench.mil.reliability import reliability_bins

    task = context.task
    rows = reference_rows(context, args.predictions, "validation")
    bins, note = reliability_bins(task.output_type, task.classes, rows)
    if not bins:
        raise InputError(f"calibration cannot be assessed: {note}", file=args.predictions)
    names = [name for name in CALIBRATION_METRICS if name in METRICS[task.output_type]]
    scored = score_predictions(task.output_type, task.classes, rows)
    intervals = bootstrap_intervals(
        task.output_type, task.classes, rows, n_resamples=N_RESAMPLES, seed=context.seed, metrics=names
    )
    binary = task.output_type == "binary"
    table = ClassTable(task.classes, rows, need_all=not binary)
    probability = table.need_probability()
    confidence = probability[:, 1] if binary else probability.max(axis=1)
    hit = (table.true == 1 if binary else probability.argmax(axis=1) == table.true).astype(float)
    slope, intercept, why = (
        recalibration(confidence, hit) if binary else (None, None, "defined here for binary endpoints only")
    )
    result = AssessCalibrationResult(
        event=task.classes[1] if binary else "the likeliest class is the true one",
        n=len(rows),
        prevalence=float(hit.mean()),
        mean_confidence=float(confidence.mean()),
        metrics={name: scored["metrics"][name] for name in names},
        intervals={name: intervals.get(name) for name in names},
        slope=slope,
        intercept=intercept,
        notes={"slope": why} if why else {},
        bins=[ReliabilityBin(**row) for row in bins],
    )
    document = {"task_id": task.task_id, "split": "validation", "predictions": args.predictions}
    write_json(context.write_path(args.output), document | result.model_dump(mode="json"))
    return ToolOutcome([args.output], result)


def recalibration(confidence: np.ndarray, hit: np.ndarray) -> tuple[float | None, float | None, str]:
    """Slope and intercept of a logistic regression of the outcome on the logit of the probability (Cox 1958).

    Args:
        confidence: (N,) probabilities. hit: (N,) 0 or 1.

    Returns:
        ``(slope, intercept, "")``, or ``(None, None, why)``: one class only, constant probabilities, or
        classes that the probability parts without overlap (then the slope has no finite maximum).
    """
    from sklearn.linear_model import LogisticRegression

    if len(set(hit.tolist())) < 2:
        return None, None, "only one class among the labels"
    clipped = np.clip(confidence, _CLIP, 1 - _CLIP)
    logit = np.log(clipped / (1 - clipped))
    if float(np.ptp(logit)) < 1e-9:
        return None, None, "all probabilities are equal"
    ones, zeros = logit[hit == 1], logit[hit == 0]
    if ones.min() >= zeros.max() or ones.max() <= zeros.min():
        return None, None, "the probabilities part the classes without overlap; the slope is unbounded"
    # C=inf: no penalty.
    fitted = LogisticRegression(C=np.inf, max_iter=1000, tol=1e-8).fit(logit[:, None], hit)
    return float(fitted.coef_[0, 0]), float(fitted.intercept_[0]), ""


def compare_predictions(context: RunContext, args: ComparePredictions) -> ToolOutcome:
    """Difference of one metric between two tables on the validation patients that both have.

    Raises:
        InputError: a metric the endpoint does not have, or no patient in common.
    """
    from acpbench.mil.comparison import compare_models
    from acpbench.mil.metric_values import METRICS

    task = context.task
    metric = args.metric or task.metric_family.primary
    if metric not in METRICS[task.output_type]:
        raise InputError(
            f"{metric!r} is not a metric of a {task.output_type} endpoint; there are "
            f"{', '.join(METRICS[task.output_type])}",
            field="metric",
        )
    a, b = (reference_rows(context, path, "validation") for path in (args.predictions_a, args.predictions_b))
    found = compare_models(
        task.output_type, task.classes, b, a, metric, n_resamples=args.n_resamples, seed=args.seed
    )
    if not found["n"]:
        raise InputError("the two tables have no validation patient in common", file=args.predictions_b)
    higher = metric not in LOWER_IS_BETTER
    delong = found["delong"] or {}
    result = ComparePredictionsResult(
        metric=metric,
        higher_is_better=higher,
        n=found["n"],
        n_left_out=found["n_left_out"],
        value_a=found["control_value"],
        value_b=found["value"],
        difference=found["difference"],
        interval=found["interval"],
        p=found["p"],
        delong_p=delong.get("p"),
        n_resamples=found["n_resamples"],
        method=found["method"],
        statement=_statement(metric, found, higher),
        note=found["note"],
    )
    document = {"task_id": task.task_id, "split": "validation", "predictions_a": args.predictions_a,
                "predictions_b": args.predictions_b}  # fmt: skip
    write_json(context.write_path(args.output), document | result.model_dump(mode="json"))
    return ToolOutcome([args.output], result)


def _statement(metric: str, found: dict, higher: bool) -> str:
    interval, n = found["interval"], found["n"]
    if interval is None:
        return f"{metric} cannot be compared on these {n} patients."
    if interval[0] <= 0 <= interval[1]:
        return f"The interval of the difference in {metric} holds 0: {n} patients do not part the two tables."
    better = "b" if (found["difference"] > 0) == higher else "a"
    return f"Table {better} is better in {metric} on these {n} patients; the interval leaves out 0."
