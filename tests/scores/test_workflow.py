"""Workflow score: every expected value is worked out by hand."""

from __future__ import annotations

import pytest

from acpbench.core.errors import InputError
from acpbench.scores.workflow import workflow_score

FIRST = {"planning": "P1", "action": "A1", "diagnosis": "D1", "reflection": "R1"}
JUDGE = {"provider": "offline", "model": "cue-judge", "version": "1"}


def row(
    stage,
    status,
    weight=1,
    *,
    kind="semantic",
    decided_by=None,
    first="same",
    subcapability=None,
    judge=JUDGE,
):
    row.n += 1
    return {
        "trajectory": "g/t/1",
        "item_id": f"{FIRST[stage]}.x{row.n}",
        "stage": stage,
        "subcapability": subcapability or FIRST[stage],
        "kind": kind,
        "weight": weight,
        "first_pass_status": status if first == "same" else first,
        "final_status": status,
        "decided_by": decided_by or ("judge" if kind == "semantic" else "check"),
        "judge": judge if kind == "semantic" else None,
    }


row.n = 0


def four(*, planning, action, diagnosis, reflection):
    """Rows from one list of (status, weight) a stage."""
    named = {"planning": planning, "action": action, "diagnosis": diagnosis, "reflection": reflection}
    return [row(stage, status, weight) for stage, items in named.items() for status, weight in items]


def test_weights_and_values():
    # planning (2*1 + 1*.5) / 3, action (0 + 1) / 3, diagnosis 1, reflection (2*.5) / 2
    rows = four(
        planning=[("PASS", 2), ("PARTIAL", 1)],
        action=[("FAIL", 2), ("PASS", 1)],
        diagnosis=[("PASS", 1)],
        reflection=[("PARTIAL", 2)],
    )
    score = workflow_score(rows, "completed")
    assert score["stages"] == {
        "planning": pytest.approx(2.5 / 3),
        "action": pytest.approx(1 / 3),
        "diagnosis": 1.0,
        "reflection": 0.5,
    }
    assert score["item_weighted"] == pytest.approx((2.5 + 1 + 1 + 1) / (3 + 3 + 1 + 2))
    assert score["stage_mean"] == pytest.approx((2.5 / 3 + 1 / 3 + 1 + 0.5) / 4)
    assert score["grade_status"] == "scored" and score["run_status"] == "completed"
    assert score["subcapabilities"]["P1"] == pytest.approx(2.5 / 3)
    assert score["subcapabilities"]["P2"] is None and len(score["subcapabilities"]) == 20
    assert score["stage_items"]["planning"] == {"n": 2, "n_scored": 2, "n_skip": 0, "weight": 3}


def test_na_counts_zero_in_the_denominator_and_skip_leaves_it():
    rows = four(
        planning=[("PASS", 1), ("NA", 1)],
        action=[("PASS", 1), ("SKIP", 2)],
        diagnosis=[("PASS", 1)],
        reflection=[("PASS", 1)],
    )
    score = workflow_score(rows, "completed")
    assert score["stages"]["planning"] == 0.5
    assert score["stages"]["action"] == 1.0
    assert score["item_weighted"] == 0.8  # four of five; the skipped weight of 2 is in neither sum
    assert score["coverage"] == {
        "n_items": 6,
        "n_scored": 5,
        "n_skip": 1,
        "n_unscored": 0,
        "n_not_implemented": 0,
        "share": 1.0,
    }
    assert score["status_counts"] == {"PASS": 4, "PARTIAL": 0, "FAIL": 0, "NA": 1, "SKIP": 1, "unscored": 0}


def test_unscored_items_are_in_neither_sum_and_widen_the_bounds():
    rows = four(
        planning=[("PASS", 2)], action=[("PASS", 1)], diagnosis=[("FAIL", 1)], reflection=[("PASS", 1)]
    )
    rows.append(row("planning", None, 2))
    rows.append(row("planning", None, 1, kind="deterministic", first="not_implemented", decided_by="none"))
    score = workflow_score(rows, "timeout")
    assert score["grade_status"] == "partial" and score["run_status"] == "timeout"
    assert score["item_weighted"] == 0.8
    assert score["bounds"]["item_weighted"] == [0.5, 0.875]  # 4/8 and 7/8
    assert score["bounds"]["stage_mean"] == [0.6, 0.75]  # planning 2/5 or 1, then 1, 0, 1
    assert score["coverage"]["n_unscored"] == 1 and score["coverage"]["n_not_implemented"] == 1
    assert score["coverage"]["share"] == pytest.approx(4 / 6)


