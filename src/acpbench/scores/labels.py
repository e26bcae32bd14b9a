"""The benchmark's own labels, joined to an agent's rows by slide or patient identifier."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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


class Match(NamedTuple):
    """The reference row that identifiers name, and as what; or why none.

    ``named`` is ``slide``, ``patient``, or ``unknown_slide``: a known patient beside a slide that is not.
    """

    row: ReferenceRow | None = None
    named: Literal["", "slide", "patient", "unknown_slide"] = ""
    contradiction: str = ""


@dataclass(frozen=True)
class ReferenceLabels:
    """The evaluator's label table, keyed by slide and by patient."""

    by_slide: dict[str, ReferenceRow] = field(default_factory=dict)
    by_patient: dict[str, ReferenceRow] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_patient or self.by_slide)

    def find(self, *, slide: str = "", patient: str = "", other: str = "") -> Match:
        """The case that a row's identifiers name, each exactly or without a slide file's suffix.

        Args:
            slide: the row's slide; a patient's name counts here too.
            patient: the row's patient; a slide's name counts here too.
            other: an identifier of unsaid kind, which counts only where both others are blank: beside them
                it may be a line number.
        """
        if not slide.strip() and not patient.strip():
            return self._named(other, slides_first=True)
        of_slide = self._named(slide, slides_first=True)
        of_patient = self._named(patient, slides_first=False)
        if of_slide.row is None:
            unknown = slide.strip() and of_patient.named == "patient"
            return of_patient._replace(named="unknown_slide") if unknown else of_patient
        if of_patient.row is None:
            return of_slide
        if of_slide.row.patient_id != of_patient.row.patient_id:
            return Match(contradiction="its slide is another patient's")
        return of_patient if of_slide.named == "patient" else of_slide

    def _named(self, identifier: str, *, slides_first: bool) -> Match:
        tables = {"slide": self.by_slide, "patient": self.by_patient}
        name = identifier.strip()
        for candidate in (name, name.rsplit("/", 1)[-1]):
            lower = candidate.casefold()
            stem = next((candidate[: -len(s)] for s in _SLIDE_SUFFIXES if lower.endswith(s)), candidate)
            for text in filter(None, dict.fromkeys((candidate, stem))):
                for kind in ("slide", "patient") if slides_first else ("patient", "slide"):
                    if text in tables[kind]:
                        return Match(tables[kind][text], kind)
        return Match()

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
