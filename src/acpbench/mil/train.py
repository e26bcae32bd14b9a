"""Training one model on bags: standardised on the training part, stopped early on an inner validation part.

Deterministic on a CPU: one thread, seeded generators, deterministic kernels; the same bags and settings give
the same bytes. Test bags are not an argument of :func:`train_fold`, so nothing can be chosen on them.
"""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from acpbench.core.errors import InputError
from acpbench.core.files import canonical_json
from acpbench.core.progress import track
from acpbench.mil.abmil import Mil, class_weights, cox_loss, loss_of
from acpbench.mil.bags import PatientBag, labelled

MODEL_SCHEMA = "acp-mil/0.1"


class MilSettings(BaseModel):
    """Settings of one training run; all of them are stored in the model file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    aggregator: Literal["gated_abmil", "abmil", "mean"] = "gated_abmil"
    hidden_dim: int = Field(64, ge=1, le=4096)
    attention_dim: int = Field(32, ge=1, le=4096)
    dropout: float = Field(0.25, ge=0, lt=1)
    lr: float = Field(1e-3, gt=0, le=1)
    weight_decay: float = Field(1e-2, ge=0, le=10)
    max_epochs: int = Field(60, ge=1, le=10_000)
    patience: int = Field(12, ge=1, le=10_000)
    batch_size: int = Field(8, ge=1, le=4096, description="bags a step; survival always uses all bags")
    bag_size: int | None = Field(512, ge=1, description="tiles drawn from a bag in a step; None = all")
    class_weighting: bool = True
    seed: int = Field(0, ge=0, lt=2**31)


@dataclass
class FittedMil:
    """A trained model with what prediction needs: endpoint, scaling, settings, and its training history."""

    model: Mil
    output_type: str
    classes: list[str]
    settings: MilSettings
    feature_mean: np.ndarray
    feature_scale: np.ndarray
    target_mean: float
    target_scale: float
    history: list[dict[str, float | int | None]]
    best_epoch: int
    patients: dict[str, list[str]]


@contextmanager
def deterministic(seed: int) -> Iterator[torch.Generator]:
    """One thread, deterministic kernels and a seeded generator; process-wide settings are put back."""
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    state = torch.random.get_rng_state()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    try:
        yield torch.Generator().manual_seed(seed)
    finally:
        torch.random.set_rng_state(state)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.set_num_threads(threads)


def train_fold(
    train_bags: Sequence[PatientBag],
    val_bags: Sequence[PatientBag],
    output_type: str,
    classes: Sequence[str] = (),
    settings: MilSettings | None = None,
) -> FittedMil:
    """Train on ``train_bags``; keep the epoch with the lowest loss on ``val_bags``.

    Args:
        train_bags: labelled patients; features are standardised with their tiles only.
        val_bags: labelled patients for early stopping, none of them in ``train_bags``.
        output_type: binary, multiclass, ordinal, continuous or survival.
        classes: class names in order; a class without a training patient gets weight 0.
        settings: defaults when ``None``.

    Returns:
        The model of the best epoch, with ``history`` rows ``epoch``, ``train_loss``, ``val_loss``.

    Raises:
        InputError: no usable bag in a part, a patient in both, one class only, no event among survival
            training patients, or features of different widths.
    """
    settings = settings or MilSettings()
    classes = list(classes)
    train = sorted(labelled(train_bags, output_type), key=lambda bag: bag.patient_id)
    val = sorted(labelled(val_bags, output_type), key=lambda bag: bag.patient_id)
    _check_parts(train, val, output_type)
    with deterministic(settings.seed) as generator:
        mean, scale = _standardiser(train)
        target_mean, target_scale = _target_scaler(train, output_type)
        target_scaling = (target_mean, target_scale)
        model = Mil(
            len(mean),
            output_type,
            len(classes),
            aggregator=settings.aggregator,
            hidden_dim=settings.hidden_dim,
            attention_dim=settings.attention_dim,
            dropout=settings.dropout,
        )
        train_x, val_x = _tensors(train, mean, scale), _tensors(val, mean, scale)
        train_y = _targets(train, output_type, classes, target_scaling)
        val_y = _targets(val, output_type, classes, target_scaling)
        weights = None
        if settings.class_weighting and "label" in train_y:
            weights = class_weights(train_y["label"], len(classes))
        history, best_epoch = _fit(model, settings, generator, (train_x, train_y), (val_x, val_y), weights)
    return FittedMil(
        model,
        output_type,
        classes,
        settings,
        mean,
        scale,
        target_mean,
        target_scale,
        history,
        best_epoch,
        {"train": [bag.patient_id for bag in train], "validation": [bag.patient_id for bag in val]},
    )


def _check_parts(train: list[PatientBag], val: list[PatientBag], output_type: str) -> None:
    for name, part in (("training", train), ("inner validation", val)):
        if not part:
            raise InputError(f"no labelled patient with tiles in the {name} part")
    shared = {bag.patient_id for bag in train} & {bag.patient_id for bag in val}
    if shared:
        raise InputError(f"patient {min(shared)!r} is in the training and in the inner validation part")
    widths = {bag.features.shape[1] for bag in [*train, *val]}
    if len(widths) > 1:
        raise InputError(f"features of different widths: {sorted(widths)}")
    if output_type in ("binary", "multiclass", "ordinal") and len({bag.label for bag in train}) < 2:
        raise InputError(f"only class {train[0].label!r} among the training patients; at least 2 needed")
    if output_type == "survival" and not any(bag.event for bag in train):
        raise InputError("no event among the training patients")


def _standardiser(train: list[PatientBag]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale over training tiles, each patient with equal weight; constant features keep scale 1."""
    mean = np.mean([bag.features.mean(axis=0, dtype=np.float64) for bag in train], axis=0)
    spread = np.mean([((bag.features - mean) ** 2).mean(axis=0, dtype=np.float64) for bag in train], axis=0)
    scale = np.sqrt(spread)
    scale[scale < 1e-6] = 1.0
    return mean.astype(np.float32), scale.astype(np.float32)


