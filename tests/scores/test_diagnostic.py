"""The diagnostic-result lane on hand-worked tables."""

from __future__ import annotations

import pytest

from acpbench.core.files import read_csv
from acpbench.scores.diagnostic import diagnostic_result, predictions_table
from acpbench.scores.labels import reference_labels
from acpbench.scores.view import RunView
from acpbench.tasks.catalogue import load_task
from tests.scores.record_builder import PREDICTION_COLUMNS, label_of, prediction_rows


def result(view: RunView, **kwargs) -> dict:
    return diagnostic_result(
        view.trajectory, view.run_status, view.candidates, view.selection, view.rounds, view.task,
        view.labels, **({"n_resamples": 0} | kwargs),
    )  # fmt: skip


def with_table(record, rows, columns=PREDICTION_COLUMNS):
    for path in list(record.tables):
        record.tables[path] = (columns, rows)
    return record


def test_headline_is_the_test_set(record, view_of) -> None:
    found = result(view_of(record))
    # One of eight test patients (p24, high) is called low at P(high) = 0.1.
    assert found["headline_split"] == "test" and found["n"] == 8
    assert found["accuracy"] == found["balanced_accuracy"] == pytest.approx(7 / 8)
    assert found["macro_f1"] == pytest.approx((8 / 9 + 6 / 7) / 2)
    assert found["primary_value"] == pytest.approx(14 / 16)
    assert found["metrics"]["brier"] == pytest.approx((7 * 0.01 + 0.81) / 8)
    assert found["funnel"] == {
        "n_candidates": 2,
        "n_excluded": 0,
        "selected": "outputs/round_0/predictions.csv",
        "selection_rule": "report_named",
        "n_rows": 16,
        "n_normalised": 8,
        "n_probability": 8,
    }
    assert found["levels"]["test"]["n_expected"] == 8
    assert (found["n_patients"], found["n_expected"]) == (8, 8)
    assert set(found["rounds"]) == {"0", "1"}


def test_patients_that_were_left_out_are_counted(record, view_of) -> None:
    rows = [row for row in prediction_rows() if row["case_id"] not in ("p17", "p18")]
    found = result(view_of(with_table(record, rows)))
    assert (found["n"], found["n_patients"], found["n_expected"]) == (6, 6, 8)


@pytest.mark.parametrize("access", ["heldout", "open"])
def test_patients_of_another_split_are_counted(record, view_of, access: str) -> None:
    """An agent that holds all labels may split anew; that it tests on others' training patients is told."""
    record.label_access = access
    rows = prediction_rows(splits=("train", "validation", "test"))
    moved = [row["case_id"] for row in rows if row["split"] == "train"][:3]
    rows = [row | ({"split": "test"} if row["case_id"] in moved else {}) for row in rows]
    found = result(view_of(with_table(record, rows)))
    assert found["n_split_mismatch"] == 3
    assert found["n"] == (8 if access == "heldout" else 11)
    # Eight patients were predicted of eight, or eleven of whom three do not belong: then no number stands.
    expected = (8, 0) if access == "heldout" else (None, 3)
    for level in (found, found["levels"]["test"]):
        assert (level["n_expected"], level["n_other_split"]) == expected
    assert ("n_expected" in found["notes"]) is (access == "open")


def test_validation_stands_in_when_there_is_no_test(record, view_of) -> None:
    found = result(view_of(with_table(record, prediction_rows(splits=("validation",)))))
    assert found["headline_split"] == "validation" and found["n"] == 8
    assert found["levels"]["test"]["n"] == 0 and found["levels"]["test"]["metrics"] == {}


def test_unsplit_rows_of_an_unknown_split_are_kept_and_marked(record, view_of) -> None:
    record.labels = [row | {"split": "", "fold": ""} for row in record.labels]
    rows = [{"case_id": row["case_id"], "y_pred": row["y_pred"]} for row in prediction_rows()]
    view = view_of(with_table(record, rows, ["case_id", "y_pred"]))
    found = result(view)
    assert (
        found["headline_split"] == "all" and found["n"] == 16 and found["accuracy"] == pytest.approx(14 / 16)
    )
    assert {row["filter_reason"] for row in predictions_table("t", view.selection, view.task)[1]} == {
        "no_split_kept"
    }
    assert found["primary_value"] is None and "probab" in found["primary_note"]
    assert found["probability_status"] == "probability_unmapped" and found["funnel"]["n_probability"] == 0


def test_a_conflicting_label_does_not_move_the_metric(record, view_of) -> None:
    flipped = [
        row | {"y_true": row["y_pred"], "split": row["split"]} if row["case_id"] == "p09" else row
        for row in prediction_rows()
    ]
    found = result(view_of(with_table(record, flipped)))
    assert found["n_label_conflict"] == 1
    assert found["levels"]["validation"]["metrics"]["accuracy"] == pytest.approx(7 / 8)


def test_an_unmappable_prediction_counts_as_wrong(record, view_of) -> None:
    rows = [row | {"y_pred": "unsure"} if row["case_id"] == "p17" else row for row in prediction_rows()]
    found = result(view_of(with_table(record, rows)))
    assert found["n_unmappable"] == 1 and found["accuracy"] == pytest.approx(6 / 8)


