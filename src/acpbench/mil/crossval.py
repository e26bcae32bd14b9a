"""One fold of the reference: train, predict the test part, write the files, vouch for them last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import (
    atomic_path,
    read_json,
    sha256_file,
    sha256_json,
    write_bytes,
    write_csv,
    write_json,
)
from acpbench.core.provenance import provenance
from acpbench.features.store import sidecar_path
from acpbench.mil.bags import PatientBag, labelled, load_bags
from acpbench.mil.fitted import MODEL_SCHEMA, FittedMil, Predicted, predict, save_model
from acpbench.mil.label_table import TaskLike, read_label_table, write_label_table
from acpbench.mil.settings import MilSettings, pick_device
from acpbench.mil.splits import split_id
from acpbench.mil.train import CACHE_MB, CHECKPOINT_EVERY_S, train_fold

__all__ = ["finished_fold", "prediction_columns", "train_reference_fold", "write_label_table"]

FOLD_FILES = ("predictions.csv", "model.pt", "history.csv", "attention.h5")
CHECKPOINT_NAME = "checkpoint.pt"


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
    *,
    cache_mb: float = CACHE_MB,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> dict[str, Any]:
    """Train and test one fold.

    Test part: fold ``k``. Inner validation part (early stopping): fold ``(k + 1) mod K``. Training part: the
    rest. Writes ``predictions.csv`` (test part), ``model.pt``, ``history.csv``, ``attention.h5`` (test part)
    and, last, ``fold.json`` with their hashes under ``out_dir``. A fold that is whole and of the same inputs
    and settings is not trained again; one killed on the way goes on from its last checkpoint.

    Args:
        labels_csv: label table.
        features_dir: folder with ``<slide_id>.h5``.
        task: gives output type and classes.
        encoder: name of the encoder that made the features, checked against the files.
        fold: ``k``.
        settings: training settings; their seed is used plus ``fold``.
        out_dir: target folder.
        cache_mb: memory for features, see :func:`acpbench.mil.train.train_fold`.
        checkpoint_every_s: seconds between two checkpoints.

    Returns:
        The content of ``fold.json``.

    Raises:
        InputError: no such fold, features of another encoder, and whatever :func:`train_fold` refuses.
    """
    rows = read_label_table(labels_csv)
    folds = sorted({row["fold"] for row in rows})
    if fold not in folds or len(folds) < 3 or folds != list(range(len(folds))):
        raise InputError(f"fold {fold} of folds {folds}; expected 0..K-1 with K >= 3", file=labels_csv)
    settings = settings.model_copy(update={"seed": settings.seed + fold})
    features_dir, out = Path(features_dir), Path(out_dir)
    features = _features_digest([row["slide_id"] for row in rows], features_dir, encoder)
    made_by = provenance(
        inputs={"labels": labels_csv},
        digests={"features": features},
        config={
            "settings": settings.model_dump(),
            "endpoint": [task.task_id, task.output_type, list(task.classes)],
            "fold": fold,
            "schema": MODEL_SCHEMA,
            "device": pick_device(settings.device).type,
        },
        seed=settings.seed,
    )
    done = finished_fold(out)
    if done is not None and done["provenance"] == made_by:
        return done
    (out / "fold.json").unlink(missing_ok=True)
    inner = (fold + 1) % len(folds)
    parts: dict[str, list[PatientBag]] = {}
    dropped: list[dict[str, Any]] = []
    for name, wanted in (
        ("test", [fold]),
        ("validation", [inner]),
        ("train", [k for k in folds if k not in (fold, inner)]),
    ):
        chosen = [row for row in rows if row["fold"] in wanted]
        parts[name], lost = load_bags(chosen, task.output_type, lambda slide: features_dir / f"{slide}.h5")
        dropped += [row | {"part": name} for row in lost]
    fitted = train_fold(
        parts["train"],
        parts["validation"],
        task.output_type,
        task.classes,
        settings,
        cache_mb=cache_mb,
        checkpoint=out / CHECKPOINT_NAME,
        checkpoint_every_s=checkpoint_every_s,
        inputs_sha256=sha256_json(made_by),
    )
    predicted = predict(fitted, parts["test"])
    if task.output_type == "survival":
        _scale_risk(fitted, parts["train"], predicted)
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
        "fold_id": split_id(rows, "fold"),
        "n_patients": {name: len(bags) for name, bags in parts.items()},
        "patients": fitted.patients | {"test": [bag.patient_id for bag in parts["test"]]},
        "best_epoch": fitted.best_epoch,
        "n_epochs": len(fitted.history),
        "dropped": dropped,
        "files": {name: sha256_file(out / name) for name in FOLD_FILES},
        "provenance": made_by,
    }
    write_json(out / "fold.json", summary)
    return summary


def finished_fold(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """``fold.json`` of a fold whose files are all there and are those it vouches for, else ``None``."""
    folder = Path(folder)
    try:
        summary = read_json(folder / "fold.json")
        whole = all(sha256_file(folder / name) == summary["files"][name] for name in FOLD_FILES)
    except (InputError, OSError, KeyError, TypeError):
        return None
    return summary if whole else None


def _features_digest(slides: Sequence[str], features_dir: Path, encoder: str) -> str:
    """Hash of the features of all slides. Raises :class:`InputError` for those of another encoder."""
    hashes = []
    for slide in sorted(set(slides)):
        sidecar: Mapping[str, Any] = read_json(sidecar_path(features_dir / f"{slide}.h5"))
        if sidecar.get("encoder") != encoder:
            raise InputError(
                f"features of encoder {sidecar.get('encoder')!r}; expected {encoder!r}",
                file=features_dir / f"{slide}.h5",
            )
        hashes.append((slide, sidecar.get("sha256")))
    return sha256_json(hashes)


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

    Raises:
        InputError: another number of weights than of tiles.
    """
    import h5py

    for bag, weights in zip(bags, attention, strict=True):
        if len(weights) != len(bag.features) or (bag.coords is not None and len(bag.coords) != len(weights)):
            raise InputError(
                f"{len(weights)} attention weights for {len(bag.features)} tiles", field=bag.patient_id
            )
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as handle:
        for bag, weights in zip(bags, attention, strict=True):
            for slide, start, end in bag.slides:
                group = handle.create_group(slide)
                group.attrs["patient_id"] = bag.patient_id
                group.create_dataset("attention", data=weights[start:end])
                if bag.coords is not None:
                    group.create_dataset("coords", data=bag.coords[start:end])
