"""Prediction tables: found by content, excluded with a reason, chosen by rule, normalised to one form."""

from __future__ import annotations

import io
import json

import pytest

from acpbench.scores.columns import canonical_split, class_of, map_columns, training_log_like
from acpbench.scores.labels import reference_labels
from acpbench.scores.predictions import normalise, round_of, select
from tests.scores.record_builder import PREDICTION_COLUMNS, label_rows, prediction_rows


def reasons(view) -> dict[str, str | None]:
    return {candidate.path: candidate.reason for candidate in view.candidates}


def test_every_exclusion_has_its_reason(record, view_of) -> None:
    record.files |= {
        "outputs/pred_empty.csv": "",
        "outputs/pred_header_only.csv": "case_id,y_pred\n",
        "outputs/predictions_no_id.csv": "y_pred,prob_high\nlow,0.2\n",
        "outputs/predictions_of_what.csv": "a,b\n1,2\n",
        "outputs/history.csv": "epoch,train_loss,y_pred\n1,0.5,x\n",
        "outputs/predictions.parquet": b"PAR1junk",
        "outputs/predictions_broken.json": "[{",
        "outputs/predictions_repeated.csv": "a,a\n1,2\n",
        "data/labels_and_predictions.csv": "case_id,y_pred\np09,low\n",
        "outputs/round_0/slide_manifest.csv": "slide_id,patient_id,status\ns01,p01,ok\n",
    }
    found = reasons(view_of(record))
    assert {path: reason for path, reason in found.items() if reason} == {
        "outputs/pred_empty.csv": "empty",
        "outputs/pred_header_only.csv": "empty",
        "outputs/predictions_no_id.csv": "no_paired_columns",
        "outputs/predictions_of_what.csv": "no_paired_columns",
        "outputs/history.csv": "training_log_like",
        "outputs/predictions.parquet": "unreadable",
        "outputs/predictions_broken.json": "unreadable",
        "outputs/predictions_repeated.csv": "unreadable",
    }
    assert [path for path, reason in found.items() if reason is None] == [
        "outputs/round_0/predictions.csv",
        "reflection/round_1/predictions.csv",
    ]


def _xlsx() -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(PREDICTION_COLUMNS)
    for row in prediction_rows():
        book.active.append([row[name] for name in PREDICTION_COLUMNS])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["xlsx", "tsv", "json", "jsonl", "columns.json"])
def test_the_same_rows_in_any_format(kind, record, view_of) -> None:
    rows = prediction_rows()
    del record.tables["outputs/round_0/predictions.csv"], record.tables["reflection/round_1/predictions.csv"]
    header = "\t".join(PREDICTION_COLUMNS)
    record.files[f"results/table.{kind}"] = {
        "xlsx": _xlsx,
        "tsv": lambda: "\n".join([header, *("\t".join(map(str, row.values())) for row in rows)]) + "\n",
        "json": lambda: {"predictions": rows},
        "jsonl": lambda: "\n".join(map(json.dumps, rows)),
        "columns.json": lambda: {name: [row[name] for row in rows] for name in PREDICTION_COLUMNS},
    }[kind]()
    view = view_of(record)
    chosen, rule = view.selection
    assert rule == "best_evidence" and chosen.path == f"results/table.{kind}"
    got = [
        (r.patient_id, r.split, r.y_true_reference, r.y_pred, round(r.probabilities["high"], 3))
        for r in chosen.rows
    ]
    assert got[0] == ("p09", "validation", "low", "high", 0.9)
    assert got[15] == ("p24", "test", "high", "low", 0.1)
    assert len(got) == 16


def test_a_spreadsheet_bomb_is_not_unpacked(record, view_of) -> None:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"0" * (80 * 1024 * 1024))
    record.files["outputs/predictions.xlsx"] = buffer.getvalue()
    assert reasons(view_of(record))["outputs/predictions.xlsx"] == "too_large"


