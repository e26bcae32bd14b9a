"""Cue functions of D4 and D5: the report, its wording and its limits."""

from __future__ import annotations

import re
from collections.abc import Callable

from acpbench.adjudication.cues import (
    REPORT,
    REPORT_JSON,
    Case,
    Verdict,
    decimals,
    grade,
    overclaim_refs,
    part,
    tokens,
    written,
)
from acpbench.adjudication.cues_diagnosis import CHANCE, headline_ref, names_result_file, traced_numbers
from acpbench.rubric.formats import number

SMALL_N = 50
WIDE_INTERVAL = 0.2


def d4_s1(case: Case) -> Verdict:
    wanted: dict[str, Callable[[str], bool]] = {
        "endpoint": case.names_target,
        "cohort": lambda text: case.task["cohort"].lower() in text.lower() or "cohort" in text.lower(),
        "n": lambda text: bool(
            re.search(r"\bn\s*=\s*\d+|(?<!\d)\d+ (?:\w+ ){0,2}(?:patients|slides|cases)", text)
        ),
        "split": lambda text: bool(re.search(r"validation|test|held[\s-]?out", text, re.IGNORECASE)),
        "method": lambda text: bool(
            re.search(r"attention|MIL\b|encoder|model|pool|classif", text, re.IGNORECASE)
        ),
        "headline": lambda text: bool(
            re.search(case.metric_pattern(case.primary), text, re.IGNORECASE) and decimals(text)
        ),
    }
    units = case.report_units
    best: tuple[int, list[str], str] = (0, [], REPORT)
    for index in range(len(units)):
        window = units[index : index + 6]
        text = " ".join(unit.text for unit in window)
        found = [name for name, test in wanted.items() if test(text)]
        if len(found) > best[0]:
            best = (len(found), found, f"{REPORT}#L{window[0].start}-L{window[-1].end}")
    return grade(*[part(name, best[2], when=name in best[1]) for name in wanted], core=0)


def d4_s2(case: Case) -> Verdict:
    statement = tokens(case.task["claim_boundary_statement"], shortest=4)
    limit = case.record.find_unit(
        REPORT, r"\bnot?\b|only", r"diagnos|confirm|clinical|deploy|claim|replace|individual"
    )

    def restates(text: str) -> bool:
        return len(statement & tokens(text, shortest=4)) >= max(3, 0.25 * len(statement))

    return grade(
        part("limits of the claim are stated", limit),
        part(
            "in the terms of this task",
            case.record.find_unit(REPORT, r"claim|predict|signal|research", where=restates),
        ),
        veto=part("wording beyond the boundary", overclaim_refs(case.record, REPORT)),
    )


def d4_s3(case: Case) -> Verdict:
    value = number(case.headline.get("value"))
    traced, untraced = traced_numbers(case)
    text = case.record.text(REPORT)
    return grade(
        part("headline equals its metrics file", headline_ref(case)),
        part(
            "narrative and structured report agree",
            [REPORT, f"{REPORT_JSON}#/headline"],
            when=value is not None and written(value, text),
        ),
        part(
            "no result differs from the files",
            names_result_file(case)[:1] or [REPORT],
            when=bool(traced) and not untraced,
        ),
    )


def d4_s4(case: Case) -> Verdict:
    headings = {unit.section for unit in case.record.units(REPORT)}
    wanted = ("data|cohort", "method", "result", "limit")
    found = [name for name in wanted if any(re.search(name, heading) for heading in headings)]
    done = case.record.find_unit(REPORT, r"\b(?:was|were)\b", r"slides?|tiles?|patients?", r"\d")
    not_done = case.record.find_unit(
        REPORT,
        r"\b(?:was|were|is|are) not\b|\bnot (?:done|performed|evaluated|attempted|run|re-?read)"
        r"|no (?:external|test|second)"
        r"|did not|missing|without",
    )
    return grade(
        part("sections for data, method, results, limits", REPORT, when=len(found) == len(wanted)),
        part("what was done, with numbers", done),
        part("what was not done", not_done),
        soft_veto=part("no witnessed run behind it", REPORT, when=not case.record.ok_calls("train_mil")),
    )


