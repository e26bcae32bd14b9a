"""Folds of patients: whole patients (or whole sites) only, spread evenly over strata, the same for a seed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_json


def assign_folds(patients: Sequence[Mapping[str, Any]], n_folds: int, seed: int) -> dict[str, int]:
    """Give each patient one fold.

    Patients are ordered within their stratum by a hash of seed and id, then dealt out to the folds; each
    stratum starts where the one before it ended, so both fold sizes and each stratum's counts differ by at
    most one between folds. With groups, whole groups are placed instead, the largest first, each where it
    leaves the strata most even; folds then differ in size as far as the groups do. The order of the input
    rows has no effect, nor has the platform.

    Args:
        patients: rows with ``patient_id`` and ``stratum`` (class, or event indicator for survival), and
            ``group`` (site) in all of them or in none.
        n_folds: number of folds, at least 2.
        seed: seed.

    Returns:
        patient id → fold in ``0 .. n_folds - 1``; no fold is empty.

    Raises:
        InputError: fewer patients (or groups) than folds, fewer than 2 folds, or a patient listed twice.
    """
    if n_folds < 2:
        raise InputError(f"{n_folds} folds; expected at least 2", field="n_folds")
    twice = [name for name, n in Counter(str(row["patient_id"]) for row in patients).items() if n > 1]
    if twice:
        raise InputError(f"patient {min(twice)!r} is listed more than once", field="patient_id")
    if len(patients) < n_folds:
        raise InputError(f"{len(patients)} patients for {n_folds} folds", field="patient_id")
    if any("group" in row for row in patients):
        return _assign_groups(patients, n_folds, seed)
    strata: dict[str, list[str]] = {}
    for row in patients:
        strata.setdefault(str(row["stratum"]), []).append(str(row["patient_id"]))
    folds: dict[str, int] = {}
    for stratum in sorted(strata):
        for name in sorted(strata[stratum], key=lambda name: (_shuffle_key(seed, name), name)):
            folds[name] = len(folds) % n_folds
    return dict(sorted(folds.items()))


def _assign_groups(patients: Sequence[Mapping[str, Any]], n_folds: int, seed: int) -> dict[str, int]:
    members: dict[str, list[Mapping[str, Any]]] = {}
    for row in patients:
        members.setdefault(str(row["group"]), []).append(row)
    if len(members) < n_folds:
        raise InputError(f"{len(members)} sites for {n_folds} folds", field="site_column")
    total = Counter(str(row["stratum"]) for row in patients)
    held = [Counter() for _ in range(n_folds)]
    folds: dict[str, int] = {}
    order = sorted(members, key=lambda name: (-len(members[name]), _shuffle_key(seed, name), name))
    for place, group in enumerate(order):
        counts = Counter(str(row["stratum"]) for row in members[group])
        empty = [k for k in range(n_folds) if not held[k]]
        # As many groups left as empty folds: each goes to one of them, or a fold would stay empty.
        allowed = empty if len(empty) >= len(order) - place else range(n_folds)

        def unevenness(k: int, counts: Counter = counts) -> tuple[float, int, int]:
            # What placing the group in fold k adds to the sum of squared shares of each stratum.
            added = sum(
                ((held[k][s] + n) ** 2 - held[k][s] ** 2) / total[s] ** 2 for s, n in sorted(counts.items())
            )
            return added, held[k].total(), k

        best = min(allowed, key=unevenness)
        held[best] += counts
        folds |= {str(row["patient_id"]): best for row in members[group]}
    return dict(sorted(folds.items()))


def split_id(rows: Iterable[Mapping[str, Any]], column: str = "split") -> str:
    """Hash of which patient is in which split (or fold), whatever the rows' order and other columns."""
    return sha256_json(sorted({(str(row["patient_id"]), str(row.get(column, ""))) for row in rows}))


def _shuffle_key(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()


def check_disjoint(rows: Sequence[Mapping[str, Any]], *, file: object = None) -> None:
    """Refuse a table in which one patient, or one site where sites are given, is in two folds or two splits.

    Args:
        rows: rows with ``patient_id`` and ``fold`` and/or ``split``, and perhaps ``site``.
        file: file named in the error.

    Raises:
        InputError: naming the first such patient or site.
    """
    for what, key in (("patient", "patient_id"), ("site", "site")):
        for column in ("fold", "split"):
            seen: dict[str, str] = {}
            for row in rows:
                if column not in row or key not in row:
                    continue
                name, value = str(row[key]), str(row[column])
                if seen.setdefault(name, value) != value:
                    raise InputError(
                        f"{what} {name!r} is in {column} {seen[name]} and in {column} {value}",
                        file=file,
                        field=column,
                    )
