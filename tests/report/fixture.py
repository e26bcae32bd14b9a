"""A small synthetic results tree: 3 groups x 2 tasks, one cell crashed and hostile, one absent."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from acpbench.core.files import write_bytes, write_csv, write_json, write_jsonl, write_text
from acpbench.report.summary import SUBCAPABILITIES

GROUPS = [
    {"id": "codex", "label": "Codex CLI"},
    {"id": "claude", "label": "Claude Code"},
    {"id": "scripted-careless", "label": "Scripted, careless"},
]
TASKS = [("demo_pleomorphism", "AUROC"), ("demo_survival", "c_index")]
SCRIPT = "<script>alert('owned')</script>"
HOSTILE = SCRIPT + "<img src=http://evil.example/x onerror=alert(1)>\x00\u202egnp.exe"
STAGES = ("planning", "action", "diagnosis", "reflection")
PREFIX = {"P": "planning", "A": "action", "D": "diagnosis", "R": "reflection"}
# (group, task) → the four stage scores. codex/demo_survival crashed hostile, claude/demo_survival never ran.
STAGE_SCORES = {
    ("codex", "demo_pleomorphism"): (0.9, 0.8, 0.8, 0.7),
    ("codex", "demo_survival"): (0.2, 0.1, None, 0.0),
    ("claude", "demo_pleomorphism"): (0.7, 0.9, 0.6, 0.5),
    ("scripted-careless", "demo_pleomorphism"): (0.5, 0.4, 0.3, 0.1),
    ("scripted-careless", "demo_survival"): (0.6, 0.4, 0.5, 0.2),
}
ABSENT = ("claude", "demo_survival")
CRASHED = ("codex", "demo_survival")


def study_file(path: Path) -> Path:
    """Write the study's JSON file."""
    write_json(
        path,
        {
            "study": "Demo study",
            "synthetic": True,
            "groups": GROUPS,
            "tasks": [task for task, _ in TASKS],
            "replicates": 1,
            "encoders": ["tiny_vit", "color_stats"],
            "control_encoder": "color_stats",
            "cohorts": ["demo"],
            "reference_tasks": [task for task, _ in TASKS],
            "judge": "offline",
            "label_access": "heldout",
        },
    )
    return path


