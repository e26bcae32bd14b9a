"""A reference target: what is predicted, from a task file or from a label column alone."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from acpbench.core.config import TaskBinding
from acpbench.core.errors import InputError
from acpbench.core.files import read_json
from acpbench.tasks.labels import LabelIndex
from acpbench.tasks.models import Task

PRIMARY_METRIC = {
    "binary": "AUROC",
    "multiclass": "macro_OvR_AUROC",
    "ordinal": "quadratic_weighted_kappa",
    "continuous": "spearman_rho",
    "survival": "c_index",
}


class Target(BaseModel):
    """Endpoint of the reference pipeline. ``label_map`` (cell → class) overrides name matching."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    task_id: str
    target: str
    output_type: Literal["binary", "multiclass", "ordinal", "continuous", "survival"]
    classes: list[str]
    codes: list[str] | None = None
    metric_family: dict[str, str]
    label_map: dict[str, str] | None = None

    def canonical_label(self, value: Any) -> str | None:
        """Class name of a cell, or None when it maps to no class."""
        if self.label_map is not None:
            return self.label_map.get(str(value).strip())
        return LabelIndex.of(tuple(self.classes), None if self.codes is None else tuple(self.codes)).find(
            value
        )


def make_target(task_id: str, binding: TaskBinding, task: Task | None) -> Target:
    """Combine a task definition, where there is one, with its binding to a cohort.

    Raises:
        InputError: the label map names a class that the target lacks.
    """
    if task is not None:
        output_type, classes, name = task.output_type, task.classes, task.target
        primary = task.metric_family.primary
        codes = [str(code) for code in task.label_values] if isinstance(task.label_values, dict) else None
    else:
        output_type = binding.resolved_output_type or "binary"
        classes, name, codes = list(binding.classes or []), task_id, None
        primary = PRIMARY_METRIC[output_type]
    clash = LabelIndex.clash(classes, codes)
    if clash:
        raise InputError(f"{clash}; name the classes otherwise", field=f"tasks.{task_id}.classes")
    unknown = sorted(set((binding.label_map or {}).values()) - set(classes))
    if unknown:
        raise InputError(
            f"maps to {unknown[0]!r}; the classes are {', '.join(classes)}",
            field=f"tasks.{task_id}.label_map",
        )
    return Target(
        task_id=task_id,
        target=name,
        output_type=output_type,
        classes=classes,
        codes=codes,
        metric_family={"primary": primary},
        label_map=binding.label_map,
    )


def read_target(path: str | os.PathLike[str]) -> Target:
    """Read ``target.json``."""
    return Target.model_validate(read_json(path))
