"""Agreement of what a run says about its task with the task itself. Read by CWAS-3 (N) and R6 (D)."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Literal, NamedTuple

from acpbench.rubric import formats
from acpbench.scores.claims import metric_name
from acpbench.scores.view import REPORT_JSON, SPEC, RunView
from acpbench.tasks.models import Task

Verdict = Literal["match", "drift", "absent"]
MAX_UNMAPPABLE_SHARE = 0.05
_GENERIC = {
    "mutation", "status", "prediction", "predict", "classification", "vs", "versus", "and", "or", "of",
    "to", "the", "in", "from", "on", "for", "class", "label", "endpoint", "present", "group", "type",
    "binary", "high", "low", "expression", "mrna", "loss", "response", "grade", "subtype", "survival",
    "free", "wildtype", "mutant", "stage",
}  # fmt: skip
_ACRONYMS = {
    "os": "overall survival",
    "pfs": "progression free survival",
    "dfs": "disease free survival",
    "dss": "disease specific survival",
    "rfs": "recurrence free survival",
    "pdl1": "pd l1",
}
_BOUNDARY_WORDS = re.compile(r"[a-z]+")


class Property(NamedTuple):
    """One property of the task as the run states it: verdict, citations, one line."""

    name: str
    verdict: Verdict
    evidence: list[str]
    detail: str


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold().replace("tumor", "tumour")
    found = re.findall(r"[a-z0-9]+", plain)
    return [word for name in found for word in _ACRONYMS.get(name, name).split()]


def _own_words(target: str) -> set[str]:
    """Words that tell a target from others: no generic ones, letters or short codes (``0``, ``c6``)."""
    return {
        word for word in _words(target) if word not in _GENERIC and not re.fullmatch(r"[a-z]?\d{0,2}", word)
    }


def same_endpoint(stated: str, task: Task) -> bool:
    """Whether a stated endpoint is the task's: its id, or at least half of the target's own words.

    Generic words (mutation, status, grade, survival, ...) never make a match: ``FGFR3 mutation`` is not
    ``TP53 mutation``. What a target says in brackets is another name of it: ``CD274 (PD-L1)``. A target made
    of generic words only must be matched whole.
    """
    said = set(_words(stated))
    if task.task_id.casefold() in stated.casefold():
        return True
    head = re.sub(r"\([^()]*\)|,.*", " ", task.target)
    if not _own_words(head) and set(_words(head)) <= said:
        return True
    names = [_own_words(head), *map(_own_words, re.findall(r"\(([^()]*)\)", task.target))]
    return any(own and 2 * len(own & said) >= len(own) for own in names)


def _compare(name: str, stated: list[tuple[str, Any]], good: Any, absent: str) -> Property:
    """Judge statements of one property: any that fails ``good`` is drift, none at all is absent."""
    if not stated:
        return Property(name, "absent", [], absent)
    wrong = [(ref, value) for ref, value in stated if not good(value)]
    if wrong:
        return Property(name, "drift", [ref for ref, _ in wrong], f"states {str(wrong[0][1])[:80]!r}")
    return Property(name, "match", [ref for ref, _ in stated], "agrees with the task")


def _texts(*pairs: tuple[str, Any]) -> list[tuple[str, str]]:
    return [(ref, formats.words(value)) for ref, value in pairs if formats.words(value)]


def endpoint(view: RunView) -> Property:
    """Endpoint of the report and of the specification, and the task they name."""
    task, intent = view.task, formats.mapping(view.spec.get("intent"))
    named = _texts(
        (f"{REPORT_JSON}#/task_id", view.report.get("task_id")),
        (f"{SPEC}#/intent/task_id", intent.get("task_id")),
    )
    stated = _texts(
        (f"{REPORT_JSON}#/endpoint", view.report.get("endpoint")),
        (f"{SPEC}#/intent/endpoint", intent.get("endpoint")),
    )
    foreign = [(ref, value) for ref, value in named if value != task.task_id]
    if foreign:
        return Property("endpoint", "drift", [foreign[0][0]], f"names the task {foreign[0][1][:60]!r}")
    if not stated and view.report_text:
        return _endpoint_of_text(view)
    return _compare("endpoint", stated, lambda value: same_endpoint(value, task), "no endpoint is stated")


def _endpoint_of_text(view: RunView) -> Property:
    """Endpoint of a free report: the target's own words, or the task's id, anywhere in its first lines."""
    head = "\n".join(view.report_text.split("\n")[:60])
    ref = f"{view.report_path}#L1"
    if same_endpoint(head, view.task):
        return Property("endpoint", "match", [ref], "the report's text names the task's target")
    return Property("endpoint", "absent", [ref], "the report's text does not name the task's target")


def label_set(view: RunView) -> Property:
    """Classes that the report lists and that the predictions use; survival and continuous tasks have none."""
    task, classes = view.task, view.report.get("classes")
    rows = view.selection.candidate.rows if view.selection.candidate else []
    path = view.selection.candidate.path if view.selection.candidate else ""
    if isinstance(classes, list) and (classes or not task.classes) and view.report:
        canonical = [task.canonical_label(value) for value in classes[:200]]
        if set(canonical) != set(task.classes) or len(classes) != len(task.classes):
            return Property("label_set", "drift", [f"{REPORT_JSON}#/classes"], f"lists {str(classes)[:80]}")
    if rows:
        wrong = sum(bool(row.unmappable) for row in rows)
        if wrong > MAX_UNMAPPABLE_SHARE * len(rows):
            return Property(
                "label_set", "drift", [path], f"{wrong} of {len(rows)} predictions are no value of the task"
            )
        return Property("label_set", "match", [path], "predictions use the task's values")
    if isinstance(classes, list) and classes:
        return Property("label_set", "match", [f"{REPORT_JSON}#/classes"], "lists the task's classes")
    return Property("label_set", "absent", [], "neither classes nor predictions")


def output_structure(view: RunView) -> Property:
    """Output type that is stated, and the columns that the predictions have for it."""
    task, chosen = view.task, view.selection.candidate
    intent = formats.mapping(view.spec.get("intent"))
    stated = _texts(
        (f"{REPORT_JSON}#/output_type", view.report.get("output_type")),
        (f"{SPEC}#/intent/output_type", intent.get("output_type")),
    )
    said = _compare(
        "output_structure",
        stated,
        lambda value: value.casefold() == task.output_type,
        "no output type is stated",
    )
    if said.verdict == "drift":
        return said
    if chosen is not None and task.classes and not chosen.columns.probabilities:
        reason = chosen.columns.probability_reason
        return Property("output_structure", "drift", [chosen.path], f"no class probabilities: {reason}")
    if chosen is not None:
        return Property(
            "output_structure", "match", [chosen.path], f"columns fit a {task.output_type} output"
        )
    return said


def metric_family(view: RunView) -> Property:
    """Metrics that the report leads with, the specification plans and the metrics files call primary."""
    task = view.task
    family = {task.metric_family.primary, *task.metric_family.secondary}
    headline, evaluation = view.report.get("headline"), formats.mapping(view.spec.get("evaluation"))
    stated = _texts(
        (f"{REPORT_JSON}#/headline/metric", formats.mapping(headline).get("metric")),
        (f"{SPEC}#/evaluation/primary_metric", evaluation.get("primary_metric")),
        *(
            (f"{path}#/primary_metric", document.get("primary_metric"))
            for path, document in view.metric_files.items()
        ),
    )
    if not stated:
        stated = [(claim.ref, claim.metric) for claim in view.claims if claim.kind == "performance"][:1]
    return _compare(
        "metric_family",
        stated,
        lambda value: value in family or metric_name(value) in family,
        "no metric is stated",
    )


def claim_boundary(view: RunView) -> Property:
    """Claim-boundary type of the report, the specification and every round's critique."""
    intent = formats.mapping(view.spec.get("intent"))
    stated = _texts(
        (f"{REPORT_JSON}#/claim_boundary_type", view.report.get("claim_boundary_type")),
        (f"{SPEC}#/intent/claim_boundary_type", intent.get("claim_boundary_type")),
        *(
            (
                f"reflection/round_{number}/critique.json#/claim_boundary_type",
                view.round_document(number, "critique.json").get("claim_boundary_type"),
            )
            for number in view.evidence.rounds[:20]
        ),
    )
    wanted = "".join(_BOUNDARY_WORDS.findall(view.task.claim_boundary_type.casefold()))
    if not stated and view.report_text:
        for number, line in enumerate(view.report_text.split("\n"), start=1):
            if wanted in "".join(_BOUNDARY_WORDS.findall(line[:2000].casefold())):
                ref = f"{view.report_path}#L{number}"
                return Property("claim_boundary", "match", [ref], "the report's text names the boundary")
    return _compare(
        "claim_boundary",
        stated,
        lambda value: "".join(_BOUNDARY_WORDS.findall(value.casefold())) == wanted,
        "no claim boundary is stated",
    )


def properties(view: RunView) -> list[Property]:
    """All five, in a fixed order."""
    return [
        endpoint(view),
        label_set(view),
        output_structure(view),
        metric_family(view),
        claim_boundary(view),
    ]
