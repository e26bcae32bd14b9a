"""Deterministic rules of the diagnosis stage (D1-D5)."""

from __future__ import annotations

import re
from typing import Any

from acpbench.rubric import formats
from acpbench.rubric.case import Case, Outcome, decide, failed, passed, rule
from acpbench.rubric.evidence import MAX_ROUND, ROUND_ZERO
from acpbench.rubric.formats import items, mapping, number, whole, words
from acpbench.rubric.language import find_overclaims
from acpbench.rubric.recompute import (
    REPORT_TOLERANCE,
    claimed,
    compare,
    family_name,
    legal_range,
    metric_family,
    split_name,
)
from acpbench.rubric.rules_planning import mentions, plain

REPORT_TEXT = "reports/report.md"
REPORT_JSON = "reports/report.json"
METRICS = f"{ROUND_ZERO}/metrics.json"
SECTIONS = {
    "endpoint": r"endpoint|target|goal",
    "data": r"data|dataset|cohort|materials",
    "method": r"methods?|methodology|approach|workflow|pipeline",
    "results": r"results?|findings",
    "limitations": r"limitations?|caveats",
}
_HEADING = re.compile(
    r"^(?:#{1,6}\s*(?P<hash>.+?)\s*#*|\*\*(?P<bold>[^*]{1,80})\*\*:?|(?P<under>[^\n]{1,80})\n(?:={3,}|"
    r"-{3,}))\s*$",
    re.MULTILINE,
)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)])\s+(.+)$")
_DECIMAL = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?(?![\d]|\.\d)\s*%?")
_INTERVAL = re.compile(
    r"(?<!\d)(?:-?(?:\d++(?:\.\d++)?|\.\d++)\s*+%?\s*+(?:to|-|–|—|,|;|and)\s*+-?\d*\.\d"
    r"|-?\d*+\.\d++\s*+%?\s*+(?:to|-|–|—|,|;|and)\s*+-?\.?\d)",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"\bn\s*(?:=|:|of|is)?\s*(\d{1,7})\b|\b(\d{1,7})\s+(?:held[- ]out\s+|validation\s+|test\s+|"
    r"labelled\s+)*(?:patients|cases|slides|subjects)\b",
    re.IGNORECASE,
)


# -- D1 discovery --


@rule("D1.d1")
def report_exists(case: Case) -> Outcome:
    """Report in text and in structured form."""
    case.need_prose(REPORT_TEXT)
    case.need_object(REPORT_JSON)
    return passed("the report exists as text and as JSON")


@rule("D1.d2")
def artifacts_exist(case: Case) -> Outcome:
    """Each artifact the report lists exists, and one of them lies outside the report's own folder."""
    paths = items(case.need_object(REPORT_JSON).get("artifacts"))
    case.cite(f"{REPORT_JSON}#/artifacts")
    if not paths:
        return failed("report.json lists no artifact")
    known = [words(path).split("#", 1)[0].removeprefix("./") for path in paths]
    missing = [path for path in known if not _exists(case, path)]
    if missing:
        return failed(f"{len(missing)} of {len(known)} artifacts do not exist, first {missing[0][:80]!r}")
    return decide(
        any(not path.startswith("reports/") for path in known),
        f"{len(known)} artifacts exist",
        "the report lists only itself",
    )


def _exists(case: Case, path: str) -> bool:
    """A file of the workspace, or a folder with one."""
    if case.evidence.resolve(path) is not None or case.evidence.status(path) == "is empty":
        return True
    return bool(path) and bool(case.evidence.files(path.rstrip("/") + "/"))


@rule("D1.d3")
def selected_round_exists(case: Case) -> Outcome:
    """``round_selected`` names a round that left files."""
    chosen = whole(case.need_object(REPORT_JSON).get("round_selected"))
    case.cite(f"{REPORT_JSON}#/round_selected")
    if chosen is None or not 0 <= chosen <= MAX_ROUND:
        return failed("round_selected is not a round number")
    return decide(
        case.evidence.round_exists(chosen), f"round {chosen} left files", f"round {chosen} left no file"
    )


