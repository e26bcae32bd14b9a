"""What reflection rounds left as evidence, and whether the result changed from the first to the final round.

The evidence score has five parts of 0.2: a real round, a summary, a configuration change, rerun output that
differs, comparable metrics. The direction is final against first on one metric, split and n; values are
recomputed from the rounds' own predictions with the benchmark's labels on validation cases. Claimed values
serve only when no round of the record can be recomputed, and then say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from acpbench.rubric import formats
from acpbench.rubric.case import Case, Rejected
from acpbench.rubric.evidence import MAX_ROUND, Evidence, round_folder
from acpbench.rubric.recompute import DELTA_THRESHOLD, LOWER_IS_BETTER, claimed, recompute, split_name, squash
from acpbench.tasks.models import Task

SCHEMA = "acp-reflection/0.1"
PART_VALUE = 0.2
STRONG, PARTIAL = 0.8, 0.4
RERUN_ROLES = frozenset({"slide_processing", "feature_extraction", "model"})
NOT_A_CHANGE = frozenset({"round_id", "output_dir", "run_id", "created", "timestamp"})
FAMILY_ORDER = (
    ("AUROC", "macro_OvR_AUROC", "AUC"),
    ("AUPRC",),
    ("F1", "macro_F1"),
    ("balanced_accuracy",),
    ("accuracy",),
)
"""Metric families in the order in which the first with two comparable values is taken; others come after."""


class RoundValue(NamedTuple):
    """A metric of one round: ``source`` is recomputed or claimed; ``n`` cases of ``split``."""

    round: int
    value: float
    source: str
    split: str
    n: int | None


def metric_order(task: Task) -> list[str]:
    """Metrics in the order they are tried; survival, ordinal, continuous tasks start with their primary."""
    family = [task.metric_family.primary, *task.metric_family.secondary]
    if task.output_type in ("survival", "ordinal", "continuous"):
        return list(dict.fromkeys(family))
    ordered = [name for names in FAMILY_ORDER for name in names]
    return list(dict.fromkeys([*ordered, *family]))


def comparable(values: Sequence[RoundValue]) -> list[RoundValue]:
    """Largest set of values of one source, split and n (the earliest of equals); two at least, or none."""
    groups: dict[tuple[str, str, int | None], list[RoundValue]] = {}
    for value in sorted(values):
        groups.setdefault((value.source, value.split, value.n), []).append(value)
    best = max(groups.values(), key=len, default=[])
    return best if len(best) >= 2 else []


def direction(metric: str, delta: float) -> str:
    """improved, unchanged or worse at 0.001; for errors (Brier, MAE, ...) less is better."""
    better = -delta if squash(metric) in LOWER_IS_BETTER else delta
    # Binary fractions: 0.701 - 0.700 must not count as more than the threshold.
    if better > DELTA_THRESHOLD + 1e-12:
        return "improved"
    return "worse" if better < -DELTA_THRESHOLD - 1e-12 else "unchanged"


class _Rounds:
    """Values of every round of one record, recomputed and claimed."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.rounds = [k for k in evidence.rounds if 1 <= k <= MAX_ROUND]
        self.states = ([0] if evidence.round_exists(0) else []) + self.rounds
        self.recomputed: dict[int, tuple[dict[str, float | None], int]] = {}
        self.problems: dict[int, str] = {}
        for k in self.states:
            try:
                again = recompute(Case(evidence, k), "validation")
                self.recomputed[k] = (again.metrics, again.n)
            except Rejected as reason:
                self.problems[k] = str(reason)

    def document(self, k: int) -> dict[str, Any]:
        """Metrics document of a round, empty when it is no output of the run."""
        return formats.mapping(self.evidence.json(f"{round_folder(k)}/metrics.json").value)

    def values(self, metric: str) -> list[RoundValue]:
        """Values of a metric by round: recomputed ones when any round recomputes, else claimed ones."""
        found = []
        for k in self.states:
            if self.recomputed:
                metrics, n = self.recomputed.get(k, ({}, 0))
                value = formats.number(metrics.get(metric))
                if value is not None:
                    found.append(RoundValue(k, value, "recomputed", "validation", n))
                continue
            document = self.document(k)
            value = claimed(document, metric)
            if value is not None:
                split = split_name(document.get("split")) or ""
                found.append(RoundValue(k, value, "claimed", split, formats.whole(document.get("n"))))
        return found


def _real_round(evidence: Evidence, rounds: Iterable[int]) -> bool:
    """A witnessed, successful step that makes something new ran under a round that left files."""
    return any(
        event.round_id == k
        and event.exit_status == "ok"
        and bool(event.outputs)
        and evidence.tool_roles.get(event.name) in RERUN_ROLES
        for k in rounds
        for event in evidence.tool_events
    )


