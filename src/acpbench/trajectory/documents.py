"""Typed documents that an agent writes: the workflow specification, reports and reflection records.

Unknown extra fields are kept (agents may say more); what is named here must have the right type. The
JSON Schemas under ``workflow/schemas/`` are generated from these models and copied into each workspace.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["slide_processing", "feature_extraction", "model", "evaluation", "report", "verification"]
Number = float | int


GIVEN_FOLDERS = ("data/", "skills/", "schemas/", ".agents/skills/", ".claude/skills/")
GIVEN_FILES = ("task.json", "TASK.md", "registry.json", "memory/group_memory.jsonl")
"""What a run starts from: inputs that no step of a plan has to make."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class Intent(_Document):
    """What the run is for, in the task's own terms."""

    task_id: str
    endpoint: str
    output_type: str
    claim_boundary_type: str
    unit_of_prediction: str = "patient"


class Step(_Document):
    """One node of the workflow graph; paths are relative to the workspace."""

    id: str = Field(min_length=1)
    tool: str = Field(min_length=1)
    role: Role
    params: dict[str, Any]
    inputs: list[str]
    outputs: list[str]


class WorkflowSpec(_Document):
    """``plan/workflow_spec.json``: an ordered graph of tool calls."""

    schema_: Literal["acp-workflow-spec/0.1"] = Field("acp-workflow-spec/0.1", alias="schema")
    intent: Intent
    steps: list[Step] = Field(min_length=1)
    params: dict[str, Any]
    split: dict[str, Any]
    evaluation: dict[str, Any]
    expected_artifacts: dict[str, str]
    round_id: int = Field(ge=0)
    seed: int


class Headline(_Document):
    """The one number a report leads with, and the file it comes from."""

    metric: str
    value: Number | None
    interval: list[Number | None] | None = None
    split: str
    n: int | None
    file: str


class Claim(_Document):
    """One statement and the workspace files that carry it."""

    text: str
    evidence: list[str]


class Report(_Document):
    """``reports/report.json``: the structured twin of ``reports/report.md``."""

    schema_: Literal["acp-report/0.1"] = Field("acp-report/0.1", alias="schema")
    task_id: str
    endpoint: str
    output_type: str
    classes: list[str] = []
    claim_boundary_type: str
    round_selected: int = Field(ge=0)
    headline: Headline | None
    claims: list[Claim]
    artifacts: list[str]
    missing_evidence: list[str]
    limitations: list[str]
    test_receipt: dict[str, Any] | None = None


class WeakestLink(_Document):
    """The one step or decision a round blames, with its evidence."""

    step: str
    stage: str
    description: str
    evidence: list[str]


class Critique(_Document):
    """``reflection/round_k/critique.json``."""

    weakest_link: WeakestLink
    metrics: dict[str, Number | None] = {}
    alternatives: list[str] = []
    data_and_label_considerations: str = ""
    endpoint_unchanged: bool | None = None
    claim_boundary_type: str | None = None


class Update(_Document):
    """``reflection/round_k/update.json``: one named change and what it should do."""

    step: str = Field(min_length=1)
    parameter: str = Field(min_length=1)
    old: Any
    new: Any
    expected_effect: str = Field(min_length=1)
    measure: str = ""


class Change(_Document):
    """Old and new value of one configuration field."""

    old: Any
    new: Any


class ConfigDiff(_Document):
    """``reflection/round_k/config_diff.json``: dotted field → old and new value."""

    changed: dict[str, Change]


class RoundSummary(_Document):
    """``reflection/round_k/summary.json``: the comparison with the round before."""

    round_id: int = Field(ge=1)
    metric: str
    split: str
    n: int | None
    previous: Number | None
    current: Number | None
    delta: Number | None
    verdict: Literal["improved", "unchanged", "worse", "not_comparable"]
    decision: Literal["keep", "revert", "stop"]
    statement: str = ""


class ReflectionSummary(_Document):
    """``reflection/summary.json``: all rounds and the choice between them."""

    rounds: list[dict[str, Any]]
    selected_round: int = Field(ge=0)
    stop_reason: str


class Metrics(_Document):
    """``metrics.json`` of a round: values on a held-out split, null with a note where undefined."""

    task_id: str
    round_id: int = Field(ge=0)
    split: str
    primary_metric: str
    metrics: dict[str, Number | None]
    intervals: dict[str, list[Number | None] | None] = {}
    notes: dict[str, str] = {}
    n: int = Field(ge=0)
    n_per_class: dict[str, int] = {}
    n_events: int | None = None
    per_class: dict[str, dict[str, Number | None]] = {}
    config_sha256: str | None = None


class PredictionRow(_Document):
    """One row of ``predictions.csv``: one case. Class endpoints add a ``prob_<class>`` column a class.

    Cells are texts as in the file; an empty ``y_true``, ``time`` or ``event`` is a label that is held back.
    """

    case_id: str = Field(min_length=1)
    split: Literal["train", "validation", "test"]
    y_true: str = ""
    y_pred: str | None = None
    risk: str | None = None
    time: str = ""
    event: str = ""


class MemoryEntry(_Document):
    """One line of execution memory: a failure that was seen, or a configuration that worked.

    Agents write ``kind`` and ``text``, and what else they know, to ``memory/execution_memory.jsonl``. Lines
    that a later task of the group is given (``memory/group_memory.jsonl``) say where they come from.
    """

    kind: Literal["failure", "success"]
    text: str = Field(min_length=1, max_length=600)
    task_id: str | None = None
    round_id: int | None = Field(None, ge=0)
    step_id: str | None = None
    tool: str | None = None
    args: dict[str, Any] | None = None
    source: Literal["witnessed", "agent"] | None = None
    run: str | None = Field(None, description="The trajectory it was seen in.")


class ClaimBoundary(_Document):
    """What a report on the task may say."""

    type: str
    statement: str


class TaskBrief(_Document):
    """``task.json`` of a workspace: what is asked and within which bounds, beside the task's other fields."""

    schema_: Literal["acp-task-brief/0.1"] = Field("acp-task-brief/0.1", alias="schema")
    goal: str
    endpoint: str
    claim_boundary: ClaimBoundary
    expected_outputs: dict[str, str]
    label_access: Literal["heldout", "open"]
    test_evaluations: int = Field(ge=0)
    max_rounds: int = Field(ge=0)
    task_id: str
    output_type: str


DocumentName = Literal[
    "workflow_spec",
    "report",
    "critique",
    "update",
    "config_diff",
    "round_summary",
    "reflection_summary",
    "metrics",
    "predictions",
    "execution_memory",
    "task_brief",
]
DOCUMENTS: dict[DocumentName, type[BaseModel]] = {
    "workflow_spec": WorkflowSpec,
    "report": Report,
    "critique": Critique,
    "update": Update,
    "config_diff": ConfigDiff,
    "round_summary": RoundSummary,
    "reflection_summary": ReflectionSummary,
    "metrics": Metrics,
    "predictions": PredictionRow,
    "execution_memory": MemoryEntry,
    "task_brief": TaskBrief,
}
"""Name of a schema file → its model. ``predictions`` is of one row, ``execution_memory`` of one line."""
