"""First pass over the semantic items of one record: cap rule, judge, validation of what it said.

The narrative report alone never earns PASS: when a checkpoint names any other file and that file is missing,
the item is FAIL (``capped``) before a judge sees it. What a judge answers is checked here whatever it
promises; a bad answer is asked once more for those items only and is then left unscored, never turned into
a FAIL or a PASS.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from acpbench.adjudication.judge import (
    CONFIDENCES,
    MAX_LINES_PER_FILE,
    MAX_PACKET_CHARS,
    MENU,
    EvidencePacket,
    Excerpt,
    Judge,
    JudgeError,
    Judgement,
    PacketItem,
)
from acpbench.adjudication.view import RecordView
from acpbench.core.errors import InputError
from acpbench.rubric.catalogue import expand
from acpbench.rubric.evidence import resolve_ref

REPORT = "reports/report.md"
GIVEN = {"task.json", "registry.json", "TASK.md"}
"""Evidence names that the agent was given: present in any record, so no evidence of its work."""
MAX_FILES_PER_PATTERN = 12
MAX_RATIONALE_CHARS = 400


def evidence_paths(evidence: Iterable[str]) -> tuple[str, ...]:
    """Paths, folders (``outputs/``) and globs that an item names, JSON pointers cut off."""
    return tuple(dict.fromkeys(reference.split("#", 1)[0] for reference in evidence))


def missing_evidence(view: RecordView, paths: Iterable[str]) -> list[str]:
    """Named evidence other than the narrative report that the record lacks (an empty file is none)."""
    missing = []
    for path in paths:
        if path == REPORT or path in GIVEN:
            continue
        if path.startswith("run:"):
            name = path[4:]
            target = view.run_dir / name
            there = target.is_file() and not target.is_symlink() and target.stat().st_size > 0
        else:
            there = bool(view.matching(path))
        if not there:
            missing.append(path)
    return missing


def _excerpt(view: RecordView, path: str) -> Excerpt:
    lines = view.lines(path)
    return Excerpt(path, tuple(lines[:MAX_LINES_PER_FILE]), len(lines))


def _run_excerpt(view: RecordView, name: str) -> Excerpt:
    target = view.run_dir / name
    text = ""
    if target.is_file() and not target.is_symlink():
        with open(target, "rb") as handle:
            text = handle.read(MAX_PACKET_CHARS).decode("utf-8", "backslashreplace")
    lines = text.split("\n")
    return Excerpt(f"run:{name}", tuple(lines[:MAX_LINES_PER_FILE]), len(lines))


def named_files(view: RecordView, paths: Iterable[str]) -> list[str]:
    """Workspace text files that an item's evidence names, report included."""
    files: list[str] = []
    for path in paths:
        matched = [] if path.startswith("run:") else view.matching(path)
        files += [name for name in matched if view.is_text(name)][:MAX_FILES_PER_PATTERN]
    return list(dict.fromkeys(files))


def build_packet(
    view: RecordView, trajectory: str, task: dict[str, Any], items: Sequence[PacketItem]
) -> EvidencePacket:
    """Packet of a batch: the files its items name, and the witness log, each cut to a bound."""
    excerpts: list[Excerpt] = []
    budget = MAX_PACKET_CHARS
    for path in named_files(view, [path for item in items for path in item.evidence]):
        excerpt = _excerpt(view, path)
        size = len(excerpt.render())
        if size > budget:
            # Said, not dropped in silence: the judge sees that the file exists and was not shown.
            excerpt, size = Excerpt(path, (), excerpt.n_lines), 0
        budget -= size
        excerpts.append(excerpt)
    excerpts.append(_run_excerpt(view, "tools.jsonl"))
    return EvidencePacket(trajectory, task, tuple(items), tuple(excerpts), view)


def _problem(view: RecordView, item: PacketItem, answer: Judgement) -> tuple[str, str] | None:
    """(grade status, reason) when an answer cannot be used, else None."""
    if answer.status not in MENU:
        return "unscored", f"status {str(answer.status)[:40]!r} is not one of {', '.join(MENU)}"
    if answer.confidence not in CONFIDENCES:
        return (
            "unscored",
            f"confidence {str(answer.confidence)[:40]!r} is not one of {', '.join(CONFIDENCES)}",
        )
    if not isinstance(answer.rationale, str) or not answer.rationale.strip():
        return "unscored", "no rationale"
    refs = answer.evidence_refs
    if not isinstance(refs, (list, tuple)) or not all(isinstance(ref, str) for ref in refs):
        return "bad_evidence", "evidence_refs is not a list of citations"
    for ref in refs:
        if not resolve_ref(view.run_dir, ref):
            return "bad_evidence", f"citation {ref[:120]!r} does not resolve in this record"
    if answer.status in ("PASS", "PARTIAL") and not refs:
        return "bad_evidence", f"{answer.status} without a citation"
    others = [path for path in item.evidence if path != REPORT and path not in GIVEN]
    if answer.status == "PASS" and others and all(ref.split("#", 1)[0] == REPORT for ref in refs):
        return "bad_evidence", f"PASS cites the narrative report alone where {others[0]} is named"
    return None


