"""Folds are patient-disjoint, stratified and independent of row order."""

from __future__ import annotations

from collections import Counter

import pytest

from acpbench.core.errors import InputError
from acpbench.mil.splits import assign_folds, check_disjoint, split_id

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


SITES = [
    {"patient_id": f"{site}{i}", "stratum": "mutant" if i % 3 == 0 else "wild", "group": site}
    for site, size in {"A": 12, "B": 7, "C": 5, "D": 4, "E": 3, "F": 2, "G": 1}.items()
    for i in range(size)
]


@pytest.mark.parametrize("seed", range(5))
def test_a_site_is_never_in_two_folds(seed):
    folds = assign_folds(SITES, 3, seed)
    assert sorted(folds) == sorted(row["patient_id"] for row in SITES)
    for site in "ABCDEFG":
        assert len({fold for name, fold in folds.items() if name[0] == site}) == 1
    sizes = Counter(folds.values())
    # 34 patients: the largest site alone fills a fold, the others are as even as whole sites can be.
    assert sorted(sizes.values()) == [11, 11, 12]
    for fold in range(3):
        strata = Counter(row["stratum"] for row in SITES if folds[row["patient_id"]] == fold)
        assert 3 <= strata["mutant"] <= 5  # 13 in all
    assert folds == assign_folds(SITES[::-1], 3, seed)


def test_every_fold_gets_a_site_even_when_one_site_has_nearly_all_patients():
    rows = [{"patient_id": f"A{i}", "stratum": "x", "group": "A"} for i in range(20)]
    rows += [{"patient_id": name, "stratum": "y", "group": name} for name in "BC"]
    assert set(assign_folds(rows, 3, 0).values()) == {0, 1, 2}
    with pytest.raises(InputError, match="3 sites for 4 folds"):
        assign_folds(rows, 4, 0)


def test_leaking_site_is_named():
    rows = [
        {"patient_id": "a", "fold": 0, "site": "X"},
        {"patient_id": "b", "fold": 1, "site": "Y"},
        {"patient_id": "c", "fold": 1, "site": "X"},
    ]
    check_disjoint(rows[:2])
    with pytest.raises(InputError, match="site 'X' is in fold 0 and in fold 1"):
        check_disjoint(rows)


def test_split_hash_sees_the_split_and_nothing_else():
    rows = [{"patient_id": "a", "split": "test", "fold": 0}, {"patient_id": "b", "split": "train", "fold": 2}]
    assert split_id(rows) == split_id([*rows[::-1], rows[0] | {"label": "x"}])
    assert split_id(rows) != split_id([rows[0], rows[1] | {"split": "test"}])
    moved = [rows[0], rows[1] | {"fold": 3}]
    assert split_id(rows) == split_id(moved) and split_id(rows, "fold") != split_id(moved, "fold")
