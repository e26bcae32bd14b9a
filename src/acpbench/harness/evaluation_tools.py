"""Evaluation tools: validation metrics for the agent, test metrics from the evaluator with a receipt."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import PurePosixPath
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_bytes, read_csv, sha256_bytes, sha256_file, sha256_json, write_json
from acpbench.harness.context import RunContext
from acpbench.harness.tool_args import EvaluatePredictions, EvaluateTest
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import EvaluatePredictionsResult, EvaluateTestResult
from acpbench.mil.metrics import bootstrap_intervals, score_predictions

N_RESAMPLES = 500


def reference_rows(context: RunContext, predictions: str, split: str) -> list[dict[str, Any]]:
    """Prediction rows of one split, with the benchmark's own labels joined by patient.

    Raises:
        InputError: no ``case_id`` column, a repeated case, or no row of that split.
    """
    truth: dict[str, dict[str, str]] = {}
    for row in read_csv(context.labels):
        # Of a patient's slides, the first that carries a label speaks for the patient.
        if not (known := truth.get(row["patient_id"])) or not (known["label"] or known["time"]):
            truth[row["patient_id"]] = row
    rows, seen = [], set()
    table = read_csv(context.read_path(predictions))
    if not table or "case_id" not in table[0]:
        raise InputError("expected a predictions table with case_id", file=predictions)
    for row in table:
        known = truth.get(row["case_id"])
        if known is None or known["split"] != split:
            continue
        if row["case_id"] in seen:
            raise InputError(f"case {row['case_id']!r} appears twice", file=predictions)
        seen.add(row["case_id"])
        labels = (
            {"time": known["time"], "event": known["event"]}
            if context.task.output_type == "survival"
            else {"y_true": known["label"]}
        )
        rows.append(row | labels | {"patient_id": row["case_id"]})
    if not rows:
        raise InputError(f"has no row of a {split} patient", file=predictions)
    return rows


def _metrics(context: RunContext, rows: list[dict[str, Any]]) -> dict[str, Any]:
    task = context.task
    scored = score_predictions(task.output_type, task.classes, rows)
    family = [task.metric_family.primary, *task.metric_family.secondary]
    intervals = bootstrap_intervals(
        task.output_type, task.classes, rows, n_resamples=N_RESAMPLES, seed=context.seed
    )
    for name in family:
        if name not in scored["metrics"]:
            scored["metrics"][name] = None
            scored["notes"][name] = "not computed by this evaluator"
    return scored | {"intervals": intervals, "primary_metric": task.metric_family.primary}


def evaluate_predictions(context: RunContext, args: EvaluatePredictions) -> ToolOutcome:
    """Metrics on validation patients, written to the run."""
    rows = reference_rows(context, args.predictions, "validation")
    scored = _metrics(context, rows)
    config = PurePosixPath(args.predictions).with_name("config.yaml").as_posix()
    document = {
        "task_id": context.task.task_id,
        "round_id": args.round_id,
        "split": "validation",
        "primary_metric": scored["primary_metric"],
        "metrics": scored["metrics"],
        "intervals": scored["intervals"],
        "notes": scored["notes"],
        "n": scored["n"],
        "n_per_class": scored["n_per_class"],
        "n_events": scored["n_events"],
        "per_class": scored["per_class"],
        "config_sha256": sha256_file(context.read_path(config)) if context.path(config).is_file() else None,
    }
    write_json(context.write_path(args.output), document)
    return ToolOutcome(
        [args.output],
        EvaluatePredictionsResult(metrics=scored["metrics"], n=scored["n"], notes=scored["notes"]),
    )


def evaluate_test(context: RunContext, args: EvaluateTest) -> ToolOutcome:
    """Test metrics and a receipt, at most ``test_evaluations`` times a run; no label leaves the evaluator.

    Raises:
        InputError: the budget is spent, or the table has no test row.
    """
    rows = reference_rows(context, args.predictions, "test")
    context.receipts.parent.mkdir(parents=True, exist_ok=True)
    with open(context.receipts, "a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        used = handle.read().count(b"\n")
        if used >= context.test_evaluations:
            raise InputError(
                f"the test set was evaluated {used} of {context.test_evaluations} time(s); no further answer"
            )
        scored = _metrics(context, rows)
        digest = sha256_bytes(read_bytes(context.read_path(args.predictions)))
        receipt = {
            "receipt_id": sha256_json([context.trajectory_id, used, digest])[:16],
            "predictions": args.predictions,
            "predictions_sha256": digest,
            "split": "test",
            "n": scored["n"],
            "metrics": scored["metrics"],
            "intervals": scored["intervals"],
            "notes": scored["notes"],
        }
        handle.write(json.dumps(receipt).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())
    return ToolOutcome([], EvaluateTestResult(**receipt))
