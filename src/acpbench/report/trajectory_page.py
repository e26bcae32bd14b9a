"""What one trajectory's page shows. Everything comes from bounded reads; the template escapes all of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.report import pictures, summary, timeline
from acpbench.report.collect import (
    OFFLINE_JUDGE,
    STAGES,
    Study,
    Trajectory,
    final_status,
    judge_name,
)
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
from acpbench.trajectory.events import tool_calls

MAX_TEXT_BYTES = 48 * 1024
MAX_ITEMS = 2000
MAX_REFS = 4


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


def _judged_by(row: dict[str, Any], judgement: dict[str, Any]) -> tuple[str, str]:
    """Who decided an item, and a remark."""
    decided = row.get("decided_by")
    if decided == "audit":
        return "human audit", ""
    if decided == "check":
        return "rule", short(row.get("rule") or "", 40).replace("_", " ")
    if decided == "cap":
        return "not judged", "named evidence is missing, so FAIL"
    if decided == "none":
        return "unscored", short(row.get("first_pass_grade_status") or "", 30).replace("_", " ")
    name = judge_name(row.get("judge") or judgement.get("judge")) or "a judge that is not named"
    confidence = judgement.get("confidence")
    name = "offline cue judge" if name == OFFLINE_JUDGE else name
    return name, f"{short(confidence, 10)} confidence" if confidence else ""


def _items(trajectory: Trajectory, snippets: Snippets, texts: dict[str, str]) -> dict[str, Any]:
    judgements: dict[str, dict[str, Any]] = {}
    try:
        for row in read_jsonl_head(trajectory.folder, "judgements.jsonl")[0]:
            judgements[str(row.get("item_id"))] = row
    except InputError:
        pass
    try:
        rows, _, cut = read_jsonl_head(trajectory.folder, "adjudicated.jsonl", MAX_ITEMS)
    except InputError as error:
        return {"problem": short(error.message, 120), "parts": [], "cut": False, "counts": {}, "n": 0}
    parts: dict[tuple[int, int], dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        status = final_status(row)
        counts[status] += 1
        stage = row.get("stage") if row.get("stage") in STAGES else "other"
        round_id = row.get("round") if isinstance(row.get("round"), int) else None
        key = (STAGES.index(stage) if stage in STAGES else len(STAGES), round_id or 0)
        part = parts.setdefault(
            key, {"stage": stage, "round": round_id, "rows": [], "counts": Counter(), "first": False}
        )
        part["counts"][status] += 1
        by, remark = _judged_by(row, judgements.get(str(row.get("item_id")), {}))
        part["rows"].append(
            {
                "id": short(row.get("item_id") or "", 60),
                "text": texts.get(str(row.get("checkpoint")), ""),
                "kind": short(row.get("kind") or "", 20),
                "critical": row.get("critical") is True,
                "status": status,
                "first": short(row["first_pass_status"], 16) if row.get("first_pass_status") else None,
                "audited": row.get("decided_by") == "audit",
                "why": short(row.get("why") or "", 400),
                "refs": [snippets.show(ref) for ref in listing(row.get("evidence_refs"))[:MAX_REFS]],
                "n_refs": len(listing(row.get("evidence_refs"))),
                "by": by,
                "remark": remark,
            }
        )
    ordered = [parts[key] for key in sorted(parts)]
    for index, part in enumerate(ordered):
        part["first"] = index == 0 or ordered[index - 1]["stage"] != part["stage"]
    return {"problem": None, "parts": ordered, "cut": cut, "counts": counts, "n": len(rows)}


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
                    "refs": [snippets.show(ref) for ref in refs[:MAX_REFS]],
                    "n_refs": len(refs),
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
        if not isinstance(values, dict):
            continue
        flat = {**values, **mapping(values.get("metrics"))}
        levels.append(
            {
                "split": short(split, 20),
                "n": number(values.get("n_patients")),
                "expected": number(values.get("n_expected")),
                "metrics": [
                    (short(name, 40), number(value))
                    for name, value in flat.items()
                    if name not in ("n", "n_patients", "n_expected", "n_events")
                    and (value is None or number(value) is not None)
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
        "collapsed": _collapsed(content),
        "conflicts": number(content.get("n_label_conflict")),
        "moved": number(content.get("n_split_mismatch")),
    }


def _collapsed(content: dict[str, Any]) -> bool:
    """Whether the interval has no width: every resample gave the same value, as with a perfect small set."""
    bounds = [number(bound) for bound in listing(content.get("primary_interval"))]
    return len(bounds) == 2 and None not in bounds and bounds[0] == bounds[1]


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


def _who(run: dict[str, Any]) -> list[str]:
    """Harness, model and terms of the run, in words; what the record does not name is said so."""
    harness, model = mapping(run.get("harness")), mapping(run.get("model"))
    words = [short(harness[key], 60) for key in ("name", "version") if harness.get(key)]
    found = ["harness " + (" ".join(words) or "not named")]
    if harness.get("policy"):
        found.append(f"policy {short(harness['policy'], 60)}")
    named = [short(model[key], 60) for key in ("provider", "name", "id", "version") if model.get(key)]
    if isinstance(run.get("model"), str):
        named = [short(run["model"], 60)]
    found.append("model " + " ".join(named) if named else "no language model is named")
    if run.get("label_access"):
        found.append(f"label access {short(run['label_access'], 30)}")
    if run.get("attempt"):
        found.append(f"attempt {short(run['attempt'], 10)}")
    return found


def page_context(
    trajectory: Trajectory, study: Study, results: Path, texts: dict[str, str]
) -> dict[str, Any]:
    """Everything the trajectory template needs. Missing parts are named, none raises.

    Args:
        trajectory: the cell of the grid.
        study: the study, for labels and reference encoders.
        results: results folder (for the reference pipeline's attention pictures).
        texts: what each checkpoint asks, by its id; ids without a text are shown alone.
    """
    run_dir = trajectory.folder / "run"
    workspace = run_dir / "workspace"
    try:
        log, bad, cut = read_jsonl_head(run_dir, "tools.jsonl")
        problem = None
    except InputError as error:
        log, bad, cut, problem = [], 0, False, short(error.message, 120)
    calls = [] if problem else tool_calls(run_dir)
    tools = timeline.rows(
        calls, trajectory.run.get("t_start"), trajectory.run.get("t_end"), timeline.caches(log)
    )
    cited = {call["anchor"]: timeline.summary_line(call) for call in tools["calls"] if call["anchor"]}
    snippets = Snippets(run_dir, cited)
    folders = [
        results / "reference" / trajectory.task / encoder / "attention"
        for encoder in study.encoders
        if encoder != study.control_encoder
    ]
    group = next(entry for entry in study.groups if entry.id == trajectory.group)
    passes = mapping(trajectory.score("workflow_score.json").get("passes"))
    shown, left = pictures.attention_pictures(workspace, folders)
    return {
        "entry": trajectory,
        "label": group.label,
        "description": group.description,
        "run": trajectory.run,
        "who": _who(trajectory.run),
        "passed": {name: mapping(passes.get("0.75")).get(name) for name in summary.AGGREGATIONS},
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
            **tools,
            "problem": problem,
            "bad": bad,
            "cut": cut,
        },
        "items": _items(trajectory, snippets, texts),
        "decided": trajectory.decided,
        "cwas3": _signals(trajectory, "cwas3.json", summary.CWAS3_PARTS, snippets),
        "cwas3_score": summary.value_at(trajectory, "cwas3.json", "score"),
        "r6": _signals(trajectory, "r6.json", summary.R6_PARTS, snippets),
        "r6_score": summary.value_at(trajectory, "r6.json", "score"),
        "diagnostic": _diagnostic(trajectory),
        "reflection": _rounds(trajectory, workspace),
        "pictures": shown,
        "n_pictures": left,
        "facts": _facts(trajectory.run),
        "problems": sorted(trajectory.problems.items()),
    }
