"""Scores of runs that say nothing about the agent: withheld, with the reason, never zero.

A run that the infrastructure broke (no tools, a full disk, a storm of refused requests) is recorded and
counted in N, but its scores are null and enter no mean.
"""

from __future__ import annotations

from typing import Any

NOT_THE_AGENTS = {"infra_error": "the infrastructure failed, not the agent: nothing is graded"}
"""``run_status`` → why such a run has no score."""

HEADLINES: dict[str, tuple[str, ...]] = {
    "workflow_score.json": (
        "item_weighted",
        "stage_mean",
        "stages",
        "subcapabilities",
        "passes",
        "bounds",
        "by_kind",
    ),
    "diagnostic.json": (
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "primary_value",
        "primary_interval",
        "metrics",
        "levels",
    ),
    "cwas3.json": ("score", "components"),
    "r6.json": ("score", "components"),
    "reflection.json": ("evidence_score", "evidence_class", "parts", "first", "final", "delta", "direction"),
}
"""Score file → the fields that judge the agent."""


def _nulled(value: Any) -> Any:
    """The same keys with nothing in them."""
    return {key: _nulled(entry) for key, entry in value.items()} if isinstance(value, dict) else None


def withhold(name: str, document: dict[str, Any], run_status: str) -> dict[str, Any]:
    """``document`` as it is, or with its verdicts nulled and the reason given.

    Args:
        name: score file, a key of :data:`HEADLINES`.
        document: its content.
        run_status: how the run ended.
    """
    reason = NOT_THE_AGENTS.get(run_status)
    if reason is None:
        return document
    nulled = {key: _nulled(document[key]) for key in HEADLINES[name]}
    more = {"primary_note": reason} if name == "diagnostic.json" else {}
    return document | nulled | more | {"grade_status": run_status, "reason": reason}
