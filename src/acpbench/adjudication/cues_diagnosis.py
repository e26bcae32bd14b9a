"""Cue functions of D1 to D3: results found, metrics chosen, metrics computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from acpbench.adjudication.cues import (
    PLAN,
    REPORT,
    REPORT_JSON,
    ROUND_0,
    SPEC,
    Case,
    Verdict,
    decimals,
    grade,
    part,
    written,
)
from acpbench.adjudication.cues_outputs import held_out_only
from acpbench.adjudication.cues_planning import class_named
from acpbench.rubric.formats import flatten, number

RESULTS = r"result|finding|performance|evaluation|reflection|round|test|summary"
CHANCE = {
    "AUROC": 0.5,
    "macro_OvR_AUROC": 0.5,
    "c_index": 0.5,
    "quadratic_weighted_kappa": 0.0,
    "spearman_rho": 0.0,
}


def _paths(value: Any) -> list[str]:
    return [path for path in value if isinstance(path, str)] if isinstance(value, list) else []


def headline_ref(case: Case) -> list[str]:
    """Citation of the headline value in the metrics file that the report names, when it is there."""
    if not case.headline_in_file():
        return []
    return [f"{case.headline['file']}#/metrics/{case.headline['metric']}"]


def _result_values(case: Case) -> list[float]:
    """Every number of the run's metrics and summary files, and of witnessed test receipts."""
    values: list[float] = []
    files = [path for path in case.record.files if re.search(r"(?:metrics|summary)\.json$", path)]
    documents = [case.record.object(path) for path in files if path.startswith(("outputs/", "reflection/"))]
    documents += [call.result for call in case.record.ok_calls("evaluate_test", "evaluate_predictions")]
    for document in documents:
        for leaf in flatten(document).values():
            for item in leaf if isinstance(leaf, list) else [leaf]:
                rows = flatten(item).values() if isinstance(item, dict) else [item]
                values += [value for value in map(number, rows) if value is not None]
    return values


def traced_numbers(case: Case) -> tuple[list[str], list[str]]:
    """(traced, untraced) decimal numbers of the report's result sections."""
    units = [u for u in case.report_units if re.search(RESULTS, u.section)] or case.report_units
    stated = [found for unit in units for found in decimals(unit.text)]
    known = _result_values(case)
    chance = CHANCE.get(case.primary)
    traced = [
        found
        for found in stated
        if any(written(value, found) for value in known) or (chance is not None and float(found) == chance)
    ]
    return traced, [found for found in stated if found not in traced]


def names_result_file(case: Case) -> list[str]:
    return case.record.find(REPORT, r"(?:outputs|reflection)/[\w./-]*\.(?:json|csv)")


def d1_s1(case: Case) -> Verdict:
    headline = headline_ref(case)
    value = number(case.headline.get("value"))
    document = case.record.object(REPORT_JSON)
    artifacts = _paths(document.get("artifacts"))
    absent = [path for path in artifacts if not case.record.matching(path)]
    folder = (
        case.folder(document["round_selected"]) if isinstance(document.get("round_selected"), int) else "?"
    )
    selected = str(case.headline.get("file", "")).startswith(folder + "/")
    produced = case.record.witnessed_hashes.get(case.record.sha256(str(case.headline.get("file"))) or "")
    return grade(
        part("headline equals its file", headline),
        part(
            "the narrative gives the same value",
            f"{REPORT_JSON}#/headline",
            when=value is not None and written(value, case.record.text(REPORT)),
        ),
        part("that file is of the selected round", f"{REPORT_JSON}#/round_selected", when=selected),
        part("that file is a witnessed tool's bytes", produced),
        soft_veto=part(
            "artifacts that do not exist are listed", f"{REPORT_JSON}#/artifacts", when=bool(absent)
        ),
        structured=True,
    )


