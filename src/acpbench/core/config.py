"""The study configuration: one typed model, from which the JSON Schema and the key reference come."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from acpbench.core.errors import describe_validation
from acpbench.core.files import read_json, read_yaml
from acpbench.core.groups import AnyGroup, Group, load_groups, parse_group

__all__ = ["AnyGroup", "Group", "StudyConfig", "load_groups", "load_study", "parse_group", "parse_study"]
Identifier = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CohortColumns(_Strict):
    """Which manifest column is which."""

    slide_id: str = "slide_id"
    patient_id: str = "patient_id"
    path: str = "path"
    mpp: str | None = Field(None, description="Column with micrometres per pixel, where slides lack it.")
    mask: str | None = Field(None, description="Column with a tissue mask of your own, where there is one.")
    clinical_patient_id: str | None = Field(
        None, description="Column of the patient id in the clinical table; default: as in the manifest."
    )


class Cohort(_Strict):
    """A slide set: a manifest, and how to read it."""

    manifest: str = Field(description="CSV, TSV or XLSX with one row a slide; paths relative to its folder.")
    slide_dir: str | None = Field(None, description="Folder of the slides, where it is not the manifest's.")
    suffix: str = Field("", description="Added to every slide path, for manifests that leave it out (.svs).")
    clinical: str | None = Field(
        None, description="Table with a row a patient; its columns join the manifest's as labels."
    )
    generator: Literal["synthetic_he"] | None = Field(
        None, description="Draw the slides from the manifest's rows instead of reading files."
    )
    columns: CohortColumns = CohortColumns()
    mpp: float | None = Field(None, gt=0, description="Micrometres per pixel declared for all slides.")
    mask_dir: str | None = Field(
        None, description="Folder of tissue masks of your own: <slide_id>.geojson, .png or .tif."
    )
    mask_classes: list[str] | None = Field(
        None, description="Classes of GeoJSON masks that are tissue; default: every polygon."
    )
    min_tissue_um2: float = Field(10_000, ge=0, description="Smaller pieces of tissue are dropped.")
    max_hole_um2: float = Field(20_000, ge=0, description="Smaller holes in tissue are filled.")
    artefacts_removed: list[Literal["pen", "fold", "bubble"]] = Field(
        ["pen"], description="Artefacts taken out of the tissue; all are measured in any case."
    )
    cache_dir: str | None = Field(
        None, description="Folder on a fast local disk where slides are copied before they are read."
    )


class TaskBinding(_Strict):
    """Bind a task to a cohort's columns. Without ``definition`` the task is a reference target only."""

    cohort: str
    definition: str | None = Field(None, description="Task file; needed for agent runs.")
    label_column: str | None = None
    time_column: str | None = None
    event_column: str | None = None
    site_column: str | None = Field(
        None, description="Column of the site (hospital, scanner); a site is then never in two folds."
    )
    classes: list[str] | None = Field(None, description="Class names in order (without a definition).")
    label_map: dict[str, str] | None = Field(
        None, description="Cell → class name; rows with other cells are left out and counted."
    )
    output_type: Literal["binary", "multiclass", "ordinal", "continuous", "survival"] | None = None

    @model_validator(mode="after")
    def _has_a_label(self) -> TaskBinding:
        if (self.label_column is None) == (self.time_column is None):
            raise ValueError("give either label_column, or time_column with event_column")
        if self.time_column is not None and self.event_column is None:
            raise ValueError("time_column needs event_column")
        if self.definition is None and self.label_column and not (self.classes or self.output_type):
            raise ValueError("without a definition, give classes (in order) or output_type: continuous")
        return self

    @property
    def resolved_output_type(self) -> str | None:
        """Output type given here or implied by the columns and classes; None when a definition decides."""
        if self.output_type or self.definition:
            return self.output_type
        if self.time_column:
            return "survival"
        return "binary" if len(self.classes or []) == 2 else "multiclass"

    @property
    def columns(self) -> dict[str, str]:
        """The cohort columns that hold the label, and the site where folds are of whole sites."""
        names = ("label_column", "time_column", "event_column", "site_column")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Tiling(_Strict):
    """The tile grid, by micrometres per pixel."""

    spacing_um: float = Field(0.5, gt=0, le=20)
    tile_size_px: int = Field(224, ge=32)
    min_tissue: float = Field(0.5, ge=0, le=1, description="Smallest tissue share of a kept tile.")
    min_tiles: int = Field(4, ge=1, description="Slides with fewer tiles are excluded.")


class Vision(_Strict):
    """A vision-language model behind OpenAI-compatible chat; its key by the name of a variable only."""

    base_url: str = Field(pattern=r"^https?://", description="Address up to and without /chat/completions.")
    model: str
    api_key_env: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*$", description="Variable with the key.")
    timeout_s: float = Field(120, gt=0, le=3600)
    max_tokens: int = Field(500, ge=1, le=8192)