class TestSelection:
    def test_the_reports_own_file_wins(self, record, view_of) -> None:
        view = view_of(record)
        assert (view.selection.candidate.path, view.selection.rule) == (
            "outputs/round_0/predictions.csv",
            "report_named",
        )

    def test_then_the_selected_round(self, record, view_of) -> None:
        record.files["reports/report.json"] = {"round_selected": 1}
        view = view_of(record)
        assert (view.selection.candidate.path, view.selection.rule) == (
            "reflection/round_1/predictions.csv",
            "selected_round",
        )

    def test_then_most_test_rows_that_pair(self, record, view_of) -> None:
        record.files["reports/report.json"] = {}
        record.tables["outputs/round_0/predictions.csv"] = (
            PREDICTION_COLUMNS,
            [row | {"case_id": "x" + row["case_id"]} for row in prediction_rows()],
        )
        record.tables["reflection/round_1/predictions.csv"] = (PREDICTION_COLUMNS, prediction_rows()[:9])
        view = view_of(record)
        assert (view.selection.candidate.path, view.selection.rule) == (
            "reflection/round_1/predictions.csv",
            "best_evidence",
        )

    @pytest.mark.parametrize(
        ("own", "chosen"),
        [({}, "predictions.csv"), ({"predictions": "./outputs/round_0/a_train.csv#x"}, "a_train.csv")],
    )
    def test_of_several_named_tables_the_best_evidence(self, record, view_of, own, chosen) -> None:
        """And what the report itself calls its predictions goes before whatever else it lists."""
        listed = ["outputs/round_0/a_train.csv", "outputs/round_0/predictions.csv"]
        record.files["reports/report.json"] = {"artifacts": listed} | own
        record.tables[listed[0]] = (PREDICTION_COLUMNS, prediction_rows(splits=("train",)))
        assert view_of(record).selection.candidate.path == f"outputs/round_0/{chosen}"

    @pytest.mark.parametrize(("n_plain", "chosen"), [(9, "a_predictions.csv"), (16, "predictions.csv")])
    def test_a_rounds_table_is_the_one_that_would_be_chosen(self, record, view_of, n_plain, chosen) -> None:
        record.files["reports/report.json"] = {"round_selected": 1}
        for name, n_rows in (("predictions.csv", n_plain), ("a_predictions.csv", 16)):
            record.tables[f"reflection/round_1/{name}"] = (PREDICTION_COLUMNS, prediction_rows()[:n_rows])
        view = view_of(record)
        assert view.rounds["1"]["source_file"] == view.selection.candidate.path
        assert view.selection.candidate.path == f"reflection/round_1/{chosen}"

    def test_nothing_usable(self) -> None:
        assert select([], report={}, selected_round=None) == (None, "none")


