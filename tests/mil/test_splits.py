"""Folds are patient-disjoint, stratified and independent of row order."""

from __future__ import annotations

from collections import Counter

import pytest

from acpbench.core.errors import InputError
from acpbench.mil.splits import assign_folds, check_disjoint

PATIENTS = [{"patient_id": f"p{i:02d}", "stratum": "mutant" if i % 4 == 0 else "wild"} for i in range(22)]


@pytest.mark.parametrize("seed", range(5))
def test_folds_and_strata_are_even(seed):
    folds = assign_folds(PATIENTS, 5, seed)
    assert sorted(folds) == [row["patient_id"] for row in PATIENTS]
    sizes = Counter(folds.values())
    assert set(sizes) == set(range(5)) and max(sizes.values()) - min(sizes.values()) <= 1
    for stratum in ("mutant", "wild"):
        counts = [
            sum(folds[row["patient_id"]] == fold and row["stratum"] == stratum for row in PATIENTS)
            for fold in range(5)
        ]
        assert max(counts) - min(counts) <= 1


def test_order_of_rows_has_no_effect_but_seed_has():
    assert assign_folds(PATIENTS, 3, 7) == assign_folds(PATIENTS[::-1], 3, 7)
    assert assign_folds(PATIENTS, 3, 7) != assign_folds(PATIENTS, 3, 8)


def test_refusals():
    with pytest.raises(InputError, match="more than once"):
        assign_folds([*PATIENTS, PATIENTS[0]], 3, 0)
    with pytest.raises(InputError, match="2 patients for 3 folds"):
        assign_folds(PATIENTS[:2], 3, 0)
    with pytest.raises(InputError, match="at least 2"):
        assign_folds(PATIENTS, 1, 0)


def test_leaking_patient_is_named():
    rows = [{"patient_id": "a", "fold": 0}, {"patient_id": "b", "fold": 1}, {"patient_id": "a", "fold": 1}]
    check_disjoint(rows[:2])
    with pytest.raises(InputError, match="'a'"):
        check_disjoint(rows)
