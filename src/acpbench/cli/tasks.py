"""``acp-bench tasks``: list and explain the benchmark's tasks."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acpbench.core.files import spreadsheet_safe

if TYPE_CHECKING:
    from acpbench.tasks.models import Task
    from acpbench.tasks.requirements import Requirements

FLAG_LETTERS = {
    "calibration_bearing": "K",
    "multiclass": "M",
    "ordinal": "O",
    "expression_like": "E",
    "pan_cancer": "P",
}


@click.group()
def tasks() -> None:
    """List and explain the benchmark's tasks."""


def _shared_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--tasks-dir",
        type=click.Path(path_type=Path),
        default=None,
        help="Folder of task files; by default ./tasks, else the tasks of this package's checkout.",
    )(command)
    return click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        show_default=True,
        help="table for people, json and csv for programs.",
    )(command)


@tasks.command("list")
@click.option("--demo", is_flag=True, help="List the demo tasks (generated slides) too.")
@_shared_options
def list_tasks(tasks_dir: Path | None, form: str, demo: bool) -> None:
    """List the tasks with their metadata."""
    from acpbench.tasks.catalogue import load_tasks

    folder = _folder(tasks_dir)
    found = load_tasks(folder) + (load_tasks(folder / "demo") if demo else [])
    if form == "json":
        _print_json([_metadata(task) for task in found])
        return
    rows = [_flat(task) for task in found]
    if form == "csv":
        _print_csv(rows)
        return
    shown = ["task_id", "reference_group", "body_system", "target", "cohort", "output_type", "primary_metric"]
    _print_table(
        [*shown, "flags", "patients"],
        [
            [*(row[column] for column in shown), _letters(task), row["n_patients"]]
            for row, task in zip(rows, found, strict=True)
        ],
        title=f"{len(found)} tasks (K calibration, M multiclass, O ordinal, E expression, P pan-cancer)",
    )


@tasks.command("show")
@click.argument("task")
@_shared_options
def show_task(tasks_dir: Path | None, form: str, task: str) -> None:
    """Show one TASK (an id, or a task file): metadata, requirements and long-horizon inputs."""
    from acpbench.tasks.catalogue import find_task, load_task
    from acpbench.tasks.requirements import assigned_subnodes

    folder = _folder(tasks_dir)
    is_file = "/" in task or task.endswith((".yaml", ".yml", ".json"))
    chosen = load_task(task) if is_file else find_task(task, [folder, folder / "demo"])
    requirements = _requirements(folder)
    subnodes = assigned_subnodes(requirements, chosen)
    horizon = _horizon_on_benchmark_scale(chosen, folder, requirements)
    if form == "json":
        _print_json(
            {
                **_metadata(chosen),
                "requirements": [subnode.model_dump(mode="json") for subnode in subnodes],
                "long_horizon": horizon,
            }
        )
        return
    pairs: list[tuple[str, Any]] = list(_flat(chosen).items())
    pairs += [("requirements", " ".join(subnode.id for subnode in subnodes))]
    pairs += [("long_horizon", f"{horizon['score']:.2f} ({horizon['tier']})")]
    pairs += [(f"long_horizon.{name}", value) for name, value in horizon["inputs"].items()]
    if form == "csv":
        _print_csv([{"field": name, "value": value} for name, value in pairs])
    else:
        _print_table(["field", "value"], pairs, title=chosen.task_id, wrap=True)


@tasks.command("requirements")
@_shared_options
def show_requirements(tasks_dir: Path | None, form: str) -> None:
    """Count the requirement subnodes of every task, by category."""
    from acpbench.tasks.catalogue import load_tasks
    from acpbench.tasks.requirements import CATEGORIES, requirement_table

    folder = _folder(tasks_dir)
    table = requirement_table(_requirements(folder), load_tasks(folder))
    if form == "json":
        _print_json(table)
        return
    rows = [{"task_id": row["task_id"], **row["counts"], "total": row["total"]} for row in table["tasks"]]
    totals = dict(table["totals"])
    rows.append({"task_id": "all tasks", "total": totals.pop("all"), **totals})
    columns = ["task_id", *CATEGORIES, "total"]
    if form == "csv":
        _print_csv(rows, columns)
    else:
        _print_table(
            columns, [[row[column] for column in columns] for row in rows], title="Requirement subnodes"
        )