def test_a_stage_without_a_scored_item_leaves_the_stage_mean_null():
    rows = four(
        planning=[("PASS", 1)], action=[("SKIP", 1)], diagnosis=[("PASS", 1)], reflection=[("PASS", 1)]
    )
    score = workflow_score(rows, "completed")
    assert score["stage_mean"] is None and score["item_weighted"] == 1.0
    assert score["passes"]["0.75"] == {"item_weighted": True, "stage_mean": None}
    assert score["bounds"]["stage_mean"] == [None, None]


@pytest.mark.parametrize(
    ("n_pass", "n", "expected"),
    [
        (7, 10, {"0.70": True, "0.75": False, "0.80": False}),
        (3, 4, {"0.70": True, "0.75": True, "0.80": False}),
        (4, 5, {"0.70": True, "0.75": True, "0.80": True}),
        (69, 100, {"0.70": False, "0.75": False, "0.80": False}),
    ],
)
def test_thresholds_are_inclusive(n_pass, n, expected):
    items = [("PASS", 1)] * n_pass + [("FAIL", 1)] * (n - n_pass)
    score = workflow_score(four(planning=items, action=items, diagnosis=items, reflection=items), "completed")
    assert {name: value["item_weighted"] for name, value in score["passes"].items()} == expected
    assert {name: value["stage_mean"] for name, value in score["passes"].items()} == expected


def test_three_quarters_as_a_mean_of_awkward_fractions_passes():
    # 1/3 + 2/3 + 1 + 1 = 3 exactly; in binary floats 1/3 + 2/3 happens to round, here nothing may.
    rows = four(
        planning=[("PASS", 1), ("FAIL", 2)],
        action=[("PASS", 2), ("FAIL", 1)],
        diagnosis=[("PASS", 1)],
        reflection=[("PASS", 1)],
    )
    assert workflow_score(rows, "completed")["passes"]["0.75"]["stage_mean"] is True


def test_full_size_reflection_heavy_trajectory():
    """160 semantic and 136 deterministic items; reflection alone failed: the two aggregations differ."""
    rows = []
    for stage, n_semantic, n_deterministic in [
        ("planning", 16, 11),
        ("action", 16, 23),
        ("diagnosis", 16, 21),
        ("reflection", 112, 81),
    ]:
        status = "FAIL" if stage == "reflection" else "PASS"
        rows += [row(stage, status) for _ in range(n_semantic)]
        rows += [row(stage, status, kind="deterministic") for _ in range(n_deterministic)]
    assert len(rows) == 296
    score = workflow_score(rows, "completed")
    assert score["stage_mean"] == 0.75 and score["passes"]["0.75"]["stage_mean"] is True
    assert score["item_weighted"] == pytest.approx(103 / 296)
    assert score["by_kind"] == {"deterministic": pytest.approx(55 / 136), "semantic": pytest.approx(48 / 160)}
    assert score["coverage"]["n_items"] == 296


def test_basis_and_audited_share():
    check = [row(stage, "PASS", kind="deterministic") for stage in FIRST]
    score = workflow_score(check, "completed")
    assert (score["basis"], score["audited_share"], score["judge"]) == ("deterministic_only", None, None)
    unjudged = [*check, row("planning", None)]
    assert workflow_score(unjudged, "completed")["basis"] == "deterministic_only"
    judged = [*check, *(row("planning", "PASS") for _ in range(4))]
    score = workflow_score(judged, "completed")
    assert (score["basis"], score["audited_share"], score["judge"]) == ("first_pass", 0.0, JUDGE)
    audited = [*judged[:-1], row("planning", "FAIL", decided_by="audit", first="PASS")]
    score = workflow_score(audited, "completed")
    assert (score["basis"], score["audited_share"]) == ("expert_adjudicated", 0.25)


def test_nothing_scored():
    score = workflow_score([], "infra_error")
    assert score["grade_status"] == "unscored" and score["item_weighted"] is None
    assert score["coverage"]["share"] is None
    assert score["passes"]["0.80"] == {"item_weighted": None, "stage_mean": None}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"final_status": "GOOD"}, "final_status"),
        ({"stage": "cooking"}, "stage"),
        ({"weight": 3}, "weight"),
        ({"weight": True}, "weight"),
        ({"kind": "guess"}, "kind"),
        ({"trajectory": "g/t/2"}, "trajectory"),
        ({"judge": JUDGE | {"model": "other"}}, "judge"),
    ],
)
def test_bad_rows_are_refused(change, field):
    rows = [row("planning", "PASS"), row("planning", "PASS") | change]
    with pytest.raises(InputError) as error:
        workflow_score(rows, "completed")
    assert error.value.field == field


def test_a_repeated_item_is_refused():
    one = row("planning", "PASS")
    with pytest.raises(InputError, match="appears twice"):
        workflow_score([one, one], "completed")
