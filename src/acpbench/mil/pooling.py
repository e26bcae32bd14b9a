"""The reference result: pooled held-out predictions, metrics with intervals, comparison with the control."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, write_csv, write_json
from acpbench.core.provenance import provenance
from acpbench.mil.comparison import compare_models
from acpbench.mil.crossval import finished_fold, prediction_columns
from acpbench.mil.label_table import TaskLike, read_label_table
from acpbench.mil.metrics import METRICS, bootstrap_intervals, score_predictions
from acpbench.mil.reference_report import reference_report
from acpbench.mil.reliability import write_reliability
from acpbench.mil.splits import check_disjoint, split_id


def pool_reference(
    fold_dirs: Sequence[str | os.PathLike[str]],
    labels_csv: str | os.PathLike[str],
    task: TaskLike,
    encoder: str,
    out_dir: str | os.PathLike[str],
    *,
    n_bootstrap: int = 1000,
    seed: int = 0,
    controls: Mapping[str, str | os.PathLike[str]] | None = None,
) -> dict[str, Any]:
    """Pool the folds' test predictions: every patient once, each predicted by a model that never saw them.

    Writes ``predictions.csv``, ``splits.csv``, ``reliability.csv``, ``reliability.svg``, ``metrics.json`` and
    ``report.md`` under ``out_dir``.

    Args:
        fold_dirs: folders of :func:`acpbench.mil.crossval.train_reference_fold`.
        labels_csv: label table; its sidecar gives the counts of slides left out.
        task: gives endpoint, classes and primary metric.
        encoder: name of the encoder.
        out_dir: target folder.
        n_bootstrap: resamples of patients for the intervals.
        seed: seed of the bootstrap.
        controls: name → ``metrics.json`` of another encoder with its ``predictions.csv`` beside it; the model
            is compared with the first one.

    Returns:
        The content of ``metrics.json``.

    Raises:
        InputError: a fold missing, repeated, half-written or of other folds than the label table's; a patient
            predicted twice, or by a model that was trained or stopped on them.
    """
    labels = read_label_table(labels_csv)
    expected = {row["patient_id"]: row["fold"] for row in labels}
    summaries = _read_folds(fold_dirs, labels, labels_csv)
    rows = [row for folder in fold_dirs for row in read_csv(Path(folder) / "predictions.csv")]
    rows.sort(key=lambda row: row["patient_id"])
    check_disjoint(rows)
    names = [row["patient_id"] for row in rows]
    stray = [row["patient_id"] for row in rows if expected.get(row["patient_id"]) != int(row["fold"])]
    if stray or len(set(names)) != len(names):
        raise InputError(f"predictions do not match the label table (patient {(stray or names)[0]!r})")
    scored = score_predictions(task.output_type, task.classes, rows)
    intervals = bootstrap_intervals(task.output_type, task.classes, rows, n_resamples=n_bootstrap, seed=seed)
    primary = _primary(task)
    shown = {name: read_json(path) for name, path in (controls or {}).items()}
    comparison = None
    for name, path in list((controls or {}).items())[:1]:
        others = read_csv(Path(path).with_name("predictions.csv"))
        comparison = {"against": name} | compare_models(
            task.output_type, task.classes, rows, others, primary, n_resamples=n_bootstrap, seed=seed
        )
    dropped = [row for summary in summaries for row in summary["dropped"] if row["part"] == "test"]
    result = {
        "task_id": task.task_id,
        "encoder": encoder,
        "primary_metric": primary,
        "metrics": scored["metrics"],
        "intervals": intervals,
        "notes": scored["notes"],
        "n": scored["n"],
        "n_per_class": scored["n_per_class"],
        "n_events": scored["n_events"],
        "per_class": scored["per_class"],
        "per_fold": _per_fold(task, primary, rows, summaries),
        "unit": "patient",
        "n_folds": len(summaries),
        "n_bootstrap": n_bootstrap,
        "comparison": comparison,
        "counts": _counts(labels_csv, labels, rows, dropped),
        "dropped": [
            {"patient_id": row["patient_id"], "reason": row["reason"]}
            for row in dropped
            if not row["slide_id"]
        ],
        "fold_id": split_id(labels, "fold"),
        "provenance": provenance(
            inputs={"labels": labels_csv}
            | {
                f"fold_{s['fold']}": Path(d) / "predictions.csv"
                for s, d in zip(summaries, fold_dirs, strict=True)
            },
            config={"n_bootstrap": n_bootstrap},
            seed=seed,
        ),
    }
    out = Path(out_dir)
    write_csv(out / "predictions.csv", prediction_columns(task.output_type, task.classes), rows)
    write_csv(
        out / "splits.csv",
        ["patient_id", "fold"],
        [{"patient_id": name, "fold": fold} for name, fold in sorted(expected.items())],
    )
    write_reliability(
        out / "reliability.csv",
        out / "reliability.svg",
        task.output_type,
        task.classes,
        rows,
        f"{task.task_id}, {encoder}",
        scored["metrics"].get("ECE"),
    )
    write_json(out / "metrics.json", result)
    reference_report(out / "report.md", task, result, shown)
    return result


def _read_folds(
    fold_dirs: Sequence[str | os.PathLike[str]], labels: Sequence[Mapping[str, Any]], file: object
) -> list[dict[str, Any]]:
    """``fold.json`` of every fold, each checked against its files and against the label table."""
    summaries = []
    for folder in fold_dirs:
        summary = finished_fold(folder)
        if summary is None:
            raise InputError(
                "is not a finished fold: a file is missing or is not the one vouched for", file=folder
            )
        summaries.append(summary)
    found, wanted = sorted(summary["fold"] for summary in summaries), sorted({row["fold"] for row in labels})
    if found != wanted:
        raise InputError(f"folds {found}; the label table has {wanted}", file=file)
    for summary, folder in zip(summaries, fold_dirs, strict=True):
        if summary["fold_id"] != split_id(labels, "fold"):
            raise InputError("was trained on other folds than the label table's", file=folder)
        used = set(summary["patients"]["train"]) | set(summary["patients"]["validation"])
        leaking = used & set(summary["patients"]["test"])
        if leaking:
            raise InputError(f"patient {min(leaking)!r} was trained on and tested", file=folder)
        tested = {row["patient_id"] for row in read_csv(Path(folder) / "predictions.csv")}
        if tested & used:
            raise InputError(f"patient {min(tested & used)!r} was trained on and tested", file=folder)
    return summaries


def _per_fold(
    task: TaskLike,
    primary: str,
    rows: Sequence[Mapping[str, Any]],
    summaries: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Primary metric of each fold alone; None with the reason where a fold lacks a class or a pair."""
    found = []
    for summary in sorted(summaries, key=lambda summary: summary["fold"]):
        here = [row for row in rows if int(row["fold"]) == summary["fold"]]
        scored = score_predictions(task.output_type, task.classes, here)
        found.append(
            {
                "fold": summary["fold"],
                "n": scored["n"],
                primary: scored["metrics"][primary],
                "note": scored["notes"].get(primary, ""),
                "best_epoch": summary["best_epoch"],
            }
        )
    return found


