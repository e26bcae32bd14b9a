"""The reference: label table, folds, pooled predictions; nothing leaks and nothing depends on the run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv
from acpbench.features.store import FeatureBag, write_features
from acpbench.mil.crossval import train_reference_fold, write_label_table
from acpbench.mil.label_table import read_label_table
from acpbench.mil.metrics import score_predictions
from acpbench.mil.pooling import pool_reference
from acpbench.mil.train import MilSettings

FAST = MilSettings(hidden_dim=8, attention_dim=4, max_epochs=25, lr=1e-2, patience=8)
DIM = 8


def task(kind: str = "binary") -> SimpleNamespace:
    classes = {"binary": ["low", "high"], "ordinal": ["well", "moderate", "poor"]}.get(kind, [])
    primary = {
        "binary": "AUROC",
        "ordinal": "quadratic_weighted_kappa",
        "survival": "c_index",
        "continuous": "spearman_rho",
    }[kind]
    spellings = {name: name for name in classes} | {name.upper(): name for name in classes}
    return SimpleNamespace(
        task_id=f"demo_{kind}",
        output_type=kind,
        classes=classes,
        target="pleomorphism",
        metric_family=SimpleNamespace(primary=primary),
        canonical_label=lambda value: spellings.get(str(value)),
    )


BINDING = {"label_column": "grade", "time_column": "months", "event_column": "died"}


def cohort(folder, n_patients=18, kind="binary"):
    """Two slides for every third patient; features carry the label. Returns the slide table's path."""
    generator = np.random.default_rng(0)
    rows = []
    for p in range(n_patients):
        level = p % 2
        for s in range(2 if p % 3 == 0 else 1):
            slide = f"s{p:02d}_{s}"
            rows.append(
                {
                    "slide_id": slide,
                    "patient_id": f"p{p:02d}",
                    "grade": ["low", "HIGH"][level],
                    "months": 30 - 20 * level + p / 10,
                    "died": int(p % 5 != 0),
                }
            )
            features = generator.normal(size=(12, DIM)).astype(np.float32)
            features[: 10 * level, :3] += 4
            write_features(
                folder / "features" / f"{slide}.h5",
                FeatureBag(
                    features,
                    np.stack([np.arange(12) * 32, np.full(12, s)], axis=1).astype(np.int64),
                    {"slide_id": slide, "status": "ok", "encoder": "e", "cache_key": slide},
                ),
            )
    write_csv(folder / "slides.csv", list(rows[0]), rows)
    return folder / "slides.csv"


def run(folder, kind="binary", n_folds=3):
    cohort(folder, kind=kind)
    write_label_table(folder / "slides.csv", BINDING, task(kind), n_folds, 1, folder / "labels.csv")
    folds = [folder / "e" / "folds" / str(k) for k in range(n_folds)]
    for k, out in enumerate(folds):
        train_reference_fold(folder / "labels.csv", folder / "features", task(kind), "e", k, FAST, out)
    result = pool_reference(
        folds, folder / "labels.csv", task(kind), "e", folder / "e", n_bootstrap=100, seed=3
    )
    return folds, result


def test_label_table(tmp_path):
    cohort(tmp_path)
    summary = write_label_table(tmp_path / "slides.csv", BINDING, task(), 3, 1, tmp_path / "labels.csv")
    rows = read_label_table(tmp_path / "labels.csv")
    assert len(rows) == 24 and {row["label"] for row in rows} == {"low", "high"}
    assert {(row["fold"], row["split"]) for row in rows} == {(0, "test"), (1, "validation"), (2, "train")}
    assert summary["n_per_label"] == {"high": 9, "low": 9}
    for fold in range(3):  # patients, not slides, are spread evenly over folds and classes
        labels = {row["patient_id"]: row["label"] for row in rows if row["fold"] == fold}
        assert sorted(labels.values()) == ["high"] * 3 + ["low"] * 3


