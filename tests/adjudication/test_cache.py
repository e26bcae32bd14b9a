"""Judge cache: what is in the key, record and replay."""

from __future__ import annotations

import dataclasses

import pytest

from acpbench.adjudication.cache import CachedJudge, cache_key
from acpbench.adjudication.engine import build_packet
from acpbench.adjudication.judge import JudgeError, JudgeIdentity, Judgement, PacketItem
from acpbench.adjudication.view import RecordView
from acpbench.core.errors import InputError


class Counting:
    identity = JudgeIdentity("p", "m", "1", base_url="http://x", sampling={"temperature": 0.0})

    def __init__(self):
        self.asked = 0

    def judge(self, packet):
        self.asked += 1
        return [Judgement(i.item_id, "PASS", ["plan/plan.md#L1"], "seen", "low") for i in packet.items]


@pytest.fixture
def packet(record):
    view = RecordView(record.close())
    item = PacketItem("P1.s2", "P1.s2", "planning", None, "text", ("plan/plan.md",))
    return build_packet(view, "g/t/1", {"task_id": "t"}, [item])


def test_every_part_of_the_key_matters():
    base = {"prompt": b"p", "rubric_version": "r", "evidence": "e", "replicate": 0}
    identity = Counting.identity
    keys = [cache_key(identity, **base)]
    keys += [cache_key(identity, **base | {name: other}) for name, other in
             [("prompt", b"q"), ("rubric_version", "s"), ("evidence", "f"), ("replicate", 1)]]  # fmt: skip
    keys += [
        cache_key(dataclasses.replace(identity, **{name: other}), **base)
        for name, other in [
            ("provider", "q"),
            ("model", "n"),
            ("version", "2"),
            ("base_url", "y"),
            ("sampling", {}),
        ]
    ]
    assert len(set(keys)) == 10
    assert cache_key(identity, **base) == keys[0]


def test_record_asks_once_and_replay_needs_no_judge(tmp_path, packet):
    judge = Counting()
    first = CachedJudge(judge, tmp_path, mode="record", rubric_version="1").judge(packet)
    again = CachedJudge(judge, tmp_path, mode="record", rubric_version="1").judge(packet)
    replayed = CachedJudge(judge, tmp_path, mode="replay", rubric_version="1").judge(packet)
    assert judge.asked == 1 and first == again == replayed


def test_replay_refuses_on_a_miss(tmp_path, packet):
    judge = Counting()
    CachedJudge(judge, tmp_path, mode="record", rubric_version="1").judge(packet)
    for changed in ({"rubric_version": "2"}, {"rubric_version": "1", "replicate": 1}):
        with pytest.raises(InputError, match="no kept answer"):
            CachedJudge(judge, tmp_path, mode="replay", **changed).judge(packet)
    assert judge.asked == 1


def test_changed_evidence_is_another_question(tmp_path, packet, record):
    cached = CachedJudge(Counting(), tmp_path, mode="record", rubric_version="1")
    key = cached.key(packet)
    (record.workspace / "plan" / "plan.md").write_text("# Plan\n\nAnother plan.\n")
    other = build_packet(RecordView(record.run_dir), packet.trajectory, packet.task, packet.items)
    assert cached.key(other) != key


def test_an_error_is_not_kept(tmp_path, packet):
    class Failing(Counting):
        def judge(self, packet):
            raise JudgeError("no network")

    with pytest.raises(JudgeError):
        CachedJudge(Failing(), tmp_path / "kept", mode="record", rubric_version="1").judge(packet)
    assert not (tmp_path / "kept").exists()