class TestNormalisation:
    def rows(self, task, columns: list[str], *cells: tuple, access: str = "heldout"):
        table = [dict(zip(columns, row, strict=True)) for row in cells]
        mapped = map_columns(columns, task)
        rows, duplicates = normalise(table, mapped, task, reference_labels(label_rows()), access)
        return rows, duplicates

    def test_synonyms_codes_and_case(self, pleomorphism) -> None:
        rows, _ = self.rows(
            pleomorphism,
            ["patient_id", "prediction"],
            ("p10", "1.0"),
            ("p11", " LOW "),
            ("p12", "High"),
            ("p13", "maybe"),
        )
        assert [row.y_pred for row in rows] == ["high", "low", "high", "maybe"]
        assert [row.unmappable for row in rows] == ["", "", "", "prediction is not a class of the task"]

    def test_task_synonyms_of_a_mutation(self, repository) -> None:
        from acpbench.tasks.catalogue import load_task

        task = load_task(repository / "tasks" / "bladder_tp53.yaml")
        reference = [{"patient_id": f"q{n}", "label": "mutant", "fold": "0"} for n in range(5)]
        table = [
            {"case_id": f"q{n}", "y_pred": text}
            for n, text in enumerate(["MUT", "Mutant", "1.0", "1", "Wild-type"])
        ]
        rows, _ = normalise(
            table, map_columns(["case_id", "y_pred"], task), task, reference_labels(reference), "heldout"
        )
        assert [row.y_pred for row in rows] == ["mutant"] * 4 + ["wildtype"]

    def test_the_reference_label_counts_and_a_difference_is_a_conflict(self, pleomorphism) -> None:
        rows, _ = self.rows(
            pleomorphism,
            ["case_id", "y_true", "y_pred"],
            ("p09", "0", "low"),
            ("p11", "high", "low"),
            ("p13", "", "low"),
        )
        assert [(r.y_true_agent, r.y_true_reference, r.label_conflict) for r in rows] == [
            ("low", "low", False),
            ("high", "low", True),
            ("", "low", False),
        ]

    def test_a_slide_id_joins_too_with_or_without_suffix(self, pleomorphism) -> None:
        rows, _ = self.rows(
            pleomorphism, ["slide_id", "pred"], ("s17", "low"), ("slides/s18.svs", "low"), ("zz", "low")
        )
        assert [(row.patient_id, row.matched) for row in rows] == [("p17", True), ("p18", True), ("", False)]

    def test_held_out_splits_are_the_evaluators(self, pleomorphism) -> None:
        columns = ["case_id", "split", "y_pred"]
        heldout, _ = self.rows(pleomorphism, columns, ("p01", "test", "low"))
        opened, _ = self.rows(pleomorphism, columns, ("p01", "Held-out", "low"), access="open")
        assert (heldout[0].split, heldout[0].split_agent) == ("train", "test")
        assert opened[0].split == "test"

    def test_a_repeated_case_counts_once(self, pleomorphism) -> None:
        rows, duplicates = self.rows(pleomorphism, ["case_id", "y_pred"], ("p17", "high"), ("p17", "low"))
        assert [row.y_pred for row in rows] == ["high"] and duplicates == 1

    def test_no_spelling_of_a_case_makes_it_two(self, pleomorphism) -> None:
        """One slide under three names, and its patient; slides that nobody knows stand for the patient."""
        spelled = ("s17", "s17.svs", "slides/s17.tif", "s17_again", "s17_once_more")
        rows, duplicates = self.rows(
            pleomorphism,
            ["slide_id", "patient_id", "y_pred"],
            *((name, "p17", "high") for name in spelled),
            ("", "p17", "low"),
            ("s18", "p18", "low"),
        )
        assert [(row.slide_id, row.patient_id) for row in rows] == [("s17", "p17"), ("s18", "p18")]
        assert duplicates == 5

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
    def test_a_name_nobody_knows_displaces_no_known_slide(self, pleomorphism, order) -> None:
        """Whatever the order of rows: the reference's slides count, then its patient, then invented names."""
        cells = [("x", "p17", "low"), ("", "p17", "low"), ("s17", "p17", "high"), ("y", "p17", "low")]
        columns = ["slide_id", "patient_id", "y_pred"]
        rows, duplicates = self.rows(pleomorphism, columns, *(cells[place] for place in order))
        assert [(row.slide_id, row.y_pred) for row in rows] == [("s17", "high")] and duplicates == 3
        rows, duplicates = self.rows(pleomorphism, columns, *(cells[place] for place in order if place != 2))
        assert [(row.slide_id, row.patient_id) for row in rows] == [("", "p17")] and duplicates == 2
        rows, duplicates = self.rows(pleomorphism, columns, cells[0], cells[3])
        assert [row.slide_id for row in rows] == ["x"] and duplicates == 1

    def test_rows_that_join_nobody_stand_by_themselves(self, pleomorphism) -> None:
        rows, duplicates = self.rows(
            pleomorphism,
            ["slide_id", "patient_id", "y_pred"],
            ("", "", "low"), ("", "", "high"), ("zz", "", "low"), ("zz", "", "high"),
        )  # fmt: skip
        assert [row.slide_id for row in rows] == ["", "", "zz"] and duplicates == 1
        assert not any(row.matched for row in rows)

    def test_identifiers_that_contradict_each_other_join_nobody(self, pleomorphism) -> None:
        """Slide s17 is patient p17's: a row that gives it to p18 says nothing and hides nothing."""
        rows, duplicates = self.rows(
            pleomorphism,
            ["slide_id", "patient_id", "y_pred"],
            ("s17", "p18", "low"), ("s17", "p17", "low"), ("s18", "p18", "high"), ("s19", "another", "low"),
        )  # fmt: skip
        assert [(row.slide_id, row.matched) for row in rows] == [
            ("s17", False), ("s17", True), ("s18", True), ("s19", True),
        ]  # fmt: skip
        assert rows[0].contradiction and not rows[1].contradiction and duplicates == 0

    def test_a_bare_id_counts_only_where_slide_and_patient_are_blank(self, pleomorphism) -> None:
        rows, _ = self.rows(
            pleomorphism,
            ["id", "slide_id", "y_pred"],
            ("p17", "unknown_slide", "low"), ("p18", "s19", "low"),
            ("p20", "", "low"), ("s21.svs", "", "low"),
        )  # fmt: skip
        assert [(row.slide_id, row.patient_id, row.matched) for row in rows] == [
            ("unknown_slide", "", False), ("s19", "p19", True), ("", "p20", True), ("s21", "p21", True),
        ]  # fmt: skip

    def test_two_slides_of_a_patient_are_two_cases(self, pleomorphism) -> None:
        reference = reference_labels(
            {"slide_id": slide, "patient_id": "p1", "label": "low", "split": "test"} for slide in "ab"
        )
        columns = ["slide_id", "y_pred"]
        table = [{"slide_id": name, "y_pred": "low"} for name in ("a", "b", "a.svs")]
        rows, duplicates = normalise(
            table, map_columns(columns, pleomorphism), pleomorphism, reference, "heldout"
        )
        assert [row.slide_id for row in rows] == ["a", "b"] and duplicates == 1

    def test_a_label_is_derived_from_full_probabilities_only(self, pleomorphism) -> None:
        rows, _ = self.rows(
            pleomorphism, ["case_id", "prob_high"], ("p17", "0.7"), ("p18", "0.2"), ("p19", "")
        )
        assert [row.y_pred for row in rows] == ["high", "low", ""]
        assert rows[0].probabilities == {"high": 0.7, "low": pytest.approx(0.3)}
        assert rows[2].unmappable == "no prediction"

    @pytest.mark.parametrize(
        ("columns", "cells"),
        [
            (["prob_high"], ("2.3",)),
            (["prob_high"], ("-0.5",)),
            (["prob_low", "prob_high"], ("-1.2", "2.3")),
            (["prob_low", "prob_high"], ("0.2", "0.3")),
        ],
    )
    def test_values_that_are_no_probabilities_give_no_label(self, pleomorphism, columns, cells) -> None:
        rows, _ = self.rows(pleomorphism, ["case_id", *columns], ("p17", *cells))
        assert rows[0].y_pred == "" and "probabilities" in rows[0].unmappable
        assert set(rows[0].probabilities) == {column.removeprefix("prob_") for column in columns}

    def test_rounded_probabilities_give_one(self, pleomorphism) -> None:
        rows, _ = self.rows(pleomorphism, ["case_id", "prob_low", "prob_high"], ("p17", "0.333", "0.666"))
        assert rows[0].y_pred == "high" and not rows[0].unmappable

    @pytest.mark.parametrize("true", ["True", "TRUE", "true"])
    def test_true_and_false_are_the_codes_1_and_0(self, pleomorphism, true: str) -> None:
        rows, _ = self.rows(
            pleomorphism, ["case_id", "y_true", "y_pred"], ("p18", true, true), ("p17", "False", "False")
        )
        assert [(row.y_pred, row.y_true_agent, row.unmappable) for row in rows] == [
            ("high", "high", ""), ("low", "low", ""),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("classes", "expected"),
        [
            ({"1": "low", "2": "high"}, None),  # 1 is the first class here: what True means is not said
            (["false", "true"], "true"),
            (["true", "false"], "true"),
            (["a", "b", "c"], None),
        ],
    )
    def test_true_where_no_class_is_coded_1(self, pleomorphism, classes, expected) -> None:
        task = pleomorphism.model_copy(update={"label_values": classes})
        assert class_of("True", task) == expected


