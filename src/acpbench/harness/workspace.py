"""Build the run-specific workspace an agent works in.

It holds the task, the tools' registry, the cohort with the labels the agent may see, splits, schemas,
skills and execution memory. Under ``label_access: heldout`` no label of a test patient goes in.

Skills stand in ``skills/`` for every harness and once more where the harness at hand looks by itself. OpenCode
reads ``.agents/skills`` and ``.claude/skills`` both, so a workspace has one of them at most.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from acpbench.core.errors import InputError
from acpbench.core.files import (
    read_csv,
    sha256_file,
    sha256_json,
    walk_files,
    write_csv,
    write_json,
    write_text,
)
from acpbench.harness.memory import write_memory
from acpbench.harness.mounts import SLIDES_FOLDER
from acpbench.harness.registry import registry_document
from acpbench.tasks.models import Task
from acpbench.trajectory.documents import DOCUMENTS, ClaimBoundary, MemoryEntry, TaskBrief

AGENT_FOLDERS = ["plan", "scripts", "outputs/round_0", "reports", "reflection", "logs", "memory"]
LABEL_COLUMNS = {"survival": ["time", "event"]}
GROUP_MEMORY = "memory/group_memory.jsonl"
MAX_ROUNDS = 5
EXPECTED_OUTPUTS = {
    "plan/plan.md": "the plan in prose",
    "plan/workflow_spec.json": "the plan as a graph of tool calls",
    "outputs/round_0/slide_manifest.csv": "status of every slide, a reason for each that drops out",
    "outputs/round_0/features_index.csv": "features by slide",
    "outputs/round_0/config.yaml": "configuration of the model",
    "outputs/round_0/predictions.csv": "validation and test patients",
    "outputs/round_0/metrics.json": "metrics on validation patients",
    "reports/report.md": "the report",
    "reports/report.json": "its structured twin",
    "reflection/summary.json": "all rounds and the choice between them",
    "memory/execution_memory.jsonl": "lessons: failures seen and configurations that worked",
}


class Layout(NamedTuple):
    """Where a harness looks by itself: for skills, and for a standing instruction."""

    skills: str | None
    instructions: str | None


LAYOUTS = {
    "scripted": Layout(None, None),
    "claude_code": Layout(".claude/skills", "CLAUDE.md"),
    "codex": Layout(".agents/skills", "AGENTS.md"),
    "opencode": Layout(".agents/skills", "AGENTS.md"),
}
INSTRUCTIONS = """Your task is described in TASK.md. Read it first, and again whenever you have lost track of it.
"""
"""A pointer and nothing more: a long session that was shortened still finds the task, and no harness is told more
than another."""

_TASK_TEXT = """# {target} ({task_id})

{goal}

| | |
|---|---|
| organ | {organ} |
| cohort | {cohort} |
| endpoint | {target} |
| output | {output_type}: {output_structure} |
| classes | {classes} |
| reference label | {label_source} ({label_reference_type}) |
| primary metric | {primary}, with {secondary} beside it |
| claim boundary | {claim_boundary_type} |

**Claim boundary.** {claim_boundary_statement}

## Data
`data/slide_manifest.csv` lists slides, patients, split and {label_note}. `data/splits.csv` gives the split of each
patient; it is fixed. Validation patients serve for choosing between rounds, test patients for one final figure.
Tools take slides by `slide_id`. Where `{slides_folder}` exists, the slide files lie there too, read-only and named by it.

## Work
1. Write `plan/plan.md` and `plan/workflow_spec.json` (see `schemas/`), then run the plan with the tools in
   `registry.json`: {tool_access}
2. Leave outputs in `outputs/round_0/`, scripts in `scripts/`, logs in `logs/`, lessons in `memory/execution_memory.jsonl`.
3. Report in `reports/report.md` and `reports/report.json`, inside the claim boundary.
4. Improve in at most five reflection rounds, each in `reflection/round_k/`, and sum up in `reflection/summary.json`.