def _ask(
    view: RecordView, judge: Judge, packet: EvidencePacket
) -> tuple[dict[str, Judgement], dict[str, tuple[str, str]]]:
    """One question: usable answers, and (grade status, reason) for each item without one."""
    wanted = {item.item_id: item for item in packet.items}
    try:
        answers = judge.judge(packet)
    except JudgeError as error:
        reason = " ".join(str(error).split())[:MAX_RATIONALE_CHARS]
        return {}, dict.fromkeys(wanted, ("judge_error", f"judge gave no answer: {reason}"))
    if not isinstance(answers, list) or not all(isinstance(answer, Judgement) for answer in answers):
        return {}, dict.fromkeys(wanted, ("judge_error", "judge gave no list of judgements"))
    good: dict[str, Judgement] = {}
    bad: dict[str, tuple[str, str]] = {}
    for answer in answers:
        if answer.item_id not in wanted:
            continue  # an item nobody asked about has no row to go to
        if answer.item_id in good or answer.item_id in bad:
            good.pop(answer.item_id, None)
            bad[answer.item_id] = ("unscored", "judge answered this item more than once")
            continue
        problem = _problem(view, wanted[answer.item_id], answer)
        if problem:
            bad[answer.item_id] = problem
        else:
            good[answer.item_id] = answer
    for item_id in wanted:
        if item_id not in good and item_id not in bad:
            bad[item_id] = ("unscored", "judge left this item out")
    return good, bad


def _batches(items: Sequence[PacketItem]) -> list[list[PacketItem]]:
    """Items of one stage, and in reflection of one round, are asked together."""
    groups: dict[tuple[str, int | None], list[PacketItem]] = {}
    for item in items:
        groups.setdefault((item.stage, item.round), []).append(item)
    return list(groups.values())


def judge_run(run_dir: str | os.PathLike[str], task: Any, rubric: Any, judge: Judge) -> list[dict[str, Any]]:
    """Judge every semantic item of one record.

    Args:
        run_dir: a complete record (``run.json`` and ``workspace/``).
        task: the :class:`~acpbench.tasks.models.Task` of the record.
        rubric: the loaded rubric.
        judge: who judges what the cap rule leaves.

    Returns:
        Rows of ``judgements.jsonl`` in the order of the expanded catalogue. ``status`` is null where
        ``grade_status`` is ``unscored``, ``bad_evidence`` or ``judge_error``.

    Raises:
        InputError: not a record, a record of another task, or a replay without the kept answer.
    """
    from acpbench.trajectory.record import load_run

    run_dir = Path(run_dir)
    record = load_run(run_dir)
    if record.task_id != task.task_id:
        raise InputError(
            f"is a record of task {record.task_id}, not of {task.task_id}", file=run_dir / "run.json"
        )
    view = RecordView(run_dir)
    items = [item for item in expand(rubric, task, rubric.rounds) if item.checkpoint.kind == "semantic"]
    packed = {
        item.item_id: PacketItem(
            item_id=item.item_id,
            checkpoint=item.checkpoint.id,
            stage=item.checkpoint.stage,
            round=item.round,
            text=item.checkpoint.text,
            evidence=evidence_paths(item.evidence),
        )
        for item in items
    }
    capped = {
        item_id: missing
        for item_id, item in packed.items()
        if (missing := missing_evidence(view, item.evidence))
    }
    facts = task.model_dump(mode="json")
    answers: dict[str, Judgement] = {}
    failures: dict[str, tuple[str, str]] = {}
    for batch in _batches([item for item_id, item in packed.items() if item_id not in capped]):
        good, bad = _ask(view, judge, build_packet(view, record.trajectory_id, facts, batch))
        answers |= good
        if bad:
            again = [item for item in batch if item.item_id in bad]
            good, bad = _ask(view, judge, build_packet(view, record.trajectory_id, facts, again))
            answers |= good
            failures |= bad

    rows = []
    for item in items:
        definition = item.checkpoint
        row: dict[str, Any] = {
            "trajectory": record.trajectory_id,
            "item_id": item.item_id,
            "checkpoint": definition.id,
            "stage": definition.stage,
            "subcapability": definition.subcapability,
            "kind": definition.kind,
            "round": item.round,
            "critical": definition.critical,
            "weight": definition.weight,
            "rule": definition.rule,
        }
        outcome: dict[str, Any] = {"status": None, "evidence_refs": [], "confidence": None}
        if item.item_id in capped:
            outcome |= {"status": "FAIL", "grade_status": "capped"}
            outcome["rationale"] = f"named evidence is missing: {', '.join(capped[item.item_id])}"
        elif item.item_id in answers:
            answer = answers[item.item_id]
            outcome |= {
                "status": answer.status,
                "grade_status": "scored",
                "evidence_refs": list(answer.evidence_refs),
                "confidence": answer.confidence,
                "rationale": " ".join(answer.rationale.split())[:MAX_RATIONALE_CHARS],
            }
        else:
            grade, reason = failures[item.item_id]
            outcome |= {"grade_status": grade, "rationale": f"asked twice; {reason}"}
        order = ("status", "grade_status", "evidence_refs", "rationale", "confidence")
        row |= {key: outcome[key] for key in order}
        row["findings"] = [
            finding.as_row()
            for path in named_files(view, packed[item.item_id].evidence)
            for finding in view.findings(path)
        ]
        row["judge"] = judge.identity.as_row()
        rows.append(row)
    return rows
