"""Human audit and how it decides."""

from __future__ import annotations

import json

import pytest

from acpbench.adjudication.adjudicate import adjudicate_rows
from acpbench.adjudication.audit import audit_verdicts, read_audit_records
from acpbench.core.errors import InputError


def audit(
    reviewer="ann", checkpoint="P1.s1", status="PASS", time="2026-01-02T10:00:00Z", trajectory="g/t/1", **more
):
    return {
        "trajectory": trajectory,
        "checkpoint": checkpoint,
        "status": status,
        "confidence": "high",
        "evidence_refs": ["plan/plan.md#L1"],
        "rationale": f"{reviewer} says",
        "reviewer": reviewer,
        "time": time,
    } | more


def folder(tmp_path, *records):
    for record in records:
        with open(tmp_path / f"{record['reviewer']}.jsonl", "a") as handle:
            handle.write(json.dumps(record) + "\n")
    return tmp_path


def semantic(item="P1.s1", status="FAIL", grade="scored", **more):
    return {
        "trajectory": "g/t/1",
        "item_id": item,
        "checkpoint": item.split("@")[0],
        "stage": "planning",
        "subcapability": "P1",
        "kind": "semantic",
        "round": None,
        "critical": True,
        "weight": 2,
        "rule": "semantic_judgement",
        "status": status,
        "grade_status": grade,
        "evidence_refs": ["plan/plan.md#L2"],
        "rationale": "because",
        "confidence": "low",
        "findings": [],
        "judge": {"provider": "offline", "model": "cue-judge", "version": "1"},
    } | more


def check(item="P1.d1", status="PASS"):
    return {
        "trajectory": "g/t/1",
        "item_id": item,
        "checkpoint": item,
        "stage": "planning",
        "subcapability": "P1",
        "kind": "deterministic",
        "round": None,
        "critical": False,
        "weight": 1,
        "rule": "file_exists",
        "status": status,
        "evidence": ["plan/plan.md"],
        "reason": "is there",
    }


def test_without_audit_first_pass_decides():
    rows = adjudicate_rows(
        [check(), check("P1.d2", "not_implemented"), check("P1.d3", "SKIP")],
        [semantic(), semantic("P1.s2", None, "bad_evidence"), semantic("P1.s3", "FAIL", "capped")],
    )
    assert [(r["item_id"], r["final_status"], r["decided_by"]) for r in rows] == [
        ("P1.s1", "FAIL", "judge"),
        ("P1.s2", None, "none"),
        ("P1.s3", "FAIL", "cap"),
        ("P1.d1", "PASS", "check"),
        ("P1.d2", None, "none"),
        ("P1.d3", "SKIP", "check"),
    ]
    assert [r["first_pass_grade_status"] for r in rows][1] == "bad_evidence"
    assert rows[4]["first_pass_status"] == "not_implemented"
    assert all(r["audit_status"] is None for r in rows)


def test_an_audit_overrides_and_keeps_the_first_pass(tmp_path):
    records = read_audit_records(folder(tmp_path, audit()))
    (row,) = adjudicate_rows([], [semantic()], records)
    assert (row["first_pass_status"], row["audit_status"], row["final_status"]) == ("FAIL", "PASS", "PASS")
    assert row["decided_by"] == "audit" and "first pass FAIL" in row["why"]
    assert row["evidence_refs"] == ["plan/plan.md#L1"] and row["auditors"] == [
        {"reviewer": "ann", "status": "PASS"}
    ]


def test_an_audit_scores_what_the_judge_left_unscored(tmp_path):
    records = read_audit_records(folder(tmp_path, audit(status="PARTIAL")))
    (row,) = adjudicate_rows([], [semantic(status=None, grade="unscored")], records)
    assert row["final_status"] == "PARTIAL" and row["first_pass_status"] is None


def test_the_latest_record_of_a_reviewer_wins_by_time_not_by_line(tmp_path):
    records = read_audit_records(
        folder(
            tmp_path,
            audit(status="PASS", time="2026-01-02T10:00:00+02:00"),  # 08:00 UTC
            audit(status="FAIL", time="2026-01-02T09:00:00Z"),
            audit(status="PARTIAL", time="2026-01-01T00:00:00Z"),
        )
    )
    assert audit_verdicts(records)["g/t/1", "P1.s1"].status == "FAIL"


def test_two_reviewers_in_conflict_change_nothing(tmp_path):
    records = read_audit_records(
        folder(tmp_path, audit("ann", status="PASS"), audit("bob", status="PARTIAL"))
    )
    (row,) = adjudicate_rows([], [semantic()], records)
    assert (row["audit_status"], row["final_status"], row["decided_by"]) == ("conflict", "FAIL", "judge")
    assert "ann PASS, bob PARTIAL" in row["why"]
    (tmp_path / "later").mkdir()
    later = read_audit_records(folder(tmp_path / "later", audit("bob", time="2026-02-01T00:00:00Z")))
    resolved = [*records, *later]
    (row,) = adjudicate_rows([], [semantic()], resolved)
    assert (row["audit_status"], row["final_status"]) == ("PASS", "PASS")


def test_absent_or_empty_folder_is_no_audit(tmp_path):
    assert read_audit_records(tmp_path / "none") == []
    assert read_audit_records(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not valid JSON"),
        ("[]", "line 2: expected an object"),
        (json.dumps({"trajectory": "x"}), "line 2: lacks checkpoint"),
        (json.dumps(audit(status="GOOD")), "status: line 2: 'GOOD' is not one of"),
        (json.dumps(audit(confidence="sure")), "confidence: line 2"),
        (json.dumps(audit(time="yesterday")), "time: line 2"),
        (json.dumps(audit(evidence_refs="plan")), "evidence_refs: line 2"),
        (json.dumps(audit(reviewer="bob")), "reviewer: line 2: 'bob' differs from the file name 'ann'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "ann.jsonl").write_text(json.dumps(audit()) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"ann\.jsonl") as error:
        read_audit_records(tmp_path)
    assert message in str(error.value)


def test_an_audit_of_an_unknown_item_of_this_trajectory_is_refused(tmp_path):
    records = read_audit_records(
        folder(tmp_path, audit(checkpoint="P9.s9"), audit(checkpoint="P9.s9", trajectory="g/t/2"))
    )
    with pytest.raises(InputError, match=r"item P9\.s9 is not among the items of g/t/1"):
        adjudicate_rows([], [semantic()], records)
    assert len(adjudicate_rows([], [semantic()], records[1:])) == 1  # another trajectory's record is not ours


def test_mixed_or_repeated_rows_are_refused():
    with pytest.raises(InputError, match="several trajectories"):
        adjudicate_rows([], [semantic(), semantic("P1.s2", trajectory="g/t/2")])
    with pytest.raises(InputError, match=r"P1\.s1"):
        adjudicate_rows([], [semantic(), semantic()])
    with pytest.raises(InputError, match="expected semantic rows"):
        adjudicate_rows([], [check()])
