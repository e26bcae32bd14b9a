"""A short text report of one cross-validated reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from acpbench.core.files import write_text
from acpbench.mil.label_table import TaskLike


def format_metric(result: Mapping[str, Any], name: str) -> str:
    """``0.812 [0.701, 0.903]``, or ``not available (reason)``."""
    value = result["metrics"].get(name)
    if value is None:
        return f"not available ({result['notes'].get(name, 'not computed')})"
    interval = result["intervals"].get(name)
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else " [no interval]")


def reference_report(
    path: str | os.PathLike[str],
    task: TaskLike,
    result: Mapping[str, Any],
    controls: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write ``report.md``: endpoint, patients, primary metric beside its controls, the other metrics.

    Args:
        path: target.
        task: gives the endpoint and, where it has one, the claim boundary.
        result: content of ``metrics.json``.
        controls: name → content of another encoder's ``metrics.json``, same task.
    """
    primary = result["primary_metric"]
    counts = ", ".join(f"{label} {n}" for label, n in result["n_per_class"].items())
    if result["n_events"] is not None:
        counts = f"{result['n_events']} events"
    lines = [
        f"# {task.task_id}: cross-validated reference ({result['encoder']})",
        "",
        f"- Endpoint: {getattr(task, 'target', task.task_id)} ({task.output_type})",
        f"- Patients: {result['n']}" + (f" ({counts})" if counts else ""),
        f"- Left out: {len(result['dropped'])} patients without tiles",
        f"- Evaluation: {result['n_folds']}-fold, whole patients; early stopping on an inner fold, never on "
        "the test fold; predictions pooled over folds",
        f"- Intervals: 95 %, {result['n_bootstrap']} resamples of patients",
        "",
        f"| Features | {primary} | n |",
        "|---|---|---|",
        f"| {result['encoder']} | {format_metric(result, primary)} | {result['n']} |",
    ]
    for name, control in controls.items():
        lines.append(f"| {name} (control) | {format_metric(control, primary)} | {control['n']} |")
    lines += ["", "| Metric | Value |", "|---|---|"]
    lines += [f"| {name} | {format_metric(result, name)} |" for name in result["metrics"]]
    if controls:
        lines += [
            "",
            "A model whose interval covers its colour control has not been shown to use morphology.",
        ]
    statement = getattr(task, "claim_boundary_statement", None)
    if statement:
        lines += ["", str(statement)]
    write_text(path, "\n".join(lines) + "\n")
