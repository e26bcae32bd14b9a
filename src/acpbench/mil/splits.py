"""Folds of patients: whole patients only, spread evenly over strata, the same for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from acpbench.core.errors import InputError


def assign_folds(patients: Sequence[Mapping[str, Any]], n_folds: int, seed: int) -> dict[str, int]:
    """Give each patient one fold.

    Patients are ordered within their stratum by a hash of seed and id, then dealt out to the folds; each
    stratum starts where the one before it ended, so both fold sizes and each stratum's counts differ by at
    most one between folds. The order of the input rows has no effect, nor has the platform.

    Args:
        patients: rows with ``patient_id`` and ``stratum`` (class, or event indicator for survival).
        n_folds: number of folds, at least 2.
        seed: seed.

    Returns:
        patient id → fold in ``0 .. n_folds - 1``.

    Raises:
        InputError: fewer patients than folds, fewer than 2 folds, or a patient listed twice.
    """
    if n_folds < 2:
        raise InputError(f"{n_folds} folds; expected at least 2", field="n_folds")
    identifiers = [str(row["patient_id"]) for row in patients]
    if len(set(identifiers)) != len(identifiers):
        twice = sorted({name for name in identifiers if identifiers.count(name) > 1})
        raise InputError(f"patient {twice[0]!r} is listed more than once", field="patient_id")
    if len(identifiers) < n_folds:
        raise InputError(f"{len(identifiers)} patients for {n_folds} folds", field="patient_id")
    strata: dict[str, list[str]] = {}
    for row in patients:
        strata.setdefault(str(row["stratum"]), []).append(str(row["patient_id"]))
    folds: dict[str, int] = {}
    for stratum in sorted(strata):
        for name in sorted(strata[stratum], key=lambda name: (_shuffle_key(seed, name), name)):
            folds[name] = len(folds) % n_folds
    return dict(sorted(folds.items()))


def _shuffle_key(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()


def check_disjoint(rows: Sequence[Mapping[str, Any]], *, file: object = None) -> None:
    """Refuse a table in which one patient is in two folds or two splits.

    Args:
        rows: rows with ``patient_id`` and ``fold`` and/or ``split``.
        file: file named in the error.

    Raises:
        InputError: naming the first such patient.
    """
    for column in ("fold", "split"):
        seen: dict[str, str] = {}
        for row in rows:
            if column not in row:
                continue
            name, value = str(row["patient_id"]), str(row[column])
            if seen.setdefault(name, value) != value:
                raise InputError(
                    f"patient {name!r} is in {column} {seen[name]} and in {column} {value}",
                    file=file,
                    field=column,
                )