def _summary(evidence: Evidence, rounds: Iterable[int]) -> bool:
    paths = ["reflection/summary.json", *(f"{round_folder(k)}/summary.json" for k in rounds)]
    return any(formats.mapping(evidence.json(path).value) for path in paths)


def _configuration(evidence: Evidence, k: int) -> dict[str, Any]:
    flat = formats.flatten(formats.mapping(evidence.yaml(f"{round_folder(k)}/config.yaml").value))
    return {name: value for name, value in flat.items() if name.rsplit(".", 1)[-1] not in NOT_A_CHANGE}


def _config_change(evidence: Evidence, rounds: Iterable[int]) -> bool:
    for k in rounds:
        after = _configuration(evidence, k)
        befores = [before for base in evidence.bases(k) if (before := _configuration(evidence, base))]
        if after and befores and all(_differs(before, after) for before in befores):
            return True
    return False


def _differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return set(before) != set(after) or any(
        not formats.same_value(before[name], after[name]) for name in before
    )


def _rerun_output(evidence: Evidence, rounds: Iterable[int]) -> bool:
    """Predictions of a round differ from those of every round before."""
    seen = set()
    for k in (0, *rounds):
        path = f"{round_folder(k)}/predictions.csv"
        if evidence.status(path) is not None:
            continue
        digest = evidence.manifest[path].sha256
        if k and seen and digest not in seen:
            return True
        seen.add(digest)
    return False


def _why_not(table: _Rounds) -> str:
    """Why no two rounds can be compared."""
    if not table.rounds:
        return "no reflection round left an output"
    if not table.recomputed and not any(table.document(k) for k in table.states):
        return "no round left predictions or metrics that can be read"
    lacking = sorted(table.problems.items())
    if table.recomputed and lacking:
        k, reason = lacking[0]
        return f"fewer than two rounds can be recomputed (round {k}: {reason})"[:300]
    return "fewer than two rounds carry a value of one metric on the same split and n"


def reflection_score(
    run_dir: str | os.PathLike[str], task: Task, labels: Iterable[Mapping[str, str]] | None
) -> dict[str, Any]:
    """Evidence score and direction of the reflection rounds of one record.

    Args:
        run_dir: a complete record.
        task: the benchmark's task.
        labels: rows of the evaluator's ``labels.csv`` (None or empty: nothing is recomputed).

    Returns:
        The ``reflection.json`` value; ``provenance`` is empty, the caller fills it in. ``delta`` is final
        minus first in the metric's own unit and null where ``direction`` is ``not_comparable``.

    Raises:
        InputError: not a record.
    """
    evidence = Evidence(run_dir, task, labels or [])  # type: ignore[arg-type]
    table = _Rounds(evidence)
    rounds = table.rounds

    metric: str | None = None
    pair: list[RoundValue] = []
    for name in metric_order(task) if rounds else []:
        pair = comparable(table.values(name))
        if pair:
            metric = name
            break
    parts = {
        "real_round": _real_round(evidence, rounds),
        "summary": _summary(evidence, rounds),
        "config_change": _config_change(evidence, rounds),
        "rerun_output": _rerun_output(evidence, rounds),
        "comparable_metrics": bool(pair),
    }
    score = sum(parts.values()) / len(parts)
    delta = pair[-1].value - pair[0].value if pair else None
    shown = table.values(metric or task.metric_family.primary)
    return {
        "schema": SCHEMA,
        "trajectory": evidence.run.trajectory_id,
        "evidence_score": score,
        "evidence_class": "strong" if score >= STRONG else "partial" if score >= PARTIAL else "weak",
        "parts": {name: PART_VALUE if met else 0.0 for name, met in parts.items()},
        "n_rounds": len(rounds),
        "first": {"round": pair[0].round, "value": pair[0].value} if pair else None,
        "final": {"round": pair[-1].round, "value": pair[-1].value} if pair else None,
        "metric": metric,
        "delta": delta,
        "direction": "not_comparable" if delta is None else direction(str(metric), delta),
        "reason": _reason(pair) if pair else _why_not(table),
        "values": [
            {"round": value.round, "value": value.value, "source": value.source, "n": value.n}
            for value in shown
        ],
        "run_status": evidence.run.run_status,
        "grade_status": "scored",
        "provenance": {},
    }


def _reason(pair: Sequence[RoundValue]) -> str:
    first = pair[0]
    where = f"{first.n if first.n is not None else 'an unstated number of'} {first.split or 'unstated'} cases"
    return f"{len(pair)} {first.source} values on {where}"
