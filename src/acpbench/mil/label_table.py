"""The evaluator's label table: slides, patients, folds and canonical labels of one task."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv, write_json
from acpbench.core.provenance import provenance
from acpbench.mil.cells import is_missing, parse_event, parse_number
from acpbench.mil.splits import assign_folds, check_disjoint, split_id

LABEL_COLUMNS = ("slide_id", "patient_id", "fold", "split", "label", "time", "event")
SPLITS = {0: "test", 1: "validation"}
"""Split of a fold when one split is needed; every other fold is ``train``."""


class TaskLike(Protocol):
    """What is needed of a task."""

    task_id: str
    output_type: str
    metric_family: Any

    @property
    def classes(self) -> list[str]: ...

    def canonical_label(self, value: Any) -> str | None: ...


def write_label_table(
    slides_csv: str | os.PathLike[str],
    binding: Mapping[str, str],
    task: TaskLike,
    n_folds: int,
    seed: int,
    out: str | os.PathLike[str],
) -> dict[str, Any]:
    """Write ``labels.csv`` and ``labels.csv.json`` (what was kept, dropped and why).

    Folds are of patients, stratified by class, by event (survival) or by quartile (continuous), and of whole
    sites where a site column is bound. A slide without a usable label (or site) is dropped and counted; it
    never becomes a class.

    Args:
        slides_csv: slide table with ``slide_id``, ``patient_id`` and the label columns.
        binding: ``label_column``, or ``time_column`` and ``event_column``; perhaps ``site_column``.
        task: gives the output type and the canonical labels.
        n_folds: number of folds, at least 3 (test, inner validation, training).
        seed: seed of the folds.
        out: target ``labels.csv``.

    Returns:
        The content of the sidecar.

    Raises:
        InputError: a column that is not there, a slide without a name or listed twice, names that differ only
            in spelling, a patient with two labels or two sites (all are listed), no label at all.
    """
    if n_folds < 3:
        raise InputError(
            f"{n_folds} folds; at least 3 needed (test, inner validation, training)", field="n_folds"
        )
    table = read_csv(slides_csv)
    columns = _columns(binding, task, table, slides_csv)
    site = binding.get("site_column")
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, str]] = []
    for row in sorted(_named(table, site, slides_csv), key=lambda row: (row["patient_id"], row["slide_id"])):
        label, reason = _label(row, columns, task)
        if label is not None and site:
            label, reason = (None, "no site") if is_missing(row[site]) else (label | {"site": row[site]}, "")
        base = {"slide_id": row["slide_id"], "patient_id": row["patient_id"]}
        if label is None:
            dropped.append(base | {"reason": reason})
        else:
            kept.append(base | label)
    by_reason = dict(sorted(Counter(row["reason"] for row in dropped).items()))
    if not kept:
        counts = "; ".join(f"{reason}: {n}" for reason, n in by_reason.items()) or "the table has no row"
        raise InputError(f"no slide has a usable label in {', '.join(columns)} ({counts})", file=slides_csv)
    patients = _patient_labels(kept, slides_csv)
    strata = _strata(patients, task.output_type)
    if site:
        strata = [row | {"group": patients[row["patient_id"]]["site"]} for row in strata]
    folds = assign_folds(strata, n_folds, seed)
    for row in kept:
        row["fold"] = folds[row["patient_id"]]
        row["split"] = SPLITS.get(row["fold"], "train")
    write_csv(out, [*LABEL_COLUMNS, *(["site"] if site else [])], kept)
    summary = {
        "task_id": task.task_id,
        "output_type": task.output_type,
        "columns": columns,
        "site_column": site,
        "n_folds": n_folds,
        "n_slides_given": len(table),
        "n_slides": len(kept),
        "n_patients": len(patients),
        **_counts(patients.values(), task),
        "folds": _fold_counts(kept, patients, n_folds, task),
        "split_id": split_id(kept),
        "fold_id": split_id(kept, "fold"),
        "n_dropped_slides": len(dropped),
        "n_dropped_patients": len({row["patient_id"] for row in dropped} - set(patients) - {""}),
        "n_dropped_by_reason": by_reason,
        "dropped": dropped,
        "provenance": provenance(
            inputs={"slides": slides_csv}, config={"binding": dict(binding), "n_folds": n_folds}, seed=seed
        ),
    }
    write_json(Path(f"{os.fspath(out)}.json"), summary)
    return summary


def _named(table: Sequence[Mapping[str, str]], site: str | None, file: object) -> list[dict[str, str]]:
    """The rows with blanks around their names taken off; refused when names do not tell who is who.

    ``P1`` beside ``p1``, or ``7`` beside ``007`` or ``7.0`` (a spreadsheet's numbers), is one patient to
    everybody but a program that deals them into two folds.
    """
    names = ["slide_id", "patient_id", *([site] if site else [])]
    rows = [{**row, **{name: " ".join(row[name].split()) for name in names}} for row in table]
    for number, row in enumerate(rows, 2):
        if is_missing(row["slide_id"]):
            raise InputError(f"line {number} names no slide", file=file, field="slide_id")
    for column in names:
        spellings: dict[str, str] = {}
        for row in rows:
            name = row[column]
            if is_missing(name):
                continue
            key = re.sub(r"^0*(\d+)(?:\.0*)?$", r"\1", name.casefold())
            other = spellings.setdefault(key, name)
            if other != name:
                raise InputError(
                    f"{other!r} and {name!r} differ only in spelling; write one name one way",
                    file=file,
                    field=column,
                )
    _check_listed_once(rows, file)
    return rows


def _check_listed_once(rows: Sequence[Mapping[str, Any]], file: object) -> None:
    """Raise :class:`InputError` for a slide that has two rows."""
    twice = [name for name, count in Counter(row["slide_id"] for row in rows).items() if count > 1]
    if twice:
        raise InputError(f"slide {twice[0]!r} is listed more than once", file=file, field="slide_id")


def _counts(patients: Iterable[Mapping[str, Any]], task: TaskLike) -> dict[str, Any]:
    rows = list(patients)
    per_label = Counter(str(row["label"]) for row in rows) if task.classes else {}
    events = sum(int(row["event"]) for row in rows) if task.output_type == "survival" else None
    return {"n_per_label": dict(sorted(per_label.items())), "n_events": events}


def _fold_counts(
    slides: Sequence[Mapping[str, Any]],
    patients: Mapping[str, Mapping[str, Any]],
    n_folds: int,
    task: TaskLike,
) -> list[dict[str, Any]]:
    """Sizes and sites of every fold: folds of whole sites differ in size, which is no mistake."""
    found = []
    for fold in range(n_folds):
        here = [row for row in slides if row["fold"] == fold]
        names = sorted({row["patient_id"] for row in here})
        found.append(
            {
                "fold": fold,
                "n_patients": len(names),
                "n_slides": len(here),
                **_counts([patients[name] for name in names], task),
                "sites": sorted({str(row["site"]) for row in here if "site" in row}),
            }
        )
    return found


def _columns(
    binding: Mapping[str, str], task: TaskLike, table: Sequence[Mapping[str, str]], file: object
) -> list[str]:
    keys = ("time_column", "event_column") if task.output_type == "survival" else ("label_column",)
    for key in keys:
        if not binding.get(key):
            raise InputError(
                f"task {task.task_id} ({task.output_type}) needs {key} in its label binding", field=key
            )
    columns = [binding[key] for key in keys]
    site = [binding["site_column"]] if binding.get("site_column") else []
    for column in ("slide_id", "patient_id", *columns, *site):
        if table and column not in table[0]:
            raise InputError(f"no column {column!r}; found {', '.join(table[0])}", file=file, field=column)
    return columns


def _label(
    row: Mapping[str, str], columns: Sequence[str], task: TaskLike
) -> tuple[dict[str, Any] | None, str]:
    if is_missing(row["patient_id"]):
        return None, "no patient_id"
    cells = [row[column] for column in columns]
    if task.classes and (mapped := task.canonical_label(cells[0])) is not None:
        # Also of a cell that reads as missing elsewhere: a map may say that "None" is a class.
        return {"label": mapped}, ""
    if any(is_missing(cell) for cell in cells):
        return None, "no label"
    if task.output_type == "survival":
        time, event = parse_number(cells[0]), parse_event(cells[1])
        if time is None or time < 0:
            return None, f"time {cells[0]!r} is not a number >= 0"
        if event is None:
            return None, f"event {cells[1]!r} is not 0 or 1"
        return {"label": "", "time": time, "event": int(event)}, ""
    if task.output_type == "continuous":
        number = parse_number(cells[0])
        return ({"label": number}, "") if number is not None else (None, f"{cells[0]!r} is not a number")
    return None, f"label {cells[0]!r} is not a class"


def _patient_labels(rows: Sequence[dict[str, Any]], file: object) -> dict[str, dict[str, Any]]:
    """First row of every patient, once all rows of a patient agree on label and site."""

    def label(row: Mapping[str, Any]) -> str:
        return str(row["label"]) if row["label"] != "" else f"{row['time']}/{row['event']}"

    patients: dict[str, dict[str, Any]] = {}
    for what, shown in (("labels", label), ("sites", lambda row: str(row.get("site")))):
        conflicts: dict[str, set[str]] = {}
        for row in rows:
            first = patients.setdefault(row["patient_id"], row)
            if shown(first) != shown(row):
                conflicts.setdefault(row["patient_id"], {shown(first)}).add(shown(row))
        if conflicts:
            listed = "; ".join(
                f"{name}: {' and '.join(sorted(found))}" for name, found in sorted(conflicts.items())
            )
            raise InputError(
                f"{len(conflicts)} patients have slides with different {what} ({listed})", file=file
            )
    return patients


def _strata(patients: Mapping[str, Mapping[str, Any]], output_type: str) -> list[dict[str, Any]]:
    if output_type == "survival":
        return [{"patient_id": name, "stratum": row["event"]} for name, row in patients.items()]
    if output_type == "continuous":
        values = np.array([row["label"] for row in patients.values()], float)
        quartiles = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values, side="right")
        return [{"patient_id": name, "stratum": int(q)} for name, q in zip(patients, quartiles, strict=True)]
    return [{"patient_id": name, "stratum": row["label"]} for name, row in patients.items()]


def read_label_table(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a label table; ``fold`` becomes an integer.

    Raises:
        InputError: a column missing, a fold that is not a whole number, a slide listed twice, a patient in
            two folds or splits.
    """
    rows: list[dict[str, Any]] = list(read_csv(path))
    lacking = [column for column in LABEL_COLUMNS if rows and column not in rows[0]]
    if lacking or not rows:
        raise InputError(f"label table without {', '.join(lacking) or 'rows'}", file=path)
    for row in rows:
        if not str(row["fold"]).isdigit():
            raise InputError(f"fold {row['fold']!r} is not a whole number", file=path, field="fold")
        row["fold"] = int(row["fold"])
    _check_listed_once(rows, path)
    check_disjoint(rows, file=path)
    return rows
