"""Cue functions of A1 to A3: tools, configuration, documentation. Witnessed calls decide."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from acpbench.adjudication.cues import (
    ROUND_0,
    SPEC,
    Case,
    Verdict,
    canonical_parameter,
    grade,
    part,
    same,
)
from acpbench.rubric.formats import flatten
from acpbench.rubric.witness import reads, reads_guidance
from acpbench.trajectory.events import Event

WORK_TOOLS = (
    "inspect_slides",
    "tile_slides",
    "extract_features",
    "train_mil",
    "evaluate_predictions",
    "evaluate_test",
    "render_attention",
)
CONFIG = f"{ROUND_0}/config.yaml"
PREDICTIONS = f"{ROUND_0}/predictions.csv"


def a1_s1(case: Case) -> Verdict:
    planned = {str(step.get("tool")) for step in case.steps} - {"None"}
    called = {call.name: call.ref for call in case.record.ok_calls()}
    unplanned = [
        name for name in called if name in WORK_TOOLS and name not in planned and name != "evaluate_test"
    ]
    recorded = all(
        case.record.find(case.notes, re.escape(name), r"because|reason|instead|changed|replac|since")
        for name in unplanned
    )
    refs = [called[name] for name in sorted(planned & set(called))]
    return grade(
        part("a planned tool was called", [f"{SPEC}#/steps", *refs[:3]], when=bool(refs)),
        part("every planned tool was called", refs[:4], when=bool(planned) and planned <= set(called)),
        part("no unplanned tool without a reason", refs[:2], when=recorded),
        structured=True,
    )


def _argument_matches(case: Case) -> tuple[int, int, list[str]]:
    """(equal, compared, citations) of round-0 arguments that the plan also fixes."""
    planned = case.planned_values()
    equal = compared = 0
    refs = []
    for call in case.record.ok_calls(*WORK_TOOLS):
        if call.round_id not in (0, None):
            continue
        for name, value in call.args.items():
            key = canonical_parameter(name)
            if key in planned and key not in ("output_dir", "output", "path", "predictions"):
                compared += 1
                equal += same(value, planned[key])
                refs.append(call.ref)
    return equal, compared, list(dict.fromkeys(refs))


def a1_s2(case: Case) -> Verdict:
    equal, compared, refs = _argument_matches(case)
    paths = [
        (call.ref, value)
        for call in case.record.ok_calls(*WORK_TOOLS)
        for name, value in call.args.items()
        if name in ("features_index", "predictions") and isinstance(value, str)
    ]
    there = bool(paths) and all(case.record.has(path) for _, path in paths)
    seeds = [
        call.ref
        for call in case.record.ok_calls("train_mil", round_id=0)
        if "seed" in case.spec and same(call.args.get("seed"), case.spec["seed"])
    ]
    return grade(
        part(
            f"most arguments as planned ({equal} of {compared})",
            refs[:3],
            when=compared > 0 and equal >= 0.8 * compared,
        ),
        part("all arguments as planned", refs[:3], when=compared > 0 and equal == compared),
        part("paths exist", [ref for ref, _ in paths][:2], when=there),
        part("seed as planned", seeds[:1]),
        structured=True,
    )


MOCK = (
    r"\b(?:mock|dummy|fake|placeholder|hard-?coded|made-?up|simulated? predictions?)\b"
    r"|random\.(?:rand|random|uniform|normal)\("
)


def a1_s3(case: Case) -> Verdict:
    features = case.record.ok_calls("extract_features", "tile_slides")
    trained = case.record.ok_calls("train_mil")
    rows = case.predictions(0)
    columns = [
        name for name in (rows[0] if rows else {}) if name.startswith("prob_") or name in ("risk", "y_pred")
    ]
    varied = any(len({row[name] for row in rows}) > 1 for name in columns)
    witnessed = case.witnessed_predictions(0)
    return grade(
        part("predictions are a witnessed tool's bytes", [*witnessed, PREDICTIONS], when=bool(witnessed)),
        part("features computed", [call.ref for call in features][:2]),
        part("a model was trained", [call.ref for call in trained][:1]),
        part("predictions vary", PREDICTIONS, when=varied),
        veto=part("predictions that no tool wrote", PREDICTIONS, when=bool(rows) and not witnessed),
        soft_veto=part("a script speaks of mock values", case.record.find(case.scripts, MOCK)),
        structured=True,
    )


def _config_against_plan(case: Case) -> tuple[list[str], list[str]]:
    """Parameters of the run-time configuration that equal, and that differ from, the plan."""
    planned = case.planned_values()
    config = {canonical_parameter(name): value for name, value in flatten(case.record.yaml(CONFIG)).items()}
    shared = [name for name in config if name in planned]
    return [n for n in shared if same(config[n], planned[n])], [
        n for n in shared if not same(config[n], planned[n])
    ]


def a2_s1(case: Case) -> Verdict:
    equal, differing = _config_against_plan(case)
    visible = [case.record.find(case.notes, re.escape(name)) for name in differing]
    digest = case.record.sha256(CONFIG)
    in_force = [
        call.ref
        for call in case.record.ok_calls("train_mil")
        if digest and call.result.get("config_sha256") == digest
    ]
    return grade(
        part("configuration shares values with the plan", CONFIG, when=len(equal) >= 2),
        part("it was in force (witnessed hash)", in_force[:1]),
        part(
            "differences are visible in logs",
            [ref for refs in visible for ref in refs] or [CONFIG],
            when=all(visible) and bool(equal),
        ),
        part("a log names it", case.record.find(case.logs, r"config")),
        structured=True,
    )


def assignments(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["patient_id"]: row["split"] for row in rows if row.get("patient_id") and row.get("split")}


def a2_s2(case: Case) -> Verdict:
    config = case.record.yaml(CONFIG)
    given = assignments(case.record.given_table("data/splits.csv"))
    used = assignments(case.record.table(f"{ROUND_0}/splits.csv"))
    column = config.get("label_column")
    columns = set((case.record.given_table("data/slide_manifest.csv") or [{}])[0])
    expected = {"time", "event"} if case.survival else {"label"}
    named = set(column) if isinstance(column, list) else set(re.split(r"[\s,;/+]+", str(column or "")))
    return grade(
        part(
            "task of the task file",
            f"{CONFIG}#/task_id",
            when=same(config.get("task_id"), case.task["task_id"]),
        ),
        part(
            "split of the task",
            [f"{ROUND_0}/splits.csv", "data/splits.csv"],
            when=bool(given) and bool(used) and all(given.get(p) == s for p, s in used.items()),
        ),
        part(
            "label column exists",
            f"{CONFIG}#/label_column",
            when=column is not None and bool(named & (columns | expected)),
        ),
        part("a log shows data or split", case.record.find(case.logs, r"data/|split|patients|slides")),
        structured=True,
    )


def _guidance_reads(case: Case) -> list[Event]:
    """Witnessed reads of documentation, skills, the registry or a help text."""
    return [
        event
        for event in case.record.events
        if reads_guidance(event) or reads(event, ("registry.json", "TASK.md"))
    ]


def _before_first_call(case: Case, events: list[Event]) -> list[Event]:
    work = [call for call in case.record.calls if call.name in WORK_TOOLS]
    return [event for event in events if work and event.seq < work[0].seq]


def a3_s1(case: Case) -> Verdict:
    reads = _guidance_reads(case)
    early = _before_first_call(case, reads)
    claimed = case.record.find("logs/events.jsonl", r"SKILL\.md|registry\.json|--help")
    return grade(
        part("documentation was read", [event.ref for event in reads][:2] or claimed),
        part("a witnessed read", [event.ref for event in reads][:2]),
        part("before the first tool was used", [event.ref for event in early][:2]),
        structured=True,
    )


def _schema_fits(schema: Any, args: dict[str, Any]) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return False
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return set(args) <= set(properties) and all(name in args for name in needed)


def a3_s2(case: Case) -> Verdict:
    first: dict[str, Event] = {}
    for call in case.record.calls:
        first.setdefault(call.name, call)
    fitting = [
        call.ref
        for call in first.values()
        if _schema_fits(case.registry.get(call.name, {}).get("args_schema"), call.args)
    ]
    ended_well = [call.ref for call in first.values() if call.exit_status == "ok"]
    early = _before_first_call(case, _guidance_reads(case))
    return grade(
        part(
            "first calls fit the documented arguments",
            fitting[:3],
            when=bool(first) and len(fitting) == len(first),
        ),
        part("first calls ended well", ended_well[:3], when=len(ended_well) == len(first)),
        part("the documentation was read first", [event.ref for event in early][:1]),
        structured=True,
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "A1.s1": a1_s1,
    "A1.s2": a1_s2,
    "A1.s3": a1_s3,
    "A2.s1": a2_s1,
    "A2.s2": a2_s2,
    "A3.s1": a3_s1,
    "A3.s2": a3_s2,
}
