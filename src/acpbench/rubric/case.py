"""One checkpoint being decided: what it may read, the citations it leaves, the verdicts it can give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from acpbench.rubric import formats
from acpbench.rubric.evidence import Evidence, Rejected, round_folder
from acpbench.rubric.formats import Table


class Outcome(NamedTuple):
    """Status and the one line that says why."""

    status: str
    reason: str


Rule = Callable[["Case"], Outcome]
RULES: dict[str, Rule] = {}
"""Checkpoint id → rule. A checkpoint without an entry is ``not_implemented``."""


def rule(checkpoint_id: str) -> Callable[[Rule], Rule]:
    """Register the rule of one checkpoint."""

    def register(function: Rule) -> Rule:
        if checkpoint_id in RULES:
            raise ValueError(f"{checkpoint_id} has two rules")
        RULES[checkpoint_id] = function
        return function

    return register


def passed(reason: str) -> Outcome:
    """PASS."""
    return Outcome("PASS", reason)


def partial(reason: str) -> Outcome:
    """PARTIAL; only where the checkpoint's text names it."""
    return Outcome("PARTIAL", reason)


def failed(reason: str) -> Outcome:
    """FAIL."""
    return Outcome("FAIL", reason)


def decide(holds: bool, yes: str, no: str) -> Outcome:
    """PASS or FAIL."""
    return passed(yes) if holds else failed(no)


class Case:
    """Evidence seen through one checkpoint: each read is cited, a missing file ends the rule with FAIL."""

    def __init__(self, evidence: Evidence, round_id: int | None = None) -> None:
        self.evidence = evidence
        self.task = evidence.task
        self.round: int = 0 if round_id is None else round_id
        self.refs: list[str] = []

    @property
    def folder(self) -> str:
        """Folder of the round under decision (``outputs/round_0`` for whole-trajectory checkpoints)."""
        return round_folder(self.round)

    def cite(self, ref: str) -> None:
        """Add a citation once."""
        if ref not in self.refs:
            self.refs.append(ref)

    def _need(self, path: str, loaded: formats.Loaded) -> Any:
        if loaded.problem is not None:
            raise Rejected(f"{path} {loaded.problem}")
        self.cite(path)
        return loaded.value

    def need_file(self, path: str) -> None:
        """A non-empty output of this run."""
        problem = self.evidence.status(path)
        if problem:
            raise Rejected(f"{path} {problem}")
        self.cite(path)

    def need_prose(self, path: str) -> str:
        """Non-blank text."""
        return self._need(path, self.evidence.prose(path))

    def need_object(self, path: str) -> dict[str, Any]:
        """A non-empty JSON object."""
        value = self._need(path, self.evidence.json(path))
        if not isinstance(value, dict) or not value:
            raise Rejected(f"{path} is not a JSON object with fields")
        return value

    def need_config(self, path: str) -> dict[str, Any]:
        """A non-empty YAML mapping."""
        value = self._need(path, self.evidence.yaml(path))
        if not isinstance(value, dict) or not value:
            raise Rejected(f"{path} is not a mapping with fields")
        return value

    def need_records(self, path: str) -> list[dict[str, Any]]:
        """At least one JSON-lines object."""
        return self._need(path, self.evidence.jsonl(path))

    def need_table(self, path: str, columns: tuple[str, ...] = ()) -> Table:
        """A CSV with at least one row and these columns."""
        table: Table = self._need(path, self.evidence.table(path))
        lacking = [name for name in columns if name not in table.columns]
        if lacking:
            raise Rejected(f"{path} lacks the column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}")
        if not table.rows:
            raise Rejected(f"{path} has no row")
        return table

    def need_spec(self) -> dict[str, Any]:
        """The workflow specification."""
        return self.need_object("plan/workflow_spec.json")

    def need_metrics(self, round_id: int | None = None) -> dict[str, Any]:
        """The metrics document of a round (default: the round under decision)."""
        folder = self.folder if round_id is None else round_folder(round_id)
        return self.need_object(f"{folder}/metrics.json")

    def steps(self) -> list[dict[str, Any]]:
        """Steps of the specification that are objects with an id."""
        found = [
            step
            for step in formats.items(self.need_spec().get("steps"))
            if isinstance(step, dict) and formats.words(step.get("id"))
        ]
        if not found:
            raise Rejected("plan/workflow_spec.json lists no step with an id")
        return found

    def role(self, step: dict[str, Any]) -> str:
        """Role of a step: the registry's for its tool, else the one the step claims."""
        known = self.evidence.tool_roles.get(formats.words(step.get("tool")))
        return known or formats.words(step.get("role"))

    def predictions_path(self) -> str:
        """Predictions of the round under decision."""
        return f"{self.folder}/predictions.csv"
