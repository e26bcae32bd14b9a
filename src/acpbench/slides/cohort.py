"""Cohorts: the manifest, joined with what became of each slide. Every row that drops out keeps its reason."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv, write_json
from acpbench.core.ids import check_id
from acpbench.slides.spacing import plausible

FIELDS = ("slide_id", "patient_id", "path", "mpp")
SLIDE_COLUMNS = ("slide_id", "patient_id", "path", "mpp", "width_px", "height_px", "n_tiles")
EXCLUSION_COLUMNS = ("slide_id", "patient_id", "stage", "reason", "detail")
STAGES = ("manifest", "inspect", "tile", "features")


@dataclass(frozen=True)
class ManifestRow:
    """One slide of a cohort.

    Attributes:
        slide_id, patient_id: checked identifiers.
        path: as written in the manifest. resolved: against the manifest's folder.
        mpp: declared spacing, um/px, or ``None``.
        labels: every other column, as text.
    """

    slide_id: str
    patient_id: str
    path: str
    resolved: Path
    mpp: float | None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """A manifest as read.

    Attributes:
        rows: usable rows in file order. exclusions: rows refused at once (stage ``manifest``).
        n_rows: rows in the file. label_columns: names of the other columns, in file order.
    """

    rows: list[ManifestRow]
    exclusions: list[dict[str, str]]
    n_rows: int
    label_columns: list[str]


def exclusion(slide_id: str, patient_id: str, stage: str, reason: str, detail: str) -> dict[str, str]:
    """One row of ``exclusions.csv``."""
    return dict(zip(EXCLUSION_COLUMNS, (slide_id, patient_id, stage, reason, detail), strict=True))


def read_manifest(
    path: str | os.PathLike[str],
    columns: Mapping[str, str] | None = None,
    *,
    base: str | os.PathLike[str] | None = None,
    check_files: bool = True,
) -> Manifest:
    """Read a CSV or TSV manifest.

    Args:
        path: the manifest.
        base: folder that slide paths are relative to; the manifest's own by default.
        columns: field → column name for ``slide_id``, ``patient_id``, ``path`` and ``mpp``, where it differs.
            ``mpp`` is optional.
        check_files: whether slides that do not exist are excluded.

    Returns:
        Rows and exclusions. Reasons: ``bad_id``, ``missing_path``, ``bad_mpp``, ``missing_file``,
        ``duplicate_slide_id`` (the same row again, the first is kept), ``conflicting_slide_id`` (one id for
        different slides or patients: none is kept, as there is no telling which is right) and
        ``duplicate_path`` (one file under several slide ids, which could put it on both sides of a split:
        none is kept).

    Raises:
        InputError: no such file or column, an unknown field in ``columns``, or no row.
    """
    path = Path(path)
    names = {name: name for name in FIELDS} | dict(columns or {})
    unknown = sorted(set(names) - set(FIELDS))
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}; expected {', '.join(FIELDS)}", field="columns")
    table = read_csv(path)
    if not table:
        raise InputError("has a header and no row", file=path)
    header = list(table[0])
    for name in ("slide_id", "patient_id", "path"):
        if names[name] not in header:
            raise InputError(
                f"has no column {names[name]!r} for {name}; columns are {', '.join(header)}", file=path
            )
    if columns and "mpp" in columns and names["mpp"] not in header:
        raise InputError(f"has no column {names['mpp']!r} for mpp", file=path)
    label_columns = [column for column in header if column not in names.values()]
    folder = path.parent if base is None else Path(base)
    rows: list[ManifestRow] = []
    exclusions: list[dict[str, str]] = []
    for number, record in enumerate(table, start=2):
        row = _parse(record, names, label_columns, folder, check_files)
        if isinstance(row, ManifestRow):
            rows.append(row)
        else:
            slide, patient = (record[names[name]].strip() for name in ("slide_id", "patient_id"))
            exclusions.append(exclusion(slide, patient, "manifest", row[0], f"row {number}: {row[1]}"))
    kept, doubles = _settle_duplicates(rows)
    return Manifest(kept, exclusions + doubles, len(table), label_columns)


def _parse(
    record: Mapping[str, str],
    names: Mapping[str, str],
    label_columns: Sequence[str],
    folder: Path,
    check: bool,
) -> ManifestRow | tuple[str, str]:
    """The row, or ``(reason, detail)``."""
    slide_id, patient_id, text = (record[names[n]].strip() for n in ("slide_id", "patient_id", "path"))
    try:
        check_id(slide_id, "slide_id")
        check_id(patient_id, "patient_id")
    except InputError as error:
        return "bad_id", str(error)
    if not text or "\0" in text:
        return "missing_path", "no slide path"
    declared = record.get(names["mpp"], "").strip()
    mpp = None
    if declared:
        try:
            mpp = float(declared)
        except ValueError:
            return "bad_mpp", f"mpp {declared[:40]!r} is not a number"
        if not plausible(mpp):
            return "bad_mpp", f"mpp {declared[:40]} um/px is not plausible"
    resolved = folder / text
    if check and not resolved.is_file():
        return "missing_file", f"no slide file at {text}"
    return ManifestRow(
        slide_id, patient_id, text, resolved, mpp, {c: record[c].strip() for c in label_columns}
    )


def _settle_duplicates(rows: Sequence[ManifestRow]) -> tuple[list[ManifestRow], list[dict[str, str]]]:
    by_id: dict[str, list[ManifestRow]] = defaultdict(list)
    ids_of_file: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        by_id[row.slide_id].append(row)
        ids_of_file[os.path.realpath(row.resolved)].add(row.slide_id)
    kept, dropped, seen = [], [], set()
    for row in rows:
        ids = ids_of_file[os.path.realpath(row.resolved)]
        if any(other != by_id[row.slide_id][0] for other in by_id[row.slide_id]):
            why = (
                "conflicting_slide_id",
                f"{len(by_id[row.slide_id])} rows with this id contradict each other",
            )
        elif len(ids) > 1:
            why = ("duplicate_path", f"the file is listed under {', '.join(sorted(ids))}")
        elif row.slide_id in seen:
            why = ("duplicate_slide_id", "the same row again; the first is kept")
        else:
            seen.add(row.slide_id)
            kept.append(row)
            continue
        dropped.append(exclusion(row.slide_id, row.patient_id, "manifest", *why))
    return kept, dropped


def join_cohort(
    manifest_rows: Sequence[ManifestRow],
    qualities: Mapping[str, Mapping[str, Any]],
    coords_counts: Mapping[str, Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Join the manifest with what inspection and tiling found.

    Args:
        manifest_rows: usable manifest rows.
        qualities: slide id → content of ``quality.json``.
        coords_counts: slide id → ``{"status", "n_tiles", "reason", "detail"}``, see :func:`coords_count`.

    Returns:
        ``(slides, exclusions)``: each manifest row is in exactly one of them. Slides hold
        :data:`SLIDE_COLUMNS` and the label columns; ``mpp`` is the horizontal spacing in force.
    """
    slides: list[dict[str, Any]] = []
    exclusions: list[dict[str, str]] = []
    for row in manifest_rows:
        quality, tiles = qualities.get(row.slide_id), coords_counts.get(row.slide_id)
        problem = _problem("inspect", quality) or _problem("tile", tiles)
        if problem is not None:
            exclusions.append(exclusion(row.slide_id, row.patient_id, *problem))
            continue
        assert quality is not None and tiles is not None
        slides.append(
            dict(row.labels)
            | {
                "slide_id": row.slide_id,
                "patient_id": row.patient_id,
                "path": row.path,
                "mpp": quality.get("mpp_x"),
                "width_px": quality.get("width_px"),
                "height_px": quality.get("height_px"),
                "n_tiles": tiles["n_tiles"],
            }
        )
    return slides, exclusions


