"""The benchmark's own labels, joined to an agent's rows by slide or patient identifier."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv

_SLIDE_SUFFIXES = (".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".dcm", ".scn", ".h5", ".pt", ".czi", ".bif")
_MAX_LABEL_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class ReferenceRow:
    """One case of the evaluator's label table; empty text means that the value is not known."""

    slide_id: str
    patient_id: str
    split: str
    label: str
    time: str
    event: str


@dataclass(frozen=True)
class ReferenceLabels:
    """The evaluator's label table, keyed by slide and by patient."""

    by_slide: dict[str, ReferenceRow] = field(default_factory=dict)
    by_patient: dict[str, ReferenceRow] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_patient or self.by_slide)

    def find(self, *identifiers: str) -> tuple[ReferenceRow | None, bool]:
        """The first row that one of the identifiers names, exactly or without a slide file's suffix, and
        whether it was named as a slide (else as a patient)."""
        for identifier in identifiers:
            name = identifier.strip()
            for candidate in (name, name.rsplit("/", 1)[-1]):
                lower = candidate.casefold()
                stem = next((candidate[: -len(s)] for s in _SLIDE_SUFFIXES if lower.endswith(s)), candidate)
                for text in dict.fromkeys((candidate, stem)):
                    for table, is_slide in ((self.by_slide, True), (self.by_patient, False)):
                        if text and text in table:
                            return table[text], is_slide
        return None, False

    def split_of(self, patient_id: str) -> str:
        """``train``, ``validation``, ``test`` or ``""`` for a patient."""
        row = self.by_patient.get(patient_id)
        return row.split if row else ""


def load_label_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Rows of ``labels.csv`` (slide_id, patient_id, fold, split, label, time, event).

    Raises:
        InputError: the table is unreadable or has no ``patient_id`` column.
    """
    rows = read_csv(path, max_bytes=_MAX_LABEL_BYTES)
    if rows and "patient_id" not in rows[0]:
        raise InputError("expected a column patient_id", file=path)
    return rows


def reference_labels(rows: Iterable[Mapping[str, str]]) -> ReferenceLabels:
    """Index the rows of :func:`load_label_rows` by slide and by patient."""
    labels = ReferenceLabels()
    for row in rows:
        # The evaluator's folds: 0 is test, 1 validation, the rest train.
        by_fold = {"": "", "0": "test", "1": "validation"}.get(row.get("fold", ""), "train")
        reference = ReferenceRow(
            slide_id=row.get("slide_id", ""),
            patient_id=row["patient_id"],
            split=row.get("split") or by_fold,
            label=row.get("label", ""),
            time=row.get("time", ""),
            event=row.get("event", ""),
        )
        if reference.slide_id:
            labels.by_slide.setdefault(reference.slide_id, reference)
        held = labels.by_patient.get(reference.patient_id)
        # Of a patient's slides, the first that carries a label speaks for the patient.
        if held is None or not (held.label or held.time):
            labels.by_patient[reference.patient_id] = reference
    return labels
