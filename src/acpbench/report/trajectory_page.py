"""What one trajectory's page shows. Everything comes from bounded reads; the template escapes all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.report import pictures, summary, timeline
from acpbench.report.collect import STAGES, Study, Trajectory, final_status, judge_name
from acpbench.report.markdown import to_html
from acpbench.report.snippets import Snippets
from acpbench.report.untrusted import (
    listing,
    mapping,
    number,
    read_head,
    read_json_head,
    read_jsonl_head,
    short,
)

MAX_TEXT_BYTES = 48 * 1024
MAX_ITEMS = 2000


def _document(root: Path, relative: str) -> dict[str, Any]:
    """A Markdown document: ``{path, html, problem, truncated, size, shown}``."""
    try:
        head = read_head(root, relative, MAX_TEXT_BYTES)
    except InputError as error:
        return {"path": relative, "html": None, "problem": short(error.message, 120), "truncated": False}
    return {
        "path": relative,
        "html": to_html(head.text) if head.text.strip() else None,
        "problem": None if head.text.strip() else "is empty",
        "truncated": head.truncated,
        "size": head.size_bytes,
        "shown": head.shown_bytes,
    }


def _json(root: Path, relative: str) -> tuple[dict[str, Any], str | None]:
    try:
        content = read_json_head(root, relative)
    except InputError as error:
        return {}, short(error.message, 120)
    return (content, None) if isinstance(content, dict) else ({}, "is not a JSON object")


def _compact(value: Any, limit: int = 200) -> str:
    if isinstance(value, str):
        return short(value, limit)
    try:
        return short(json.dumps(value, ensure_ascii=False, sort_keys=True), limit)
    except (RecursionError, TypeError, ValueError):
        return "(not shown)"


def _spec(workspace: Path) -> dict[str, Any]:
    content, problem = _json(workspace, "plan/workflow_spec.json")
    steps = [
        {
            "id": short(step.get("id") or "", 40),
            "tool": short(step.get("tool") or "", 60),
            "role": short(step.get("role") or "", 40),
            "params": _compact(step.get("params") or {}),
            "inputs": [short(path, 100) for path in listing(step.get("inputs"))[:8]],
            "outputs": [short(path, 100) for path in listing(step.get("outputs"))[:8]],
        }
        for step in (mapping(entry) for entry in listing(content.get("steps"))[:100])
    ]
    return {"problem": problem, "steps": steps, "n_steps": len(listing(content.get("steps")))}


def _items(trajectory: Trajectory, snippets: Snippets) -> dict[str, Any]:
    judged_by: dict[str, str | None] = {}
    try:
        for row in read_jsonl_head(trajectory.folder, "judgements.jsonl")[0]:
            judged_by[str(row.get("item_id"))] = judge_name(row.get("judge"))
    except InputError:
        pass
    try:
        rows, _, cut = read_jsonl_head(trajectory.folder, "adjudicated.jsonl", MAX_ITEMS)
    except InputError as error:
        return {"problem": short(error.message, 120), "stages": [], "cut": False, "counts": {}, "n": 0}
    stages: dict[str, list[dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        status = final_status(row)
        counts[status] = counts.get(status, 0) + 1
        semantic = row.get("kind") == "semantic"
        stage = row.get("stage") if row.get("stage") in STAGES else "other"
        audited = row.get("decided_by") == "audit"
        stages.setdefault(str(stage), []).append(
            {
                "id": short(row.get("item_id") or "", 60),
                "kind": short(row.get("kind") or "", 20),
                "critical": row.get("critical") is True,
                "status": status,
                "first": short(row["first_pass_status"], 16) if row.get("first_pass_status") else None,
                "audited": audited,
                "why": short(row.get("why") or "", 400),
                "refs": [snippets.show(ref) for ref in listing(row.get("evidence_refs"))[:4]],
                "n_refs": len(listing(row.get("evidence_refs"))),
                "decided_by": short(row.get("decided_by") or "", 20),
                "judge": judged_by.get(str(row.get("item_id"))) if semantic else "rule",
            }
        )
    order = [stage for stage in (*STAGES, "other") if stage in stages]
    return {
        "problem": None,
        "stages": [{"name": stage, "rows": stages[stage]} for stage in order],
        "cut": cut,
        "counts": counts,
        "n": len(rows),
    }


def _signals(
    trajectory: Trajectory, file: str, parts: dict[str, str], snippets: Snippets
) -> list[dict[str, Any]]:
    rows = []
    weights = mapping(trajectory.score(file).get("weights"))
    for part, name in parts.items():
        content = mapping(mapping(trajectory.score(file).get("components")).get(part))
        signals = []
        for signal in (mapping(entry) for entry in listing(content.get("signals"))[:40]):
            refs = signal.get("evidence")
            refs = refs if isinstance(refs, list) else [refs] if refs else []
            signals.append(
                {
                    "name": short(signal.get("name") or "", 60),
                    "status": short(signal["status"], 16) if signal.get("status") else None,
                    "value": number(signal.get("value")),
                    "detail": short(signal.get("detail") or "", 300),
                    "refs": [snippets.show(ref) for ref in refs[:4]],
                }
            )
        found = summary.component(trajectory, file, part)
        rows.append(
            {"part": part, "name": name, "weight": number(weights.get(part)), "signals": signals, **found}
        )
    return rows


def _diagnostic(trajectory: Trajectory) -> dict[str, Any]:
    content = trajectory.score("diagnostic.json")
    levels = []
    for split, values in mapping(content.get("levels")).items():
        values = mapping(values)
        flat = {**values, **mapping(values.get("metrics"))}
        levels.append(
            {
                "split": short(split, 20),
                "n": number(values.get("n")),
                "metrics": [
                    (short(name, 40), number(value))
                    for name, value in flat.items()
                    if name != "n" and (value is None or number(value) is not None)
                ],
            }
        )
    steps = mapping(content.get("funnel"))
    return {
        **summary.diagnostic_value(trajectory),
        "levels": levels,
        "funnel": [(name, _compact(steps.get(name), 120)) for name in steps],
        "candidates": [
            {name: short(mapping(entry).get(name) or "", 160) for name in ("path", "status", "reason")}
            for entry in listing(content.get("candidates"))[:40]
        ],
        "agreement": [
            (name, number(content.get(name))) for name in ("accuracy", "balanced_accuracy", "macro_f1")
        ],
        "probability_status": short(content.get("probability_status") or "not stated", 120),
        "conflicts": number(content.get("n_label_conflict")),
    }


def _rounds(trajectory: Trajectory, workspace: Path) -> dict[str, Any]:
    content = trajectory.score("reflection.json")
    claimed, _ = _json(workspace, "reflection/summary.json")
    by_round = {
        mapping(entry).get("round_id"): mapping(entry)
        for entry in listing(claimed.get("rounds"))[:50]
        if isinstance(mapping(entry).get("round_id"), int)
    }
    rows = []
    for value in (mapping(entry) for entry in listing(content.get("values"))[:50]):
        round_id = value.get("round") if isinstance(value.get("round"), int) else None
        update, _ = (
            _json(workspace, f"reflection/round_{round_id}/update.json") if round_id is not None else ({}, "")
        )
        change = None
        if update:
            change = (
                f"{short(update.get('parameter') or '?', 60)}: {_compact(update.get('old'), 40)} → "
                f"{_compact(update.get('new'), 40)}"
            )
        elif by_round.get(round_id, {}).get("changed_step"):
            change = short(by_round[round_id]["changed_step"], 80)
        rows.append(
            {
                "round": round_id,
                "change": change,
                "value": number(value.get("value")),
                "source": short(value.get("source") or "", 20),
                "n": number(value.get("n")),
            }
        )
    return {
        "content": content,
        "rows": rows,
        "parts": [
            (short(name, 40), _compact(value, 40)) for name, value in mapping(content.get("parts")).items()
        ],
        "metric": short(content.get("metric") or "not stated", 40),
        "evidence_class": short(content["evidence_class"], 20) if content.get("evidence_class") else None,
        "direction": short(content["direction"], 20) if content.get("direction") else None,
        "reason": short(content.get("reason") or trajectory.why_null("reflection.json"), 200),
        "evidence_score": number(content.get("evidence_score")),
        "delta": number(content.get("delta")),
    }


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in run.items():
        if isinstance(value, dict):
            rows += [(f"{short(name, 40)}.{short(key, 40)}", _compact(item)) for key, item in value.items()]
        else:
            rows.append((short(name, 60), _compact(value)))
    return rows[:120]


def page_context(trajectory: Trajectory, study: Study, results: Path) -> dict[str, Any]:
    """Everything the trajectory template needs. Missing parts are named, none raises.

    Args:
        trajectory: the cell of the grid.
        study: the study, for labels and reference encoders.
        results: results folder (for the reference pipeline's attention pictures).
    """
    run_dir = trajectory.folder / "run"
    workspace = run_dir / "workspace"
    snippets = Snippets(run_dir)
    try:
        events, bad, cut = read_jsonl_head(run_dir, "tools.jsonl")
        problem = None
    except InputError as error:
        events, bad, cut, problem = [], 0, False, short(error.message, 120)
    folders = [
        results / "reference" / trajectory.task / encoder / "attention"
        for encoder in study.encoders
        if encoder != study.control_encoder
    ]
    label = next(entry.label for entry in study.groups if entry.id == trajectory.group)
    return {
        "entry": trajectory,
        "label": label,
        "run": trajectory.run,
        "wall_s": number(trajectory.run.get("wall_s")),
        "workflow": trajectory.score("workflow_score.json"),
        "stage_values": [
            (stage, summary.value_at(trajectory, "workflow_score.json", "stages", stage)) for stage in STAGES
        ],
        "scores": {
            name: summary.value_at(trajectory, "workflow_score.json", name) for name in summary.AGGREGATIONS
        },
        "plan": _document(workspace, "plan/plan.md"),
        "report": _document(workspace, "reports/report.md"),
        "spec": _spec(workspace),
        "timeline": {
            **timeline.rows(events, trajectory.run.get("t_start"), trajectory.run.get("t_end")),
            "problem": problem,
            "bad": bad,
            "cut": cut,
        },
        "items": _items(trajectory, snippets),
        "cwas3": _signals(trajectory, "cwas3.json", summary.CWAS3_PARTS, snippets),
        "cwas3_score": summary.value_at(trajectory, "cwas3.json", "score"),
        "r6": _signals(trajectory, "r6.json", summary.R6_PARTS, snippets),
        "r6_score": summary.value_at(trajectory, "r6.json", "score"),
        "diagnostic": _diagnostic(trajectory),
        "reflection": _rounds(trajectory, workspace),
        "pictures": pictures.attention_pictures(workspace, folders),
        "facts": _facts(trajectory.run),
        "problems": sorted(trajectory.problems.items()),
    }
