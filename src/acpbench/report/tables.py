"""The report's tables as CSV. No text cell can run as a formula; an empty cell is a missing value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acpbench.core.files import spreadsheet_safe, write_csv
from acpbench.report import summary
from acpbench.report.collect import (
    STAGES,
    STATUSES,
    StudyData,
    Trajectory,
    judge_name,
    over_control,
    per_fold,
    primary,
)
from acpbench.report.untrusted import clean, listing, mapping, number, short

Row = dict[str, Any]


def _mean(prefix: str, mean: summary.Mean) -> Row:
    return {prefix: mean.value, f"{prefix}_n": mean.n, f"{prefix}_N": mean.total}


def _whole(value: float | None) -> int | float | None:
    return int(value) if value is not None and value == int(value) else value


def groups_rows(data: StudyData) -> Iterator[Row]:
    """One row a group: records, scored, both aggregations, coverage, lanes' means."""
    for group in data.study.groups:
        members = summary.of_group(data, group.id)
        covered = summary.coverage(members)
        yield {
            "group": group.id,
            "label": group.label,
            "n_grid": len(members),
            "n_recorded": sum(entry.recorded for entry in members),
            "n_completed": sum(entry.run_status == "completed" for entry in members),
            "n_scored": sum(summary.is_scored(entry) for entry in members),
            **_mean("item_weighted", summary.mean_at(members, "workflow_score.json", "item_weighted")),
            **_mean("stage_mean", summary.mean_at(members, "workflow_score.json", "stage_mean")),
            "n_items": covered["n_items"],
            "n_items_scored": covered["n_scored"],
            "n_items_skip": covered["n_skip"],
            "n_items_unscored": covered["n_unscored"],
            "n_items_not_implemented": covered["n_not_implemented"],
        }


def heat_rows(data: StudyData, key: str, names: tuple[str, ...], column: str) -> Iterator[Row]:
    """One row a group and stage (or subcapability): mean with n and N."""
    for group in data.study.groups:
        members = summary.of_group(data, group.id)
        for name in names:
            mean = summary.mean_at(members, "workflow_score.json", key, name)
            yield {
                "group": group.id,
                column: name,
                "mean": mean.value,
                "n": mean.n,
                "N": mean.total,
                "null_reason": mean.reason,
            }


def passes_rows(data: StudyData) -> Iterator[Row]:
    """One row a group (and ``all``), threshold and aggregation: k of n, N, basis."""
    everyone = [("all", data.trajectories)]
    everyone += [(group.id, summary.of_group(data, group.id)) for group in data.study.groups]
    for group, members in everyone:
        basis = "; ".join(f"{name} ({count})" for name, count in summary.bases(members))
        for threshold in summary.THRESHOLDS:
            for aggregation in summary.AGGREGATIONS:
                k, n = summary.passes(members, threshold, aggregation)
                yield {
                    "group": group,
                    "threshold": threshold,
                    "aggregation": aggregation,
                    "n_passed": k,
                    "n": n,
                    "N": len(members),
                    "basis": basis,
                }


def trajectories_rows(data: StudyData) -> Iterator[Row]:
    """One row a trajectory: how it ended, every headline, what is missing."""
    for entry in data.trajectories:
        workflow = entry.score("workflow_score.json")
        diagnostic = summary.diagnostic_value(entry)
        reflection = entry.score("reflection.json")
        yield {
            **_identity(entry),
            "run_status": entry.run_status or ("" if entry.recorded else "not recorded"),
            "status_reason": short(entry.run.get("status_reason") or "", 300),
            "wall_s": number(entry.run.get("wall_s")),
            "cost_usd": number(entry.run.get("cost_usd")),
            "grade_status": workflow.get("grade_status"),
            "basis": workflow.get("basis"),
            "item_weighted": number(workflow.get("item_weighted")),
            "stage_mean": number(workflow.get("stage_mean")),
            "coverage_share": number(mapping(workflow.get("coverage")).get("share")),
            "diagnostic_metric": diagnostic["metric"],
            "diagnostic_value": diagnostic["value"],
            "diagnostic_split": diagnostic["split"],
            "diagnostic_n": _whole(diagnostic["n"]),
            "cwas3": summary.value_at(entry, "cwas3.json", "score"),
            "r6": summary.value_at(entry, "r6.json", "score"),
            "evidence_class": reflection.get("evidence_class"),
            "direction": reflection.get("direction"),
            "problems": "; ".join(f"{name} {why}" for name, why in sorted(entry.problems.items())),
            "page": f"trajectories/{entry.page}",
        }