def test_contradicting_identifiers_are_told(record, view_of) -> None:
    rows = [row | {"slide_id": "s01" if row["case_id"] == "p17" else ""} for row in prediction_rows()]
    view = view_of(with_table(record, rows, ["slide_id", *PREDICTION_COLUMNS]))
    found = result(view)
    assert (found["n"], found["n_expected"], found["n_unreferenced"]) == (7, 8, 1)
    reasons = [row["filter_reason"] for row in predictions_table("t", view.selection, view.task)[1]]
    assert reasons.count("contradicting_ids") == 1 and reasons.count("test_split") == 7


def test_predictions_of_which_none_is_a_class_are_no_result(record, view_of) -> None:
    """Not an accuracy of 0: nothing says how good the model was."""
    rows = [row | {"y_pred": "unsure", "prob_low": "", "prob_high": ""} for row in prediction_rows()]
    found = result(view_of(with_table(record, rows)))
    assert found["grade_status"] == "no_usable_prediction" and found["n_unmappable"] == 16
    assert found["accuracy"] is found["macro_f1"] is found["primary_value"] is None
    assert "class" in found["notes"]["accuracy"]
    assert all(found["levels"]["test"]["per_class"][label]["recall"] is None for label in ("low", "high"))


def test_their_probabilities_still_count(record, view_of) -> None:
    rows = [row | {"y_pred": "unsure"} for row in prediction_rows()]
    found = result(view_of(with_table(record, rows)))
    assert found["grade_status"] == "scored" and found["accuracy"] is None
    assert found["primary_value"] == pytest.approx(14 / 16)


def test_true_and_false_are_read(record, view_of) -> None:
    rows = [row | {"y_pred": str(row["y_pred"] == "high")} for row in prediction_rows()]
    assert result(view_of(with_table(record, rows)))["accuracy"] == pytest.approx(7 / 8)


def test_one_class_gives_null_with_the_reason(record, view_of) -> None:
    rows = [row for row in prediction_rows() if row["split"] == "test" and label_of(row["case_id"]) == "low"]
    found = result(view_of(with_table(record, rows)))
    assert found["primary_value"] is None and "one class" in found["primary_note"]
    assert found["accuracy"] == 1.0 and found["balanced_accuracy"] is None


def test_training_rows_alone_are_no_result(record, view_of) -> None:
    found = result(view_of(with_table(record, prediction_rows(splits=("train",)))))
    assert found["grade_status"] == "only_training_rows" and found["headline_split"] is None
    assert found["accuracy"] is None and "training" in found["primary_note"]


def test_no_predictions_is_null_and_says_so(record, view_of) -> None:
    record.tables.clear()
    view = view_of(record)
    found = result(view)
    assert found["grade_status"] == "no_predictions" and found["headline_split"] is None
    assert found["accuracy"] is found["macro_f1"] is found["primary_value"] is None
    assert found["primary_note"] and found["levels"] == {"validation": None, "test": None}
    columns, rows = predictions_table("t", view.selection, view.task)
    assert rows == [] and columns[:4] == ["trajectory", "task_id", "slide_id", "patient_id"]


def test_rows_of_other_cases_are_no_result(record, view_of) -> None:
    rows = [row | {"case_id": "other-" + row["case_id"], "y_true": "low"} for row in prediction_rows()]
    found = result(view_of(with_table(record, rows)))
    assert found["grade_status"] == "no_reference_pairs" and found["accuracy"] is None
    assert found["n_unreferenced"] == 16


def test_interval_is_reproducible_and_holds_the_value(record, view_of) -> None:
    view = view_of(record)
    first, second = result(view, n_resamples=50), result(view, n_resamples=50)
    low, high = first["primary_interval"]
    assert low <= first["primary_value"] <= high and first == second
    assert result(view, n_resamples=0)["primary_interval"] is None


def test_survival_uses_the_evaluators_times(record, repository) -> None:
    task = load_task(repository / "tasks" / "demo" / "demo_survival.yaml")
    record.labels = [
        row | {"label": "", "time": str(10 + index), "event": "1"} for index, row in enumerate(record.labels)
    ]
    # The risk falls as the time rises: every pair is ordered rightly.
    rows = [
        {
            "case_id": row["case_id"],
            "split": row["split"],
            "time": "",
            "event": "",
            "risk": -int(row["case_id"][1:]),
        }
        for row in prediction_rows()
    ]
    with_table(record, rows, ["case_id", "split", "time", "event", "risk"])
    view = RunView(record.write(), task, read_csv(record.folder / "labels.csv"))
    found = result(view)
    assert found["primary_metric"] == "c_index" and found["primary_value"] == pytest.approx(1.0)
    assert found["levels"]["test"]["n_events"] == 8 and found["accuracy"] is None
    assert found["probability_status"] == "not_applicable" and found["funnel"]["n_probability"] == 0


def test_labels_of_a_patient_come_from_a_slide_that_has_one() -> None:
    labels = reference_labels(
        [
            {"slide_id": "a1", "patient_id": "a", "fold": "0", "label": ""},
            {"slide_id": "a2", "patient_id": "a", "fold": "0", "label": "high"},
        ]
    )
    assert labels.find(patient="a").row.label == "high" and labels.split_of("a") == "test"
