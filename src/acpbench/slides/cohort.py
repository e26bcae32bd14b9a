"""Cohorts: the manifest, joined with what became of each slide. Every row that drops out keeps its reason."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import write_csv, write_json, write_text
from acpbench.slides.consort import consort_flow, consort_markdown
from acpbench.slides.manifest import EXCLUSION_COLUMNS, Clinical, Manifest, ManifestRow, exclusion

SLIDE_COLUMNS = (
    "slide_id",
    "patient_id",
    "path",
    "mpp",
    "width_px",
    "height_px",
    "n_tiles",
    "size_bytes",
    "sha256",
)


def join_cohort(
    manifest_rows: Sequence[ManifestRow],
    qualities: Mapping[str, Mapping[str, Any]],
    coords_counts: Mapping[str, Mapping[str, Any]],
    clinical: Clinical | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Join the manifest with what inspection and tiling found, and with the clinical table.

    Args:
        manifest_rows: usable manifest rows.
        qualities: slide id → content of ``quality.json``.
        coords_counts: slide id → ``{"status", "n_tiles", "reason", "detail", "sha256"}``, see
            :func:`coords_count`.
        clinical: cells by patient, added to the manifest's own columns (which win where both have one).

    Returns:
        ``(slides, exclusions)``: each manifest row is in exactly one of them. Slides hold
        :data:`SLIDE_COLUMNS` and the label columns; ``mpp`` is the horizontal spacing in force.
    """
    slides: list[dict[str, Any]] = []
    exclusions: list[dict[str, str]] = []
    ids_of_content: dict[str, list[str]] = defaultdict(list)
    for row in manifest_rows:
        ids_of_content[_content(coords_counts.get(row.slide_id))].append(row.slide_id)
    for row in manifest_rows:
        quality, tiles = qualities.get(row.slide_id), coords_counts.get(row.slide_id)
        problem = _problem("inspect", quality) or _problem("tile", tiles)
        if problem is None and clinical is not None and row.patient_id not in clinical.cells:
            problem = "clinical", "no_clinical_row", "the patient is not in the clinical table"
        same = ids_of_content[_content(tiles)]
        if problem is None and _content(tiles) and len(same) > 1:
            # As for one file under several ids: a copy could lie on both sides of a split.
            shown = ", ".join(sorted(same)[:5])
            problem = "manifest", "duplicate_content", f"{len(same)} slides have the same bytes: {shown}"
        if problem is not None:
            exclusions.append(exclusion(row.slide_id, row.patient_id, *problem))
            continue
        assert quality is not None and tiles is not None
        slides.append(
            (clinical.cells[row.patient_id] if clinical is not None else {})
            | row.labels
            | {
                "slide_id": row.slide_id,
                "patient_id": row.patient_id,
                "path": row.path,
                "mpp": quality.get("mpp_x"),
                "width_px": quality.get("width_px"),
                "height_px": quality.get("height_px"),
                "n_tiles": tiles["n_tiles"],
                "size_bytes": quality.get("size_bytes"),
                "sha256": tiles.get("sha256"),
            }
        )
    return slides, exclusions


def _content(tiles: Mapping[str, Any] | None) -> str:
    """Hash of a slide's bytes, empty where it is not known."""
    return str((tiles or {}).get("sha256") or "")


def _problem(stage: str, outcome: Mapping[str, Any] | None) -> tuple[str, str, str] | None:
    if outcome is None:
        return stage, "no_result", f"no result of the {stage} step"
    status = outcome.get("status")
    if status == "ok":
        return None
    if status == "unreadable" and outcome.get("reason") == "missing_file":
        # Whether a file is there is the manifest's affair, whichever step met it first.
        return "manifest", "missing_file", str(outcome.get("detail") or "no slide file")
    detail = str(outcome.get("detail") or outcome.get("reason") or "")
    return stage, str(status or "no_status"), detail


def coords_count(path: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"status", "n_tiles", "reason", "detail", "sha256"}`` of a ``coords.h5``."""
    from acpbench.slides.coords import read_coords

    tiles = read_coords(path)
    return {
        "status": tiles.status,
        "n_tiles": len(tiles.coords),
        "reason": tiles.reason,
        "detail": tiles.detail,
        "sha256": tiles.slide_sha256,
    }


def write_cohort(
    output_dir: str | os.PathLike[str],
    manifest: Manifest,
    qualities: Mapping[str, Mapping[str, Any]],
    coords_counts: Mapping[str, Mapping[str, Any]],
    clinical: Clinical | None = None,
    *,
    name: str = "cohort",
) -> dict[str, Any]:
    """Write ``exclusions.csv``, ``consort.md``, ``consort.json`` and ``slides.csv``; returns the flow.

    Raises:
        InputError: no slide is left. The message says why, with counts and an example of the chief reason;
            nothing is written, as an empty cohort must not pass for a finished one.
    """
    slides, later = join_cohort(manifest.rows, qualities, coords_counts, clinical)
    exclusions = [*manifest.exclusions, *later]
    if not slides:
        raise InputError(nothing_left(exclusions, manifest, clinical), field=name)
    own = [column for column in manifest.label_columns if column not in SLIDE_COLUMNS]
    added = [c for c in (clinical.columns if clinical else []) if c not in own and c not in SLIDE_COLUMNS]
    flow = consort_flow(manifest, slides, exclusions, [*own, *added], clinical) | {"cohort": name}
    folder = Path(output_dir)
    write_csv(folder / "exclusions.csv", EXCLUSION_COLUMNS, exclusions)
    write_json(folder / "consort.json", flow)
    write_text(folder / "consort.md", consort_markdown(flow))
    write_csv(folder / "slides.csv", [*SLIDE_COLUMNS, *own, *added], slides)
    return flow


def nothing_left(
    exclusions: Sequence[Mapping[str, str]], manifest: Manifest, clinical: Clinical | None = None
) -> str:
    """Why a cohort has no slide, on one line."""
    counts = Counter(row["reason"] for row in exclusions)
    listed = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    text = f"none of {manifest.n_rows} rows is usable: {listed}"
    chief = counts.most_common(1)[0][0]
    if chief == "no_clinical_row" and clinical is not None:
        ours = next(row["patient_id"] for row in exclusions if row["reason"] == chief)
        theirs = next(iter(clinical.cells), None)
        return f"{text}; no patient id is in both tables (manifest {ours!r}, clinical table {theirs!r})"
    example = next(row for row in exclusions if row["reason"] == chief)
    return f"{text}; the first: {example['slide_id'] or 'no id'}: {example['detail']}"
