"""Patient bags: the tiles of all slides of a patient, with the patient's label."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.features.store import FeatureBag, read_features
from acpbench.mil.cells import is_missing, parse_event, parse_number
from acpbench.mil.stored import StoredFeatures, joined, locate


@dataclass(frozen=True)
class PatientBag:
    """All tiles of one patient.

    ``features`` (N, D) float16 or float32, in memory or still in their files; ``slides`` lists (slide_id,
    first row, end row) into it; ``coords`` (N, 2) int64 are level-0 corners. The label is ``label`` (class
    name), ``value`` (continuous) or ``time`` and ``event`` (survival), ``None`` if unknown.
    """

    patient_id: str
    features: np.ndarray | StoredFeatures
    slides: tuple[tuple[str, int, int], ...] = ()
    coords: np.ndarray | None = None
    label: str | None = None
    value: float | None = None
    time: float | None = None
    event: bool | None = None

    def read(self, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """Rows of the features as stored, (n, D): ascending numbers, a slice, or all."""
        if isinstance(self.features, StoredFeatures):
            return self.features.read(rows)
        return self.features if rows is None else self.features[rows]

    def has_label(self, output_type: str) -> bool:
        """Whether the label that ``output_type`` needs is there."""
        if output_type == "survival":
            return self.time is not None and self.event is not None
        return (self.value if output_type == "continuous" else self.label) is not None


def load_bags(
    rows: Sequence[Mapping[str, Any]],
    output_type: str,
    feature_path: Callable[[str], str | os.PathLike[str]],
) -> tuple[list[PatientBag], list[dict[str, str]]]:
    """Build patient bags from a slide-level label table.

    Every feature file is checked against its hash; its features are then left in it and read when needed, so
    that a cohort may be larger than memory.

    Args:
        rows: slides with ``slide_id``, ``patient_id`` and ``label`` or ``time`` and ``event`` (label table).
        output_type: of the endpoint.
        feature_path: slide id → its feature file.

    Returns:
        Bags sorted by patient, and one row (``patient_id``, ``slide_id``, ``reason``) for every slide without
        tiles and every patient who therefore has no bag (empty ``slide_id``).

    Raises:
        InputError: an unfinished feature file, features of two widths or encoders, a bad label cell.
    """
    by_patient: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (str(row["patient_id"]), str(row["slide_id"]))):
        by_patient.setdefault(str(row["patient_id"]), []).append(row)
    bags: list[PatientBag] = []
    dropped: list[dict[str, str]] = []
    seen: tuple[str, str, int] | None = None
    for patient, slides in by_patient.items():
        parts: list[np.ndarray | StoredFeatures] = []
        corners: list[np.ndarray] = []
        spans: list[tuple[str, int, int]] = []
        start = 0
        for row in slides:
            slide = str(row["slide_id"])
            path = feature_path(slide)
            bag = read_features(path)
            if not len(bag.features):
                dropped.append({"patient_id": patient, "slide_id": slide, "reason": bag.status})
                continue
            seen = _same_encoder(seen, bag, path)
            place = locate(path, bag)
            parts.append(
                bag.features
                if place is None
                else StoredFeatures([place], bag.features.shape[1], bag.features.dtype)
            )
            corners.append(bag.coords)
            spans.append((slide, start, start := start + len(bag.features)))
        if not parts:
            dropped.append({"patient_id": patient, "slide_id": "", "reason": "no slide with tiles"})
            continue
        label = label_of(slides[0], output_type)
        bags.append(PatientBag(patient, joined(parts), tuple(spans), np.concatenate(corners), **label))
    return bags, dropped


def _same_encoder(
    seen: tuple[str, str, int] | None, bag: FeatureBag, path: str | os.PathLike[str]
) -> tuple[str, str, int]:
    found = (str(bag.attrs["encoder"]), str(bag.attrs.get("encoder_sha256")), bag.features.shape[1])
    if seen is not None and seen != found:
        raise InputError(
            f"features of {found[0]} ({found[2]}-d) beside features of {seen[0]} ({seen[2]}-d)",
            file=Path(path),
        )
    return found


def label_of(row: Mapping[str, Any], output_type: str) -> dict[str, Any]:
    """Label fields of a table row as :class:`PatientBag` takes them; empty cells give ``None``.

    Raises:
        InputError: a cell that is filled but not a number or an event.
    """
    if output_type == "survival":
        if is_missing(row.get("time")) or is_missing(row.get("event")):
            return {}
        time, event = parse_number(row["time"]), parse_event(row["event"])
        if time is None or event is None or time < 0:
            raise InputError(
                f"time {row['time']!r}, event {row['event']!r}", field=str(row.get("patient_id"))
            )
        return {"time": time, "event": event}
    cell = row.get("label")
    if is_missing(cell):
        return {}
    if output_type == "continuous":
        value = parse_number(cell)
        if value is None:
            raise InputError(f"label {cell!r} is not a number", field=str(row.get("patient_id")))
        return {"value": value}
    return {"label": str(cell)}


def labelled(bags: Iterable[PatientBag], output_type: str) -> list[PatientBag]:
    """Bags whose label is known."""
    return [bag for bag in bags if bag.has_label(output_type)]