def test_unusable_labels_are_counted_and_conflicts_listed(tmp_path):
    path = cohort(tmp_path)
    rows = read_csv(path)
    rows[-1]["grade"], rows[-2]["grade"] = "", "equivocal"
    write_csv(path, list(rows[0]), rows)
    summary = write_label_table(path, BINDING, task(), 3, 1, tmp_path / "labels.csv")
    assert summary["n_dropped_by_reason"] == {"label 'equivocal' is not a class": 1, "no label": 1}
    assert summary["n_patients"] == 16
    assert json.loads((tmp_path / "labels.csv.json").read_text()) == summary
    rows[0]["grade"] = "high"
    write_csv(path, list(rows[0]), rows)
    with pytest.raises(InputError, match="p00: high and low"):
        write_label_table(path, BINDING, task(), 3, 1, tmp_path / "labels.csv")
    with pytest.raises(InputError, match="no column 'nope'"):
        write_label_table(path, {"label_column": "nope"}, task(), 3, 1, tmp_path / "labels.csv")
    with pytest.raises(InputError, match="at least 3"):
        write_label_table(path, BINDING, task(), 2, 1, tmp_path / "labels.csv")


def test_survival_is_stratified_by_event(tmp_path):
    cohort(tmp_path)
    write_label_table(tmp_path / "slides.csv", BINDING, task("survival"), 3, 1, tmp_path / "labels.csv")
    rows = read_label_table(tmp_path / "labels.csv")
    events = [len({r["patient_id"] for r in rows if r["fold"] == k and r["event"] == "0"}) for k in range(3)]
    assert sum(events) == 4 and max(events) - min(events) <= 1


def test_reference_end_to_end(tmp_path):
    folds, result = run(tmp_path)
    rows = read_csv(tmp_path / "e" / "predictions.csv")
    assert [row["patient_id"] for row in rows] == [f"p{i:02d}" for i in range(18)]
    assert result["metrics"]["AUROC"] > 0.9 and result["n"] == 18
    low, high = result["intervals"]["AUROC"]
    assert low <= result["metrics"]["AUROC"] <= high
    assert result["metrics"] == score_predictions("binary", ["low", "high"], rows)["metrics"]
    labels = read_label_table(tmp_path / "labels.csv")
    for k, folder in enumerate(folds):
        tested = {row["patient_id"] for row in read_csv(folder / "predictions.csv")}
        assert tested == {row["patient_id"] for row in labels if row["fold"] == k}
        summary = json.loads((folder / "fold.json").read_text())
        assert summary["inner_validation_fold"] == (k + 1) % 3 and summary["dropped"] == []
        with h5py.File(folder / "attention.h5") as handle:
            assert set(handle) == {row["slide_id"] for row in labels if row["fold"] == k}
            sums: dict[str, float] = {}
            for group in handle.values():
                assert group["coords"].shape == (12, 2)
                patient = group.attrs["patient_id"]
                sums[patient] = sums.get(patient, 0) + float(group["attention"][()].sum())
        assert all(total == pytest.approx(1, abs=1e-5) for total in sums.values())
    report = (tmp_path / "e" / "report.md").read_text()
    assert f"{result['metrics']['AUROC']:.3f} [" in report and "18 (low 9, high 9)" in report


def test_two_runs_give_the_same_bytes(tmp_path):
    names = [
        "predictions.csv",
        "metrics.json",
        "splits.csv",
        "report.md",
        "reliability.csv",
        "reliability.svg",
    ]
    names += [
        f"folds/{k}/{f}"
        for k in range(3)
        for f in ("predictions.csv", "model.pt", "history.csv", "fold.json", "attention.h5")
    ]
    for name in ("one", "two"):
        run(tmp_path / name)
    for name in names:
        assert (tmp_path / "one" / "e" / name).read_bytes() == (tmp_path / "two" / "e" / name).read_bytes(), (
            name
        )


