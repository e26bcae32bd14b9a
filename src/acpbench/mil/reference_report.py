"""A short text report of one cross-validated reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from acpbench.core.files import write_text
from acpbench.mil.comparison import comparison_line
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
    """Write ``report.md``: endpoint, patients, primary metric beside its controls, the other metrics, folds.

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
        *_flow(result["counts"]),
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
    if result["comparison"] is not None:
        lines += ["", comparison_line(result["comparison"])]
    lines += ["", "| Metric | Value |", "|---|---|"]
    lines += [f"| {name} | {format_metric(result, name)} |" for name in result["metrics"]]
    lines += _per_class(result["per_class"]) + _folds(result)
    if controls:
        lines += [
            "",
            "A model whose interval covers its colour control has not been shown to use morphology.",
        ]
    statement = getattr(task, "claim_boundary_statement", None)
    if statement:
        lines += ["", str(statement)]
    write_text(path, "\n".join(lines) + "\n")


def _reasons(by_reason: Mapping[str, int] | None) -> str:
    return f" ({'; '.join(f'{reason}: {n}' for reason, n in by_reason.items())})" if by_reason else ""


def _flow(counts: Mapping[str, Any]) -> list[str]:
    lines = []
    if counts["slides_given"] is not None:
        lines.append(
            f"- Slides: {counts['slides_given']} usable, {counts['slides_without_label']} left out"
            f"{_reasons(counts['without_label_by_reason'])}, {counts['slides_labelled']} labelled"
        )
    return [
        *lines,
        f"- Patients: {counts['patients_labelled']} labelled, {counts['patients_without_tiles']} left out "
        f"without tiles, {counts['patients_scored']} scored; {counts['slides_without_tiles']} slides without "
        f"tiles{_reasons(counts['without_tiles_by_reason'])}",
    ]


def _cell(value: float | None) -> str:
    return "null" if value is None else f"{value:.3f}"


def _per_class(per_class: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not per_class:
        return []
    lines = [
        "",
        "| Class | n | recall | precision | F1 | AUROC against the rest |",
        "|---|---|---|---|---|---|",
    ]
    for label, row in per_class.items():
        cells = [_cell(row[name]) for name in ("recall", "precision", "f1", "auroc")]
        lines.append(f"| {label} | {row['n']} | {' | '.join(cells)} |")
    return lines


def _folds(result: Mapping[str, Any]) -> list[str]:
    primary, table = result["primary_metric"], result["counts"]["folds"] or []
    sites = {row["fold"]: ", ".join(row["sites"]) for row in table}
    with_sites = any(sites.values())
    head = ["Fold", "n", primary, "best epoch", *(["sites"] if with_sites else [])]
    lines = ["", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in result["per_fold"]:
        value = _cell(row[primary]) + (f" ({row['note']})" if row["note"] else "")
        cells = [str(row["fold"]), str(row["n"]), value, str(row["best_epoch"])]
        lines.append(f"| {' | '.join([*cells, *([sites[row['fold']]] if with_sites else [])])} |")
    if with_sites:
        lines += ["", "A site is never in two folds, so folds differ in size as the sites do."]
    return lines