@rule("D1.d4")
def report_after_metrics(case: Case) -> Outcome:
    """The report is younger than the metrics files it cites."""
    report = case.need_object(REPORT_JSON)
    case.need_file(REPORT_TEXT)
    cited = [words(mapping(report.get("headline")).get("file"))]
    cited += [
        words(ref)
        for claim in items(report.get("claims"))
        for ref in items(mapping(claim).get("evidence"))
        if "metrics" in words(ref)
    ]
    paths = sorted({path.split("#", 1)[0].removeprefix("./") for path in cited if path})
    paths = [path for path in paths if not path.startswith("reports/")]
    found = [path for path in paths if case.evidence.status(path) is None]
    if not found:
        return failed("the report cites no metrics file of this run")
    for path in found:
        case.cite(path)
    manifest = case.evidence.manifest
    newest = max(manifest[path].mtime for path in found)
    older = [path for path in (REPORT_TEXT, REPORT_JSON) if manifest[path].mtime < newest]
    return decide(
        not older,
        "the report was written after the metrics it cites",
        f"{', '.join(older)} was written before the metrics it cites",
    )


# -- D2 metric selection --


@rule("D2.d1")
def primary_in_family(case: Case) -> Outcome:
    """The primary metric of the metrics file belongs to the task's family and has a value."""
    document = case.need_metrics()
    name = family_name(case, document.get("primary_metric"))
    case.cite(f"{METRICS}#/primary_metric")
    if name is None:
        return failed("primary_metric is not of the task's metric family")
    return decide(
        claimed(document, name) is not None,
        f"{name} is of the family and has a value",
        f"{name} has no value",
    )


@rule("D2.d2")
def secondary_present(case: Case) -> Outcome:
    """A secondary metric of the family has a value."""
    document = case.need_metrics()
    primary = family_name(case, document.get("primary_metric")) or case.task.metric_family.primary
    found = [name for name in metric_family(case) if name != primary and claimed(document, name) is not None]
    return decide(
        bool(found), f"present: {', '.join(found)}", "no secondary metric of the family has a value"
    )


@rule("D2.d3")
def counts_present(case: Case) -> Outcome:
    """``n`` and the count per class (or of events)."""
    document = case.need_metrics()
    lacking = [] if (whole(document.get("n")) or 0) > 0 else ["n"]
    if case.task.output_type == "survival":
        events = whole(document.get("n_events"))
        lacking += [] if events is not None and events >= 0 else ["n_events"]
    elif case.task.output_type != "continuous":
        per_class = mapping(document.get("n_per_class"))
        counts = [whole(value) for value in per_class.values()]
        positives = whole(document.get("n_pos"))
        complete = bool(counts) and all(count is not None and count >= 0 for count in counts)
        lacking += (
            [] if complete or (positives is not None and positives >= 0) else ["n_per_class (or n_pos)"]
        )
    return decide(not lacking, "case counts are given", f"metrics.json lacks {', '.join(lacking)}")


@rule("D2.d4")
def split_held_out(case: Case) -> Outcome:
    """The metrics speak of a held-out split."""
    split = split_name(case.need_metrics().get("split"))
    case.cite(f"{METRICS}#/split")
    return decide(
        split in ("validation", "test"), f"metrics of the {split} split", "split is not a held-out split"
    )


# -- D3 metric execution --


@rule("D3.d1")
def primary_recomputes(case: Case) -> Outcome:
    """The primary metric agrees with its recomputation (0.005; PARTIAL 0.02)."""
    name = family_name(case, case.need_metrics().get("primary_metric"))
    if name is None:
        return failed("primary_metric is not of the task's metric family")
    return compare(case, name, allow_partial=True)


@rule("D3.d2")
def uncertainty_present(case: Case) -> Outcome:
    """Interval or fold values of the primary metric."""
    document = case.need_metrics()
    name = family_name(case, document.get("primary_metric")) or case.task.metric_family.primary
    interval = items(mapping(document.get("intervals")).get(name))
    bounds = [number(value) for value in interval]
    if len(bounds) == 2 and None not in bounds and bounds[0] <= bounds[1]:  # type: ignore[operator]
        case.cite(f"{METRICS}#/intervals/{name}")
        return passed(f"{name} has an interval")
    for key in ("folds", "fold_values", "per_fold"):
        folds = document.get(key)
        values = items(folds.get(name) if isinstance(folds, dict) else folds)
        if sum(number(value) is not None for value in values) >= 2:
            case.cite(f"{METRICS}#/{key}")
            return passed(f"{name} has fold values")
    return failed(f"{name} has no interval and no fold values")