def d1_s2(case: Case) -> Verdict:
    rounds = case.rounds()
    text = case.record.text(REPORT)

    def mentioned(k: int) -> bool:
        value = number(case.metrics(k).get(case.primary))
        named = case.folder(k) in text or re.search(
            rf"round[s]?\s*#?{k}\b|\|\s*{k}\s*\|", text, re.IGNORECASE
        )
        return bool(named) or (value is not None and k == 0 and written(value, text))

    found = [k for k in rounds if mentioned(k)]
    refs = [case.metrics_file(k) for k in found]
    missing = case.record.object(REPORT_JSON).get("missing_evidence")
    dropped = [
        row
        for row in case.record.table(f"{ROUND_0}/slide_manifest.csv")
        if row.get("status", "ok") not in ("ok", "")
    ]
    excluded = case.record.find(REPORT, r"drop|exclud|unusable|lost|missing", r"slide|patient|none|no ")
    return grade(
        part("result files are used", [REPORT, *refs[:2]], when=bool(found)),
        part("every round's result is mentioned", refs[:3], when=bool(rounds) and len(found) == len(rounds)),
        part(
            "dropped cases and gaps are said",
            excluded or ([f"{REPORT_JSON}#/missing_evidence"] if missing else []),
            when=not dropped or bool(excluded),
        ),
        soft_veto=part("rounds left out", REPORT, when=len(found) < len(rounds)),
    )


def d1_s3(case: Case) -> Verdict:
    traced, untraced = traced_numbers(case)
    total = len(traced) + len(untraced)
    named = names_result_file(case)
    return grade(
        part("a file is named beside the numbers", named),
        part(
            f"most numbers trace to files ({len(traced)} of {total})",
            named[:1],
            when=total > 0 and len(traced) >= 0.8 * total,
        ),
        part("all numbers trace to files", named[:1], when=total > 0 and not untraced),
    )


def d2_s1(case: Case) -> Verdict:
    metric = case.headline.get("metric")
    in_file = headline_ref(case)
    return grade(
        part("headline metric of the family", in_file, when=metric in (case.primary, *case.secondary)),
        part(
            "the narrative leads with it",
            case.record.find(REPORT, case.metric_pattern(str(metric)), r"\d\.\d") if metric else [],
        ),
        part("it is the primary metric", f"{REPORT_JSON}#/headline/metric", when=metric == case.primary),
        structured=True,
    )


def d2_s2(case: Case) -> Verdict:
    aware = {
        "survival": ["IPCW_c_index", "td_AUROC", "logrank_p"],
        "continuous": ["R2", "MAE", "pearson_r"],
    }.get(case.task["output_type"], ["AUPRC", "balanced_accuracy", "F1", "macro_F1", "MAE_ranks"])
    values = {name: number(case.metrics(k).get(name)) for k in case.rounds() for name in aware}
    stated = []
    for name in aware:
        refs = case.record.find(REPORT, case.metric_pattern(name), r"\d\.\d")
        value = values.get(name)
        rounds = [v for k in case.rounds() if (v := number(case.metrics(k).get(name))) is not None]
        if refs and value is not None and any(written(v, case.record.text(REPORT)) for v in rounds):
            stated += refs[:1]
    context = (
        case.record.find(REPORT, r"\bevents?\b|censor")
        if case.survival
        else case.record.find(
            REPORT, r"imbalance|per class|prevalence|class(?:es)? (?:size|count)|n per class|recall|balance"
        )
    )
    return grade(
        part("an imbalance- or censoring-aware metric with its file's value", stated[:3]),
        part("class sizes, recall or events beside it", context[:1]),
    )


def d2_s3(case: Case) -> Verdict:
    word = r"chance|baseline|majority|random (?:guess|classif|rank)|no-skill|prevalence"
    return grade(
        part("chance or a baseline is named", case.record.find_unit(REPORT, word)),
        part(
            "with its value",
            case.record.find_unit(REPORT, word, r"(?<![\d.])(?:0\.\d+|0|\.5|\d+\s?%)(?![\d.]*\d)"),
        ),
        part(
            "for the headline metric",
            case.record.find_unit(
                REPORT, word, rf"{case.metric_pattern(case.primary)}|chance|baseline", section=RESULTS
            ),
        ),
    )


def recomputed(case: Case, round_id: int) -> float | None:
    """Primary metric of a round from its validation rows and the labels they carry."""
    from acpbench.core.errors import InputError
    from acpbench.mil.metrics import score_predictions

    rows = [row for row in case.predictions(round_id) if row.get("split") == "validation"]
    for row in rows:
        row["patient_id"] = row.get("case_id", "")
    try:
        scored = score_predictions(case.task["output_type"], case.classes, rows)
    except (InputError, ValueError, KeyError, TypeError):
        return None
    return number(scored["metrics"].get(case.primary))


