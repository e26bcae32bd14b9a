"""The rubric: checkpoint definitions, status values and the reflection rounds they are expanded over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from acpbench.core.ids import check_id
from acpbench.tasks.models import CONDITIONS, Strict, schema_line

RUBRIC_SCHEMA = "acp-rubric/0.1"

Stage = Literal["planning", "action", "diagnosis", "reflection"]
STAGES: tuple[str, ...] = ("planning", "action", "diagnosis", "reflection")
"""The four stages in order; the first letter of a subcapability id is that of its stage."""

RuleName = Literal[
    "semantic_judgement",
    "file_exists",
    "dir_exists",
    "json_field",
    "json_schema",
    "csv_columns",
    "csv_rowcount",
    "csv_values",
    "id_join",
    "graph_check",
    "hash_match",
    "config_diff",
    "timestamp_order",
    "tool_event",
    "regex",
    "regex_absent",
    "numeric_recompute",
]

ROUND_MARK = "{k}"
EVIDENCE_PREFIXES = ("run:", "reference:")
"""Evidence outside the workspace: the record around it, and the evaluator's own label table."""


class Checkpoint(Strict):
    """One checkpoint definition.

    ``evidence`` lists what the checkpoint reads: paths inside the workspace (a folder ends in ``/``, ``*`` is
    a wildcard, ``#/pointer`` names a part of a JSON file, ``{k}`` is the round), ``run:`` paths in the record
    around the workspace, and ``reference:`` paths of the evaluator.
    """

    id: str
    stage: Stage
    subcapability: str = Field(pattern=r"^[PADR][1-9]$")
    kind: Literal["semantic", "deterministic"]
    per_round: bool
    critical: bool
    weight: Literal[1, 2]
    rule: RuleName
    evidence: Annotated[list[str], Field(min_length=1)]
    text: Annotated[str, Field(min_length=1)]
    condition: str | None = None

    @field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        return check_id(value, "id")

    @field_validator("subcapability")
    @classmethod
    def _check_subcapability(cls, value: str, info: ValidationInfo) -> str:
        stage, identifier = info.data.get("stage", ""), info.data.get("id", "")
        if stage and value[0].lower() != stage[0]:
            raise ValueError(f"expected a subcapability of the stage {stage}")
        if identifier and identifier.split(".")[0] != value:
            raise ValueError(f"expected the part of the id before the dot ({identifier})")
        return value

    @field_validator("per_round")
    @classmethod
    def _check_per_round(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("stage") != "reflection":
            raise ValueError("only checkpoints of the stage reflection repeat per round")
        return value

    @field_validator("weight")
    @classmethod
    def _check_weight(cls, value: int, info: ValidationInfo) -> int:
        if "critical" in info.data and (value == 2) != info.data["critical"]:
            raise ValueError("expected 2 exactly for critical checkpoints, else 1")
        return value

    @field_validator("rule")
    @classmethod
    def _check_rule(cls, value: str, info: ValidationInfo) -> str:
        if "kind" in info.data and (value == "semantic_judgement") != (info.data["kind"] == "semantic"):
            raise ValueError("expected semantic_judgement exactly for semantic checkpoints")
        return value

    @field_validator("evidence")
    @classmethod
    def _check_evidence(cls, value: list[str], info: ValidationInfo) -> list[str]:
        for reference in value:
            path = reference
            for prefix in EVIDENCE_PREFIXES:
                path = path.removeprefix(prefix)
            path = path.partition("#")[0]
            if not path or path.startswith(("/", "~")) or ".." in path.split("/") or ":" in path:
                raise ValueError(
                    f"{reference!r} is not a path relative to the workspace, the run or the reference"
                )
            if ROUND_MARK in path and info.data.get("per_round") is False:
                raise ValueError(f"{reference!r} names a round, but the checkpoint is not per round")
        return value

    @field_validator("condition")
    @classmethod
    def _check_condition(cls, value: str | None) -> str | None:
        if value is not None and value not in CONDITIONS:
            raise ValueError(f"expected null or one of {', '.join(sorted(CONDITIONS))}")
        return value


class Rubric(Strict):
    """The whole rubric file without its ``schema`` line."""

    model_config = ConfigDict(json_schema_extra=schema_line(RUBRIC_SCHEMA))

    rounds: int = Field(ge=0, le=99, description="Reflection rounds expanded for every trajectory.")
    status_values: dict[Literal["PASS", "PARTIAL", "FAIL", "NA", "SKIP"], float | None]
    pass_threshold: float = Field(gt=0, le=1)
    subcapabilities: dict[str, str]
    checkpoints: Annotated[list[Checkpoint], Field(min_length=1)]

    @field_validator("status_values")
    @classmethod
    def _check_status_values(cls, value: dict[str, float | None]) -> dict[str, float | None]:
        missing = {"PASS", "PARTIAL", "FAIL", "NA", "SKIP"} - set(value)
        if missing:
            raise ValueError(f"expected a value for {', '.join(sorted(missing))}")
        for status, points in value.items():
            if (points is None) != (status == "SKIP"):
                raise ValueError("expected null exactly for SKIP: it alone leaves the denominator")
            if points is not None and not 0 <= points <= 1:
                raise ValueError(f"expected a value from 0 to 1 for {status}")
        return value

    @field_validator("checkpoints")
    @classmethod
    def _check_checkpoints(cls, value: list[Checkpoint], info: ValidationInfo) -> list[Checkpoint]:
        seen: set[str] = set()
        for checkpoint in value:
            if checkpoint.id in seen:
                raise ValueError(f"the id {checkpoint.id} is used twice")
            seen.add(checkpoint.id)
            if checkpoint.subcapability not in info.data.get(
                "subcapabilities", {checkpoint.subcapability: ""}
            ):
                raise ValueError(
                    f"{checkpoint.id}: {checkpoint.subcapability} is not among the subcapabilities"
                )
        return value


@dataclass(frozen=True)
class Item:
    """One checkpoint of one trajectory: a definition, or one round of a per-round definition.

    Attributes:
        item_id: the checkpoint's id; ``id@r<k>`` for round ``k``.
        checkpoint: the definition.
        round: 1-based reflection round, ``None`` for checkpoints of the whole trajectory.
        evidence: the definition's evidence with the round filled in.
    """

    item_id: str
    checkpoint: Checkpoint
    round: int | None
    evidence: tuple[str, ...]
