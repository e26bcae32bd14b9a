"""Requirement subnodes: what a complete workflow for a task must hold, by category."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator

from acpbench.core.ids import check_id
from acpbench.tasks.catalogue import read_versioned
from acpbench.tasks.models import CONDITIONS, Strict, Task, schema_line

REQUIREMENTS_SCHEMA = "acp-subnodes/0.1"

Category = Literal[
    "clinical_framing",
    "data_source_grounding",
    "pipeline_design",
    "target_modeling",
    "evaluation_design",
    "interpretation",
    "iteration_readiness",
]
CATEGORIES: tuple[str, ...] = (
    "clinical_framing",
    "data_source_grounding",
    "pipeline_design",
    "target_modeling",
    "evaluation_design",
    "interpretation",
    "iteration_readiness",
)
"""The seven requirement categories in workflow order."""


class Subnode(Strict):
    """One requirement. ``core`` belongs to a workflow type, ``conditional`` to a property of the task."""

    id: str
    category: Category
    kind: Literal["core", "conditional"]
    when: str = Field(description="Condition on the task: all, a flag of the task, or output_type==X.")
    name: str
    definition: Annotated[str, Field(min_length=1)]

    @field_validator("id", "name")
    @classmethod
    def _check_id(cls, value: str) -> str:
        return check_id(value, "id")

    @field_validator("when")
    @classmethod
    def _check_when(cls, value: str) -> str:
        if value not in CONDITIONS:
            raise ValueError(f"expected one of {', '.join(sorted(CONDITIONS))}")
        return value


class Requirements(Strict):
    """The requirement map without its ``schema`` line."""

    model_config = ConfigDict(json_schema_extra=schema_line(REQUIREMENTS_SCHEMA))

    published_totals: dict[Category, int] = Field(
        description="Totals over the 41 benchmark tasks as published; a check on the map, never an input."
    )
    subnodes: Annotated[list[Subnode], Field(min_length=1)]

    @field_validator("subnodes")
    @classmethod
    def _check_unique(cls, value: list[Subnode]) -> list[Subnode]:
        ids = [subnode.id for subnode in value]
        repeated = sorted({identifier for identifier in ids if ids.count(identifier) > 1})
        if repeated:
            raise ValueError(f"ids used twice: {', '.join(repeated)}")
        return value


def load_requirements(path: str | Path) -> Requirements:
    """Read a requirement map.

    Raises:
        InputError: names the file, the field and what was expected.
    """
    return read_versioned(path, Requirements, REQUIREMENTS_SCHEMA)


def assigned_subnodes(requirements: Requirements, task: Task) -> list[Subnode]:
    """List the subnodes whose condition ``task`` meets, in the order of the map."""
    return [subnode for subnode in requirements.subnodes if task.matches(subnode.when)]


def count_by_category(subnodes: Sequence[Subnode]) -> dict[str, int]:
    """Count subnodes per category; every category is present."""
    counts = dict.fromkeys(CATEGORIES, 0)
    for subnode in subnodes:
        counts[subnode.category] += 1
    return counts


def requirement_table(requirements: Requirements, tasks: Sequence[Task]) -> dict[str, Any]:
    """Assign subnodes to every task and add them up.

    Returns:
        ``{"tasks": [{"task_id", "subnodes": [id, ...], "counts": {category: n}, "total": n}],
        "totals": {category: n, ..., "all": n}}``.
    """
    rows = []
    totals = dict.fromkeys(CATEGORIES, 0)
    for task in tasks:
        subnodes = assigned_subnodes(requirements, task)
        counts = count_by_category(subnodes)
        for category, count in counts.items():
            totals[category] += count
        rows.append(
            {
                "task_id": task.task_id,
                "subnodes": [subnode.id for subnode in subnodes],
                "counts": counts,
                "total": len(subnodes),
            }
        )
    return {"tasks": rows, "totals": {**totals, "all": sum(totals.values())}}
