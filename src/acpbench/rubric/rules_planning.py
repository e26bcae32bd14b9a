"""Deterministic rules of the planning stage (P1-P4)."""

from __future__ import annotations

import re
import unicodedata

from pydantic import ValidationError

from acpbench.core.errors import describe_validation
from acpbench.core.files import sha256_json
from acpbench.rubric.case import Case, Outcome, Rejected, decide, failed, passed, rule
from acpbench.rubric.formats import mapping, number, whole, words
from acpbench.rubric.graph import graph_problems
from acpbench.trajectory.documents import WorkflowSpec

SPEC = "plan/workflow_spec.json"
PLAN = "plan/plan.md"
REQUIRED_ROLES = ("slide_processing", "feature_extraction", "model", "evaluation", "report")

ORGAN_WORDS = {
    "bladder": ("bladder", "urothelial"),
    "brain": ("brain", "cerebral", "glioma", "glioblastoma"),
    "breast": ("breast", "mammary"),
    "breast sentinel node": ("sentinel node", "sentinel lymph node", "lymph node"),
    "colorectum": ("colorectum", "colorectal", "colon", "rectum", "rectal"),
    "kidney": ("kidney", "renal"),
    "lung": ("lung", "pulmonary"),
    "ovary": ("ovary", "ovarian"),
    "pan-cancer": ("pan-cancer", "pancancer", "pan cancer"),
    "pancreas": ("pancreas", "pancreatic"),
    "prostate": ("prostate", "prostatic"),
    "stomach": ("stomach", "gastric"),
    "uterus": ("uterus", "uterine", "endometrial", "endometrium"),
}
_COMMON_WORDS = frozenset(
    [
        "the",
        "and",
        "for",
        "with",
        "from",
        "its",
        "each",
        "all",
        "table",
        "label",
        "labels",
        "slide",
        "slides",
        "status",
        "split",
        "clinical",
        "data",
        "cohort",
        "patient",
        "patients",
        "class",
        "score",
        "matrix",
        "project",
        "setting",
        "value",
        "values",
        "record",
        "https",
        "http",
        "www",
        "org",
        "call",
        "tcga",
        "type",
        "primary",
        "released",
    ]
)


def plain(text: object) -> str:
    """Lower-case words separated by single spaces, Unicode forms unified: for comparing names."""
    folded = unicodedata.normalize("NFKC", str(text)).casefold()
    return " ".join(re.findall(r"[^\W_]+", folded))


def mentions(text: str, phrase: str) -> bool:
    """Whether the words of ``phrase`` stand in ``text`` (both as :func:`plain` gives them)."""
    wanted = plain(phrase)
    return bool(wanted) and f" {wanted} " in f" {text} "


def names_label_source(text: str, source: str, reference_type: str) -> bool:
    """Whether a plan names where the reference label comes from.

    Either its type (``molecular assay``), or two words of the source that are not common words (one when the
    source has no more).
    """
    if mentions(text, reference_type):
        return True
    distinctive = {
        word
        for word in plain(source).split()
        if len(word) >= 3 and word not in _COMMON_WORDS and not word.isdigit()
    }
    hits = sum(f" {word} " in f" {text} " for word in distinctive)
    return bool(distinctive) and hits >= min(2, len(distinctive))


@rule("P1.d1")
def intent_equals_task(case: Case) -> Outcome:
    """Task id, endpoint and output type of the plan are the task's."""
    intent = mapping(case.need_spec().get("intent"))
    case.cite(f"{SPEC}#/intent")
    wrong = [
        name
        for name, expected in (
            ("task_id", case.task.task_id),
            ("endpoint", case.task.target),
            ("output_type", case.task.output_type),
        )
        if plain(intent.get(name, "")) != plain(expected)
    ]
    return decide(not wrong, "intent equals the task", f"intent differs from the task in {', '.join(wrong)}")


@rule("P1.d2")
def intent_boundary(case: Case) -> Outcome:
    """The claim-boundary type of the plan is the task's."""
    found = mapping(case.need_spec().get("intent")).get("claim_boundary_type")
    return decide(
        found == case.task.claim_boundary_type,
        "claim_boundary_type equals the task",
        f"intent.claim_boundary_type is not {case.task.claim_boundary_type}",
    )


@rule("P1.d3")
def plan_exists(case: Case) -> Outcome:
    """Plan text exists."""
    case.need_prose(PLAN)
    return passed("the plan has text")


@rule("P2.d1")
def plan_names_organ_and_source(case: Case) -> Outcome:
    """Organ and label source stand in the plan."""
    text = plain(case.need_prose(PLAN))
    lacking = []
    if not any(mentions(text, word) for word in ORGAN_WORDS.get(case.task.organ, (case.task.organ,))):
        lacking.append("the organ")
    if not names_label_source(text, case.task.label_source, case.task.label_reference_type):
        lacking.append("the reference-label source")
    return decide(
        not lacking,
        "organ and reference-label source are named",
        f"the plan does not name {' nor '.join(lacking)}",
    )