def lanes_rows(data: StudyData) -> Iterator[Row]:
    """The three lanes in long form; no row combines two lanes, and diagnostic metrics stay per task."""
    for group in data.study.groups:
        members = summary.of_group(data, group.id)

        def row(lane: str, measure: str, mean: summary.Mean, task: str = "", group: str = group.id) -> Row:
            return {
                "group": group,
                "lane": lane,
                "measure": measure,
                "task": task,
                "value": mean.value,
                "n": mean.n,
                "N": mean.total,
                "null_reason": mean.reason,
            }

        for name in summary.AGGREGATIONS:
            yield row("automation", name, summary.mean_at(members, "workflow_score.json", name))
        for task in data.study.tasks:
            cell = diagnostic_cell([entry for entry in members if entry.task == task.id])
            yield row("diagnostic", cell["metric"] or "", cell["mean"], task.id)
        yield row("clinical workflow", "CWAS-3", summary.mean_at(members, "cwas3.json", "score"))
        yield row("clinical workflow", "R6", summary.mean_at(members, "r6.json", "score"))


def diagnostic_cell(members: list[Trajectory]) -> dict[str, Any]:
    """Mean primary metric of one group's replicates on one task, with metric name, patients and splits.

    Replicates that report another metric than the first are left out of the mean and counted as missing.
    """
    values = [summary.diagnostic_value(entry) for entry in members]
    metric = next((value["metric"] for value in values if value["value"] is not None), None)
    metric = metric or next((value["metric"] for value in values if value["metric"]), None)
    kept = [value["value"] if value["metric"] == metric else None for value in values]
    counted = [value for value, keep in zip(values, kept) if keep is not None and value["n"]]
    counts = sorted({int(value["n"]) for value in counted})
    expected = max((value["n_expected"] or 0 for value in counted), default=0)
    return {
        "metric": metric,
        "mean": summary.mean_of(kept, [value["reason"] for value in values]),
        "patients": "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        + (f" of {expected:.0f}" if counts[0] < expected else "")
        if counts
        else None,
        "splits": sorted(
            {value["split"] for value, keep in zip(values, kept) if keep is not None and value["split"]}
        ),
    }


def _identity(entry: Trajectory) -> Row:
    return {"trajectory": entry.id, "group": entry.group, "task": entry.task, "replicate": entry.replicate}


def diagnostic_rows(data: StudyData) -> Iterator[Row]:
    """One row a trajectory: funnel, accuracy family, primary metric with interval."""
    for entry in data.trajectories:
        content = entry.score("diagnostic.json")
        steps = mapping(content.get("funnel"))
        value = summary.diagnostic_value(entry)
        low, high = value["interval"] or (None, None)
        yield {
            **_identity(entry),
            "grade_status": content.get("grade_status"),
            **{
                name: steps.get(name)
                for name in (
                    "n_candidates",
                    "n_excluded",
                    "selected",
                    "selection_rule",
                    "n_rows",
                    "n_normalised",
                    "n_probability",
                )
            },
            "headline_split": value["split"],
            "n": _whole(value["n"]),
            "n_expected": _whole(value["n_expected"]),
            **{name: number(content.get(name)) for name in ("accuracy", "balanced_accuracy", "macro_f1")},
            "primary_metric": value["metric"],
            "primary_value": value["value"],
            "primary_low": low,
            "primary_high": high,
            "probability_status": content.get("probability_status"),
            "n_label_conflict": content.get("n_label_conflict"),
            "n_split_mismatch": content.get("n_split_mismatch"),
            "n_unmappable": content.get("n_unmappable"),
            "null_reason": value["reason"] if value["value"] is None else "",
        }


def component_rows(data: StudyData, file: str, parts: dict[str, str], label: str) -> Iterator[Row]:
    """One row a trajectory of CWAS-3 or R6: score and each component's value with its status or flag."""
    for entry in data.trajectories:
        row = {
            **_identity(entry),
            "run_status": entry.run_status,
            "grade_status": entry.score(file).get("grade_status"),
            "score": summary.value_at(entry, file, "score"),
        }
        for part in parts:
            found = summary.component(entry, file, part)
            row |= {f"{part}_value": found["value"], f"{part}_{label}": found["label"]}
        yield {**row, "null_reason": entry.why_null(file) if row["score"] is None else ""}