def d3_s1(case: Case) -> Verdict:
    stated = number(case.metrics(0).get(case.primary))
    value = recomputed(case, 0)
    agrees = stated is not None and value is not None and abs(stated - value) <= 0.005
    file = case.metrics_file(0)
    if case.survival:
        named = case.record.find([REPORT, PLAN, *case.scripts], r"event", r"1\s*=|= ?1|death|progress|censor")
    elif case.classes:
        held = case.record.object(file).get("per_class")
        named = (
            [f"{file}#/per_class"] if isinstance(held, dict) and set(case.classes) <= set(held) else []
        ) or case.record.find([REPORT, *case.scripts], r"positive class", re.escape(case.classes[-1]))
    else:
        named = case.record.find([REPORT, PLAN], r"rank|correlat|scale")
    return grade(
        part(
            "computed on held-out patients",
            [f"{ROUND_0}/predictions.csv", f"{file}#/split"],
            when=held_out_only(case, 0) and case.record.object(file).get("split") in ("validation", "test"),
        ),
        part("recomputes from the predictions", f"{file}#/metrics/{case.primary}", when=agrees),
        part("positive class or event stated", named[:1]),
        part(
            "by a witnessed evaluation",
            [call.ref for call in case.record.ok_calls("evaluate_predictions", "evaluate_test")][:1],
        ),
        veto=part(
            "stated value differs from its predictions",
            f"{file}#/metrics/{case.primary}",
            when=stated is not None and value is not None and not agrees,
        ),
        structured=True,
    )


def _interval(case: Case, round_id: int) -> tuple[float, float] | None:
    intervals = case.record.object(case.metrics_file(round_id)).get("intervals")
    pair = intervals.get(case.primary) if isinstance(intervals, dict) else None
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    low, high = number(pair[0]), number(pair[1])
    return None if low is None or high is None or low > high else (low, high)


def d3_s2(case: Case) -> Verdict:
    file = case.metrics_file(0)
    interval, value = _interval(case, 0), number(case.metrics(0).get(case.primary))
    holds = interval is not None and value is not None and interval[0] - 0.05 <= value <= interval[1] + 0.05
    described = case.record.find([REPORT, PLAN, *case.scripts], r"bootstrap|fold|jackknife|DeLong")
    described += (
        [f"{SPEC}#/evaluation/uncertainty"] if case.spec_object("evaluation").get("uncertainty") else []
    )
    witnessed = case.record.witnessed_hashes.get(case.record.sha256(file) or "")
    return grade(
        part("an interval that holds its value", f"{file}#/intervals/{case.primary}", when=holds),
        part("its method is described", described[:2]),
        part("computed by a witnessed call", witnessed),
        structured=True,
    )


def d3_s3(case: Case) -> Verdict:
    text = case.record.text(REPORT)
    word = r"recall|precision|sensitivity|specificity|per[\s-]class|per[\s-]group|per[\s-]site|F1|\bn\b"
    if case.classes:
        documents = [(case.metrics_file(k), case.record.object(case.metrics_file(k))) for k in case.rounds()]
        computed = [
            f"{path}#/per_class"
            for path, document in documents
            if isinstance(document.get("per_class"), dict) and set(case.classes) <= set(document["per_class"])
        ]
        reported = [
            ref
            for label in case.classes
            for ref in case.record.find(REPORT, rf"\b{re.escape(label)}\b", word)[:1]
        ]
        every = all(class_named(text, label) for label in case.classes) and len(reported) == len(case.classes)
        return grade(
            part("per-class results computed", computed[:2]),
            part("and reported for each class", reported, when=every),
        )
    groups = case.record.find(
        REPORT, r"risk group|per[\s-](?:site|group|stage)|subgroup|tertile|median split|events?\b", r"\d"
    )
    events = [
        case.metrics_file(k)
        for k in case.rounds()
        if number(case.record.object(case.metrics_file(k)).get("n_events")) is not None
    ]
    return grade(
        part("events or groups counted", [f"{path}#/n_events" for path in events[:1]] or groups),
        part("and reported", groups),
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "D1.s1": d1_s1,
    "D1.s2": d1_s2,
    "D1.s3": d1_s3,
    "D2.s1": d2_s1,
    "D2.s2": d2_s2,
    "D2.s3": d2_s3,
    "D3.s1": d3_s1,
    "D3.s2": d3_s2,
    "D3.s3": d3_s3,
}
