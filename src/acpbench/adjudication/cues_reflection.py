"""Cue functions of R1 to R3: weakest link, critique and proposal of a round, read against files they cite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from acpbench.adjudication.cues import (
    SPEC,
    Case,
    Verdict,
    canonical_parameter,
    grade,
    overclaim_refs,
    part,
    same,
    tokens,
    words,
)
from acpbench.adjudication.cues_outputs import failures
from acpbench.rubric.evidence import resolve_ref
from acpbench.rubric.formats import flatten, number
from acpbench.rubric.formats import words as words_of

TOLERANCE = 5e-4
DATA_WORDS = r"label|data|slide|patient|sample|stain|site|imbalance|noise|n\s*=|validation set|missing"
VAGUE = (
    r"\b(?:everything|overall|in general|generally|various|several (?:things|steps)|could be better"
    r"|needs? improvement)\b"
)


def record_of(case: Case, name: str) -> dict[str, Any]:
    return case.record.object(case.round_file(name))


def _weakest(case: Case, round_id: int | None = None) -> dict[str, Any]:
    folder = case.folder(case.round if round_id is None else round_id)  # type: ignore[arg-type]
    value = case.record.object(f"{folder}/critique.json").get("weakest_link")
    return value if isinstance(value, dict) else {}


def ref_in(case: Case, name: str, *fields: str) -> str:
    return f"{case.round_file(name)}#/" + "/".join(fields)


def _evidence(case: Case) -> list[str]:
    """The critique's citations that resolve in this record."""
    cited = _weakest(case).get("evidence")
    cited = [ref for ref in cited if isinstance(ref, str)] if isinstance(cited, list) else []
    return [ref for ref in cited[:20] if resolve_ref(case.record.run_dir, ref)]


def bases(case: Case) -> list[int]:
    """Rounds this one may be compared with: the one before, and the last kept one when that was reverted."""
    found, state = [case.previous], case.previous
    while state > 0:
        decision = case.record.object(f"{case.folder(state)}/summary.json").get("decision")
        if decision not in ("revert", "stop"):
            break
        state -= 1
        found.append(state)
    return found


def _quoted(case: Case) -> tuple[list[str], list[str]]:
    """(equal, differing) metric names that the critique quotes, against the rounds before."""
    quoted = record_of(case, "critique.json").get("metrics")
    equal, differing = [], []
    for name, value in (quoted if isinstance(quoted, dict) else {}).items():
        claimed = number(value)
        held = [number(case.metrics(k).get(name)) for k in bases(case)]
        if claimed is None:
            continue
        hit = any(found is not None and abs(found - claimed) <= TOLERANCE for found in held)
        (equal if hit else differing).append(name)
    return equal, differing


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# ---- R1 failure localisation ----------------------------------------------------------------------------
def r1_sk1(case: Case) -> Verdict:
    link = _weakest(case)
    step, text = link.get("step"), link.get("description")
    named = isinstance(step, str) and bool(step.strip())
    return grade(
        part("one step or decision", ref_in(case, "critique.json", "weakest_link", "step"), when=named),
        part("a step of the specification", [f"{SPEC}#/steps"], when=named and step in case.step_ids),
        part(
            "described", ref_in(case, "critique.json", "weakest_link", "description"), when=words(text) >= 5
        ),
        soft_veto=part(
            "a general remark",
            ref_in(case, "critique.json", "weakest_link", "description"),
            when=isinstance(text, str) and bool(re.search(VAGUE, text, re.IGNORECASE)),
        ),
        structured=True,
    )


def r1_sk2(case: Case) -> Verdict:
    link = _weakest(case)
    step = str(link.get("step"))
    calls = [c.ref for c in case.record.calls if c.step_id == step and (c.round_id or 0) < (case.round or 1)]
    equal, differing = _quoted(case)
    failed = [c for c in failures(case, case.previous) if c.step_id]
    missed = bool(failed) and step not in {c.step_id for c in failed}
    logged = [ref for ref in _evidence(case) if ref.startswith(("logs/", "run:"))]
    return grade(
        part("the step was at work before this round", calls[:1]),
        part(
            "metrics quoted as they are",
            [ref_in(case, "critique.json", "metrics", _escape(name)) for name in equal[:2]],
            when=not differing,
        ),
        part("a log line cited", logged[:1]),
        soft_veto=part("another step failed in the round before", [c.ref for c in failed][:1], when=missed),
        structured=True,
    )