def reflection_rows(data: StudyData) -> Iterator[Row]:
    """One row a trajectory: evidence score and class, first and final value, direction."""
    for entry in data.trajectories:
        content = entry.score("reflection.json")
        yield {
            **_identity(entry),
            "grade_status": content.get("grade_status"),
            "evidence_score": number(content.get("evidence_score")),
            "evidence_class": content.get("evidence_class"),
            "n_rounds": content.get("n_rounds"),
            "metric": content.get("metric"),
            "first": number(mapping(content.get("first")).get("value")),
            "final": number(mapping(content.get("final")).get("value")),
            "delta": number(content.get("delta")),
            "direction": content.get("direction"),
            "reason": content.get("reason") or entry.problems.get("reflection.json", ""),
        }


def reference_rows(data: StudyData) -> Iterator[Row]:
    """One row a task, encoder and metric; an unreadable result is one row with its reason."""
    for entry in data.references:
        role = "control" if entry.encoder == data.study.control_encoder else "model"
        head = {"task": entry.task, "encoder": entry.encoder, "role": role}
        metrics = mapping(entry.metrics.get("metrics"))
        if not metrics:
            yield {**head, "null_reason": entry.problem or "no metrics"}
        main, above = primary(entry), over_control(entry) or {}
        for name, value in metrics.items():
            bounds = [number(bound) for bound in listing(mapping(entry.metrics.get("intervals")).get(name))]
            low, high = bounds if len(bounds) == 2 else (None, None)
            yield {
                **head,
                "metric": name,
                "primary": "yes" if name == main["metric"] else "no",
                "value": number(value),
                "low": low,
                "high": high,
                "n": _whole(main["n"]),
                "n_events": _whole(main["n_events"]),
                **(_over_control_columns(above) if name == main["metric"] else {}),
                "null_reason": mapping(entry.metrics.get("notes")).get(name) if number(value) is None else "",
            }


def folds_rows(data: StudyData) -> Iterator[Row]:
    """One row a task, encoder and fold of the reference: the primary metric in that fold alone."""
    for entry in data.references:
        for row in per_fold(entry):
            yield {
                "task": entry.task,
                "encoder": entry.encoder,
                "metric": primary(entry)["metric"],
                "fold": _whole(row["fold"]),
                "n": _whole(row["n"]),
                "value": row["value"],
                "null_reason": row["reason"] if row["value"] is None else "",
            }


def _over_control_columns(above: dict[str, Any]) -> Row:
    low, high = above.get("interval") or (None, None)
    return {
        "over_control": above.get("difference"),
        "over_control_low": low,
        "over_control_high": high,
        "over_control_p": above.get("p"),
    }


def exclusions_rows(data: StudyData) -> Iterator[Row]:
    """Every dropped slide with its reason, all cohorts."""
    for cohort in data.cohorts:
        for row in cohort.exclusions:
            yield {"cohort": cohort.id, **row}


def checkpoints_rows(data: StudyData) -> Iterator[Row]:
    """One row a checkpoint: final statuses counted over trajectories and rounds."""
    for (checkpoint, stage, subcapability, kind), counts in summary.item_totals(data.trajectories).items():
        yield {
            "checkpoint": checkpoint,
            "stage": stage,
            "subcapability": subcapability,
            "kind": kind,
            "n_items": sum(counts.values()),
            **{f"n_{name}": counts[name] for name in STATUSES},
        }


def judges(data: StudyData) -> list[str]:
    """Names of the judges found in the judgements; the study's declared judge when there is none yet."""
    found = sorted({name for entry in data.trajectories for name in entry.judges})
    return found or [judge_name(data.study.judge) or "none"]


