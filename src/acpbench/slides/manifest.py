"""Manifests: which slides a cohort has, whose they are, where they lie; and the clinical table."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from acpbench.core.errors import InputError
from acpbench.core.ids import check_id
from acpbench.slides.spacing import plausible
from acpbench.slides.tables import read_table

FIELDS = ("slide_id", "patient_id", "path", "mpp", "mask")
EXCLUSION_COLUMNS = ("slide_id", "patient_id", "stage", "reason", "detail")

BLANK = frozenset({"", "na", "n/a", "nan", "none", "null"})
"""Cells that hold no value, in lower case."""

FileCheck = Literal["check", "resolve", "ignore"]


@dataclass(frozen=True)
class ManifestRow:
    """One slide of a cohort.

    Attributes:
        slide_id, patient_id: checked identifiers.
        path: the slide relative to the base folder, or absolute. resolved: with its folder.
        mpp: declared spacing, um/px, or ``None``. mask: tissue mask of the user's, or ``None``.
        labels: every other column, as text without spaces around. record: the row as written.
    """

    slide_id: str
    patient_id: str
    path: str
    resolved: Path
    mpp: float | None
    mask: Path | None = None
    labels: dict[str, str] = field(default_factory=dict)
    record: dict[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Manifest:
    """A manifest as read.

    Attributes:
        rows: usable rows in file order. exclusions: rows refused at once (stage ``manifest``).
        n_rows: rows in the file. label_columns: names of the other columns, in file order.
        patients: every patient named in the file.
    """

    rows: list[ManifestRow]
    exclusions: list[dict[str, str]]
    n_rows: int
    label_columns: list[str]
    patients: frozenset[str] = frozenset()


def is_blank(cell: str) -> bool:
    """Whether a cell holds no value."""
    return cell.strip().lower() in BLANK


def exclusion(slide_id: str, patient_id: str, stage: str, reason: str, detail: str) -> dict[str, str]:
    """One row of ``exclusions.csv``."""
    return dict(zip(EXCLUSION_COLUMNS, (slide_id, patient_id, stage, reason, detail), strict=True))


def read_manifest(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    *,
    base: str | os.PathLike[str] | None = None,
    slide_dir: str | os.PathLike[str] | None = None,
    suffix: str = "",
    mask_dir: str | os.PathLike[str] | None = None,
    files: FileCheck = "check",
) -> Manifest:
    """Read a manifest (see :func:`acpbench.slides.tables.read_table` for its forms).

    Args:
        path: the manifest.
        columns: field → column name for :data:`FIELDS`, where it differs. ``mpp`` and ``mask`` are optional.
        base: folder that slide paths are relative to; the manifest's own by default.
        slide_dir: folder that holds the slides, where it is not ``base``; the paths of the rows lead from
            ``base`` there.
        suffix: added to every slide path, for tables that leave it out (``.svs``).
        mask_dir: folder of masks named ``<slide_id>.geojson``, ``.png`` or ``.tif(f)``; a ``mask`` cell wins.
        files: ``check`` excludes slides that do not exist; ``resolve`` follows links only, to find one file
            under two ids; ``ignore`` looks at no slide at all.

    Returns:
        Rows and exclusions. Reasons: ``bad_id``, ``missing_path``, ``bad_mpp``, ``duplicate_slide_id`` (the
        same row again, the first is kept), ``conflicting_slide_id`` (one id for different slides or patients:
        none is kept, as there is no telling which is right), ``duplicate_path`` (one file under several
        slide ids, which could put it on both sides of a split: none is kept) and ``missing_file``.

    Raises:
        InputError: no such file or column, an unknown field in ``columns``, or no row.
    """
    path = Path(path)
    names = {name: name for name in FIELDS} | dict(columns or {})
    unknown = sorted(set(names) - set(FIELDS))
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}; expected {', '.join(FIELDS)}", field="columns")
    table = read_table(path)
    if not table:
        raise InputError("has a header and no row", file=path)
    header = list(table[0])
    needed = ["slide_id", "patient_id", "path", *(n for n in ("mpp", "mask") if n in (columns or {}))]
    for name in needed:
        if names[name] not in header:
            raise InputError(
                f"has no column {names[name]!r} for {name}; columns are {', '.join(header)}", file=path
            )
    label_columns = [column for column in header if column not in names.values()]
    folder = path.parent if base is None else Path(base)
    slides = folder if slide_dir is None else Path(slide_dir)
    rows: list[ManifestRow] = []
    refused: list[tuple[int, dict[str, str]]] = []
    numbers: list[int] = []
    for number, record in enumerate(table, start=2):
        row = _parse(record, names, label_columns, (folder, slides, path.parent), suffix)
        if isinstance(row, ManifestRow):
            rows.append(row)
            numbers.append(number)
        else:
            slide, patient = (record[names[name]].strip() for name in ("slide_id", "patient_id"))
            refused.append((number, exclusion(slide, patient, "manifest", row[0], f"row {number}: {row[1]}")))
    kept, doubles = _settle_duplicates(rows, numbers, follow_links=files != "ignore")
    refused += doubles
    usable = []
    for number, row in kept:
        if files == "check" and not row.resolved.is_file():
            why = ("missing_file", f"row {number}: no slide file at {row.resolved}")
            refused.append((number, exclusion(row.slide_id, row.patient_id, "manifest", *why)))
        else:
            usable.append(row)
    if mask_dir is not None:
        usable = [_with_mask(row, Path(mask_dir)) for row in usable]
    named = (record[names["patient_id"]].strip() for record in table)
    patients = frozenset(patient for patient in named if not is_blank(patient))
    exclusions = [row for _, row in sorted(refused, key=lambda pair: pair[0])]
    return Manifest(usable, exclusions, len(table), label_columns, patients)


def _parse(
    record: Mapping[str, str],
    names: Mapping[str, str],
    label_columns: Sequence[str],
    places: tuple[Path, Path, Path],
    suffix: str,
) -> ManifestRow | tuple[str, str]:
    """The row, or ``(reason, detail)``; ``places`` are the folders of paths, of slides and of masks."""
    folder, slides, masks = places
    slide_id, patient_id, text = (record[names[n]].strip() for n in ("slide_id", "patient_id", "path"))
    try:
        for name, given in (("slide_id", slide_id), ("patient_id", patient_id)):
            check_id(given, name)
            if is_blank(given):
                raise InputError(f"{given!r} stands for no value", field=name)
    except InputError as error:
        return "bad_id", str(error)
    if is_blank(text) or "\0" in text:
        return "missing_path", "no slide path"
    declared = record.get(names["mpp"], "").strip()
    mpp = None
    if not is_blank(declared):
        try:
            mpp = float(declared)
        except ValueError:
            return "bad_mpp", f"mpp {declared[:40]!r} is not a number"
        if not plausible(mpp):
            return "bad_mpp", f"mpp {declared[:40]} um/px is not plausible"
    mask = record.get(names["mask"], "").strip()
    resolved = slides / f"{text}{suffix}"
    return ManifestRow(
        slide_id,
        patient_id,
        text if resolved == folder / text else os.path.relpath(resolved, folder),
        resolved,
        mpp,
        None if is_blank(mask) else masks / mask,
        {column: record[column].strip() for column in label_columns},
        dict(record),
    )


def _with_mask(row: ManifestRow, folder: Path) -> ManifestRow:
    if row.mask is not None:
        return row
    for ending in (".geojson", ".json", ".png", ".tif", ".tiff"):
        candidate = folder / f"{row.slide_id}{ending}"
        if candidate.is_file():
            return dataclasses.replace(row, mask=candidate)
    return row


def _settle_duplicates(
    rows: Sequence[ManifestRow], numbers: Sequence[int], *, follow_links: bool
) -> tuple[list[tuple[int, ManifestRow]], list[tuple[int, dict[str, str]]]]:
    def place(row: ManifestRow) -> str:
        return os.path.realpath(row.resolved) if follow_links else os.path.normpath(row.resolved)

    by_id: dict[str, list[ManifestRow]] = defaultdict(list)
    ids_of_file: dict[str, set[str]] = defaultdict(set)
    places = [place(row) for row in rows]
    for row, where in zip(rows, places, strict=True):
        by_id[row.slide_id].append(row)
        ids_of_file[where].add(row.slide_id)
    conflicting = {name for name, same in by_id.items() if any(row != same[0] for row in same)}
    kept, dropped, seen = [], [], set()
    for number, row, where in zip(numbers, rows, places, strict=True):
        ids = ids_of_file[where]
        if row.slide_id in conflicting:
            why = (
                "conflicting_slide_id",
                f"row {number}: {len(by_id[row.slide_id])} rows with this id contradict each other",
            )
        elif len(ids) > 1:
            shown = sorted(ids)
            listed = ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
            why = ("duplicate_path", f"row {number}: the file is listed under {listed}")
        elif row.slide_id in seen:
            why = ("duplicate_slide_id", f"row {number}: the same row again; the first is kept")
        else:
            seen.add(row.slide_id)
            kept.append((number, row))
            continue
        dropped.append((number, exclusion(row.slide_id, row.patient_id, "manifest", *why)))
    return kept, dropped


@dataclass(frozen=True)
class Clinical:
    """A table with a row (or several) a patient.

    Attributes:
        columns: its columns but for the id. cells: patient → column → text.
        n_rows, n_without_id, n_duplicate_rows: rows in the file, rows without a patient, further rows of a
            patient who has one.
        conflicts: column → patients whose rows contradict each other there; such a cell is empty in
            ``cells``, as there is no telling which is right.
    """

    columns: list[str]
    cells: dict[str, dict[str, str]]
    n_rows: int
    n_without_id: int
    n_duplicate_rows: int
    conflicts: dict[str, list[str]]


def read_clinical(path: str | os.PathLike[str], id_column: str) -> Clinical:
    """Read a clinical table and bring it to one row a patient.

    Several rows of a patient are merged cell by cell: an empty cell gives way to a filled one, equal cells
    stay, and cells that differ are emptied and listed under ``conflicts``.

    Raises:
        InputError: no such file or column, or no row.
    """
    table = read_table(path)
    if not table or id_column not in table[0]:
        found = f"columns are {', '.join(table[0])}" if table else "it has no row"
        raise InputError(f"has no column {id_column!r} for the patient; {found}", file=path)
    columns = [column for column in table[0] if column != id_column]
    cells: dict[str, dict[str, str]] = {}
    conflicts: dict[str, set[str]] = defaultdict(set)
    blank = doubles = 0
    for record in table:
        patient = record[id_column].strip()
        if is_blank(patient):
            blank += 1
            continue
        if patient not in cells:
            cells[patient] = {column: record[column].strip() for column in columns}
            continue
        doubles += 1
        merged = cells[patient]
        for column in columns:
            cell = record[column].strip()
            if is_blank(cell):
                continue
            if is_blank(merged[column]):
                merged[column] = cell
            elif cell != merged[column]:
                conflicts[column].add(patient)
    for column, patients in conflicts.items():
        for patient in patients:
            cells[patient][column] = ""
    ordered = {column: sorted(conflicts[column]) for column in columns if column in conflicts}
    return Clinical(columns, cells, len(table), blank, doubles, ordered)