class Trajectories(_Strict):
    """Which agents run, and under what rules."""

    groups: list[str] = Field(default=[], description="Group ids of config/groups.yaml.")
    tasks: list[str] | None = Field(None, description="Task ids; default: all tasks with a definition.")
    replicates: int = Field(1, ge=1)
    label_access: Literal["heldout", "open"] = "heldout"
    test_evaluations: int = Field(1, ge=0, description="How often evaluate_test answers in one run.")
    skills: str | None = Field("skills", description="Folder of skills; null for the ablation without.")
    memory: Literal["none", "group"] = Field(
        "none", description="group: a run is given what its group learned in the tasks before it, in order."
    )
    vision: Vision | None = Field(None, description="Vision-language model behind the captioning tool.")
    wall_limit_s: float = Field(1800, gt=0, description="Wall time of a run whose group sets none, s.")


class StudyConfig(_Strict):
    """The whole configuration of a study."""

    study: str = Identifier
    seed: int = 0
    offline: bool = Field(True, description="Never reach out for encoder weights.")
    cohorts: dict[str, Cohort]
    tasks: dict[str, TaskBinding]
    tiling: Tiling = Tiling()
    encoders: list[str] = ["efficientnet_lite0", "color_stats"]
    control_encoder: str = "color_stats"
    agent_encoder: str = "efficientnet_lite0"
    encoders_config: str = "config/encoders.yaml"
    folds: int = Field(5, ge=3)
    bootstrap_resamples: int = Field(1000, ge=100)
    mil: dict[str, Any] = Field(default={}, description="Settings of the reference ABMIL (see docs).")
    groups_config: str = "config/groups.yaml"
    trajectories: Trajectories = Trajectories()
    judge: Literal["offline"] = "offline"
    rubric: str = "tasks/rubric.yaml"
    reviews: str = "reviews/checkpoints"
    attention_pictures: int = Field(4, ge=0, description="Overlays drawn per task for the report.")

    @model_validator(mode="after")
    def _names_resolve(self) -> StudyConfig:
        for name, binding in self.tasks.items():
            if binding.cohort not in self.cohorts:
                raise ValueError(f"tasks.{name}.cohort {binding.cohort!r} is not under cohorts")
        for field in ("control_encoder", "agent_encoder"):
            if self.trajectories.groups and getattr(self, field) not in self.encoders:
                raise ValueError(f"{field} {getattr(self, field)!r} is not under encoders")
        for task in self.trajectories.tasks or []:
            if task not in self.tasks or self.tasks[task].definition is None:
                raise ValueError(f"trajectories.tasks: {task!r} needs an entry with a definition under tasks")
        return self

    @property
    def agent_tasks(self) -> list[str]:
        """Tasks that agents run."""
        defined = [name for name, binding in self.tasks.items() if binding.definition]
        return defined if self.trajectories.tasks is None else self.trajectories.tasks

    def task_before(self, task_id: str) -> str | None:
        """The task whose memory a run of ``task_id`` carries on: the one before it in the study's order.

        ``None`` for the first one and in a study without memory.
        """
        if self.trajectories.memory == "none" or task_id not in self.agent_tasks:
            return None
        place = self.agent_tasks.index(task_id)
        return None if place == 0 else self.agent_tasks[place - 1]


def parse_study(value: Any, file: object) -> StudyConfig:
    """Validate a configuration that has been read already. Raises ``InputError`` naming file and field."""
    try:
        return StudyConfig.model_validate(value)
    except ValidationError as error:
        raise describe_validation(error, file) from None


def load_study(path: str | os.PathLike[str]) -> StudyConfig:
    """Read a study configuration (YAML or JSON)."""
    return parse_study(read_json(path) if str(path).endswith(".json") else read_yaml(path), path)


def study_document(study: StudyConfig, groups: dict[str, AnyGroup]) -> dict[str, Any]:
    """``results/study.json``: the grid for the report, and the whole configuration for the runs."""
    return {
        "schema": "acp-study/0.1",
        "study": study.study,
        "synthetic": any(cohort.generator for cohort in study.cohorts.values()),
        "groups": [{"id": name, **group.model_dump()} for name, group in groups.items()],
        "tasks": study.agent_tasks if study.trajectories.groups else [],
        "replicates": study.trajectories.replicates,
        "encoders": study.encoders,
        "control_encoder": study.control_encoder,
        "cohorts": list(study.cohorts),
        "reference_tasks": list(study.tasks),
        "judge": study.judge,
        "label_access": study.trajectories.label_access,
        "config": study.model_dump(),
    }
