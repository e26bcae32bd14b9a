"""The task model: what one benchmark task asks for, from which labels, and what may be claimed.

A task is metadata only. It never holds a path, a slide or a label of a patient; those come from the cohort
manifest that a study's configuration binds to the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from acpbench.core.ids import check_id
from acpbench.tasks.labels import LabelIndex

TASK_SCHEMA = "acp-task/0.1"

METRICS_BY_OUTPUT: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "binary": (
        frozenset({"AUROC", "AUPRC", "balanced_accuracy", "accuracy", "F1", "macro_F1"}),
        frozenset({"brier", "ECE"}),
    ),
    "multiclass": (
        frozenset({"macro_OvR_AUROC", "macro_F1", "balanced_accuracy", "accuracy"}),
        frozenset({"brier", "ECE"}),
    ),
    "ordinal": (
        frozenset({"quadratic_weighted_kappa", "MAE_ranks", "balanced_accuracy", "macro_F1", "accuracy"}),
        frozenset(),
    ),
    "continuous": (
        frozenset({"spearman_rho", "R2", "MAE"}),
        frozenset({"pearson_r", "AUROC_median_split"}),
    ),
    "survival": (frozenset({"c_index", "IPCW_c_index"}), frozenset({"td_AUROC", "logrank_p"})),
}
"""Output type → (metrics that may be primary, further metrics that may only be secondary)."""

TASK_FLAGS = (
    "wsi_to_label",
    "calibration_bearing",
    "multiclass",
    "ordinal",
    "expression_like",
    "pan_cancer",
)
OUTPUT_TYPES = tuple(METRICS_BY_OUTPUT)
CONDITIONS = frozenset(
    {"all", *TASK_FLAGS, *OUTPUT_TYPES} | {f"output_type=={output}" for output in OUTPUT_TYPES}
)
"""Conditions that requirement subnodes and checkpoints may name; :meth:`Task.matches` evaluates them."""

Text = Annotated[str, Field(min_length=1)]
OutputType = Literal["binary", "multiclass", "ordinal", "continuous", "survival"]
ReferenceGroup = Literal["biomarker", "morphology", "prognosis"]
BodySystem = Literal[
    "genitourinary", "breast_gynecologic", "digestive", "respiratory", "nervous", "multisystem", "synthetic"
]
TargetFamily = Literal[
    "somatic_alteration",
    "mismatch_repair",
    "receptor_status",
    "expression_phenotype",
    "histologic_diagnosis",
    "histologic_grade",
    "survival_outcome",
    "staging_status",
    "treatment_response",
]
BODY_SYSTEMS = tuple(system for system in get_args(BodySystem) if system != "synthetic")
"""The six body systems of the benchmark; demo tasks are ``synthetic`` instead."""
TARGET_FAMILIES: tuple[str, ...] = get_args(TargetFamily)
"""The nine target families of the benchmark."""
LabelReferenceType = Literal[
    "pathologist_diagnosis",
    "pathologist_adjudicated",
    "ihc",
    "clinical_stage_record",
    "molecular_assay",
    "outcome_record",
    "derived_expression",
    "generator_parameter",
]
ClaimBoundaryType = Literal[
    "wsi_to_label_prediction",
    "research_only_prediction",
    "tissue_phenotype_classification",
    "direct_diagnostic_adjudication",
    "staging_support",
]


class Strict(BaseModel):
    """Base of every model read from a file: immutable, unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def schema_line(version: str) -> Callable[[dict[str, Any]], None]:
    """Document a file's ``schema`` line in the generated JSON Schema.

    The reader (``catalogue.read_versioned``) checks the line and takes it off: the model has no such field.
    """

    def add(schema: dict[str, Any]) -> None:
        line = {"const": version, "description": "Version of this file format.", "type": "string"}
        schema["properties"] = {"schema": line, **schema["properties"]}

    return add


class Access(Strict):
    """Where the slides are published."""

    name: Text
    url: str = Field(description="Address of the collection; empty for generated slides.")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not url.startswith(("https://", "http://")):
            raise ValueError("expected an http(s) address, or an empty text")
        return url


class MetricFamily(Strict):
    """The metrics a result of this task may be reported in."""

    primary: Text
    secondary: list[Text] = []


class CohortSize(Strict):
    """Published size of the cohort; ``null`` where it is not known."""

    slides: int | None = Field(default=None, ge=1)
    patients: int | None = Field(default=None, ge=1)
    balance: str | None = None
    verified_from: Text = Field(
        description="Which of these numbers were read where, and which were not verified."
    )