def _counts(
    labels_csv: str | os.PathLike[str],
    labels: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    dropped: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Flow of slides and patients from the cohort's table to the scored predictions."""
    try:
        table = read_json(f"{os.fspath(labels_csv)}.json")
    except InputError:
        table = {}
    return {
        "slides_given": table.get("n_slides_given"),
        "slides_without_label": table.get("n_dropped_slides"),
        "without_label_by_reason": table.get("n_dropped_by_reason"),
        "slides_labelled": len({row["slide_id"] for row in labels}),
        "patients_labelled": len({row["patient_id"] for row in labels}),
        "slides_without_tiles": sum(bool(row["slide_id"]) for row in dropped),
        "without_tiles_by_reason": dict(
            sorted(Counter(row["reason"] for row in dropped if row["slide_id"]).items())
        ),
        "patients_without_tiles": sum(not row["slide_id"] for row in dropped),
        "patients_scored": len(rows),
        "folds": table.get("folds"),
    }


def _primary(task: TaskLike) -> str:
    family = task.metric_family
    name = family["primary"] if isinstance(family, Mapping) else family.primary
    if name not in METRICS[task.output_type]:
        raise InputError(
            f"primary metric {name!r} of task {task.task_id} is not computed for {task.output_type}",
            field="metric_family.primary",
        )
    return name
