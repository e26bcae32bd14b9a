"""What a report claims: numbers, splits, completion; negated and planned statements claim nothing."""

from __future__ import annotations

import pytest

from acpbench.scores.claims import metric_name, parse_value, report_claims, split_named, text_claims


def performance(text: str) -> list[tuple]:
    return [(c.metric, c.value, c.split) for c in text_claims(text, "r.md") if c.kind == "performance"]


def kinds(text: str) -> list[str]:
    return [claim.kind for claim in text_claims(text, "r.md")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "AUROC 0.812 on n = 12 validation patients, 95% interval 0.70 to 0.90.",
            [("AUROC", 0.812, "validation")],
        ),
        (
            "On the held-out test set of n = 42 patients AUROC was 0.934 (95% CI 0.90-0.96)",
            [("AUROC", 0.934, "test")],
        ),
        ("an accuracy of 91.2% and macro-F1 = 0.88", [("accuracy", 0.912, ""), ("macro_F1", 0.88, "")]),
        ("We saw 0.91 AUROC on test", [("AUROC", 0.91, "test")]),
        ("test_AUROC: 0.80", [("AUROC", 0.8, "test")]),
        ("balanced accuracy: 0.75", [("balanced_accuracy", 0.75, "")]),
        ("Harrell's c-index 0.61", [("c_index", 0.61, "")]),
        ("The target AUROC of 0.9 is the goal", []),
        ("AUROC could reach 0.9", []),
        ("AUROC was not computed; 0.5 is chance", []),
        ("No AUROC of 0.9 was obtained", []),
        ("Chance level is 0.5.", []),
        ("AUROC: not available, n = 12", []),
        ("metrics.AUROC in `a/metrics.json`", []),
    ],
)
def test_figures(text: str, expected: list[tuple]) -> None:
    assert performance(text) == [(m, pytest.approx(v), s) for m, v, s in expected]


def test_a_table_gives_metric_and_split_by_header() -> None:
    table = (
        "| Metric | Validation | Test |\n|---|---|---|\n| AUROC | 0.81 (0.7-0.9) | 0.79 |\n| n | 12 | 10 |"
    )
    assert performance(table) == [("AUROC", 0.81, "validation"), ("AUROC", 0.79, "test")]


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("The workflow was completed successfully.", True),
        ("We trained the model and evaluated it.", True),
        ("All predictions and metrics were generated and verified.", True),
        ("Status: completed", True),
        ("The model was not trained.", False),
        ("We were unable to say that the model was trained.", False),
        ("The model would be evaluated on the test set.", False),
        ("Training has not been completed.", False),
        ("The result is a research prediction.", False),
        ("The model is trained and evaluated.", True),
        ("The slides are generated and carry no patient.", False),
    ],
)
def test_completion(text: str, claims: bool) -> None:
    assert ("completion" in kinds(text)) is claims


def test_a_negation_reaches_its_clause_only() -> None:
    assert kinds("The test was not run, but the model was trained.") == ["completion"]


def test_a_claim_says_where_it_stands() -> None:
    (claim,) = text_claims("# Results\n\nAUROC 0.7\n", "reports/report.md")
    assert claim.ref == "reports/report.md#L3"


@pytest.mark.parametrize(
    ("text", "value", "tolerance"),
    [
        ("0.81", 0.81, 0.005),
        ("0.812", 0.812, 0.0005),
        ("81%", 0.81, 0.005),
        ("81.2 %", 0.812, 0.0005),
        ("1", 1.0, 0.005),
    ],
)  # fmt: skip
def test_tolerance_is_half_a_unit_of_the_last_digit(text: str, value: float, tolerance: float) -> None:
    assert parse_value(text) == (pytest.approx(value), pytest.approx(tolerance))


def test_structured_claims() -> None:
    report = {
        "headline": {"metric": "AUROC", "value": 0.7, "split": "validation"},
        "claims": [{"text": "Accuracy 0.6 on test."}, "plain", {"text": 7}],
        "status": "completed",
    }
    found = report_claims(report, "reports/report.json")
    assert [(c.kind, c.metric, c.value, c.split, c.ref) for c in found] == [
        ("performance", "AUROC", 0.7, "validation", "reports/report.json#/headline/value"),
        ("performance", "accuracy", 0.6, "test", "reports/report.json#/claims/0/text"),
        ("completion", None, None, "", "reports/report.json#/status"),
    ]


@pytest.mark.parametrize(
    "hostile", [{"headline": []}, {"claims": "x"}, {"headline": {"value": True}}, {"claims": [None]}]
)
def test_hostile_structured_reports_claim_nothing(hostile: dict) -> None:
    assert report_claims(hostile, "reports/report.json") == []


def test_names() -> None:
    assert metric_name("roc_auc") == "AUROC"
    assert metric_name("quadratic_weighted_kappa") == "quadratic_weighted_kappa"
    assert metric_name("n") is None
    assert split_named("held_out") == "test"
    assert split_named("validation and test") == ""


def test_a_long_report_is_read_in_bounded_time() -> None:
    text = "\n".join(["| " * 2000] * 50 + ["AUROC " * 5000] * 20 + ["was " * 20000])
    assert text_claims(text, "r.md") == []