def r1_sk3(case: Case) -> Verdict:
    stage = str(_weakest(case).get("stage", "")).lower()
    placed = re.match(r"plan|action|diagnos", stage)
    return grade(
        part("placed in a stage", ref_in(case, "critique.json", "weakest_link", "stage"), when=bool(placed)),
        part("a file or log line that exists", _evidence(case)[:2]),
        structured=True,
    )


def r1_sk4(case: Case) -> Verdict:
    k = case.round or 1
    link = _weakest(case)
    earlier = [_weakest(case, j) for j in range(1, k)]
    text = str(link.get("description", ""))
    repeated = any(other.get("description") == link.get("description") for other in earlier if other)
    update = record_of(case, "update.json")
    retried = any(
        same(update.get("parameter"), other.get("parameter")) and same(update.get("new"), other.get("new"))
        for other in (case.record.object(f"{case.folder(j)}/update.json") for j in range(1, k))
        if other
    )
    file = case.round_file("critique.json")
    equal, _ = _quoted(case)
    mentions = case.record.find(
        file, r"earlier|previous|before|already|settled|round (?:0|1|2|3|4)\b|again|baseline"
    )
    return grade(
        part(
            "earlier findings taken up",
            [ref_in(case, "critique.json", "metrics", _escape(equal[0]))] if equal else mentions[:1],
            when=bool(equal) or bool(mentions),
        ),
        part(
            "and referred to",
            mentions[:1] if k > 1 else [ref_in(case, "critique.json", "weakest_link")],
            when=bool(text) and (k == 1 or bool(mentions)),
        ),
        veto=part("an earlier critique repeated word for word", file, when=bool(text) and repeated),
        soft_veto=part("a change tried before", case.round_file("update.json"), when=retried),
    )


# ---- R2 critique ----------------------------------------------------------------------------------------
def r2_sk1(case: Case) -> Verdict:
    equal, differing = _quoted(case)
    cited = _evidence(case)
    return grade(
        part("citations of this run that resolve", cited[:3]),
        part(
            "a metric value of this run",
            [ref_in(case, "critique.json", "metrics", _escape(n)) for n in equal[:1]],
        ),
        soft_veto=part(
            "a value that no file holds", ref_in(case, "critique.json", "metrics"), when=bool(differing)
        ),
        structured=True,
    )


def r2_sk2(case: Case) -> Verdict:
    equal, differing = _quoted(case)
    cited = _weakest(case).get("evidence")
    n_cited = len(cited) if isinstance(cited, list) else 0
    resolving = _evidence(case)
    on_point = []
    text = json.dumps(record_of(case, "critique.json"))
    for ref in resolving:
        shown = resolve_ref(case.record.run_dir, ref) or ""
        value = None
        try:
            value = number(json.loads(shown))
        except (ValueError, RecursionError):
            value = None
        if (value is not None and (f"{value:.3f}" in text or str(value) in text)) or len(
            tokens(shown[:600], shortest=5) & tokens(str(_weakest(case).get("description", "")), shortest=5)
        ) >= 2:
            on_point.append(ref)
    return grade(
        part(
            "quoted metrics equal the files",
            [ref_in(case, "critique.json", "metrics", _escape(n)) for n in equal[:2]],
            when=bool(equal) and not differing,
        ),
        part("every citation resolves", resolving[:3], when=n_cited > 0 and len(resolving) == n_cited),
        part("a citation shows what is claimed", on_point[:2]),
        veto=part(
            "a quoted value differs from the file",
            ref_in(case, "critique.json", "metrics"),
            when=bool(differing),
        ),
        structured=True,
    )