def test_test_labels_have_no_effect_on_training(tmp_path):
    """Turning every test label over changes neither the model nor one prediction."""
    cohort(tmp_path)
    labels = tmp_path / "labels.csv"
    write_label_table(tmp_path / "slides.csv", BINDING, task(), 3, 1, labels)
    train_reference_fold(labels, tmp_path / "features", task(), "e", 0, FAST, tmp_path / "a")
    rows = read_csv(labels)
    for row in rows:
        if row["fold"] == "0":
            row["label"] = {"low": "high", "high": "low"}[row["label"]]
    write_csv(labels, list(rows[0]), rows)
    train_reference_fold(labels, tmp_path / "features", task(), "e", 0, FAST, tmp_path / "b")
    assert (tmp_path / "a" / "model.pt").read_bytes() == (tmp_path / "b" / "model.pt").read_bytes()
    first, second = (read_csv(tmp_path / name / "predictions.csv") for name in "ab")
    assert [row["prob_high"] for row in first] == [row["prob_high"] for row in second]
    assert [row["y_true"] for row in first] != [row["y_true"] for row in second]


def test_survival_reference(tmp_path):
    _, result = run(tmp_path, "survival")
    assert result["metrics"]["c_index"] > 0.7 and result["n_events"] == 14


def test_patient_without_tiles_is_dropped_and_named(tmp_path):
    cohort(tmp_path)
    write_features(
        tmp_path / "features" / "s01_0.h5",
        FeatureBag(
            np.zeros((0, DIM), np.float32),
            np.zeros((0, 2), np.int64),
            {"slide_id": "s01_0", "status": "empty_tissue", "encoder": "e", "cache_key": "k"},
        ),
    )
    write_label_table(tmp_path / "slides.csv", BINDING, task(), 3, 1, tmp_path / "labels.csv")
    folds = [tmp_path / str(k) for k in range(3)]
    for k, out in enumerate(folds):
        train_reference_fold(tmp_path / "labels.csv", tmp_path / "features", task(), "e", k, FAST, out)
    result = pool_reference(folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e", n_bootstrap=20)
    assert result["n"] == 17
    assert result["dropped"] == [{"patient_id": "p01", "reason": "no slide with tiles"}]


def test_refusals(tmp_path):
    cohort(tmp_path)
    labels = tmp_path / "labels.csv"
    write_label_table(tmp_path / "slides.csv", BINDING, task(), 3, 1, labels)
    with pytest.raises(InputError, match="expected 'other'"):
        train_reference_fold(labels, tmp_path / "features", task(), "other", 0, FAST, tmp_path / "x")
    with pytest.raises(InputError, match="fold 7"):
        train_reference_fold(labels, tmp_path / "features", task(), "e", 7, FAST, tmp_path / "x")
    train_reference_fold(labels, tmp_path / "features", task(), "e", 0, FAST, tmp_path / "x")
    with pytest.raises(InputError, match=r"folds \[0\]"):
        pool_reference([tmp_path / "x"], labels, task(), "e", tmp_path / "e")
    rows = read_csv(labels)
    same = [row for row in rows if row["patient_id"] == "p00"]
    same[0]["fold"] = str((int(same[0]["fold"]) + 1) % 3)  # p00 has two slides
    write_csv(labels, list(rows[0]), rows)
    with pytest.raises(InputError, match="'p00' is in fold"):
        read_label_table(labels)


def test_reference_states_who_was_used_and_who_was_left_out(tmp_path):
    path = cohort(tmp_path)
    rows = read_csv(path)
    rows[-1]["grade"], rows[-2]["grade"] = "", "equivocal"  # p17 and p16
    write_csv(path, list(rows[0]), rows)
    write_features(
        tmp_path / "features" / "s01_0.h5",
        FeatureBag(
            np.zeros((0, DIM), np.float32),
            np.zeros((0, 2), np.int64),
            {"slide_id": "s01_0", "status": "empty_tissue", "encoder": "e", "cache_key": "k"},
        ),
    )
    summary = write_label_table(path, BINDING, task(), 3, 1, tmp_path / "labels.csv")
    assert (summary["n_slides_given"], summary["n_slides"], summary["n_dropped_patients"]) == (24, 22, 2)
    folds = [tmp_path / str(k) for k in range(3)]
    for k, out in enumerate(folds):
        train_reference_fold(tmp_path / "labels.csv", tmp_path / "features", task(), "e", k, FAST, out)
    result = pool_reference(folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e", n_bootstrap=20)
    counts = result["counts"]
    assert {name: counts[name] for name in list(counts)[:-1]} == {
        "slides_given": 24,
        "slides_without_label": 2,
        "without_label_by_reason": {"label 'equivocal' is not a class": 1, "no label": 1},
        "slides_labelled": 22,
        "patients_labelled": 16,
        "slides_without_tiles": 1,
        "without_tiles_by_reason": {"empty_tissue": 1},
        "patients_without_tiles": 1,
        "patients_scored": 15,
    }
    assert counts["slides_given"] == counts["slides_labelled"] + counts["slides_without_label"]
    report = (tmp_path / "e" / "report.md").read_text()
    assert "24 usable, 2 left out (label 'equivocal' is not a class: 1; no label: 1), 22 labelled" in report
    assert "16 labelled, 1 left out without tiles, 15 scored" in report and "(empty_tissue: 1)" in report


def test_a_cohort_whose_labels_match_nothing_says_what_it_found(tmp_path):
    path = cohort(tmp_path)
    rows = [row | {"grade": "7"} for row in read_csv(path)]
    write_csv(path, list(rows[0]), rows)
    with pytest.raises(
        InputError, match=r"no slide has a usable label in grade \(label '7' is not a class: 24\)"
    ):
        write_label_table(path, BINDING, task(), 3, 1, tmp_path / "labels.csv")


def with_sites(path, sites: str) -> None:
    """Give patient i the site ``sites[i]``."""
    rows = [row | {"site": sites[int(row["patient_id"][1:])]} for row in read_csv(path)]
    write_csv(path, list(rows[0]), rows)


def test_folds_of_whole_sites_state_their_sites_and_sizes(tmp_path):
    path = cohort(tmp_path)
    with_sites(path, "AAAAAAAABBBBBCCDDE")
    binding = BINDING | {"site_column": "site"}
    summary = write_label_table(path, binding, task(), 3, 1, tmp_path / "labels.csv")
    rows = read_label_table(tmp_path / "labels.csv")
    for site in "ABCDE":
        assert len({row["fold"] for row in rows if row["site"] == site}) == 1
    assert sorted(site for fold in summary["folds"] for site in fold["sites"]) == list("ABCDE")
    assert sorted(fold["n_patients"] for fold in summary["folds"]) == [5, 5, 8]
    for fold in summary["folds"]:
        here = [row for row in rows if row["fold"] == fold["fold"]]
        assert fold["n_slides"] == len(here) and fold["sites"] == sorted({row["site"] for row in here})
        assert sum(fold["n_per_label"].values()) == fold["n_patients"]
    folds = [tmp_path / str(k) for k in range(3)]
    for k, out in enumerate(folds):
        train_reference_fold(tmp_path / "labels.csv", tmp_path / "features", task(), "e", k, FAST, out)
    pool_reference(folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e", n_bootstrap=20)
    report = (tmp_path / "e" / "report.md").read_text()
    assert "| sites |" in report and "folds differ in size as the sites do" in report


def test_a_patient_of_two_sites_or_without_one_is_named(tmp_path):
    path = cohort(tmp_path)
    binding = BINDING | {"site_column": "site"}
    rows = [row | {"site": "ABC"[i % 3]} for i, row in enumerate(read_csv(path))]  # p00 has slides of A and B
    write_csv(path, list(rows[0]), rows)
    with pytest.raises(InputError, match=r"different sites .*p00: A and B"):
        write_label_table(path, binding, task(), 3, 1, tmp_path / "labels.csv")
    with_sites(path, "ABCABCABCABCABCABC")
    rows = read_csv(path)
    rows[-1]["site"] = "NA"
    write_csv(path, list(rows[0]), rows)
    summary = write_label_table(path, binding, task(), 3, 1, tmp_path / "labels.csv")
    assert summary["n_dropped_by_reason"] == {"no site": 1}
    with pytest.raises(InputError, match="no column 'hospital'"):
        write_label_table(path, BINDING | {"site_column": "hospital"}, task(), 3, 1, tmp_path / "labels.csv")


def test_continuous_labels_are_stratified_by_quartile(tmp_path):
    cohort(tmp_path)
    write_label_table(
        tmp_path / "slides.csv", {"label_column": "months"}, task("continuous"), 3, 1, tmp_path / "l.csv"
    )
    rows = {row["patient_id"]: row for row in read_label_table(tmp_path / "l.csv")}
    values = sorted(float(row["label"]) for row in rows.values())
    for low, high in ((0, 4), (14, 18)):  # lowest and highest quarter of 18 patients: in every fold
        folds = {row["fold"] for row in rows.values() if float(row["label"]) in values[low:high]}
        assert folds == {0, 1, 2}


def test_a_fold_with_one_class_is_null_with_its_reason_and_the_pooled_metric_stands(tmp_path):
    folds, result = run(tmp_path)
    assert all(row["AUROC"] is not None for row in result["per_fold"])
    # The same predictions, with the folds' patients of one class in fold 0.
    summaries = [json.loads((folder / "fold.json").read_text()) for folder in folds]
    rows = read_csv(tmp_path / "e" / "predictions.csv")
    for row in rows:
        row["fold"] = "0" if row["y_true"] == "low" else str(1 + int(row["patient_id"][1:]) % 4 // 2)
    from acpbench.mil.pooling import _per_fold

    found = _per_fold(task(), "AUROC", rows, summaries)
    assert [row["AUROC"] for row in found] == [None] * 3
    assert {row["note"] for row in found} == {"only one class among the labels"}
    assert (
        score_predictions("binary", ["low", "high"], rows)["metrics"]["AUROC"] == result["metrics"]["AUROC"]
    )
    assert set(result["per_class"]) == {"low", "high"}
    assert all(
        {"recall", "precision", "f1", "auroc", "n"} <= set(row) for row in result["per_class"].values()
    )


def test_the_reference_is_compared_with_its_control(tmp_path):
    folds, first = run(tmp_path)
    control = tmp_path / "control"
    rows = read_csv(tmp_path / "e" / "predictions.csv")
    generator = np.random.default_rng(0)
    for row in rows:
        row["prob_high"] = float(generator.random())
        row["prob_low"] = 1 - row["prob_high"]
    write_csv(control / "predictions.csv", list(rows[0]), rows)
    (control / "metrics.json").write_text((tmp_path / "e" / "metrics.json").read_text())
    result = pool_reference(
        folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e2", n_bootstrap=200,
        controls={"color_stats": control / "metrics.json"},
    )  # fmt: skip
    comparison = result["comparison"]
    assert first["comparison"] is None and comparison["against"] == "color_stats"
    assert comparison["metric"] == "AUROC" and comparison["n"] == 18 and comparison["difference"] > 0
    expected = score_predictions("binary", ["low", "high"], rows)["metrics"]["AUROC"]
    assert comparison["control_value"] == pytest.approx(expected)
    report = (tmp_path / "e2" / "report.md").read_text()
    assert "Against color_stats: AUROC +" in report and "DeLong p" in report


def test_reference_has_a_reliability_plot_of_its_pooled_predictions(tmp_path):
    _, result = run(tmp_path)
    bins = read_csv(tmp_path / "e" / "reliability.csv")
    assert sum(int(row["n"]) for row in bins) == 18
    gaps = [
        int(row["n"]) * abs(float(row["observed"]) - float(row["mean_probability"]))
        for row in bins
        if row["observed"]
    ]
    assert result["metrics"]["ECE"] == pytest.approx(sum(gaps) / 18, abs=1e-5)
    assert "<svg" in (tmp_path / "e" / "reliability.svg").read_text()