def _problem(stage: str, outcome: Mapping[str, Any] | None) -> tuple[str, str, str] | None:
    if outcome is None:
        return stage, "no_result", f"no result of the {stage} step"
    status = outcome.get("status")
    if status == "ok":
        return None
    detail = str(outcome.get("detail") or outcome.get("reason") or "")
    return stage, str(status or "no_status"), detail


def coords_count(path: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"status", "n_tiles", "reason", "detail"}`` of a ``coords.h5``."""
    from acpbench.slides.coords import read_coords

    tiles = read_coords(path)
    return {
        "status": tiles.status,
        "n_tiles": len(tiles.coords),
        "reason": tiles.reason,
        "detail": tiles.detail,
    }


def cohort_counts(
    n_manifest_rows: int, slides: Sequence[Mapping[str, Any]], exclusions: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Flow of slides and patients, CONSORT fashion.

    Returns:
        ``n_manifest_rows``; ``steps``: for each stage the rows that entered, were excluded (by reason) and
        went on; ``n_slides``, ``n_patients``, ``slides_per_patient`` (count → patients) of what is left;
        ``n_patients_lost``: patients of whom no slide is left.

    Raises:
        ValueError: rows are unaccounted for.
    """
    if len(slides) + len(exclusions) != n_manifest_rows:
        raise ValueError(
            f"{n_manifest_rows} manifest rows, but {len(slides)} slides and {len(exclusions)} exclusions"
        )
    steps, entering = [], n_manifest_rows
    for stage in STAGES:
        reasons = Counter(row["reason"] for row in exclusions if row["stage"] == stage)
        lost = sum(reasons.values())
        steps.append(
            {
                "stage": stage,
                "n_in": entering,
                "n_excluded": lost,
                "excluded": dict(sorted(reasons.items())),
                "n_out": entering - lost,
            }
        )
        entering -= lost
    per_patient = Counter(row["patient_id"] for row in slides)
    lost_patients = {row["patient_id"] for row in exclusions if row["patient_id"]} - set(per_patient)
    return {
        "n_manifest_rows": n_manifest_rows,
        "steps": steps,
        "n_slides": len(slides),
        "n_patients": len(per_patient),
        "slides_per_patient": {str(k): v for k, v in sorted(Counter(per_patient.values()).items())},
        "n_patients_lost": len(lost_patients),
    }


def write_cohort(
    output_dir: str | os.PathLike[str],
    manifest: Manifest,
    qualities: Mapping[str, Mapping[str, Any]],
    coords_counts: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Write ``slides.csv``, ``exclusions.csv`` and ``counts.json``; returns the counts."""
    slides, later = join_cohort(manifest.rows, qualities, coords_counts)
    exclusions = [*manifest.exclusions, *later]
    counts = cohort_counts(manifest.n_rows, slides, exclusions)
    folder = Path(output_dir)
    labels = [column for column in manifest.label_columns if column not in SLIDE_COLUMNS]
    write_csv(folder / "slides.csv", [*SLIDE_COLUMNS, *labels], slides)
    write_csv(folder / "exclusions.csv", EXCLUSION_COLUMNS, exclusions)
    write_json(folder / "counts.json", counts)
    return counts