@rule("P2.d2")
def magnification_and_tile(case: Case) -> Outcome:
    """Magnification and tile size are set."""
    params = mapping(case.need_spec().get("params"))

    def positive(*names: str) -> bool:
        return any((number(params.get(name)) or 0) > 0 for name in names)

    magnification = words(params.get("magnification"))
    scale = positive("mpp", "spacing_um", "magnification") or bool(
        re.fullmatch(r"\d+(\.\d+)?\s*x", magnification.lower())
    )
    lacking = [] if scale else ["mpp or magnification"]
    lacking += [] if positive("tile_px", "tile_size_px") else ["tile_px"]
    case.cite(f"{SPEC}#/params")
    return decide(not lacking, "mpp and tile_px are set", f"params lacks {' and '.join(lacking)}")


@rule("P3.d1")
def spec_validates(case: Case) -> Outcome:
    """The specification fits its schema and step ids are unique."""
    try:
        spec = WorkflowSpec.model_validate(case.need_spec(), strict=True)
    except ValidationError as error:
        return failed(str(describe_validation(error, SPEC))[:240])
    ids = [step.id for step in spec.steps]
    return decide(
        len(set(ids)) == len(ids), f"valid, {len(ids)} steps", "a step id is used by more than one step"
    )


@rule("P3.d2")
def tools_registered(case: Case) -> Outcome:
    """Each planned tool is in the registry the run was given."""
    tools = [words(step.get("tool")) for step in case.steps()]
    known = case.evidence.tool_roles
    if not known:
        raise Rejected("registry.json lists no tool")
    case.cite("registry.json")
    row = case.evidence.manifest.get("registry.json")
    rewritten = row is not None and row.mtime > case.evidence.window_s[0] + 2.0
    if rewritten and (
        sha256_json(case.evidence.given_json("registry.json").value) != case.evidence.run.digests.tools
    ):
        return failed("registry.json was changed during the run")
    unknown = sorted({tool or "(none)" for tool in tools if tool not in known})
    return decide(
        not unknown,
        "every planned tool is registered",
        f"not in the registry: {', '.join(unknown)[:160]}",
    )


@rule("P3.d3")
def roles_covered(case: Case) -> Outcome:
    """One step for each of the five roles."""
    roles = {case.role(step) for step in case.steps()}
    lacking = [role for role in REQUIRED_ROLES if role not in roles]
    return decide(not lacking, "all five roles are planned", f"no step with the role {', '.join(lacking)}")


@rule("P4.d1")
def graph_sound(case: Case) -> Outcome:
    """The step graph is connected by files, acyclic and closed."""
    problems, n_edges = graph_problems(case.steps())
    if problems:
        return failed("; ".join(problems)[:240])
    case.cite(f"{SPEC}#/steps")
    return decide(n_edges > 0, f"acyclic, {n_edges} links", "no step takes another step's output")


@rule("P4.d2")
def expected_artifacts(case: Case) -> Outcome:
    """Predictions, metrics and report paths are planned."""
    expected = mapping(case.need_spec().get("expected_artifacts"))
    lacking = [name for name in ("predictions", "metrics", "report") if not words(expected.get(name))]
    return decide(
        not lacking,
        "predictions, metrics and report are planned",
        f"expected_artifacts lacks {', '.join(lacking)}",
    )


@rule("P4.d3")
def round_and_seed(case: Case) -> Outcome:
    """Round id and seed are whole numbers."""
    spec = case.need_spec()
    round_id, seed = whole(spec.get("round_id")), whole(spec.get("seed"))
    lacking = ["round_id"] if round_id is None or round_id < 0 else []
    lacking += ["seed"] if seed is None else []
    return decide(not lacking, "round_id and seed are set", f"not set: {', '.join(lacking)}")


@rule("P4.d4")
def planned_before_modelling(case: Case) -> Outcome:
    """The specification, as it was left, is older than the first modelling call."""
    case.need_spec()
    modelling = [event for event in case.evidence.tool_events if is_model_call(case, event.name)]
    first = next((event for event in modelling if event.t is not None), None)
    if first is None or first.t is None:
        return failed("no modelling tool call was witnessed")
    case.cite(first.ref)
    return decide(
        case.evidence.manifest[SPEC].mtime <= first.t,
        "the specification is older than the first modelling call",
        "the specification was written after the first modelling call",
    )


def is_model_call(case: Case, tool: str) -> bool:
    """Whether a tool fits a model, by the registry's role."""
    return case.evidence.tool_roles.get(tool, "model" if tool == "train_mil" else "") == "model"