LIMITS = {
    "label error": r"label|reader|assay|reference standard|annotat",
    "cohort bias": r"single (?:cohort|cent|site)|\bsite|scanner|select|generali[sz]|external|synthetic"
    r"|generated|bias|retrospective|one cohort",
    "size": r"small|few|sample size|\bn\s*=\s*\d|\d+ patients|wide interval|number of (?:patients|events)",
    "missing evidence": r"missing|not (?:available|evaluated|tested|run|done)|no external|lack|unavailable"
    r"|dropped|excluded",
}


def d5_s1(case: Case) -> Verdict:
    named = {
        name: refs[0]
        for name, pattern in LIMITS.items()
        if (refs := case.record.find_unit(REPORT, pattern, section=r"limit|caveat|discussion"))
    }
    n = {
        str(document.get("n"))
        for k in case.rounds()
        if (document := case.record.object(case.metrics_file(k))).get("n")
    }
    bearing = [
        unit.ref
        for unit in case.report_units
        if re.search(r"limit|caveat", unit.section)
        and any(re.search(rf"\b{count}\b", unit.text) for count in n)
    ]
    return grade(
        part("a limitation", list(named.values())[:2]),
        part("three kinds", list(named.values())[:3], when=len(named) >= 3),
        part("tied to this result's numbers", bearing[:1]),
    )


def _headline_interval(case: Case) -> tuple[float, float] | None:
    pair = case.headline.get("interval")
    if isinstance(pair, list) and len(pair) == 2:
        low, high = number(pair[0]), number(pair[1])
        if low is not None and high is not None:
            return low, high
    return None


def d5_s2(case: Case) -> Verdict:
    interval = _headline_interval(case)
    n = number(case.headline.get("n"))
    weak_base = (interval is not None and interval[1] - interval[0] > WIDE_INTERVAL) or (
        n is not None and n < SMALL_N
    )
    given = (
        [f"{REPORT_JSON}#/headline/interval"]
        if interval
        and written(interval[0], case.record.text(REPORT))
        and written(interval[1], case.record.text(REPORT))
        else []
    )
    hedged = case.record.find(
        REPORT,
        r"wide|uncertain|caution|preliminary|small|few|suggest|cannot (?:show|tell)|not conclusive|limit",
    )
    strong = case.record.find(
        REPORT,
        r"\b(?:clearly|definitive\w*|prove[sd]?|excellent|outstanding"
        r"|highly (?:accurate|reliable)|robustly|far above)\b",
    )
    return grade(
        part("the interval is given", given),
        part("n is given", case.record.find(REPORT, r"\bn\s*=?\s*\d+|(?<!\d)\d+ (?:\w+ ){0,2}patients")[:1]),
        part("wording as careful as the base", hedged[:2] or given[:1], when=bool(hedged) or not weak_base),
        veto=part("strong words on a small or wide result", strong, when=weak_base),
    )


def d5_s3(case: Case) -> Verdict:
    weak: list[str] = []
    interval, chance = _headline_interval(case), CHANCE.get(case.primary)
    value = number(case.headline.get("value"))
    if chance is not None and interval and interval[0] <= chance:
        weak.append(f"{REPORT_JSON}#/headline/interval")
    if chance is not None and value is not None and value <= chance + 0.05:
        weak.append(f"{REPORT_JSON}#/headline/value")
    for k in case.rounds()[1:]:
        before = number(case.metrics(k - 1).get(case.primary))
        after = number(case.metrics(k).get(case.primary))
        if before is not None and after is not None and after - before <= 1e-3:
            weak.append(f"{case.metrics_file(k)}#/metrics/{case.primary}")
    weak += [call.ref for call in case.record.calls if call.exit_status != "ok"]
    said = case.record.find(
        REPORT,
        r"no better|chance|weak|fail|worse|unchanged|did not|not improve|no improvement|no gain"
        r"|lower|undefined|includes 0\.5",
    )
    nothing = case.record.find(
        REPORT, r"\bno (?:step|call|run|round)\w* (?:failed|was lost)|nothing failed|none failed"
    )
    if weak:
        return grade(part("weak or failed results are said", [weak[0], *said[:2]], when=bool(said)))
    return grade(
        part("results are reported from files", headline_ref(case)),
        part("and whether any was weak or failed", (nothing or said)[:1]),
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "D4.s1": d4_s1,
    "D4.s2": d4_s2,
    "D4.s3": d4_s3,
    "D4.s4": d4_s4,
    "D5.s1": d5_s1,
    "D5.s2": d5_s2,
    "D5.s3": d5_s3,
}
