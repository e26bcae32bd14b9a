"""The flow of slides and patients through a cohort, after the CONSORT diagram of clinical trials.

Each step says how many entered, how many dropped out for which reason and how many went on, for slides and
for patients. A patient is lost at the step where the last of their slides drops out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from acpbench.slides.manifest import Clinical, Manifest, is_blank

SCHEMA = "acp-consort/0.1"

STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "valid_row": ("Rows with ids and a path", ("bad_id", "missing_path", "bad_mpp")),
    "unique": (
        "Unique slides",
        ("duplicate_slide_id", "conflicting_slide_id", "duplicate_path", "duplicate_content"),
    ),
    "file_present": ("File present", ("missing_file",)),
    "readable": ("Readable", ("unreadable", "no_result", "no_status")),
    "spacing": ("Spacing known and fine enough", ("no_mpp", "too_coarse")),
    "tissue": ("With tissue", ("empty_tissue", "emptied_by_filter")),
    "enough_tiles": ("Enough tiles", ("too_few_tiles",)),
    "clinical": ("Patient in the clinical table", ("no_clinical_row",)),
}
"""Step → title and the reasons of ``exclusions.csv`` that end a slide there, in the order of the flow."""


def consort_flow(
    manifest: Manifest,
    slides: Sequence[Mapping[str, Any]],
    exclusions: Sequence[Mapping[str, str]],
    label_columns: Sequence[str],
    clinical: Clinical | None = None,
) -> dict[str, Any]:
    """Count the flow.

    Args:
        manifest: the manifest as read.
        slides, exclusions: as :func:`acpbench.slides.cohort.join_cohort` returns them, with the manifest's
            own exclusions.
        label_columns: columns counted for the last step, slides and patients with a cell that is not blank.
        clinical: the clinical table, when there is one.

    Returns:
        ``n_rows``, ``n_patients`` (of the manifest), ``steps``, ``n_slides``, ``n_patients_left``,
        ``slides_per_patient`` (count → patients), ``size_bytes``, ``labels`` (column → counts) and
        ``clinical``.

    Raises:
        ValueError: rows are unaccounted for, or a reason belongs to no step.
    """
    if len(slides) + len(exclusions) != manifest.n_rows:
        raise ValueError(
            f"{manifest.n_rows} manifest rows, but {len(slides)} slides and {len(exclusions)} exclusions"
        )
    step_of = {reason: step for step, (_, reasons) in STEPS.items() for reason in reasons}
    stray = sorted({row["reason"] for row in exclusions} - set(step_of))
    if stray:
        raise ValueError(f"no step for the reason {stray[0]!r}")
    left = Counter(row["patient_id"] for row in slides)
    by_step: dict[str, list[Mapping[str, str]]] = {step: [] for step in STEPS}
    for row in exclusions:
        by_step[step_of[row["reason"]]].append(row)
        left[row["patient_id"]] += 1
    steps = []
    entering, patients_in = manifest.n_rows, len(manifest.patients)
    if patients_in != len(set(left) - {""}):
        raise ValueError(f"{patients_in} patients in the manifest, {len(set(left) - {''})} in its rows")
    for step, (title, _) in STEPS.items():
        if step == "clinical" and clinical is None:
            continue
        out = by_step[step]
        left.subtract(row["patient_id"] for row in out)
        patients_out = sum(1 for patient, count in left.items() if patient and count)
        steps.append(
            {
                "step": step,
                "title": title,
                "n_slides_in": entering,
                "n_slides_excluded": len(out),
                "n_slides_out": entering - len(out),
                "n_patients_in": patients_in,
                "n_patients_lost": patients_in - patients_out,
                "n_patients_out": patients_out,
                "excluded": dict(sorted(Counter(row["reason"] for row in out).items())),
            }
        )
        entering, patients_in = entering - len(out), patients_out
    per_patient = Counter(row["patient_id"] for row in slides)
    if (entering, patients_in) != (len(slides), len(per_patient)):
        raise ValueError(f"the flow ends with {entering} slides of {patients_in} patients")
    return {
        "schema": SCHEMA,
        "n_rows": manifest.n_rows,
        "n_patients": len(manifest.patients),
        "steps": steps,
        "n_slides": len(slides),
        "n_patients_left": len(per_patient),
        "slides_per_patient": {str(k): v for k, v in sorted(Counter(per_patient.values()).items())},
        "size_bytes": sum(int(row.get("size_bytes") or 0) for row in slides),
        "labels": {column: _label_counts(slides, column, clinical) for column in label_columns},
        "clinical": None if clinical is None else _clinical_counts(manifest, clinical),
    }


def _label_counts(
    slides: Sequence[Mapping[str, Any]], column: str, clinical: Clinical | None
) -> dict[str, int]:
    filled = [row for row in slides if not is_blank(str(row.get(column) or ""))]
    patients = {row["patient_id"] for row in filled}
    doubtful = set(clinical.conflicts.get(column, []) if clinical else []) - patients
    return {
        "n_slides": len(filled),
        "n_slides_blank": len(slides) - len(filled),
        "n_patients": len(patients),
        "n_patients_blank": len({row["patient_id"] for row in slides} - patients),
        "n_patients_contradictory": len(doubtful & {row["patient_id"] for row in slides}),
    }


def _clinical_counts(manifest: Manifest, clinical: Clinical) -> dict[str, Any]:
    ours, theirs = manifest.patients, set(clinical.cells)
    return {
        "n_rows": clinical.n_rows,
        "n_rows_without_id": clinical.n_without_id,
        "n_rows_duplicate": clinical.n_duplicate_rows,
        "n_patients": len(theirs),
        "n_patients_matched": len(ours & theirs),
        "n_patients_only_in_manifest": len(ours - theirs),
        "n_patients_only_in_clinical": len(theirs - ours),
        "columns_of_the_manifest_kept": [c for c in clinical.columns if c in manifest.label_columns],
        "contradictory_cells": {column: len(names) for column, names in clinical.conflicts.items()},
    }


def consort_markdown(flow: Mapping[str, Any]) -> str:
    """The flow as a page: one table of steps, one of label columns, one of the clinical table."""
    lines = [
        f"# Flow of slides and patients: {_safe(flow['cohort'])}",
        "",
        "| step | slides | patients | slides out | patients lost | reasons |",
        "|---|--:|--:|--:|--:|---|",
        f"| Rows in the manifest | {flow['n_rows']} | {flow['n_patients']} | | | |",
    ]
    for step in flow["steps"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in step["excluded"].items())
        lines.append(
            f"| {step['title']} | {step['n_slides_out']} | {step['n_patients_out']} "
            f"| {step['n_slides_excluded']} | {step['n_patients_lost']} | {reasons} |"
        )
    per_patient = ", ".join(f"{n} with {k}" for k, n in flow["slides_per_patient"].items())
    lines += ["", f"Slides per patient: {per_patient}. Size of the slides: {flow['size_bytes']} bytes.", ""]
    if flow["labels"]:
        lines += [
            "| column | slides with a value | patients with one | without | contradictory |",
            "|---|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {_safe(name)} | {c['n_slides']} | {c['n_patients']} | {c['n_patients_blank']} "
            f"| {c['n_patients_contradictory']} |"
            for name, c in flow["labels"].items()
        ]
        lines += [
            "",
            "What a task drops beyond blank cells is in `results/reference/<task>/labels.csv.json`.",
            "",
        ]
    clinical = flow["clinical"]
    if clinical is not None:
        lines += [
            f"Clinical table: {clinical['n_rows']} rows of {clinical['n_patients']} patients "
            f"({clinical['n_rows_duplicate']} further rows, {clinical['n_rows_without_id']} without an id); "
            f"{clinical['n_patients_matched']} patients in both tables, "
            f"{clinical['n_patients_only_in_manifest']} only in the manifest, "
            f"{clinical['n_patients_only_in_clinical']} only in the clinical table.",
            "",
        ]
    return "\n".join(lines)


def _safe(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
