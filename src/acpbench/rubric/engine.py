"""Apply the deterministic rules to one record: rows of ``checks.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The rule modules register themselves.
from acpbench.rubric import (  # noqa: F401
    rules_action,
    rules_conditional,
    rules_diagnosis,
    rules_outputs,
    rules_planning,
    rules_reflection,
)
from acpbench.rubric.case import RULES, Case, Outcome, Rejected
from acpbench.rubric.catalogue import expand
from acpbench.rubric.evidence import Evidence
from acpbench.rubric.models import Item, Rubric
from acpbench.tasks.models import Task

MAX_REASON_CHARS = 300


def check_run(
    run_dir: str | Path,
    task: Task,
    labels: Iterable[Mapping[str, str]],
    rubric: Rubric,
    *,
    strict: bool = False,
) -> list[dict[str, Any]]:
    """Decide every deterministic item of a record.

    Args:
        run_dir: the record; its workspace may hold anything, also nothing.
        task: the benchmark's task.
        labels: rows of the evaluator's ``labels.csv``.
        rubric: the rubric.
        strict: let a rule's own error through (for tests) instead of failing the item.

    Returns:
        Rows in catalogue order with rounds expanded: trajectory, item_id, checkpoint, stage, subcapability,
        kind, round, critical, weight, rule, status (PASS, PARTIAL, FAIL, SKIP or not_implemented), evidence
        (citations of what was read), reason (one line without times or absolute paths).

    Raises:
        InputError: ``run.json`` or ``manifest.csv`` is missing or broken.
    """
    evidence = Evidence(run_dir, task, labels)
    return [
        _row(evidence, item, *_decide(evidence, item, strict=strict))
        for item in expand(rubric, task, rubric.rounds)
        if item.checkpoint.kind == "deterministic"
    ]


def _decide(evidence: Evidence, item: Item, *, strict: bool) -> tuple[Outcome, list[str]]:
    found = RULES.get(item.checkpoint.id)
    case = Case(evidence, item.round)
    if found is None:
        return Outcome("not_implemented", "no rule decides this checkpoint"), []
    try:
        outcome = found(case)
    except Rejected as reason:
        outcome = Outcome("FAIL", str(reason))
    except Exception as error:  # evidence of a shape no rule foresaw must neither pass nor stop the study
        if strict:
            raise
        outcome = Outcome("FAIL", f"the evidence has a shape the rule cannot read ({type(error).__name__})")
    return outcome, case.refs


def _row(evidence: Evidence, item: Item, outcome: Outcome, refs: list[str]) -> dict[str, Any]:
    checkpoint = item.checkpoint
    return {
        "trajectory": evidence.run.trajectory_id,
        "item_id": item.item_id,
        "checkpoint": checkpoint.id,
        "stage": checkpoint.stage,
        "subcapability": checkpoint.subcapability,
        "kind": "deterministic",
        "round": item.round,
        "critical": checkpoint.critical,
        "weight": checkpoint.weight,
        "rule": checkpoint.rule,
        "status": outcome.status,
        "evidence": refs,
        "reason": _one_line(outcome.reason),
    }


def _one_line(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:MAX_REASON_CHARS]