IDENTITY = ("trajectory", "group", "task", "replicate")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "groups": (
        "group",
        "label",
        "n_grid",
        "n_recorded",
        "n_completed",
        "n_scored",
        "item_weighted",
        "item_weighted_n",
        "item_weighted_N",
        "stage_mean",
        "stage_mean_n",
        "stage_mean_N",
        "n_items",
        "n_items_scored",
        "n_items_skip",
        "n_items_unscored",
        "n_items_not_implemented",
    ),
    "stages": ("group", "stage", "mean", "n", "N", "null_reason"),
    "subcapabilities": ("group", "subcapability", "mean", "n", "N", "null_reason"),
    "passes": ("group", "threshold", "aggregation", "n_passed", "n", "N", "basis"),
    "trajectories": (
        *IDENTITY,
        "run_status",
        "status_reason",
        "wall_s",
        "cost_usd",
        "grade_status",
        "basis",
        "item_weighted",
        "stage_mean",
        "coverage_share",
        "diagnostic_metric",
        "diagnostic_value",
        "diagnostic_split",
        "diagnostic_n",
        "cwas3",
        "r6",
        "evidence_class",
        "direction",
        "problems",
        "page",
    ),
    "lanes": ("group", "lane", "measure", "task", "value", "n", "N", "null_reason"),
    "diagnostic": (
        *IDENTITY,
        "grade_status",
        "n_candidates",
        "n_excluded",
        "selected",
        "selection_rule",
        "n_rows",
        "n_normalised",
        "n_probability",
        "headline_split",
        "n",
        "n_expected",
        "accuracy",
        "balanced_accuracy",
        "macro_f1",
        "primary_metric",
        "primary_value",
        "primary_low",
        "primary_high",
        "probability_status",
        "n_label_conflict",
        "n_split_mismatch",
        "n_unmappable",
        "null_reason",
    ),
    "cwas3": (
        *IDENTITY,
        "run_status",
        "grade_status",
        "score",
        *(f"{part}_{name}" for part in summary.CWAS3_PARTS for name in ("value", "status")),
        "null_reason",
    ),
    "r6": (
        *IDENTITY,
        "run_status",
        "grade_status",
        "score",
        *(f"{part}_{name}" for part in summary.R6_PARTS for name in ("value", "flag")),
        "null_reason",
    ),
    "reflection": (
        *IDENTITY,
        "grade_status",
        "evidence_score",
        "evidence_class",
        "n_rounds",
        "metric",
        "first",
        "final",
        "delta",
        "direction",
        "reason",
    ),
    "reference": (
        "task",
        "encoder",
        "role",
        "metric",
        "primary",
        "value",
        "low",
        "high",
        "n",
        "n_events",
        "over_control",
        "over_control_low",
        "over_control_high",
        "over_control_p",
        "null_reason",
    ),
    "folds": ("task", "encoder", "metric", "fold", "n", "value", "null_reason"),
    "exclusions": ("cohort", "slide_id", "patient_id", "stage", "reason", "detail"),
    "checkpoints": (
        "checkpoint",
        "stage",
        "subcapability",
        "kind",
        "n_items",
        *(f"n_{name}" for name in STATUSES),
    ),
}


def all_rows(data: StudyData) -> dict[str, Iterator[Row]]:
    """Table name → rows, for every table of the report."""
    return {
        "groups": groups_rows(data),
        "stages": heat_rows(data, "stages", STAGES, "stage"),
        "subcapabilities": heat_rows(
            data, "subcapabilities", tuple(summary.SUBCAPABILITIES), "subcapability"
        ),
        "passes": passes_rows(data),
        "trajectories": trajectories_rows(data),
        "lanes": lanes_rows(data),
        "diagnostic": diagnostic_rows(data),
        "cwas3": component_rows(data, "cwas3.json", summary.CWAS3_PARTS, "status"),
        "r6": component_rows(data, "r6.json", summary.R6_PARTS, "flag"),
        "reflection": reflection_rows(data),
        "reference": reference_rows(data),
        "folds": folds_rows(data),
        "exclusions": exclusions_rows(data),
        "checkpoints": checkpoints_rows(data),
    }


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return spreadsheet_safe(clean(value[:2000]))
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return spreadsheet_safe(short(value, 300))


def write_tables(data: StudyData, folder: Path) -> list[str]:
    """Write every table to ``folder/<name>.csv``; returns the names."""
    for name, rows in all_rows(data).items():
        write_csv(
            folder / f"{name}.csv",
            _COLUMNS[name],
            ({key: _cell(value) for key, value in row.items()} for row in rows),
        )
    return list(_COLUMNS)