@pytest.mark.parametrize(
    ("columns", "mapped", "reason"),
    [
        (["prob_low", "prob_high"], {"low": "prob_low", "high": "prob_high"}, None),
        (["p_0", "p_1"], {"low": "p_0", "high": "p_1"}, None),
        (["high_prob"], {"high": "high_prob"}, None),
        (["prob_class_0", "prob_class_1"], {"low": "prob_class_0", "high": "prob_class_1"}, None),
        (["p_class_1"], {"high": "p_class_1"}, None),
        (["pred_prob_high"], {"high": "pred_prob_high"}, None),
        (["prob_0.0", "prob_1.0"], {"low": "prob_0.0", "high": "prob_1.0"}, None),
        (["class_1_prob"], {"high": "class_1_prob"}, None),
        (["prob_1.5"], {}, "no probability column names a class of the task"),
        (["prob_high", "Prob High"], {}, "two columns name the class 'high'"),
        (["prob_positive"], {"high": "prob_positive"}, None),
        (["prob"], {}, "column 'prob' does not name its class"),
        (["y_score"], {}, "column 'y_score' does not name its class"),
        (["p_value"], {}, "no probability column names a class of the task"),
        (["prob_high", "p_1"], {}, "two columns name the class 'high'"),
    ],
)
def test_probability_columns(columns, mapped, reason, pleomorphism) -> None:
    found = map_columns(["case_id", "y_pred", *columns], pleomorphism)
    assert (found.probabilities, found.probability_reason) == (mapped, reason)


