"""Cue functions of R4 and R5: what a round ran, how it compared, and the loop over all rounds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from acpbench.adjudication.cues import (
    REPORT,
    Case,
    Verdict,
    canonical_parameter,
    grade,
    overclaim_refs,
    part,
    same,
    words,
)
from acpbench.adjudication.cues_outputs import NO_ERRORS, failures
from acpbench.adjudication.cues_reflection import TOLERANCE, bases, by_parameter, record_of, ref_in
from acpbench.rubric.formats import flatten, number

DELTA = 1e-3


# ---- R4 update execution --------------------------------------------------------------------------------
def r4_sk1(case: Case) -> Verdict:
    update = record_of(case, "update.json")
    parameter, new = update.get("parameter"), update.get("new")
    changed = record_of(case, "config_diff.json").get("changed")
    changed = changed if isinstance(changed, dict) else {}
    entries = {canonical_parameter(str(name)): value for name, value in changed.items()}
    entry = entries.get(canonical_parameter(str(parameter)))
    listed = isinstance(entry, dict) and same(entry.get("new"), new)
    config = case.round_file("config.yaml")
    in_config = by_parameter(flatten(case.record.yaml(config)), parameter)
    digest = case.record.sha256(config)
    in_force = [
        c.ref
        for c in case.record.ok_calls("train_mil", round_id=case.round)
        if (digest and c.result.get("config_sha256") == digest)
        or same(c.args.get(canonical_parameter(str(parameter))), new)
    ]
    others = [
        name
        for name in entries
        if name not in (canonical_parameter(str(parameter)), "round_id", "seed", "output_dir")
    ]
    return grade(
        part("the diff shows the proposed change", ref_in(case, "config_diff.json", "changed"), when=listed),
        part("the round's configuration holds it", config, when=bool(in_config) and same(in_config[0], new)),
        part("it was in force (witnessed)", in_force[:1]),
        part(
            "a log of the round",
            case.record.find(case.logs, rf"round[_\s]*{case.round}\b|{re.escape(str(digest or '-'))}")[:1],
        ),
        soft_veto=part(
            "other fields changed too", ref_in(case, "config_diff.json", "changed"), when=bool(others)
        ),
        structured=True,
    )


def r4_sk2(case: Case) -> Verdict:
    reran = [
        c.ref
        for c in case.record.ok_calls("train_mil", "extract_features", "tile_slides", round_id=case.round)
        if c.outputs
    ]
    path = case.round_file("predictions.csv")
    digest = case.record.sha256(path)
    before = {case.record.sha256(f"{case.folder(k)}/predictions.csv") for k in range(case.round or 1)}
    evaluated = [c.ref for c in case.record.ok_calls("evaluate_predictions", round_id=case.round)]
    return grade(
        part("a step was rerun in this round (witnessed)", reran[:2]),
        part(
            "its predictions are the witnessed bytes",
            [path, *case.witnessed_predictions(case.round or 0)],
            when=bool(case.witnessed_predictions(case.round or 0)),
        ),
        part("they differ from every earlier round", path, when=digest is not None and digest not in before),
        part("and were evaluated", evaluated[:1]),
        structured=True,
    )


def r4_sk3(case: Case) -> Verdict:
    summary = case.round_file("summary.json")
    said = case.record.find(
        [summary, *case.logs],
        r"side effect|other metrics?|secondary|calibration|recall|n unchanged|same n"
        r"|coverage|also (?:chang|drop|rose|fell)",
    )
    several = len([v for v in case.metrics(case.round or 0).values() if number(v) is not None]) >= 2
    looked = [
        c.ref
        for c in case.record.ok_calls("read_table", round_id=case.round)
        if "predictions" in str(c.args.get("path"))
    ]
    now, before = (
        case.record.object(case.metrics_file(k)).get("n") for k in (case.round or 0, case.previous)
    )
    return grade(
        part("side effects are spoken of", said[:1]),
        part(
            "several metrics on the same n",
            case.metrics_file(case.round or 0),
            when=several and now is not None and now == before,
        ),
        part("the new predictions were read (witnessed)", looked[:1]),
    )


def r4_sk4(case: Case) -> Verdict:
    failed = failures(case, case.round)
    ended = [c.ref for c in case.record.ok_calls(round_id=case.round)]
    notes = [p for p in case.notes if re.search(rf"round[_-]?{case.round}\b", p)] or case.notes
    if not failed:
        said = case.record.find(notes, NO_ERRORS)
        logged = case.record.find(notes, rf"round[_\s]*(?:id)?\W{{0,4}}{case.round}\b")
        return grade(
            part("the rerun ended without a failed call (witnessed)", ended[-1:]),
            part("a log or memory row of the rerun", (said or logged)[:1]),
            structured=True,
        )
    recorded = [case.record.find(notes, re.escape(c.name), r"error|fail|refus|retry|fix")[:1] for c in failed]
    repaired = [
        next((c.ref for c in case.record.ok_calls(f.name, round_id=case.round) if c.seq > f.seq), None)
        for f in failed
    ]
    handled = [ref for ref in repaired if ref]
    return grade(
        part(
            "errors were recorded or repaired",
            [failed[0].ref, *handled, *[r for refs in recorded for r in refs]][:4],
            when=any(recorded) or bool(handled),
        ),
        part(
            "each of them",
            [f.ref for f in failed][:3],
            when=all(fixed or noted for fixed, noted in zip(repaired, recorded, strict=True)),
        ),
        part("repaired and recorded", handled[:2], when=len(handled) == len(failed) and all(recorded)),
        structured=True,
    )


# ---- R5 loop completeness -------------------------------------------------------------------------------
def _values(case: Case) -> tuple[float | None, list[float]]:
    """This round's value of the summary's metric, and those of the rounds it may be compared with."""
    metric = str(record_of(case, "summary.json").get("metric"))
    now = number(case.metrics(case.round or 0).get(metric))
    before = [number(case.metrics(k).get(metric)) for k in bases(case)]
    return now, [value for value in before if value is not None]


def _base_value(case: Case) -> float | None:
    """The earlier value that the summary compares with, as the files hold it."""
    claimed = number(record_of(case, "summary.json").get("previous"))
    _, before = _values(case)
    return next((v for v in before if claimed is not None and abs(v - claimed) <= TOLERANCE), None)


def r5_sk1(case: Case) -> Verdict:
    summary = record_of(case, "summary.json")
    now, _ = _values(case)
    claimed = number(summary.get("current"))
    base = _base_value(case)
    documents = [case.record.object(case.metrics_file(k)) for k in (case.round or 0, case.previous)]
    alike = (
        bool(documents[0])
        and documents[0].get("n") == documents[1].get("n") == summary.get("n")
        and documents[0].get("split") == documents[1].get("split") == summary.get("split")
    )
    return grade(
        part(
            "this round's value is its file's",
            [ref_in(case, "summary.json", "current"), case.metrics_file(case.round or 0)],
            when=now is not None and claimed is not None and abs(now - claimed) <= TOLERANCE,
        ),
        part(
            "the earlier value is that file's",
            ref_in(case, "summary.json", "previous"),
            when=base is not None,
        ),
        part("same split and n", ref_in(case, "summary.json", "n"), when=alike),
        part(
            "a metric of the family",
            ref_in(case, "summary.json", "metric"),
            when=summary.get("metric") in (case.primary, *case.secondary),
        ),
        structured=True,
    )


def _true_verdict(case: Case) -> str | None:
    now, _ = _values(case)
    base = _base_value(case)
    if now is None or base is None:
        return None
    # A smaller error is the better result.
    sign = (
        -1
        if str(record_of(case, "summary.json").get("metric")) in ("MAE", "MAE_ranks", "brier", "ECE")
        else 1
    )
    delta = sign * (now - base)
    return "improved" if delta > DELTA else "worse" if delta < -DELTA else "unchanged"


def r5_sk2(case: Case) -> Verdict:
    summary = record_of(case, "summary.json")
    truth = _true_verdict(case)
    verdict = summary.get("verdict")
    now, base, delta = _values(case)[0], _base_value(case), number(summary.get("delta"))
    return grade(
        part(
            "a verdict in line with the files",
            ref_in(case, "summary.json", "verdict"),
            when=truth is not None and verdict == truth,
        ),
        part(
            "the difference is right",
            ref_in(case, "summary.json", "delta"),
            when=now is not None
            and base is not None
            and delta is not None
            and abs(delta - (now - base)) <= 2 * TOLERANCE,
        ),
        veto=part(
            f"the files say {truth}",
            ref_in(case, "summary.json", "verdict"),
            when=truth is not None and verdict != truth,
        ),
        structured=True,
    )


def r5_sk3(case: Case) -> Verdict:
    summary = record_of(case, "summary.json")
    truth, decision = _true_verdict(case), summary.get("decision")
    fits = {"improved": ("keep",), "worse": ("revert", "stop"), "unchanged": ("keep", "revert", "stop")}
    reason = summary.get("statement")
    return grade(
        part(
            "a decision that follows from the files",
            ref_in(case, "summary.json", "decision"),
            when=truth is not None and decision in fits[truth],
        ),
        part("with its reason", ref_in(case, "summary.json", "statement"), when=words(reason) >= 5),
        structured=True,
    )


def r5_sk4(case: Case) -> Verdict:
    summary = record_of(case, "summary.json")
    path = case.round_file("summary.json")
    limited = case.record.find(
        path, r"research|cohort|validation|no diagnos|not (?:a )?diagnos|boundary|held[\s-]?out"
    )
    return grade(
        part(
            "the round is put into words",
            ref_in(case, "summary.json", "statement"),
            when=words(summary.get("statement")) >= 5,
        ),
        part("within its split or cohort", limited[:1]),
        veto=part(
            "wording beyond the boundary",
            overclaim_refs(case.record, path)
            + overclaim_refs(case.record, REPORT, about=rf"round\s*{case.round}\b"),
        ),
    )


def r5_sg1(case: Case) -> Verdict:
    document = case.record.object("reflection/summary.json")
    rounds = [k for k in range(1, 6) if case.record.matching(f"reflection/round_{k}/")]
    names = (
        "critique.json",
        "update.json",
        "config_diff.json",
        "predictions.csv",
        "metrics.json",
        "summary.json",
    )
    whole = [k for k in rounds if all(case.record.has(f"{case.folder(k)}/{name}") for name in names)]
    reran = [
        c.ref
        for k in rounds
        for c in case.record.ok_calls("train_mil", "extract_features", "tile_slides", round_id=k)[:1]
    ]
    values = {k: v for k in case.rounds() if (v := number(case.metrics(k).get(case.primary))) is not None}
    selected = document.get("selected_round")
    lower = case.primary in ("MAE", "MAE_ranks", "brier", "ECE")
    best = (min if lower else max)(values.values()) if values else None
    follows = (
        isinstance(selected, int)
        and selected in values
        and best is not None
        and abs(values[selected] - best) <= DELTA
    )
    return grade(
        part("rounds run from critique to comparison", [f"{case.folder(k)}/summary.json" for k in whole][:2]),
        part(
            "every round is whole",
            [f"{case.folder(k)}/critique.json" for k in whole][:2],
            when=bool(rounds) and whole == rounds,
        ),
        part("every round was rerun (witnessed)", reran[:3], when=bool(rounds) and len(reran) == len(rounds)),
        part(
            "the choice follows from the values",
            ["reflection/summary.json#/selected_round", *[case.metrics_file(selected)]] if follows else [],
        ),
        part(
            "a stop reason",
            "reflection/summary.json#/stop_reason",
            when=words(document.get("stop_reason")) >= 3,
        ),
        structured=True,
    )


def r5_sg2(case: Case) -> Verdict:
    path = "memory/execution_memory.jsonl"
    lessons: dict[int, str] = {}
    texts: set[str] = set()
    for line_number, line in enumerate(case.record.lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict) or row.get("kind") not in ("success", "failure"):
            continue
        text, round_id = row.get("text"), row.get("round_id")
        if words(text) >= 5 and text not in texts and isinstance(round_id, int) and round_id > 0:
            texts.add(text)
            lessons.setdefault(round_id, f"{path}#L{line_number}")
    rounds = [k for k in range(1, 6) if case.record.matching(f"reflection/round_{k}/")]
    numbered = case.record.find(
        path, r"->|→|from .* to |improv|worse|unchanged|revert|keep|lesson|avoid|use "
    )
    return grade(
        part("a lesson of a round", list(lessons.values())[:2]),
        part(
            "one for every round",
            list(lessons.values())[:3],
            when=bool(rounds) and set(rounds) <= set(lessons),
        ),
        part("in a form to act on", numbered[:1]),
        structured=True,
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "R5.sg1": r5_sg1,
    "R5.sg2": r5_sg2,
    "R4.sk1": r4_sk1,
    "R4.sk2": r4_sk2,
    "R4.sk3": r4_sk3,
    "R4.sk4": r4_sk4,
    "R5.sk1": r5_sk1,
    "R5.sk2": r5_sk2,
    "R5.sk3": r5_sk3,
    "R5.sk4": r5_sk4,
}