def picture(size: tuple[int, int] = (320, 240)) -> bytes:
    """A JPEG with a gradient."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(buffer, "JPEG")
    return buffer.getvalue()


def _stamp(second: float) -> str:
    return f"2026-01-02T03:{int(second) // 60:02d}:{second % 60:06.3f}Z"


def _tools(run: Path, crash: bool) -> None:
    rows: list[dict[str, Any]] = []
    clock, plan = (
        2.0,
        ("inspect_slides", "tile_slides", "extract_features", "train_mil", "evaluate_predictions"),
    )
    for index, tool in enumerate(plan, start=1):
        call = f"c{index:04d}"
        rows.append(
            {
                "event": "start",
                "seq": len(rows) + 1,
                "call_id": call,
                "tool": tool,
                "t": _stamp(clock),
                "args": {"note": HOSTILE if crash else "x", "seed": 1},
                "step_id": f"s{index}",
                "round_id": 0,
            }
        )
        if crash and tool == "train_mil":
            break
        length = 4.0 * index
        rows.append(
            {
                "event": "end",
                "seq": len(rows) + 1,
                "call_id": call,
                "tool": tool,
                "t": _stamp(clock + length),
                "exit_status": "error" if tool == "tile_slides" else "ok",
                "cache": "hit",
                "error": "slide s03 is unreadable" if tool == "tile_slides" else None,
                "outputs": [{"path": f"outputs/round_0/{tool}.csv", "sha256": "0" * 64}],
            }
        )
        clock += length + 1
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_text(run / "tools.jsonl", text + ('{"event": "sta' if crash else ""))


def _workspace(run: Path, task: str, crash: bool) -> None:
    workspace = run / "workspace"
    plan = "# Plan\n\nEndpoint: **high against low** by `patient_id`.\n\n- tile at 0.5 um\n- train ABMIL\n\n"
    plan += "| step | tool |\n|---|---|\n| s1 | tile |\n\n```\n<b>verbatim</b>\n```\n"
    if crash:
        write_bytes(
            workspace / "plan/plan.md", (plan + HOSTILE).encode() + b"\xff\xfe broken \x00" + b"A" * 5000
        )
        write_text(workspace / "plan/workflow_spec.json", '{"steps": [')
        write_text(
            workspace / "reports/report.md", f"# Result {HOSTILE}\n" + (SCRIPT + "x" * 86 + "\n") * 90000
        )
        write_bytes(workspace / "outputs/round_0/attention/bad.jpg", b"\xff\xd8 not a picture")
        (workspace / "outputs/round_0/attention/link.jpg").symlink_to("/etc/passwd")
        return
    write_text(workspace / "plan/plan.md", plan)
    write_json(
        workspace / "plan/workflow_spec.json",
        {
            "steps": [
                {
                    "id": f"s{k}",
                    "tool": tool,
                    "role": role,
                    "params": {"mpp": 0.5, "tile_px": 224},
                    "inputs": ["data/slide_manifest.csv"],
                    "outputs": [f"outputs/round_0/{tool}.csv"],
                }
                for k, (tool, role) in enumerate(
                    [("tile_slides", "slide_processing"), ("train_mil", "model")], 1
                )
            ]
        },
    )
    write_text(
        workspace / "reports/report.md", "# Endpoint\n\nThis is **not** a diagnosis.\n\n1. one\n2. two\n"
    )
    write_json(
        workspace / "reflection/round_1/update.json", {"parameter": "mil.dropout", "old": 0.1, "new": 0.25}
    )
    write_bytes(workspace / "outputs/round_1/attention/s01.jpg", picture())


def _items(folder: Path, crash: bool, statuses: list[str | None]) -> None:
    checks, judgements, adjudicated = [], [], []
    for index, (subcapability, _) in enumerate(SUBCAPABILITIES.items()):
        for kind in ("deterministic", "semantic"):
            status = statuses[index % len(statuses)]
            checkpoint = f"{subcapability}.{kind[0]}1"
            reflection = subcapability.startswith("R")
            head = {
                "trajectory": "t",
                "item_id": checkpoint + ("@r1" if reflection else ""),
                "kind": kind,
                "checkpoint": checkpoint,
                "stage": PREFIX[subcapability[0]],
                "subcapability": subcapability,
                "round": 1 if reflection else None,
                "critical": index == 0,
                "weight": 2 if index == 0 else 1,
            }
            refs = ["plan/plan.md#L3-L5", "../../../../etc/passwd#L1"]
            if kind == "deterministic":
                checks.append(
                    {**head, "rule": "file_exists", "status": status, "evidence": refs, "reason": "why"}
                )
                final = status
            else:
                judgements.append(
                    {
                        **head,
                        "status": status,
                        "grade_status": "scored",
                        "evidence_refs": refs,
                        "rationale": "cue found",
                        "confidence": "low",
                        "judge": {"provider": "offline", "model": "cue-judge", "version": "1"},
                    }
                )
                final = None if status == "not_implemented" else status
            adjudicated.append(
                {
                    **head,
                    "first_pass_status": status,
                    "audit_status": None,
                    "final_status": final,
                    "decided_by": "check" if kind == "deterministic" else "judge",
                    "why": HOSTILE if crash else "plan names the endpoint",
                    "evidence_refs": refs,
                }
            )
    write_jsonl(folder / "checks.jsonl", checks)
    write_jsonl(folder / "judgements.jsonl", judgements)
    write_jsonl(folder / "adjudicated.jsonl", adjudicated)


def _scores(folder: Path, group: str, task: str, metric: str, crash: bool) -> None:
    scores = STAGE_SCORES[(group, task)]
    present = [score for score in scores if score is not None]
    stage_mean = None if crash else sum(present) / 4
    item_weighted = None if crash else round(0.15 * sum(present[:3]) + 0.55 * present[3], 6)
    values = {"item_weighted": item_weighted, "stage_mean": stage_mean}
    write_json(
        folder / "workflow_score.json",
        {
            "schema": "x",
            "trajectory": f"{group}/{task}/1",
            "run_status": "agent_error" if crash else "completed",
            "grade_status": "partial" if crash else "scored",
            **values,
            "stages": dict(zip(STAGES, scores)),
            "subcapabilities": {name: scores["PADR".index(name[0])] for name in SUBCAPABILITIES},
            "passes": {
                t: {name: None if v is None else v >= float(t) for name, v in values.items()}
                for t in ("0.70", "0.75", "0.80")
            },
            "coverage": {
                "n_items": 40,
                "n_scored": 36,
                "n_skip": 2,
                "n_unscored": 1,
                "n_not_implemented": 1,
                "share": 0.95,
            },
            "basis": "first_pass",
        },
    )
    if crash:
        write_json(
            folder / "diagnostic.json",
            {
                "grade_status": "no_predictions",
                "primary_metric": metric,
                "primary_value": None,
                "funnel": {
                    "n_candidates": 1,
                    "n_excluded": 1,
                    "selected": None,
                    "n_normalised": 0,
                    "n_probability": 0,
                },
                "candidates": [{"path": HOSTILE, "status": "excluded", "reason": "unreadable"}],
            },
        )
    else:
        value = 0.5 + sum(present) / 10
        write_json(
            folder / "diagnostic.json",
            {
                "grade_status": "scored",
                "funnel": {
                    "n_candidates": 3,
                    "n_excluded": 1,
                    "selected": "outputs/round_1/predictions.csv",
                    "selection_rule": "round selected",
                    "n_rows": 24,
                    "n_normalised": 24,
                    "n_probability": 0 if metric == "c_index" else 24,
                },
                "candidates": [
                    {"path": "outputs/round_1/predictions.csv", "status": "selected", "reason": ""}
                ],
                "n_patients": 11,
                "n_expected": 12,
                "levels": {
                    "test": {"n": 13, "n_patients": 11, "n_expected": 12, metric: value},
                    "validation": {"n": 12, "n_patients": 12, "n_expected": 12, metric: value},
                },
                "headline_split": "test",
                "accuracy": 0.75,
                "balanced_accuracy": 0.7,
                "macro_f1": 0.7,
                "primary_metric": metric,
                "primary_value": value,
                "primary_interval": [value - 0.1, value + 0.1],
                "probability_status": "mapped",
                "n_label_conflict": 0,
                "n_unmappable": 0,
            },
        )
        write_csv(folder / "predictions.csv", ["patient_id"], [{"patient_id": "p01"}])
    status, value = ("FAIL", 0.0) if crash else ("PASS", 1.0)
    write_json(
        folder / "cwas3.json",
        {
            "score": None if crash else 0.825,
            "grade_status": "unscored" if crash else "scored",
            "weights": {"U": 0.35, "N": 0.35, "E": 0.3},
            "components": {
                part: {
                    "status": status if part != "N" else "PARTIAL",
                    "value": value if part != "N" else 0.5,
                    "signals": [
                        {
                            "name": "claim",
                            "status": status,
                            "evidence": ["plan/plan.md#L1"],
                            "detail": HOSTILE if crash else "supported",
                        }
                    ],
                }
                for part in "UNE"
            },
        },
    )
    if group != "claude":
        write_json(
            folder / "r6.json",
            {
                "score": 0.4 if crash else 0.9,
                "grade_status": "scored",
                "weights": dict(zip("DOCTR", (0.25, 0.3, 0.2, 0.15, 0.1))),
                "components": {
                    part: {
                        "value": 0.2 if crash else 0.9,
                        "flag": "yes" if crash else "no",
                        "signals": [{"name": "endpoint", "value": 1.0, "evidence": [], "detail": "same"}],
                    }
                    for part in "DOCTR"
                },
            },
        )
    write_json(
        folder / "reflection.json",
        {
            "grade_status": "scored",
            "evidence_score": 0.0 if crash else 0.8,
            "evidence_class": "weak" if crash else "strong",
            "n_rounds": 0 if crash else 1,
            "metric": metric,
            "parts": {"real_round": not crash},
            "first": {"round": 0, "value": 0.6},
            "final": {"round": 1, "value": 0.65},
            "delta": None if crash else 0.05,
            "direction": "not_comparable" if crash else "improved",
            "reason": "no round has predictions" if crash else "",
            "values": []
            if crash
            else [
                {"round": 0, "value": 0.6, "source": "recomputed", "n": 12},
                {"round": 1, "value": 0.65, "source": "recomputed", "n": 12},
            ],
        },
    )


def _comparison(task: str) -> dict[str, Any]:
    if task == "demo_survival":
        return {"difference": None, "interval": None, "p": None, "n": 48, "note": "no event in fold 0"}
    return {"difference": 0.13, "interval": [-0.02, 0.27], "p": 0.09, "n": 48, "method": "paired bootstrap"}


def _bin(low: float, n: int, *values: float | None) -> dict[str, Any]:
    names = ("mean_probability", "observed", "observed_low", "observed_high")
    return {"bin_low": low, "bin_high": low + 0.1, "n": n, **dict(zip(names, values, strict=True))}


def _reference(results: Path) -> None:
    for task, metric in TASKS:
        for encoder, value in (("tiny_vit", 0.74), ("color_stats", 0.61)):
            missing = task == "demo_survival" and encoder == "color_stats"
            write_json(
                results / "reference" / task / encoder / "metrics.json",
                {
                    "task_id": task,
                    "encoder": encoder,
                    "primary_metric": metric,
                    "metrics": {metric: None if missing else value, "brier": 0.2},
                    "intervals": {metric: None if missing else [value - 0.1, value + 0.08]},
                    "notes": {metric: "no event in fold 0"} if missing else {},
                    "n": 48,
                    "n_events": 20 if task == "demo_survival" else None,
                    "comparison": _comparison(task) if encoder == "tiny_vit" else None,
                    "per_fold": [
                        {"fold": 0, "n": 24, metric: value + 0.05, "note": "", "best_epoch": 7},
                        {"fold": 1, "n": 24, metric: None, "note": "only class low in this fold"},
                    ],
                },
            )
            if task != "demo_survival":
                write_csv(
                    results / "reference" / task / encoder / "reliability.csv",
                    [
                        "bin_low",
                        "bin_high",
                        "n",
                        "mean_probability",
                        "observed",
                        "observed_low",
                        "observed_high",
                    ],
                    [
                        _bin(0.2, 20, 0.25, 0.2, 0.08, 0.42),
                        _bin(0.5, 0, None, None, None, None),
                        _bin(0.7, 28, 0.75, 0.9, 0.72, 0.97),
                    ],
                )
    cohort = results / "cohorts" / "demo"
    write_csv(
        cohort / "slides.csv",
        ["slide_id", "patient_id"],
        [{"slide_id": f"s{k:02d}", "patient_id": f"p{k // 2:02d}"} for k in range(10)],
    )
    write_csv(
        cohort / "exclusions.csv",
        ["slide_id", "patient_id", "stage", "reason", "detail"],
        [
            {"slide_id": "s09", "patient_id": "p04", "stage": "tile", "reason": "empty_tissue", "detail": ""},
            {
                "slide_id": "x01",
                "patient_id": "p09",
                "stage": "manifest",
                "reason": "file is missing",
                "detail": "=HYPERLINK(1)",
            },
        ],
    )


def build(results: Path) -> Path:
    """Write the results tree under ``results`` and the study file beside it; returns the study file."""
    for (group, task), _ in STAGE_SCORES.items():
        crash = (group, task) == CRASHED
        folder = results / "trajectories" / group / task / "1"
        write_json(
            folder / "run" / "run.json",
            {
                "schema": "acp-run/0.1",
                "trajectory_id": f"{group}/{task}/1",
                "group": group,
                "task_id": task,
                "harness": {"name": group, "version": HOSTILE if crash else "1.0", "policy": None},
                "run_status": "agent_error" if crash else "completed",
                "status_reason": HOSTILE + "z" * 20000 if crash else None,
                "t_start": _stamp(0),
                "t_end": _stamp(90),
                "wall_s": 90.0,
                "cost_usd": None,
                "digests": {"task": "a" * 64},
                **({} if group == "claude" else {"sandbox": "unsandboxed" if crash else "container"}),
            },
        )
        _tools(folder / "run", crash)
        _workspace(folder / "run", task, crash)
        _items(
            folder,
            crash,
            ["FAIL", "not_implemented", "SKIP"] if crash else ["PASS", "PARTIAL", "PASS", "FAIL"],
        )
        _scores(folder, group, task, dict(TASKS)[task], crash)
    _reference(results)
    return study_file(results.parent / "study.json")


if __name__ == "__main__":
    import sys

    print(build(Path(sys.argv[1])))