def _target_scaler(train: list[PatientBag], output_type: str) -> tuple[float, float]:
    if output_type != "continuous":
        return 0.0, 1.0
    values = np.array([bag.value for bag in train], float)
    spread = float(values.std())
    return float(values.mean()), spread if spread > 0 else 1.0


def _tensors(bags: Sequence[PatientBag], mean: np.ndarray, scale: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy((bag.features.astype(np.float32) - mean) / scale) for bag in bags]


def _targets(
    bags: Sequence[PatientBag], output_type: str, classes: list[str], scaling: tuple[float, float]
) -> dict[str, torch.Tensor]:
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


Part = tuple[list[torch.Tensor], dict[str, torch.Tensor]]


def _fit(
    model: Mil,
    settings: MilSettings,
    generator: torch.Generator,
    train: Part,
    val: Part,
    weights: torch.Tensor | None,
) -> tuple[list[dict[str, float | int | None]], int]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    bags, target = train
    # The Cox risk set is all training patients, so survival takes one step an epoch over all of them.
    step = len(bags) if model.output_type == "survival" else settings.batch_size
    history: list[dict[str, float | int | None]] = []
    best, best_epoch, best_state = math.inf, 0, copy.deepcopy(model.state_dict())
    for epoch in track(range(1, settings.max_epochs + 1), label="training"):
        model.train()
        total = 0.0
        for index in torch.randperm(len(bags), generator=generator).split(step):
            batch = [_sample(bags[i], settings.bag_size, generator) for i in index.tolist()]
            output, _ = model(batch)
            loss = loss_of(model, output, {name: values[index] for name, values in target.items()}, weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(index)
        val_loss = _evaluate_loss(model, train, val, weights)
        history.append({"epoch": epoch, "train_loss": total / len(bags), "val_loss": val_loss})
        if val_loss is not None and val_loss < best:
            best, best_epoch, best_state = val_loss, epoch, copy.deepcopy(model.state_dict())
        elif epoch - best_epoch >= settings.patience and math.isfinite(best):
            break
    if not math.isfinite(best):
        # The loss was never finite, so there is nothing to choose by; the last epoch stays.
        return history, len(history)
    model.load_state_dict(best_state)
    return history, best_epoch


def _sample(bag: torch.Tensor, size: int | None, generator: torch.Generator) -> torch.Tensor:
    if size is None or len(bag) <= size:
        return bag
    return bag[torch.randperm(len(bag), generator=generator)[:size]]


def _evaluate_loss(model: Mil, train: Part, val: Part, weights: torch.Tensor | None) -> float | None:
    """Loss on the inner validation part, ``None`` when it is not finite."""
    model.eval()
    bags, target = val
    with torch.inference_mode():
        output = torch.cat([model([bag])[0] for bag in bags])
        if model.output_type == "survival":
            value = _left_out_likelihood(model, train, output.squeeze(1), target)
        else:
            if weights is not None:
                # A class that only the validation part has must still count, or its loss would be 0 / 0.
                weights = torch.where(weights > 0, weights, weights.max())
            value = float(loss_of(model, output, target, weights))
    return value if math.isfinite(value) else None


def _left_out_likelihood(
    model: Mil, train: Part, val_risk: torch.Tensor, val_target: dict[str, torch.Tensor]
) -> float:
    """Cross-validated partial likelihood (Verweij and van Houwelingen 1993), negative and per patient.

    What the validation patients add to the training patients' partial likelihood. Their own partial
    likelihood would be empty or near it: a handful of patients has few pairs to compare.
    """
    bags, target = train
    train_risk = torch.cat([model([bag])[0] for bag in bags]).squeeze(1)
    event = torch.cat([target["event"], val_target["event"]])
    time = torch.cat([target["time"], val_target["time"]])
    together = cox_loss(torch.cat([train_risk, val_risk]), event, time, "sum")
    return float(together - cox_loss(train_risk, target["event"], target["time"], "sum")) / len(val_risk)


@dataclass(frozen=True)
class Predicted:
    """Prediction rows (one a bag, in the order given) and the attention of every bag's tiles, (N_b,) each."""

    rows: list[dict[str, Any]]
    attention: list[np.ndarray]


def predict(fitted: FittedMil, bags: Sequence[PatientBag]) -> Predicted:
    """Predict bags with all of their tiles.

    Rows have ``patient_id``, the truth when it is known (``y_true``, or ``time`` and ``event``) and
    ``y_pred`` with ``prob_<class>``, ``y_pred`` alone (continuous) or ``risk`` (survival; higher = earlier
    event). Probabilities are written with 6 decimals.

    Raises:
        InputError: features of another width than the model's.
    """
    rows: list[dict[str, Any]] = []
    attention: list[np.ndarray] = []
    with deterministic(fitted.settings.seed), torch.inference_mode():
        fitted.model.eval()
        for bag in bags:
            if bag.features.shape[1] != len(fitted.feature_mean) or not len(bag.features):
                raise InputError(
                    f"features {bag.features.shape}; the model takes (N >= 1, {len(fitted.feature_mean)})",
                    field=bag.patient_id,
                )
            output, weights = fitted.model(_tensors([bag], fitted.feature_mean, fitted.feature_scale))
            attention.append(weights[0].numpy().astype(np.float32))
            rows.append({"patient_id": bag.patient_id} | _row(fitted, bag, output))
    return Predicted(rows, attention)


def _row(fitted: FittedMil, bag: PatientBag, output: torch.Tensor) -> dict[str, Any]:
    if fitted.output_type == "survival":
        event = None if bag.event is None else int(bag.event)
        return {"time": bag.time, "event": event, "risk": round(float(output), 6)}
    if fitted.output_type == "continuous":
        value = float(output) * fitted.target_scale + fitted.target_mean
        return {"y_true": bag.value, "y_pred": round(value, 6)}
    chances = fitted.model.probabilities(output)[0].tolist()
    # The class written is that of the probabilities written, so that a reader can recompute it.
    chances = [round(chance, 6) for chance in chances]
    best = fitted.classes[int(np.argmax(chances))]
    return {"y_true": bag.label, "y_pred": best} | {
        f"prob_{label}": chance for label, chance in zip(fitted.classes, chances, strict=True)
    }


def save_model(fitted: FittedMil) -> bytes:
    """Model file as bytes (torch format, readable with ``weights_only=True``; settings inside as JSON)."""
    header = {
        "schema": MODEL_SCHEMA,
        "output_type": fitted.output_type,
        "classes": fitted.classes,
        "settings": fitted.settings.model_dump(),
        "target": [fitted.target_mean, fitted.target_scale],
        "history": fitted.history,
        "best_epoch": fitted.best_epoch,
        "patients": fitted.patients,
    }
    buffer = io.BytesIO()
    torch.save(
        {
            "header": canonical_json(header),
            "feature_mean": torch.from_numpy(fitted.feature_mean),
            "feature_scale": torch.from_numpy(fitted.feature_scale),
            "state": dict(fitted.model.state_dict()),
        },
        buffer,
    )
    return buffer.getvalue()


def load_model(data: bytes) -> FittedMil:
    """Read a model file; code in it is never run.

    Raises:
        InputError: not a model file of this package.
    """
    try:
        held = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        header = json.loads(held["header"])
        if header["schema"] != MODEL_SCHEMA:
            raise InputError(f"model file of schema {header['schema']!r}; expected {MODEL_SCHEMA}")
        settings = MilSettings(**header["settings"])
        mean, scale = held["feature_mean"].numpy(), held["feature_scale"].numpy()
        model = Mil(
            len(mean),
            header["output_type"],
            len(header["classes"]),
            aggregator=settings.aggregator,
            hidden_dim=settings.hidden_dim,
            attention_dim=settings.attention_dim,
            dropout=settings.dropout,
        )
        model.load_state_dict(held["state"])
        return FittedMil(
            model.eval(),
            header["output_type"],
            header["classes"],
            settings,
            mean,
            scale,
            *header["target"],
            header["history"],
            header["best_epoch"],
            header["patients"],
        )
    except InputError:
        raise
    except Exception as error:  # zip, unpickling, key and shape errors share no base class
        raise InputError(f"is not a readable model file ({type(error).__name__})") from None
