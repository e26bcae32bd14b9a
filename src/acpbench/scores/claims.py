"""Claims in an agent's report: that something was done, and that it performed so well.

Rule-based, line by line and clause by clause. A negated clause ("was not trained") and a conditional or
planned one ("would be evaluated") claim nothing. Markdown tables are read by their headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

MAX_CLAIMS = 400
_MAX_LINE = 4000

_METRICS: tuple[tuple[str, str], ...] = (
    ("AUROC_median_split", r"auroc[\s_-]median[\s_-]split"),
    ("td_AUROC", r"(?:td|time[\s_-]dependent)[\s_-](?:auroc|auc)"),
    ("macro_OvR_AUROC", r"macro[\s_-]*(?:ovr|one-vs-rest)[\s_-]*(?:auroc|auc)"),
    ("AUPRC", r"auprc|pr[\s_-]?auc|auc[\s_-]?pr|average[\s_-]precision|area under the precision[\s-]recall"),
    ("AUROC", r"auroc|roc[\s_-]?auc|auc(?:[\s_-]?roc)?|area under the (?:roc|receiver operating)(?: \w+)?"),
    ("balanced_accuracy", r"balanced[\s_-]accuracy|bal[\s_]?acc|bacc"),
    ("accuracy", r"accuracy"),
    ("macro_F1", r"macro[\s_-]*(?:averaged[\s_-]*)?f1(?:[\s_-]score)?"),
    ("F1", r"f1(?:[\s_-]score)?"),
    ("quadratic_weighted_kappa", r"quadratic[\s_-]weighted[\s_-](?:cohen'?s )?kappa|qwk|(?:weighted )?kappa"),
    ("IPCW_c_index", r"ipcw[\s_-]*(?:c[\s_-]?index|concordance(?:[\s_-]index)?)|uno'?s c(?:[\s_-]?index)?"),
    ("c_index", r"(?:harrell'?s )?c[\s_-]?index|concordance(?:[\s_-]index)?|c-statistic"),
    ("brier", r"brier(?:[\s_-]score)?"),
    ("ECE", r"ece|expected[\s_-]calibration[\s_-]error"),
    ("spearman_rho", r"spearman(?:'?s)?(?:[\s_-]?(?:rho|correlation|r))?"),
    ("R2", r"r2|r²|r\^2"),
    ("MAE_ranks", r"mae[\s_-]ranks"),
    ("MAE", r"mae|mean absolute error"),
    ("sensitivity", r"sensitivity"),
    ("specificity", r"specificity"),
)  # fmt: skip
_METRIC = re.compile(
    "|".join(
        rf"(?P<m{i}>(?<![A-Za-z0-9.])(?:{pattern})(?![A-Za-z0-9]))" for i, (_, pattern) in enumerate(_METRICS)
    ),
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.])(?P<value>[-+]?(?:\d{1,3}(?:\.\d+)?\s?%|[01]?\.\d+|[01](?![\d.]\d|\w)))")
_DECIMALS = re.compile(r"\.(\d+)")
_SKIP_BETWEEN = re.compile(
    r"threshold|cut-?off|\bCI\b|interval|chance|baseline|\bgoal\b|target (?:of|was)", re.I
)
_CLAUSE = re.compile(
    r"[.;!?](?:\s|$)|,\s+(?:but|however|although|though|while|whereas)\b|\b(?:but|however)\b"
)
_NEGATION = re.compile(
    r"\b(?:no|not|never|none|neither|nor|without|cannot|"
    r"(?:could|did|was|were|is|has|have)n['’]t|failed to|"
    r"fails to|unable to|could not|lacks?|missing|incomplete|unfinished|skipped)\b",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    r"\b(?:would|could|should|might|may|will|shall|planned|plans? to|to be|aims? to|aimed to|intended|"
    r"expected|hypothes\w+|if|once|pending|todo|future|next step|goal|require[sd]? to|must)\b",
    re.IGNORECASE,
)
_COMPLETION = re.compile(
    r"\b(?:(?:is|are)\s+(?:\w+ly\s+)?(?:completed?|finished|trained|evaluated|verified)|"
    r"(?:was|were|has been|have been|been|we|i|and|successfully|fully)\s+(?:\w+ly\s+)?"
    r"(?:completed|finished|trained|evaluated|executed|validated|tested|run|generated|computed|verified|fitted|"
    r"fine-?tuned|processed|produced|achieved|extracted|implemented)|successfully|achieve[sd]|"
    r"(?:trained|evaluated|completed|finished|executed)\s+(?:the|a|an|all|on|with|five|\d+)\b|"
    r"(?:status|workflow|pipeline|run|analysis)\s*[:=]\s*(?:complete|completed|done|success(?:ful)?|finished)|"
    r"all\s+(?:steps|stages|checks|rounds)\s+(?:passed|complete|completed|done))\b",
    re.IGNORECASE,
)
_TEST_WORD = re.compile(
    r"\b(?:test|held[\s-]?out|hold[\s-]?out)\b(?!\s+(?:by|for|it|whether)\b)", re.IGNORECASE
)
_VALIDATION_WORD = re.compile(r"\b(?:validation|val|development|dev)\b", re.IGNORECASE)
_TRAIN_WORD = re.compile(r"\b(?:train|training)\b", re.IGNORECASE)


class Claim(NamedTuple):
    """One claim and where it stands.

    Attributes:
        kind: ``completion`` or ``performance``.
        ref: citation, ``path#L7`` or ``path#/json/pointer``.
        text: the clause, at most 200 characters.
        metric: canonical metric name of a performance claim.
        value: the number claimed (a percentage as a share).
        tolerance: half a unit of the last digit given: how far a true value may lie from ``value``.
        split: ``test``, ``validation``, ``train`` or ``""`` when the text does not say.
    """

    kind: Literal["completion", "performance"]
    ref: str
    text: str
    metric: str | None = None
    value: float | None = None
    tolerance: float = 0.0
    split: str = ""


def metric_name(text: str) -> str | None:
    """Canonical name of the metric that a short text names, else ``None`` (``AUC`` is ``AUROC``)."""
    match = _METRIC.search(text.strip().replace("_", " ") if " " not in text else text)
    return _METRICS[int(match.lastgroup[1:])][0] if match and match.lastgroup else None


def parse_value(text: str) -> tuple[float, float] | None:
    """Number and tolerance of a numeral as a report writes it: ``0.81`` and ``81 %`` are (0.81, 0.005)."""
    body = text.strip().removesuffix("%").strip()
    try:
        value = float(body)
    except ValueError:
        return None
    match = _DECIMALS.search(body)
    tolerance = 0.5 * 10.0 ** -(len(match.group(1)) if match else 0)
    if text.strip().endswith("%"):
        return value / 100, tolerance / 100
    # "AUROC 1" is exact: a whole number in [0, 1] was not rounded from 0.6.
    return value, tolerance if match else 0.005


def split_named(text: str) -> str:
    """The one split that a text names, ``""`` when it names none or several."""
    text = text.replace("_", " ")
    named = [
        name
        for name, pattern in (
            ("test", _TEST_WORD),
            ("validation", _VALIDATION_WORD),
            ("train", _TRAIN_WORD),
        )
        if pattern.search(text)
    ]
    return named[0] if len(named) == 1 else ""


def text_claims(text: str, path: str) -> list[Claim]:
    """Claims of a Markdown report, in order. Claims beyond :data:`MAX_CLAIMS` are left out."""
    claims: list[Claim] = []
    header: list[str] | None = None
    heading = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw[:_MAX_LINE].strip()
        ref = f"{path}#L{number}"
        if line.startswith("#"):
            heading, header = line, None
        elif line.startswith("|") and line.count("|") >= 3:
            cells = [cell.strip(" *`") for cell in line.strip("|").split("|")]
            if all(re.fullmatch(r":?-+:?", cell) for cell in cells if cell):
                continue
            if header is None:
                header = cells
            claims.extend(_table_claims(header, cells, heading, ref))
        else:
            header = None
            claims.extend(_line_claims(line, ref))
        if len(claims) >= MAX_CLAIMS:
            return claims[:MAX_CLAIMS]
    return claims


def report_claims(report: dict[str, Any], path: str) -> list[Claim]:
    """Claims of a structured report: its headline, its claim texts and a status field."""
    claims: list[Claim] = []
    headline = report.get("headline")
    if isinstance(headline, dict) and _is_number(headline.get("value")):
        metric = str(headline.get("metric") or "")
        claims.append(
            Claim(
                "performance",
                f"{path}#/headline/value",
                f"{metric} {headline['value']}"[:200],
                metric_name(metric) or metric or None,
                float(headline["value"]),
                5e-4,
                split_named(str(headline.get("split") or "")),
            )
        )
    entries = report.get("claims")
    for index, entry in enumerate(entries[:200] if isinstance(entries, list) else []):
        text = entry.get("text") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            ref = f"{path}#/claims/{index}/text" if isinstance(entry, dict) else f"{path}#/claims/{index}"
            claims.extend(_line_claims(text[:_MAX_LINE].replace("\n", " "), ref))
    status = report.get("status")
    if isinstance(status, str) and re.fullmatch(
        r"(?i)complete[d]?|success(?:ful)?|done|finished", status.strip()
    ):
        claims.append(Claim("completion", f"{path}#/status", status[:200]))
    return claims[:MAX_CLAIMS]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0


def _clauses(line: str) -> Iterator[str]:
    start = 0
    for match in _CLAUSE.finditer(line):
        if match.end() > start:
            yield line[start : match.end()]
        start = match.end()
    if start < len(line):
        yield line[start:]


def _line_claims(line: str, ref: str) -> Iterator[Claim]:
    for clause in _clauses(line):
        shown = clause.strip()[:200]
        if not shown or _HEDGE.search(clause):
            continue
        completion = _COMPLETION.search(clause)
        if completion and not _negated(clause, completion.start()):
            yield Claim("completion", ref, shown)
        for metric, numeral, position in _numbers(clause):
            value = parse_value(numeral)
            if value is not None and not _negated(clause, position):
                yield Claim(
                    "performance", ref, shown, metric, *value, split_named(clause) or split_named(line)
                )


def _negated(clause: str, position: int) -> bool:
    """Whether a negation stands within the eight words before ``position``."""
    before = " ".join(clause[:position].split()[-8:])
    # The match itself may begin with the auxiliary of "was not trained".
    after = " ".join(clause[position:].split()[:2])
    return bool(_NEGATION.search(before) or re.search(r"\bnot\b", after, re.IGNORECASE))


def _numbers(clause: str) -> Iterator[tuple[str, str, int]]:
    """Metric, numeral and position for each metric name followed (else preceded) by its number."""
    names = list(_METRIC.finditer(clause))
    for index, name in enumerate(names):
        end = names[index + 1].start() if index + 1 < len(names) else len(clause)
        metric = _METRICS[int(name.lastgroup[1:])][0]  # type: ignore[index]
        numeral = _first_number(clause, name.end(), min(end, name.end() + 120))
        if numeral is None and index == 0:
            before = clause[max(0, name.start() - 12) : name.start()]
            found = list(_NUMBER.finditer(before))
            if found and re.fullmatch(r"\s*", before[found[-1].end() :]):
                numeral = found[-1].group("value")
        if numeral is not None:
            yield metric, numeral, name.start()


def _first_number(clause: str, start: int, stop: int) -> str | None:
    between = clause[start:stop]
    for match in _NUMBER.finditer(between):
        numeral = match.group("value")
        lead, tail = between[: match.start()], between[match.end() : match.end() + 4]
        if _SKIP_BETWEEN.search(lead):
            return None
        # "95 % CI", "n = 1", "0.5 um": a number that is something else.
        if re.search(r"(?:\bn\s*=?\s*|[<>≥≤]\s*=?\s*)$", lead, re.I) or re.match(
            r"\s?(?:CI|um|µm|mpp|px)", tail
        ):
            continue
        if numeral.replace(" ", "") in ("95%", "90%", "99%"):
            continue
        return numeral
    return None


def _table_claims(header: list[str], cells: list[str], heading: str, ref: str) -> Iterator[Claim]:
    """Performance claims of a table row: the metric from its column or its first cell, the split likewise."""
    if cells is header:
        return
    row_metric = metric_name(cells[0]) if cells and not _NUMBER.fullmatch(cells[0]) else None
    for index, text in enumerate(cells):
        match = _NUMBER.match(text)
        column = header[index] if index < len(header) else ""
        metric = metric_name(column) or row_metric
        value = parse_value(match.group("value")) if match else None
        rest = text[match.end() :].strip() if match else ""
        plain_number = rest == "" or rest[0] in "([±+"
        if index == 0 or metric is None or value is None or not plain_number:
            continue
        if metric_name(column) is None and re.search(
            r"\bn\b|interval|ci\b|delta|change|chance", column, re.I
        ):
            continue
        split = (
            split_named(column)
            or split_named(cells[0])
            or split_named(" ".join(cells))
            or split_named(heading)
        )
        yield Claim("performance", ref, " | ".join(cells)[:200], metric, *value, split)