@rule("D3.d3")
def metrics_in_range(case: Case) -> Outcome:
    """Each metric value lies in its legal range."""
    values = mapping(case.need_metrics().get("metrics"))
    case.cite(f"{METRICS}#/metrics")
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return failed("metrics.json gives no value")
    wrong = []
    for name, value in known.items():
        found = number(value)
        low, high = legal_range(name)
        if (
            found is None
            or (low is not None and found < low - 1e-9)
            or (high is not None and found > high + 1e-9)
        ):
            wrong.append(str(name)[:40])
    return decide(not wrong, f"{len(known)} values are legal", f"illegal value of {', '.join(wrong[:5])}")


@rule("D3.d4")
def headline_equals_metrics(case: Case) -> Outcome:
    """The headline value equals the metrics file to three decimals, or the witnessed test evaluation."""
    headline = mapping(case.need_object(REPORT_JSON).get("headline"))
    case.cite(f"{REPORT_JSON}#/headline")
    value, metric = number(headline.get("value")), words(headline.get("metric"))
    if value is None or not metric:
        return failed("the report has no headline metric with a value")
    path = words(headline.get("file")).split("#", 1)[0].removeprefix("./")
    split = split_name(headline.get("split"))
    if path.startswith("reports/") or not path:
        return failed("the headline names no metrics file")
    document = case.need_object(path)
    if split is not None and split == split_name(document.get("split")):
        found = claimed(document, metric)
        source = path
    elif split == "test":
        found, source = _witnessed_test_value(case, metric)
        if found is None:
            return failed("a test headline without a witnessed test evaluation")
    else:
        return failed("the headline and its file speak of different splits")
    if found is None:
        return failed(f"{source} gives no value for {metric[:40]}")
    return decide(
        abs(found - value) <= REPORT_TOLERANCE,
        f"the headline equals {source}",
        f"the headline {value:.4f} is not the {found:.4f} of {source}",
    )


def _witnessed_test_value(case: Case, metric: str) -> tuple[float | None, str]:
    for call in reversed(case.evidence.tool_events):
        if call.name == "evaluate_test" and call.exit_status == "ok":
            found = claimed(call.result, metric)
            if found is not None:
                case.cite(call.ref)
                return found, "the witnessed test evaluation"
    return None, ""


# -- D4 report --


def headings(text: str) -> list[tuple[int, int, str]]:
    """Headings of a Markdown text: (offset, end, words)."""
    return [
        (match.start(), match.end(), plain(match["hash"] or match["bold"] or match["under"] or ""))
        for match in _HEADING.finditer(text)
    ]


@rule("D4.d1")
def sections_present(case: Case) -> Outcome:
    """Headings for endpoint, data, method, results and limitations."""
    titles = [title for _, _, title in headings(case.need_prose(REPORT_TEXT))]
    lacking = [
        name
        for name, pattern in SECTIONS.items()
        if not any(re.search(rf"\b(?:{pattern})\b", title) for title in titles)
    ]
    return decide(not lacking, "the five sections are present", f"no section for {', '.join(lacking)}")


@rule("D4.d2")
def names_task_and_endpoint(case: Case) -> Outcome:
    """Task id and endpoint stand in the report."""
    text = case.need_prose(REPORT_TEXT)
    lacking = [] if case.task.task_id.casefold() in text.casefold() else ["the task id"]
    lacking += [] if mentions(plain(text), case.task.target) else ["the endpoint"]
    return decide(
        not lacking, "task id and endpoint are named", f"the report does not name {' and '.join(lacking)}"
    )


@rule("D4.d3")
def report_boundary(case: Case) -> Outcome:
    """The claim-boundary type of the report is the task's."""
    found = case.need_object(REPORT_JSON).get("claim_boundary_type")
    case.cite(f"{REPORT_JSON}#/claim_boundary_type")
    return decide(
        found == case.task.claim_boundary_type,
        "claim_boundary_type equals the task",
        f"claim_boundary_type is not {case.task.claim_boundary_type}",
    )


@rule("D4.d4")
def no_overclaim(case: Case) -> Outcome:
    """No phrase of overclaim outside a negation."""
    found = find_overclaims(case.need_prose(REPORT_TEXT))
    for claim in found[:5]:
        case.cite(f"{REPORT_TEXT}#L{claim.line}")
    kinds = sorted({claim.kind for claim in found})
    return decide(not found, "no overclaim found", f"{len(found)} overclaims ({', '.join(kinds)})")


