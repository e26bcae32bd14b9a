"""A trained model, its file, and its predictions."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from acpbench.core.errors import InputError
from acpbench.core.files import canonical_json
from acpbench.mil.abmil import Mil
from acpbench.mil.bags import PatientBag
from acpbench.mil.prepared import Scaler, chunks
from acpbench.mil.settings import MilSettings, deterministic, pick_device

MODEL_SCHEMA = "acp-mil/0.3"


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


@dataclass(frozen=True)
class Predicted:
    """Prediction rows (one a bag, in the order given) and the attention of every bag's tiles, (N_b,) each."""

    rows: list[dict[str, Any]]
    attention: list[np.ndarray]


def new_model(in_dim: int, output_type: str, n_classes: int, settings: MilSettings) -> Mil:
    """An untrained model of these settings."""
    return Mil(
        in_dim,
        output_type,
        n_classes,
        aggregator=settings.aggregator,
        hidden_dim=settings.hidden_dim,
        attention_dim=settings.attention_dim,
        dropout=settings.dropout,
    )


def predict(fitted: FittedMil, bags: Sequence[PatientBag]) -> Predicted:
    """Predict bags with all of their tiles, in float32; tiles are read and embedded in chunks.

    Rows have ``patient_id``, the truth when it is known (``y_true``, or ``time`` and ``event``) and
    ``y_pred`` with ``prob_<class>``, ``y_pred`` alone (continuous) or ``risk`` (survival; higher = earlier
    event). Probabilities are written with 6 decimals.

    Raises:
        InputError: features of another width than the model's.
    """
    rows: list[dict[str, Any]] = []
    attention: list[np.ndarray] = []
    device = pick_device(fitted.settings.device)
    with deterministic(fitted.settings.seed, device), torch.inference_mode():
        model = fitted.model.eval().to(device)
        scaler = Scaler(fitted.feature_mean, fitted.feature_scale, device)
        for bag in bags:
            if bag.features.shape[1] != len(fitted.feature_mean) or not len(bag.features):
                raise InputError(
                    f"features {bag.features.shape}; the model takes (N >= 1, {len(fitted.feature_mean)})",
                    field=bag.patient_id,
                )
            pooled, weights = model.pool_bag(scaler(tiles) for tiles in chunks(bag))
            attention.append(weights.cpu().numpy().astype(np.float32))
            rows.append({"patient_id": bag.patient_id} | _row(fitted, bag, model.head(pooled)))
        fitted.model.cpu()
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
        model = new_model(len(mean), header["output_type"], len(header["classes"]), settings)
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