{test_note}
{guidance}"""
_SHELL = "`acp-bench tool call TOOL --args JSON --step STEP_ID --round K`."
_MCP = (
    "they are offered by the MCP server `acp` under the same names (give `step_id` and `round_id` with each call); from a "
    "shell, `acp-bench tool call TOOL --args JSON --step STEP_ID --round K` does the same."
)


def _goal(task: Task) -> str:
    return (
        f"Build, run, check and report a workflow that predicts {task.target} from H&E whole-slide images of "
        f"{task.cohort}."
    )


def task_text(
    task: Task,
    *,
    label_access: str,
    test_evaluations: int,
    harness: str = "scripted",
    skills: bool = True,
    memory: bool = False,
) -> str:
    """The ``TASK.md`` of a workspace."""
    heldout = label_access == "heldout"
    guidance = ["Guidance for each stage is in `skills/`."] if skills else []
    if memory:
        guidance.append(
            f"`{GROUP_MEMORY}` holds what earlier tasks of this group left: failures seen and configurations that worked. "
            "It is about other endpoints; check before you rely on it."
        )
    return _TASK_TEXT.format(
        target=task.target,
        task_id=task.task_id,
        goal=_goal(task),
        organ=task.organ,
        cohort=task.cohort,
        output_type=task.output_type,
        output_structure=task.output_structure,
        classes=", ".join(task.classes) or "(none: a continuous quantity or a time to event)",
        label_source=task.label_source,
        label_reference_type=task.label_reference_type,
        primary=task.metric_family.primary,
        secondary=", ".join(task.metric_family.secondary),
        claim_boundary_type=task.claim_boundary_type,
        claim_boundary_statement=task.claim_boundary_statement,
        label_note="labels of training and validation patients (test labels are held back)"
        if heldout
        else "labels of all patients",
        test_note=f"The evaluator answers `evaluate_test` {test_evaluations} time(s) with metrics and a receipt."
        if heldout
        else "All labels are visible in this setting; keep test patients out of every choice.",
        slides_folder=SLIDES_FOLDER,
        tool_access=_SHELL if harness == "scripted" else _MCP,
        guidance="".join(f"{line}\n" for line in guidance),
    )


def task_brief(
    task: Task, *, label_access: Literal["heldout", "open"], test_evaluations: int
) -> dict[str, Any]:
    """Content of ``task.json``: the brief, and every field of the task beside it."""
    brief = TaskBrief(
        goal=_goal(task),
        endpoint=task.target,
        claim_boundary=ClaimBoundary(type=task.claim_boundary_type, statement=task.claim_boundary_statement),
        expected_outputs=EXPECTED_OUTPUTS,
        label_access=label_access,
        test_evaluations=test_evaluations,
        max_rounds=MAX_ROUNDS,
        task_id=task.task_id,
        output_type=task.output_type,
    )
    return brief.model_dump(mode="json", by_alias=True) | task.model_dump(mode="json")


def _copy_skills(source: Path | None, target: Path) -> None:
    if source is None:
        return
    if not source.is_dir():
        raise InputError("skills folder does not exist", file=source)
    for relative, path in walk_files(source):
        destination = target / relative
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, destination)


def skills_digest(source: Path | None) -> str:
    """Hash of all skill files; the hash of nothing when the run had none."""
    if source is None:
        return sha256_json([])
    return sha256_json([[relative, sha256_file(path)] for relative, path in walk_files(source)])


def contents_digest(folder: Path) -> str:
    """Hash of a folder's paths and bytes."""
    return sha256_json([[relative, sha256_file(path)] for relative, path in walk_files(folder)])


def build_workspace(
    workspace: Path,
    *,
    task: Task,
    labels_csv: Path,
    slides_csv: Path,
    skills: Path | None,
    label_access: Literal["heldout", "open"],
    test_evaluations: int,
    harness: str = "scripted",
    memory: Sequence[MemoryEntry] | None = None,
) -> None:
    """Create ``workspace`` (must not exist) with everything a run starts from.

    Args:
        labels_csv: the evaluator's label table of the task (slide, patient, split, label or time and event).
        slides_csv: the validated cohort table.
        skills: folder of ``<name>/SKILL.md``, or None for the ablation without skills.
        harness: a key of :data:`LAYOUTS`; decides where skills are mirrored and the standing instruction.
        memory: what earlier tasks of the group left, or None for the setting without memory.

    Raises:
        InputError: a table does not fit, the harness is unknown, or the workspace exists.
    """
    if workspace.exists():
        raise InputError("workspace exists already", file=workspace)
    if harness not in LAYOUTS:
        raise InputError(f"harness {harness!r} is none of {', '.join(LAYOUTS)}", field="harness")
    layout = LAYOUTS[harness]
    for folder in AGENT_FOLDERS:
        (workspace / folder).mkdir(parents=True)
    write_text(
        workspace / "TASK.md",
        task_text(
            task,
            label_access=label_access,
            test_evaluations=test_evaluations,
            harness=harness,
            skills=skills is not None,
            memory=memory is not None,
        ),
    )
    if layout.instructions is not None:
        write_text(workspace / layout.instructions, INSTRUCTIONS)
    write_json(
        workspace / "task.json",
        task_brief(task, label_access=label_access, test_evaluations=test_evaluations),
    )
    write_json(workspace / "registry.json", registry_document())
    for name, model in DOCUMENTS.items():
        write_json(workspace / "schemas" / f"{name}.schema.json", model.model_json_schema())
    for folder in ("skills", layout.skills):
        if folder is not None:
            _copy_skills(skills, workspace / folder)
    if memory is not None:
        write_memory(workspace / GROUP_MEMORY, memory)

    usable = {row["slide_id"] for row in read_csv(slides_csv)}
    label_columns = LABEL_COLUMNS.get(task.output_type, ["label"])
    manifest: list[dict[str, Any]] = []
    splits: dict[str, str] = {}
    for row in read_csv(labels_csv):
        if row["slide_id"] not in usable:
            continue
        hidden = label_access == "heldout" and row["split"] == "test"
        manifest.append(
            {"slide_id": row["slide_id"], "patient_id": row["patient_id"], "split": row["split"]}
            | {column: "" if hidden else row[column] for column in label_columns}
        )
        splits[row["patient_id"]] = row["split"]
    write_csv(
        workspace / "data" / "slide_manifest.csv",
        ["slide_id", "patient_id", "split", *label_columns],
        manifest,
    )
    write_csv(
        workspace / "data" / "splits.csv",
        ["patient_id", "split"],
        [{"patient_id": patient, "split": split} for patient, split in sorted(splits.items())],
    )