class Task(Strict):
    """One benchmark task. Field order is the order of the YAML files in ``tasks/``."""

    model_config = ConfigDict(json_schema_extra=schema_line(TASK_SCHEMA))

    task_id: str
    organ: Text
    body_system: BodySystem
    reference_group: ReferenceGroup
    target_family: TargetFamily
    target: Text
    cohort: Text
    access: Access
    label_source: Text
    label_values: dict[str, str] | list[str | int] | str = Field(
        description="Classes in order (code: name, or a list of names), or a text saying what is measured."
    )
    output_type: OutputType
    output_structure: Text
    metric_family: MetricFamily
    label_reference_type: LabelReferenceType
    claim_boundary_type: ClaimBoundaryType
    claim_boundary_statement: Text
    wsi_to_label: bool
    calibration_bearing: bool
    multiclass: bool
    ordinal: bool
    expression_like: bool
    pan_cancer: bool
    n: CohortSize
    note: str = ""
    demo: bool = False

    @field_validator("task_id")
    @classmethod
    def _check_task_id(cls, task_id: str) -> str:
        return check_id(task_id, "task_id")

    @field_validator("label_values", mode="before")
    @classmethod
    def _plain_labels(cls, value: Any) -> Any:
        """Accept YAML's integer codes and names; refuse booleans, which unquoted yes and no turn into."""
        cells = [*value, *value.values()] if isinstance(value, dict) else value
        if isinstance(cells, list) and any(isinstance(cell, bool) for cell in cells):
            raise ValueError("holds a boolean; quote labels such as 'yes', 'no', 'true' and 'false'")
        if isinstance(value, dict):
            return {str(code): str(name) if isinstance(name, int) else name for code, name in value.items()}
        return value

    @model_validator(mode="after")
    def _check_across_fields(self) -> Task:
        problems = _cross_field_problems(self)
        if problems:
            raise ValidationError.from_exception_data(
                "Task",
                [
                    InitErrorDetails(
                        type=PydanticCustomError("task", "{reason}", {"reason": reason}),
                        loc=tuple(field.split(".")),
                        input=_field_value(self, field),
                    )
                    for field, reason in problems
                ],
            )
        return self

    @property
    def classes(self) -> list[str]:
        """Canonical class names in order; empty for continuous and survival tasks."""
        return _class_names(self.label_values)

    def canonical_label(self, value: object) -> str | None:
        """Map a label as somebody wrote it onto the task's class name.

        Tolerates case, spacing, punctuation, Unicode forms, codes and ``1.0`` for ``1``, and a short list of
        synonyms (``wt``, ``pos``, ...).

        Returns:
            The class name, or ``None`` when the value is missing or does not map onto exactly one class.
        """
        codes = list(self.label_values) if isinstance(self.label_values, dict) else None
        return LabelIndex.of(tuple(self.classes), None if codes is None else tuple(codes)).find(value)

    def matches(self, condition: str | None) -> bool:
        """Say whether a condition of :data:`CONDITIONS` holds for this task (``None`` means always).

        Raises:
            ValueError: the condition is not one of :data:`CONDITIONS`.
        """
        if condition is None or condition == "all":
            return True
        if condition not in CONDITIONS:
            raise ValueError(f"{condition!r} is not a condition on a task")
        if condition in TASK_FLAGS:
            return bool(getattr(self, condition))
        return self.output_type == condition.removeprefix("output_type==")


def _class_names(label_values: dict[str, str] | list[str | int] | str) -> list[str]:
    if isinstance(label_values, dict):
        return list(label_values.values())
    if isinstance(label_values, list):
        return [str(name) for name in label_values]
    return []


def _field_value(task: Task, field: str) -> Any:
    value: Any = task
    for part in field.split("."):
        value = getattr(value, part)
    return value


def _cross_field_problems(task: Task) -> list[tuple[str, str]]:
    """List ``(field, what was expected)`` for every rule between fields that the task breaks."""
    problems: list[tuple[str, str]] = []

    def expect(holds: bool, field: str, reason: str) -> None:
        if not holds:
            problems.append((field, reason))

    classifies = task.output_type in ("binary", "multiclass", "ordinal")
    if classifies:
        expect(
            len(task.classes) >= 2,
            "label_values",
            f"expected two or more classes for {task.output_type} output",
        )
    else:
        expect(
            isinstance(task.label_values, str) and task.label_values != "",
            "label_values",
            f"expected a text saying what is measured: {task.output_type} output has no classes",
        )
    if task.output_type == "binary":
        expect(len(task.classes) == 2, "label_values", "expected exactly two classes for binary output")
    codes = list(task.label_values) if isinstance(task.label_values, dict) else None
    clash = LabelIndex.clash(task.classes, codes)
    expect(clash is None, "label_values", f"expected labels that can be told apart; {clash}")

    expect(
        task.wsi_to_label == (task.reference_group in ("biomarker", "prognosis")),
        "wsi_to_label",
        "expected true exactly for the reference groups biomarker and prognosis",
    )
    expect(
        task.calibration_bearing == (task.output_type == "binary" and task.wsi_to_label),
        "calibration_bearing",
        "expected true exactly for binary output with wsi_to_label true",
    )
    for flag in ("multiclass", "ordinal"):
        expect(
            getattr(task, flag) == (task.output_type == flag),
            flag,
            f"expected true exactly for {flag} output",
        )

    primary, secondary_only = METRICS_BY_OUTPUT[task.output_type]
    expect(
        task.metric_family.primary in primary,
        "metric_family.primary",
        f"expected one of {', '.join(sorted(primary))} for {task.output_type} output",
    )
    for metric in task.metric_family.secondary:
        allowed = primary | secondary_only
        expect(
            metric in allowed,
            "metric_family.secondary",
            f"{metric!r} does not fit {task.output_type} output; expected {', '.join(sorted(allowed))}",
        )
    if task.calibration_bearing:
        expect(
            {"brier", "ECE"} <= set(task.metric_family.secondary),
            "metric_family.secondary",
            "expected brier and ECE among them: the task is calibration-bearing",
        )

    if task.claim_boundary_type == "direct_diagnostic_adjudication":
        expect(
            task.label_reference_type == "pathologist_adjudicated",
            "claim_boundary_type",
            "direct_diagnostic_adjudication is allowed only with the label reference pathologist_adjudicated",
        )
    for field, value in (("body_system", "synthetic"), ("label_reference_type", "generator_parameter")):
        expect(
            (getattr(task, field) == value) == task.demo, field, f"expected {value} exactly for demo tasks"
        )
    return problems
