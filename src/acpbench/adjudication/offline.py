"""The built-in judge: deterministic cues, no model. It is named as such in every row it makes.

Each semantic checkpoint has one cue function over the record's files and witnessed events (a table of 72).
It finds wording, structure and agreement between files; it does not understand prose, so its confidence is
never high, and a study that matters replaces or audits it.
"""

from __future__ import annotations

from collections.abc import Callable

from acpbench.adjudication import (
    cues_action,
    cues_diagnosis,
    cues_outputs,
    cues_planning,
    cues_reflection,
    cues_report,
    cues_rounds,
)
from acpbench.adjudication.cues import Case, Verdict
from acpbench.adjudication.judge import EvidencePacket, JudgeIdentity, Judgement
from acpbench.core.errors import InputError
from acpbench.rubric.evidence import resolve_ref

VERSION = "1"

CUES: dict[str, Callable[[Case], Verdict]] = {
    **cues_planning.CUES,
    **cues_action.CUES,
    **cues_outputs.CUES,
    **cues_diagnosis.CUES,
    **cues_report.CUES,
    **cues_reflection.CUES,
    **cues_rounds.CUES,
}
"""Checkpoint id → cue function."""


class OfflineJudge:
    """Judge by cues; the same record gives the same judgements, without any network."""

    identity = JudgeIdentity(provider="offline", model="cue-judge", version=VERSION)

    def judge(self, packet: EvidencePacket) -> list[Judgement]:
        """Judge every item of a packet.

        Raises:
            InputError: an item's checkpoint has no cue function (a rubric this judge was not written for).
        """
        return [self._judge(packet, item.item_id, item.checkpoint, item.round) for item in packet.items]

    @staticmethod
    def _judge(packet: EvidencePacket, item_id: str, checkpoint: str, round_id: int | None) -> Judgement:
        if checkpoint not in CUES:
            raise InputError(f"the offline judge has no cue for checkpoint {checkpoint}", field="checkpoint")
        verdict = CUES[checkpoint](Case(packet.record, packet.task, round_id))
        # A cue may point at a field that the agent wrote under another name; such a citation is no evidence.
        refs = [ref for ref in verdict.refs if resolve_ref(packet.record.run_dir, ref)]
        status, rationale = verdict.status, verdict.rationale
        if status in ("PASS", "PARTIAL") and not refs:
            status, rationale = "FAIL", f"nothing left to cite; {rationale}"
        return Judgement(item_id, status, refs, rationale, verdict.confidence)
