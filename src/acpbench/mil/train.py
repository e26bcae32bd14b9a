"""Training one model on bags: standardised on the training part, stopped early on an inner validation part.

Deterministic on a CPU: one thread, seeded generators, deterministic kernels; the same bags and settings give
the same bytes, however much of the features was held in memory and however often the run was killed. Test
bags are not an argument of :func:`train_fold`, so nothing can be chosen on them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import torch

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes, sha256_json
from acpbench.mil.abmil import class_weights
from acpbench.mil.bags import PatientBag, labelled
from acpbench.mil.checkpoint import Checkpoint
from acpbench.mil.fitted import FittedMil, Predicted, load_model, new_model, predict, save_model
from acpbench.mil.fitting import Run, Targets
from acpbench.mil.prepared import Prepared, Scaler, standardiser
from acpbench.mil.settings import MilSettings, deterministic, pick_device

__all__ = [
    "FittedMil",
    "MilSettings",
    "Predicted",
    "deterministic",
    "load_model",
    "predict",
    "save_model",
    "train_fold",
]

CACHE_MB = 1500
"""Standardised features held in memory; further ones are read from their files in every step."""
HASHED_TILES = 8192
CHECKPOINT_EVERY_S = 30.0


def train_fold(
    train_bags: Sequence[PatientBag],
    val_bags: Sequence[PatientBag] | None,
    output_type: str,
    classes: Sequence[str] = (),
    settings: MilSettings | None = None,
    *,
    cache_mb: float = CACHE_MB,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    inputs_sha256: str | None = None,
) -> FittedMil:
    """Train on ``train_bags``; keep the epoch with the lowest loss on ``val_bags``.

    Args:
        train_bags: labelled patients; features are standardised with their tiles only.
        val_bags: labelled patients for early stopping, none of them in ``train_bags``; ``None`` trains for
            ``max_epochs`` and keeps the last.
        output_type: binary, multiclass, ordinal, continuous or survival.
        classes: class names in order; a class without a training patient gets weight 0.
        settings: defaults when ``None``.
        cache_mb: memory for standardised features.
        checkpoint: file that holds the state between epochs and is gone in the end; a killed run that is
            started again with the same bags and settings goes on from it.
        checkpoint_every_s: seconds between two checkpoints.
        inputs_sha256: hash of what the features were read from, which a checkpoint must share; without it
            every tile is hashed.

    Returns:
        The model of the best epoch, with ``history`` rows ``epoch``, ``train_loss``, ``val_loss``.

    Raises:
        InputError: no usable bag in a part, a patient in both, one class only, no event among survival
            training patients, or features of different widths.
    """
    settings = settings or MilSettings()
    classes = list(classes)
    train = sorted(labelled(train_bags, output_type), key=lambda bag: bag.patient_id)
    val = sorted(labelled(val_bags or (), output_type), key=lambda bag: bag.patient_id)
    _check_parts(train, val, output_type, with_validation=val_bags is not None)
    patients = {
        "train": [bag.patient_id for bag in train],
        "validation": [bag.patient_id for bag in val],
    }
    device = pick_device(settings.device)
    with deterministic(settings.seed, device) as generator:
        mean, scale = standardiser(train)
        scaling = _target_scaler(train, output_type)
        targets = [_targets(part, output_type, classes, scaling) for part in (train, val)]
        model = new_model(len(mean), output_type, len(classes), settings).to(device)
        weights = None
        if settings.class_weighting and "label" in targets[0]:
            weights = class_weights(targets[0]["label"], len(classes)).to(device)
        scaler = Scaler(
            mean, scale, device, torch.bfloat16 if settings.precision == "bf16" else torch.float32
        )
        budget = int(cache_mb * 1e6)
        prepared = Prepared(train, scaler, budget)
        held_out = Prepared(val, scaler, budget - prepared.bytes_held, settings.eval_bag_size)
        key = sha256_json(
            {
                "settings": settings.model_dump(),
                "endpoint": [output_type, classes],
                "patients": patients,
                "tiles": [prepared.sizes, held_out.sizes],
                "scaling": sha256_bytes(mean.tobytes() + scale.tobytes()),
                "targets": [{name: values.tolist() for name, values in part.items()} for part in targets],
                "inputs": (inputs_sha256 or _tiles_sha256([*train, *val])) if checkpoint else None,
                "where": [torch.__version__, device.type],
            }
        )
        run = Run(model, settings, generator, device, weights)
        parts = [
            (bags, {name: values.to(device) for name, values in target.items()})
            for bags, target in zip((prepared, held_out), targets, strict=True)
        ]
        kept = Checkpoint(checkpoint, key, checkpoint_every_s)
        history, best_epoch = run.fit(parts[0], parts[1] if val else None, kept)
    return FittedMil(
        model.cpu(), output_type, classes, settings, mean, scale, *scaling, history, best_epoch, patients
    )


def _tiles_sha256(bags: Sequence[PatientBag]) -> str:
    digest = hashlib.sha256()
    for bag in bags:
        for start in range(0, len(bag.features), HASHED_TILES):
            digest.update(np.ascontiguousarray(bag.read(slice(start, start + HASHED_TILES))).tobytes())
    return digest.hexdigest()


def _check_parts(
    train: list[PatientBag], val: list[PatientBag], output_type: str, *, with_validation: bool
) -> None:
    for name, part in (("training", train), ("inner validation", val)):
        if not part and (with_validation or part is train):
            raise InputError(f"no labelled patient with tiles in the {name} part")
    shared = {bag.patient_id for bag in train} & {bag.patient_id for bag in val}
    if shared:
        raise InputError(f"patient {min(shared)!r} is in the training and in the inner validation part")
    widths = {bag.features.shape[1] for bag in [*train, *val]}
    if len(widths) > 1:
        raise InputError(f"features of different widths: {sorted(widths)}")
    empty = [bag.patient_id for bag in [*train, *val] if not len(bag.features)]
    if empty:
        raise InputError(f"patient {empty[0]!r} has no tiles")
    if output_type in ("binary", "multiclass", "ordinal") and len({bag.label for bag in train}) < 2:
        raise InputError(f"only class {train[0].label!r} among the training patients; at least 2 needed")
    if output_type == "survival" and not any(bag.event for bag in train):
        raise InputError("no event among the training patients")


def _target_scaler(train: list[PatientBag], output_type: str) -> tuple[float, float]:
    if output_type != "continuous":
        return 0.0, 1.0
    values = np.array([bag.value for bag in train], float)
    spread = float(values.std())
    return float(values.mean()), spread if spread > 0 else 1.0


def _targets(
    bags: Sequence[PatientBag], output_type: str, classes: list[str], scaling: tuple[float, float]
) -> Targets:
    if output_type == "survival":
        return {
            "time": torch.tensor([bag.time for bag in bags], dtype=torch.float32),
            "event": torch.tensor([bag.event for bag in bags], dtype=torch.bool),
        }
    if output_type == "continuous":
        values = np.array([bag.value for bag in bags], float)
        return {"value": torch.tensor((values - scaling[0]) / scaling[1], dtype=torch.float32)}
    codes = {label: code for code, label in enumerate(classes)}
    unknown = sorted({str(bag.label) for bag in bags} - set(codes))
    if unknown:
        raise InputError(f"label {unknown[0]!r} is not one of the classes {classes}", field="label")
    return {"label": torch.tensor([codes[str(bag.label)] for bag in bags])}