def r2_sk3(case: Case) -> Verdict:
    listed = record_of(case, "critique.json").get("alternatives")
    real = [text for text in listed if words(text) >= 4] if isinstance(listed, list) else []
    description = str(_weakest(case).get("description", ""))
    other = [text for text in real if text != description]
    return grade(
        part("another explanation", ref_in(case, "critique.json", "alternatives"), when=bool(other)),
        part(
            "said in a sentence",
            ref_in(case, "critique.json", "alternatives"),
            when=any(words(t) >= 6 for t in other),
        ),
    )


def r2_sk4(case: Case) -> Verdict:
    text = record_of(case, "critique.json").get("data_and_label_considerations")
    ref = ref_in(case, "critique.json", "data_and_label_considerations")
    said = isinstance(text, str) and bool(re.search(DATA_WORDS, text, re.IGNORECASE))
    both = isinstance(text, str) and bool(
        re.search(r"label|annotat|reference", text, re.IGNORECASE)
        and re.search(r"data|slide|patient|sample|stain|site", text, re.IGNORECASE)
    )
    return grade(
        part("data or labels considered", ref, when=said and words(text) >= 5),
        part("data and labels both", ref, when=both and words(text) >= 8),
    )


def r2_sk5(case: Case) -> Verdict:
    critique = record_of(case, "critique.json")
    boundary = critique.get("claim_boundary_type")
    config = case.record.yaml(case.round_file("config.yaml"))
    drift = boundary is not None and not same(boundary, case.task["claim_boundary_type"])
    moved = bool(config) and not same(config.get("task_id"), case.task["task_id"])
    return grade(
        part(
            "endpoint kept",
            ref_in(case, "critique.json", "endpoint_unchanged"),
            when=critique.get("endpoint_unchanged") is True,
        ),
        part(
            "claim boundary kept",
            ref_in(case, "critique.json", "claim_boundary_type"),
            when=same(boundary, case.task["claim_boundary_type"]),
        ),
        veto=part(
            "boundary or endpoint changed",
            case.round_file("critique.json"),
            when=drift or moved or bool(overclaim_refs(case.record, case.round_file("critique.json"))),
        ),
        structured=True,
    )


# ---- R3 update proposal ---------------------------------------------------------------------------------
def r3_sk1(case: Case) -> Verdict:
    update, link = record_of(case, "update.json"), _weakest(case)
    step = update.get("step")
    shared = tokens(f"{update.get('parameter')} {update.get('expected_effect')}", shortest=4) & tokens(
        f"{link.get('description')}", shortest=4
    )
    return grade(
        part(
            "the same step as the weakest link",
            [ref_in(case, "update.json", "step"), ref_in(case, "critique.json", "weakest_link", "step")],
            when=isinstance(step, str) and bool(step) and step == link.get("step"),
        ),
        part("speaks to its description", ref_in(case, "update.json", "expected_effect"), when=bool(shared)),
    )


def _previous_config(case: Case, base: int) -> dict[str, Any]:
    return flatten(case.record.yaml(f"{case.folder(base)}/config.yaml"))


def by_parameter(flat: dict[str, Any], parameter: object) -> list[Any]:
    """Values a flat configuration holds under a parameter's name (0 or 1)."""
    if not isinstance(parameter, str):
        return []
    if parameter in flat:
        return [flat[parameter]]
    wanted = canonical_parameter(parameter)
    return [value for name, value in flat.items() if canonical_parameter(name) == wanted][:1]


def r3_sk2(case: Case) -> Verdict:
    update = record_of(case, "update.json")
    complete = (
        all(update.get(key) not in (None, "") for key in ("step", "parameter", "new")) and "old" in update
    )
    held = [
        value
        for base in bases(case)
        for value in by_parameter(_previous_config(case, base), update.get("parameter"))
    ]
    return grade(
        part("step, parameter, old and new", case.round_file("update.json"), when=complete),
        part(
            "old and new differ",
            ref_in(case, "update.json", "new"),
            when=complete and not same(update.get("old"), update.get("new")),
        ),
        part(
            "old is the value in force",
            f"{case.folder(case.previous)}/config.yaml",
            when=any(same(v, update.get("old")) for v in held),
        ),
        structured=True,
    )


