"""Cap rule, validation of answers, and what the engine never does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from acpbench.adjudication.engine import evidence_paths, judge_run, missing_evidence
from acpbench.adjudication.judge import EvidencePacket, JudgeError, JudgeIdentity, Judgement
from acpbench.adjudication.view import RecordView
from acpbench.core.errors import InputError
from acpbench.rubric.models import Rubric
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task
from tests.adjudication.build import Record, diligent

GOOD = ["plan/plan.md#L1"]


class Scripted:
    """A judge that answers by a function of (packet, how often it was asked)."""

    identity = JudgeIdentity("test", "scripted", "1")

    def __init__(self, answer: Callable[[EvidencePacket, int], list[Judgement]]) -> None:
        self.answer, self.packets = answer, []

    def judge(self, packet: EvidencePacket) -> list[Judgement]:
        self.packets.append(packet)
        return self.answer(packet, len(self.packets))


def passing(item_id: str) -> Judgement:
    return Judgement(item_id, "PASS", GOOD, "seen", "low")


def run(record: Record, task: Task, rubric: Rubric, judge: Scripted) -> dict[str, dict]:
    return {row["item_id"]: row for row in judge_run(record.close(), task, rubric, judge)}


def test_every_semantic_item_gets_one_row_in_catalogue_order(record, task, rubric, judged):
    rows = list(judged(record).values())
    assert Counter(row["stage"] for row in rows) == {
        "planning": 16,
        "action": 16,
        "diagnosis": 16,
        "reflection": 112,
    }
    assert [row["item_id"] for row in rows][:2] == ["P1.s1", "P1.s2"]
    assert all(row["judge"]["model"] == "cue-judge" and row["judge"]["provider"] == "offline" for row in rows)
    assert all(row["kind"] == "semantic" and row["rule"] == "semantic_judgement" for row in rows)


def test_evidence_paths_drop_pointers_and_repeats():
    assert evidence_paths(["plan/a.json#/x", "plan/a.json", "outputs/"]) == ("plan/a.json", "outputs/")


def test_missing_evidence(record):
    view = RecordView(record.close())
    present = [
        "plan/plan.md",
        "outputs/",
        "outputs/round_*/metrics.json",
        "reflection/round_*/",
        "run:tools.jsonl",
    ]
    assert missing_evidence(view, present) == []
    (record.workspace / "scripts" / "run.sh").write_text("")  # an empty file is no evidence
    view = RecordView(record.run_dir)
    absent = ["scripts/", "reflection/round_3/", "logs/*.txt", "outputs/round_9/*.json", "run:other.jsonl"]
    assert missing_evidence(view, absent) == absent
    # The report has its own items, and what the agent was given is nobody's evidence.
    assert missing_evidence(view, ["reports/report.md", "task.json", "registry.json"]) == []


def test_capped_items_never_reach_the_judge(record, task, rubric):
    (record.workspace / "plan" / "plan.md").unlink()
    record.mtimes.pop("plan/plan.md")
    judge = Scripted(lambda packet, _: [Judgement(i.item_id, "FAIL", [], "no", "low") for i in packet.items])
    rows = run(record, task, rubric, judge)
    asked = {item.item_id for packet in judge.packets for item in packet.items}
    capped = {item for item, row in rows.items() if row["grade_status"] == "capped"}
    assert {"P1.s1", "P1.s2", "P4.s2"} <= capped
    assert {"R1.sk1@r3", "R5.sk4@r5"} <= capped
    assert "P3.s1" in asked and not asked & capped
    assert rows["P1.s1"]["status"] == "FAIL" and "plan/plan.md" in rows["P1.s1"]["rationale"]


def test_a_fluent_report_alone_passes_no_item_that_names_a_file(tmp_path, task, rubric, judged):
    record = Record(tmp_path / "run", task)
    full = diligent(tmp_path / "other", task)
    text = (full.workspace / "reports" / "report.md").read_text()
    record.write("reports/report.md", text)
    rows = judged(record)
    only_report = {
        c.id
        for c in rubric.checkpoints
        if c.kind == "semantic" and set(c.evidence) <= {"reports/report.md", "task.json"}
    }
    passed = {row["checkpoint"] for row in rows.values() if row["status"] in ("PASS", "PARTIAL")}
    assert passed <= only_report
    assert not {"D1.s3", "D4.s3", "D2.s2"} & {
        row["checkpoint"] for row in rows.values() if row["status"] == "PASS"
    }  # these compare the report with files that are not there
    for row in rows.values():
        if row["checkpoint"] not in only_report:
            assert (row["status"], row["grade_status"]) == ("FAIL", "capped"), row["item_id"]


@pytest.mark.parametrize(
    ("answer", "grade_status", "reason"),
    [
        (lambda i: Judgement(i, "GREAT", GOOD, "x", "low"), "unscored", "'GREAT' is not one of"),
        (lambda i: Judgement(i, "SKIP", GOOD, "x", "low"), "unscored", "'SKIP' is not one of"),
        (lambda i: Judgement(i, "PASS", GOOD, "x", "certain"), "unscored", "confidence"),
        (lambda i: Judgement(i, "PASS", GOOD, " ", "low"), "unscored", "no rationale"),
        (lambda i: Judgement(i, "PASS", [], "x", "low"), "bad_evidence", "without a citation"),
        (
            lambda i: Judgement(i, "FAIL", ["plan/plan.md#L9999"], "x", "low"),
            "bad_evidence",
            "does not resolve",
        ),
        (lambda i: Judgement(i, "PASS", ["../run.json"], "x", "low"), "bad_evidence", "does not resolve"),
        (
            lambda i: Judgement(i, "PASS", ["reports/report.md#L1"], "x", "low"),
            "bad_evidence",
            "report alone",
        ),
        (lambda i: Judgement(i, "PASS", "plan/plan.md", "x", "low"), "bad_evidence", "not a list"),
    ],
)
def test_a_bad_answer_is_asked_again_for_that_item_only_then_left_unscored(
    record, task, rubric, answer, grade_status, reason
):
    def reply(packet, _):
        return [answer(i.item_id) if i.item_id == "P1.s2" else passing(i.item_id) for i in packet.items]

    judge = Scripted(reply)
    rows = run(record, task, rubric, judge)
    again = [p for p in judge.packets if [i.item_id for i in p.items] == ["P1.s2"]]
    assert len(again) == 1
    row = rows["P1.s2"]
    assert row["status"] is None and row["confidence"] is None
    assert row["grade_status"] == grade_status and reason in row["rationale"]
    assert rows["P1.s1"]["status"] == "PASS"


def test_a_repaired_answer_counts(record, task, rubric):
    def reply(packet, _):
        alone = [i.item_id for i in packet.items] == ["P1.s2"]
        items = [i.item_id for i in packet.items if alone or i.item_id != "P1.s2"]
        return [*map(passing, items), passing("Z9.extra")]

    judge = Scripted(reply)
    rows = run(record, task, rubric, judge)
    assert rows["P1.s2"]["status"] == "PASS" and "Z9.extra" not in rows


def test_items_left_out_and_failed_answers_stay_unscored(record, task, rubric):
    def reply(packet, _):
        if packet.items[0].stage == "action":
            raise JudgeError("truncated JSON")
        return [passing(i.item_id) for i in packet.items if i.item_id != "P1.s1"]

    rows = run(record, task, rubric, Scripted(reply))
    assert "left this item out" in rows["P1.s1"]["rationale"]
    assert rows["P1.s1"]["status"] is None and rows["P1.s3"]["status"] == "PASS"
    for item, row in rows.items():
        if item.startswith("A"):
            assert row["status"] is None and row["grade_status"] == "judge_error"
            assert "truncated JSON" in row["rationale"]


def test_two_different_answers_for_one_item_are_no_answer(record, task, rubric):
    def reply(packet, _):
        return [
            *(passing(i.item_id) for i in packet.items),
            Judgement(packet.items[0].item_id, "FAIL", [], "n", "low"),
        ]

    rows = run(record, task, rubric, Scripted(reply))
    assert rows["P1.s1"]["status"] is None and "more than once" in rows["P1.s1"]["rationale"]
    assert rows["P1.s2"]["status"] == "PASS"


def test_a_record_of_another_task_is_refused(record, rubric, repository: Path):
    other = load_task(repository / "tasks" / "demo" / "demo_survival.yaml")
    with pytest.raises(InputError, match="is a record of task demo_pleomorphism"):
        judge_run(record.close(), other, rubric, Scripted(lambda packet, _: []))


def test_packets_hold_numbered_lines_of_this_record_behind_a_fence(record, task, rubric):
    from acpbench.adjudication.judge import render_packet

    judge = Scripted(lambda packet, _: [passing(i.item_id) for i in packet.items])
    run(record, task, rubric, judge)
    packet = judge.packets[0]
    prompt = render_packet(packet)
    fence = packet.delimiter
    assert prompt.count(f"<{fence}>") == 1 and prompt.endswith(f"</{fence}>")
    inside = prompt.split(f"<{fence}>")[1]
    assert "FILE plan/plan.md" in inside and "\n1: # Plan\n" in inside
    assert fence not in (record.workspace / "plan" / "plan.md").read_text()
    assert render_packet(packet) == prompt
