"""Cross-validated reference: one model a fold, pooled out-of-fold predictions, metrics with intervals."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import (
    atomic_path,
    read_csv,
    read_json,
    sha256_json,
    write_bytes,
    write_csv,
    write_json,
)
from acpbench.core.provenance import provenance
from acpbench.features.store import sidecar_path
from acpbench.mil.bags import PatientBag, labelled, load_bags
from acpbench.mil.label_table import TaskLike, read_label_table, write_label_table
from acpbench.mil.metrics import METRICS, bootstrap_intervals, score_predictions
from acpbench.mil.reference_report import reference_report
from acpbench.mil.splits import check_disjoint
from acpbench.mil.train import FittedMil, MilSettings, Predicted, predict, save_model, train_fold

__all__ = ["pool_reference", "prediction_columns", "train_reference_fold", "write_label_table"]


def prediction_columns(output_type: str, classes: Sequence[str]) -> list[str]:
    """Columns of a prediction table in order."""
    if output_type == "survival":
        return ["patient_id", "fold", "time", "event", "risk"]
    return ["patient_id", "fold", "y_true", "y_pred", *(f"prob_{label}" for label in classes)]


def train_reference_fold(
    labels_csv: str | os.PathLike[str],
    features_dir: str | os.PathLike[str],
    task: TaskLike,
    encoder: str,
    fold: int,
    settings: MilSettings,
    out_dir: str | os.PathLike[str],
) -> dict[str, Any]:
    """Train and test one fold.

    Test part: fold ``k``. Inner validation part (early stopping): fold ``(k + 1) mod K``. Training part: the
    rest. Writes ``predictions.csv`` (test part), ``model.pt``, ``history.csv``, ``attention.h5`` (test part)
    and, last, ``fold.json`` under ``out_dir``.

    Args:
        labels_csv: label table.
        features_dir: folder with ``<slide_id>.h5``.
        task: gives output type and classes.
        encoder: name of the encoder that made the features, checked against the files.
        fold: ``k``.
        settings: training settings; their seed is used plus ``fold``.
        out_dir: target folder.

    Returns:
        The content of ``fold.json``.

    Raises:
        InputError: no such fold, features of another encoder, and whatever :func:`train_fold` refuses.
    """
    rows = read_label_table(labels_csv)
    folds = sorted({row["fold"] for row in rows})
    if fold not in folds or len(folds) < 3 or folds != list(range(len(folds))):
        raise InputError(f"fold {fold} of folds {folds}; expected 0..K-1 with K >= 3", file=labels_csv)
    inner = (fold + 1) % len(folds)
    parts: dict[str, list[PatientBag]] = {}
    dropped: list[dict[str, Any]] = []
    features_dir = Path(features_dir)
    for name, wanted in (
        ("test", [fold]),
        ("validation", [inner]),
        ("train", [k for k in folds if k not in (fold, inner)]),
    ):
        chosen = [row for row in rows if row["fold"] in wanted]
        parts[name], lost = load_bags(chosen, task.output_type, lambda slide: features_dir / f"{slide}.h5")
        dropped += [row | {"part": name} for row in lost]
    sidecars = {
        row["slide_id"]: read_json(sidecar_path(features_dir / f"{row['slide_id']}.h5")) for row in rows
    }
    for slide, sidecar in sidecars.items():
        if sidecar.get("encoder") != encoder:
            raise InputError(
                f"features of encoder {sidecar.get('encoder')!r}; expected {encoder!r}",
                file=features_dir / f"{slide}.h5",
            )
    settings = settings.model_copy(update={"seed": settings.seed + fold})
    fitted = train_fold(parts["train"], parts["validation"], task.output_type, task.classes, settings)
    predicted = predict(fitted, parts["test"])
    if task.output_type == "survival":
        _scale_risk(fitted, parts["train"], predicted)
    out = Path(out_dir)
    columns = prediction_columns(task.output_type, task.classes)
    write_csv(out / "predictions.csv", columns, [row | {"fold": fold} for row in predicted.rows])
    write_bytes(out / "model.pt", save_model(fitted))
    write_csv(out / "history.csv", ["epoch", "train_loss", "val_loss"], fitted.history)
    write_attention(out / "attention.h5", parts["test"], predicted.attention)
    summary = {
        "task_id": task.task_id,
        "encoder": encoder,
        "fold": fold,
        "inner_validation_fold": inner,
        "n_patients": {name: len(bags) for name, bags in parts.items()},
        "best_epoch": fitted.best_epoch,
        "n_epochs": len(fitted.history),
        "dropped": dropped,
        "provenance": provenance(
            inputs={"labels": labels_csv},
            digests={"features": sha256_json(sorted((k, v["sha256"]) for k, v in sidecars.items()))},
            config=settings.model_dump(),
            seed=settings.seed,
        ),
    }
    write_json(out / "fold.json", summary)
    return summary


def _scale_risk(fitted: FittedMil, train: Sequence[PatientBag], predicted: Predicted) -> None:
    """Put risks of different folds' models on one scale: SDs above the mean of the training patients' risk.

    A Cox score has no zero and no unit of its own, so raw scores of two models cannot be pooled.
    """
    scores = np.array([row["risk"] for row in predict(fitted, labelled(train, "survival")).rows])
    spread = float(scores.std()) or 1.0
    for row in predicted.rows:
        row["risk"] = round((row["risk"] - float(scores.mean())) / spread, 6)


def write_attention(
    path: str | os.PathLike[str], bags: Sequence[PatientBag], attention: Sequence[np.ndarray]
) -> None:
    """Write attention: one group a slide with ``attention`` (N,) float32 and ``coords`` (N, 2) int64.

    Attention sums to 1 over a patient's slides, so slides of one patient can be compared.
    """
    import h5py

    with atomic_path(path) as temporary, h5py.File(temporary, "w") as handle:
        for bag, weights in zip(bags, attention, strict=True):
            for slide, start, end in bag.slides:
                group = handle.create_group(slide)
                group.attrs["patient_id"] = bag.patient_id
                group.create_dataset("attention", data=weights[start:end])
                if bag.coords is not None:
                    group.create_dataset("coords", data=bag.coords[start:end])


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

    Writes ``predictions.csv``, ``splits.csv``, ``metrics.json`` and ``report.md`` under ``out_dir``.

    Args:
        fold_dirs: folders of :func:`train_reference_fold`.
        labels_csv: label table.
        task: gives endpoint, classes and primary metric.
        encoder: name of the encoder.
        out_dir: target folder.
        n_bootstrap: resamples of patients for the intervals.
        seed: seed of the bootstrap.
        controls: name → ``metrics.json`` of another encoder, printed beside the model in the report.

    Returns:
        The content of ``metrics.json``.

    Raises:
        InputError: folds missing or repeated, or a patient predicted twice.
    """
    labels = read_label_table(labels_csv)
    expected = {row["patient_id"]: row["fold"] for row in labels}
    rows: list[dict[str, str]] = []
    summaries = [read_json(Path(folder) / "fold.json") for folder in fold_dirs]
    found = sorted(summary["fold"] for summary in summaries)
    if found != sorted(set(expected.values())):
        raise InputError(
            f"folds {found}; the label table has {sorted(set(expected.values()))}", file=labels_csv
        )
    for folder in fold_dirs:
        rows += read_csv(Path(folder) / "predictions.csv")
    rows.sort(key=lambda row: row["patient_id"])
    check_disjoint(rows)
    names = [row["patient_id"] for row in rows]
    stray = [row["patient_id"] for row in rows if expected.get(row["patient_id"]) != int(row["fold"])]
    if stray or len(set(names)) != len(names):
        raise InputError(f"predictions do not match the label table (patient {(stray or names)[0]!r})")
    dropped = [
        row
        for summary in summaries
        for row in summary["dropped"]
        if row["part"] == "test" and not row["slide_id"]
    ]
    scored = score_predictions(task.output_type, task.classes, rows)
    intervals = bootstrap_intervals(task.output_type, task.classes, rows, n_resamples=n_bootstrap, seed=seed)
    result = {
        "task_id": task.task_id,
        "encoder": encoder,
        "primary_metric": _primary(task),
        "metrics": scored["metrics"],
        "intervals": intervals,
        "notes": scored["notes"],
        "n": scored["n"],
        "n_per_class": scored["n_per_class"],
        "n_events": scored["n_events"],
        "per_class": scored["per_class"],
        "unit": "patient",
        "n_folds": len(found),
        "n_bootstrap": n_bootstrap,
        "dropped": [{"patient_id": row["patient_id"], "reason": row["reason"]} for row in dropped],
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
    write_json(out / "metrics.json", result)
    shown = {name: read_json(path) for name, path in (controls or {}).items()}
    reference_report(out / "report.md", task, result, shown)
    return result


def _primary(task: TaskLike) -> str:
    family = task.metric_family
    name = family["primary"] if isinstance(family, Mapping) else family.primary
    if name not in METRICS[task.output_type]:
        raise InputError(
            f"primary metric {name!r} of task {task.task_id} is not computed for {task.output_type}",
            field="metric_family.primary",
        )
    return name