@rule("D4.d5")
def claims_have_evidence(case: Case) -> Outcome:
    """Structured claims, each with evidence that resolves and is not the report itself."""
    claims = items(case.need_object(REPORT_JSON).get("claims"))
    case.cite(f"{REPORT_JSON}#/claims")
    if not claims:
        return failed("report.json lists no claim")
    for index, claim in enumerate(claims):
        refs = [words(ref) for ref in items(mapping(claim).get("evidence"))]
        if not words(mapping(claim).get("text")) or not refs:
            return failed(f"claim {index + 1} has no text or no evidence")
        broken = [
            ref for ref in refs if case.evidence.resolve(ref) is None and not _exists(case, ref.split("#")[0])
        ]
        if broken or any("#" in ref and case.evidence.resolve(ref) is None for ref in refs):
            return failed(f"evidence of claim {index + 1} does not exist")
        if all(ref.startswith("reports/") for ref in refs):
            return failed(f"claim {index + 1} cites only the report itself")
    return passed(f"{len(claims)} claims, each with evidence that exists")


# -- D5 limits --


def section(text: str, pattern: str) -> str:
    """Text under the first heading that matches, up to the next heading."""
    found = headings(text)
    for index, (_, end, title) in enumerate(found):
        if re.search(rf"\b(?:{pattern})\b", title):
            stop = found[index + 1][0] if index + 1 < len(found) else len(text)
            return text[end:stop]
    return ""


@rule("D5.d1")
def two_limitations(case: Case) -> Outcome:
    """Two distinct items in the limitations section: list items, or sentences when there is no list."""
    body = section(case.need_prose(REPORT_TEXT), SECTIONS["limitations"])
    listed = [match[1] for line in body.split("\n") if (match := _BULLET.match(line))]
    parts = listed or re.split(r"(?<=[.!?;])\s+|\n\s*\n", body)
    distinct = {plain(part) for part in parts if len(plain(part).split()) >= 3}
    return decide(
        len(distinct) >= 2,
        f"{len(distinct)} distinct limitations",
        "fewer than two distinct limitations in a limitations section",
    )


@rule("D5.d2")
def headline_with_n_and_interval(case: Case) -> Outcome:
    """Number of cases and interval stand in the same paragraph as the headline value."""
    text = case.need_prose(REPORT_TEXT)
    headline = mapping(formats.mapping(case.evidence.json(REPORT_JSON).value).get("headline"))
    value, n = number(headline.get("value")), whole(headline.get("n"))
    name = words(headline.get("metric")) or case.task.metric_family.primary
    line_no = 1
    for block in re.split(r"(\n\s*\n)", text):
        if _states_headline(block, name, value, n):
            case.cite(f"{REPORT_TEXT}#L{line_no}-L{line_no + block.count(chr(10))}")
            return passed("the headline value stands with n and interval")
        line_no += block.count("\n")
    return failed("no paragraph holds the headline value, its n and its interval")


def _states_headline(block: str, name: str, value: float | None, n: int | None) -> bool:
    if value is None:
        if not mentions(plain(block), name) or not re.search(r"\d\.\d", block):
            return False
    elif not any(_same_rounded(match.group(), value) for match in _DECIMAL.finditer(block)):
        return False
    counts = [int(match[1] or match[2]) for match in _COUNT.finditer(block)]
    return bool(_INTERVAL.search(block)) and (n in counts if n is not None else bool(counts))


def _same_rounded(written: str, value: float) -> bool:
    """Whether a number in prose is ``value`` rounded to its decimals (two or more), or as a percentage."""
    text = written.strip()
    percent = text.endswith("%")
    digits = text.rstrip("% ")
    decimals = len(digits.partition(".")[2])
    if not percent and decimals < 2:
        return False
    shown = float(digits) / (100 if percent else 1)
    step = 10.0 ** -(decimals + (2 if percent else 0))
    return abs(shown - value) <= 0.5 * step + 1e-9


@rule("D5.d3")
def missing_evidence_listed(case: Case) -> Outcome:
    """The report has a ``missing_evidence`` list (it may be empty)."""
    found: Any = case.need_object(REPORT_JSON).get("missing_evidence")
    return decide(
        isinstance(found, list), "missing_evidence is a list", "report.json has no missing_evidence list"
    )