@tasks.command("horizon")
@_shared_options
def show_horizon(tasks_dir: Path | None, form: str) -> None:
    """Score how much each task asks of a workflow: long-horizon score L(t), its inputs and tier."""
    from acpbench.tasks.catalogue import load_tasks
    from acpbench.tasks.horizon import TIERS, long_horizon

    folder = _folder(tasks_dir)
    scored = long_horizon(load_tasks(folder), _requirements(folder))
    counts = {tier: sum(row.tier == tier for row in scored) for tier in TIERS}
    if form == "json":
        maximum = max(row.raw for row in scored)
        _print_json({"maximum_raw": maximum, "tiers": counts, "tasks": [asdict(row) for row in scored]})
        return
    rows = [
        {"task_id": row.task_id, **asdict(row.inputs), "raw": row.raw, "score": row.score, "tier": row.tier}
        for row in scored
    ]
    if form == "csv":
        _print_csv(rows)
        return
    rows.sort(key=lambda row: (-row["score"], row["task_id"]))
    _print_table(
        list(rows[0]),
        [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows],
        title="Long-horizon score: " + ", ".join(f"{tier} {count}" for tier, count in counts.items()),
    )


def _folder(tasks_dir: Path | None) -> Path:
    from acpbench.tasks.catalogue import default_tasks_dir

    return default_tasks_dir() if tasks_dir is None else tasks_dir


def _requirements(folder: Path) -> Requirements:
    from acpbench.tasks.requirements import load_requirements

    return load_requirements(folder / "requirements.yaml")


def _horizon_on_benchmark_scale(task: Task, folder: Path, requirements: Requirements) -> dict[str, Any]:
    """Score one task on the scale of the folder's tasks, so that a demo or a new task can be compared."""
    from acpbench.tasks.catalogue import load_tasks
    from acpbench.tasks.horizon import long_horizon

    maximum = max(row.raw for row in long_horizon(load_tasks(folder), requirements))
    scored = asdict(long_horizon([task], requirements, maximum=maximum)[0])
    del scored["task_id"]
    return scored


def _metadata(task: Task) -> dict[str, Any]:
    return {**task.model_dump(mode="json"), "classes": task.classes}


def _flat(task: Task) -> dict[str, Any]:
    """One row of plain cells: nested fields joined by ``_``, lists by ``;``."""
    fields = task.model_dump(mode="json")
    access, metrics, size = fields.pop("access"), fields.pop("metric_family"), fields.pop("n")
    labels = fields.pop("label_values")
    if isinstance(labels, dict):
        labels = "; ".join(f"{code}: {name}" for code, name in labels.items())
    elif isinstance(labels, list):
        labels = "; ".join(str(name) for name in labels)
    return {
        **fields,
        "label_values": labels,
        "primary_metric": metrics["primary"],
        "secondary_metrics": "; ".join(metrics["secondary"]),
        "access_name": access["name"],
        "access_url": access["url"],
        **{f"n_{name}": value for name, value in size.items()},
    }


def _letters(task: Task) -> str:
    return "".join(letter for flag, letter in FLAG_LETTERS.items() if getattr(task, flag))


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _print_csv(rows: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if cell is None else spreadsheet_safe(cell) for name, cell in row.items()})
    click.echo(buffer.getvalue(), nl=False)


def _print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str, wrap: bool = False
) -> None:
    """Print a table as wide as the terminal; where there is none, as wide as its cells."""
    import sys

    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[position], int | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=not wrap)
    for row in rows:
        table.add_row(*("-" if cell is None or cell == "" else str(cell) for cell in row))
    width = None if sys.stdout.isatty() else (110 if wrap else 400)
    Console(width=width, markup=False, highlight=False).print(table)