def _stated_before_rerun(case: Case) -> list[str]:
    """Citations of the update, written before the round's first tool call (stream, else manifest time)."""
    path = case.round_file("update.json")
    rerun = next((c for c in case.record.calls if c.round_id == case.round), None)
    if rerun is None:
        return []
    for event in case.record.events:
        if event.kind == "write" and event.name.removeprefix("./").endswith(path):
            return [event.ref, rerun.ref] if event.seq < rerun.seq else []
    from acpbench.core.errors import InputError
    from acpbench.trajectory.record import load_manifest

    try:
        row = load_manifest(case.record.run_dir).get(path)
    except InputError:
        return []
    return [path, rerun.ref] if row is not None and rerun.t is not None and row.mtime <= rerun.t + 1.0 else []


def r3_sk3(case: Case) -> Verdict:
    update = record_of(case, "update.json")
    measure = str(update.get("measure", ""))
    names_metric = any(
        re.search(case.metric_pattern(name), measure, re.IGNORECASE)
        for name in (case.primary, *case.secondary)
    )
    return grade(
        part(
            "an expected effect",
            ref_in(case, "update.json", "expected_effect"),
            when=words(update.get("expected_effect")) >= 4,
        ),
        part("a measure of the family", ref_in(case, "update.json", "measure"), when=names_metric),
        part("stated before the rerun", _stated_before_rerun(case)),
        structured=True,
    )


def r3_sk4(case: Case) -> Verdict:
    update = record_of(case, "update.json")
    known = any(by_parameter(_previous_config(case, base), update.get("parameter")) for base in bases(case))
    trained = [c.ref for c in case.record.ok_calls(round_id=case.round)]
    return grade(
        part(
            "a parameter of the configuration",
            [ref_in(case, "update.json", "parameter"), f"{case.folder(case.previous)}/config.yaml"],
            when=known,
        ),
        part(
            "a step of the specification",
            ref_in(case, "update.json", "step"),
            when=words_of(update.get("step")) in case.step_ids,
        ),
        part("the rerun ended well", trained[:1]),
        structured=True,
    )


def r3_sk5(case: Case) -> Verdict:
    update = record_of(case, "update.json")
    text = json.dumps(update)
    tuned = re.search(
        r"(?:tune|select|choose|optimi[sz]e|fit|threshold)\w*[^.\"]{0,40}"
        r"\btest (?:set|part|patients|labels?|auc|auroc)",
        text,
        re.IGNORECASE,
    )
    on_split = re.search(r"split|label_column|y_true", str(update.get("parameter", "")), re.IGNORECASE)
    validation = re.search(
        r"validation|inner|cross-?validation|training", str(update.get("measure", "")), re.IGNORECASE
    )
    tests = case.record.ok_calls("evaluate_test")
    # Training on after a test figure was seen is climbing on it, whatever the update says.
    climbed = [
        t.ref for t in tests for c in case.record.ok_calls("train_mil", round_id=case.round) if c.seq > t.seq
    ]
    return grade(
        part(
            "measured on validation patients", ref_in(case, "update.json", "measure"), when=bool(validation)
        ),
        part(
            "a model or data setting, not labels or split",
            ref_in(case, "update.json", "parameter"),
            when=bool(update.get("parameter")) and not on_split,
        ),
        veto=part(
            "uses the test part",
            [case.round_file("update.json"), *climbed[:1]],
            when=bool(tuned) or bool(climbed),
        ),
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "R1.sk1": r1_sk1,
    "R1.sk2": r1_sk2,
    "R1.sk3": r1_sk3,
    "R1.sk4": r1_sk4,
    "R2.sk1": r2_sk1,
    "R2.sk2": r2_sk2,
    "R2.sk3": r2_sk3,
    "R2.sk4": r2_sk4,
    "R2.sk5": r2_sk5,
    "R3.sk1": r3_sk1,
    "R3.sk2": r3_sk2,
    "R3.sk3": r3_sk3,
    "R3.sk4": r3_sk4,
    "R3.sk5": r3_sk5,
}