def test_a_risk_is_called_a_risk(repository) -> None:
    """A prediction of a survival endpoint may be a time as well, which has the other sign."""
    from acpbench.tasks.catalogue import load_task

    task = load_task(repository / "tasks" / "demo" / "demo_survival.yaml")
    for column in ("prediction", "y_pred", "predicted_value"):
        mapped = map_columns(["patient_id", column], task)
        assert mapped.risk is None and not mapped.paired("survival") and mapped.predicts, column
    for column in ("risk", "Risk Score", "predicted_risk", "log_hazard"):
        assert map_columns(["patient_id", column], task).risk == column


@pytest.mark.parametrize(
    ("task_name", "first", "second", "conflict"),
    [
        ("demo_pleomorphism", ("y_pred", "high", "low"), ("prediction", "high", "high"), True),
        ("demo_pleomorphism", ("y_pred", "high", "low"), ("prediction", "1", "0.0"), False),
        ("demo_pleomorphism", ("y_pred", "high", "low"), ("Y Pred", "low", "low"), True),
        ("demo_pleomorphism", ("y_pred", "high", "low"), ("prediction", "0.83", "0.12"), False),
        ("demo_survival", ("risk", "0.5", "2"), ("hazard", "1.6", "7.4"), False),
        ("demo_survival", ("risk", "0.5", "2"), ("hazard", "7.4", "1.6"), True),
        ("demo_survival", ("risk", "0.5", "2"), ("hazard", "1", "1"), True),
    ],
)
def test_two_columns_that_predict_different_things(task_name, first, second, conflict, repository) -> None:
    from acpbench.tasks.catalogue import load_task

    task = load_task(repository / "tasks" / "demo" / f"{task_name}.yaml")
    columns = ["case_id", first[0], second[0]]
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(("p17", "p18"), first[1:], second[1:])]
    mapped = map_columns(columns, task, rows)
    assert bool(mapped.conflict) is conflict
    assert (mapped.risk if "risk" in columns else mapped.y_pred) == first[0]


def test_a_label_column_goes_before_a_score_of_an_earlier_name(pleomorphism) -> None:
    columns = ["case_id", "y_pred", "predicted_class"]
    rows = [dict(zip(columns, ("p17", "0.83", "high"), strict=True))]
    assert map_columns(columns, pleomorphism, rows).y_pred == "predicted_class"


def test_a_table_with_two_answers_is_excluded(record, view_of) -> None:
    rows = [row | {"prediction": "low"} for row in prediction_rows()]
    for path in list(record.tables):
        record.tables[path] = ([*PREDICTION_COLUMNS, "prediction"], rows)
    view = view_of(record)
    assert set(reasons(view).values()) == {"ambiguous_columns"} and view.selection.candidate is None
    assert "'y_pred' and 'prediction'" in view.candidates[0].detail


def test_predictions_are_found_behind_thousands_of_other_files(record, view_of) -> None:
    record.files |= {f"analysis/tile_{number:04d}.json": {"x": number} for number in range(450)}
    found = reasons(view_of(record))
    assert [path for path, reason in found.items() if reason is None] == [
        "outputs/round_0/predictions.csv",
        "reflection/round_1/predictions.csv",
    ]


def test_split_names() -> None:
    names = ["test", "Held_Out", "holdout", "EVAL", "val", "dev", "training", "", "fold3"]
    assert [canonical_split(name) for name in names] == ["test"] * 4 + ["validation"] * 2 + ["train", "", ""]


def test_training_logs() -> None:
    assert training_log_like(["Epoch", "val_loss"])
    assert not training_log_like(["case_id", "y_pred", "loss_of_function"]) and not training_log_like(
        ["step", "tool"]
    )


def test_rounds_of_paths() -> None:
    assert [
        round_of(path) for path in ("outputs/round_0/p.csv", "a/round-12/p.csv", "p_round_3.csv", "p.csv")
    ] == [0, 12, None, None]
