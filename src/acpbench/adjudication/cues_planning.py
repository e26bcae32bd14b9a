"""Cue functions of the planning checkpoints (P1 to P4)."""

from __future__ import annotations

import re
from collections.abc import Callable

from acpbench.adjudication.cues import (
    PLAN,
    SPEC,
    Case,
    Verdict,
    folded,
    grade,
    overclaim_refs,
    part,
    same,
    tokens,
    words,
)
from acpbench.rubric.formats import number
from acpbench.rubric.formats import words as words_of
from acpbench.trajectory.documents import GIVEN_FILES, GIVEN_FOLDERS

TEST_NOT_FOR_SELECTION = (
    r"test.{0,80}\b(?:not|never|kept out|held[\s-]?out|untouched|once|only at the end|final)\b"
    r"|\b(?:not|never|no)\b.{0,60}\btest\b"
)


def class_named(text: str, label: str) -> bool:
    """Whether a class name occurs as words in a text (spacing and punctuation aside)."""
    return re.search(rf"\b{re.escape(folded(label))}\b", folded(text)) is not None


def p1_s1(case: Case) -> Verdict:
    plan, intent = case.record.text(PLAN), case.spec_object("intent")
    target = case.record.find_unit(PLAN, r"\w", where=case.names_target)
    if case.classes:
        labels = [case.record.find_unit(PLAN, r"\w", where=_naming(label)) for label in case.classes]
        classes = part(
            "every class named",
            [ref for refs in labels for ref in refs][:3],
            when=all(class_named(plan, label) for label in case.classes) and all(labels),
        )
    elif case.survival:
        classes = part(
            "event and time unit named", case.record.find_unit(PLAN, r"\bevent", r"\b(?:month|day|year)s?\b")
        )
    else:
        classes = part("measured quantity named", case.record.find_unit(PLAN, r"score|continuous|scale|log"))
    endpoint = intent.get("endpoint")
    agrees = (
        isinstance(endpoint, str)
        and (case.names_target(endpoint) or folded(endpoint) == folded(case.task["task_id"]))
        and same(intent.get("task_id"), case.task["task_id"])
    )
    return grade(
        part("endpoint named in the plan", target),
        part("intent names the same endpoint", f"{SPEC}#/intent/endpoint", when=agrees),
        classes,
    )


def _naming(label: str) -> Callable[[str], bool]:
    return lambda text: class_named(text, label)


def p1_s2(case: Case) -> Verdict:
    return grade(
        part(
            "unit of prediction",
            case.record.find_unit(
                PLAN, r"unit of prediction|(?:slide|patient|case)[\s-]level|per[\s-](?:patient|slide|case)"
            ),
        ),
        part(
            "how slides map to patients",
            case.record.find_unit(
                PLAN,
                r"slides?\b.{0,80}\bpatients?\b.*|patients?\b.{0,60}\bslides\b",
                r"map|bag|pool|mean|max|aggregat|join|all slides|several|merge|combin",
            ),
        ),
    )


def p1_s3(case: Case) -> Verdict:
    statement = tokens(case.task["claim_boundary_statement"], shortest=4)

    # Statements of many tasks differ in little but the target, so the target's own words must be there.
    own = tokens(case.task["target"], shortest=2) & tokens(case.task["claim_boundary_statement"], shortest=2)

    def restates(text: str) -> bool:
        shared = statement & tokens(text, shortest=4)
        return len(shared) >= max(4, 0.35 * len(statement)) and own <= tokens(text, shortest=2)

    limits = case.record.find_unit(
        PLAN,
        r"may not claim|must not claim|not (?:a )?(?:diagnos|claim|confirm|replace)|no (?:diagnos|clinical)"
        r"|research",
    )
    return grade(
        part("what may not be claimed", limits),
        part("the task's own boundary", case.record.find_unit(PLAN, r"claim", where=restates)),
        veto=part("the plan promises more than the boundary", overclaim_refs(case.record, PLAN)),
    )


def p1_s4(case: Case) -> Verdict:
    finished = (
        r"\b(?:done|finished|completed?|deliverables?|success criteri|acceptance"
        r"|expected (?:files|artifacts|outputs))\b"
    )
    heading = [unit.ref for unit in case.record.units(PLAN) if re.search(finished, unit.text, re.IGNORECASE)]
    files = [
        ref
        for name in (r"predictions?\.csv|\bpredictions\b", r"metrics\.json|\bmetrics?\b", r"report")
        for ref in case.record.find_unit(
            PLAN, name, section=r"done|finish|deliver|success|complet|accept|output|artifact"
        )
    ]
    return grade(
        part("what counts as finished", heading[:2]),
        part("files named there", files, when=len(files) >= 2),
        part("primary metric named", case.record.find_unit(PLAN, case.metric_pattern(case.primary))),
    )


def p2_s1(case: Case) -> Verdict:
    organ = case.task["organ"].split()[0]
    return grade(
        part(
            "where the signal may sit",
            case.record.find_unit(
                PLAN,
                r"nucle[ui]|stroma|epitheli|gland|lymphocyt|mitos|architect|invasi|morpholog"
                r"|tumou?r (?:cells|area|region)",
                r"signal|pattern|feature|visible|seen|differ|reflect|sit|locat",
            ),
        ),
        part("organ", case.record.find_unit(PLAN, rf"\b{re.escape(organ)}")),
        part("stain", case.record.find_unit(PLAN, r"H\s?&\s?E|h[ae]ematoxylin|immunohisto|stained")),
        part(
            "specimen",
            case.record.find_unit(
                PLAN, r"specimen|section|biops|resection|FFPE|frozen|diagnostic slide|surgical"
            ),
        ),
    )


def p2_s2(case: Case) -> Verdict:
    families = {
        "site": r"\bsites?\b|\bcent(?:re|er)s?\b|batch|hospital",
        "scanner or stain": r"scanner|stain",
        "tumour content": r"tumou?r (?:content|purity|fraction)|cellularity|purity",
        "necrosis": r"necro",
        "treatment": r"treat(?:ment|ed)|chemo|therapy|neoadjuvant",
        "patient": r"\b(?:age|sex|stage)\b",
        "artefact": r"artefact|artifact|\bpen\b|blur|folds?\b",
    }
    named = {
        name: ref
        for name, pattern in families.items()
        for ref in case.record.find_unit(
            PLAN, pattern, r"confound|bias|shortcut|spurious|differ|vary|nuisance"
        )
    }
    handled = case.record.find_unit(
        PLAN,
        r"handl|stratif|exclud|filter|mask|control|normali[sz]|adjust|drop|augment|check",
        r"confound|stain|scanner|site|quality|necro|artefact|artifact|unusable",
    )
    return grade(
        part("a confounder", list(named.values())[:2]),
        part("two or more kinds", list(named.values())[:3], when=len(named) >= 2),
        part("how they are handled", handled),
    )


def p2_s3(case: Case) -> Verdict:
    params = case.spec_object("params")
    spacing, tile = (
        number(params.get("mpp", params.get("spacing_um"))),
        number(params.get("tile_px", params.get("tile_size_px"))),
    )

    def holds(value: float | None) -> list[str]:
        if value is None:
            return []
        return case.record.find_unit(PLAN, rf"(?<![\d.]){re.escape(f'{value:g}')}(?![\d]|\.\d)")

    reason = case.record.find_unit(
        PLAN,
        r"magnif|\d\s?x\b|mpp|µm|\bum\b|micron|micromet|tile size",
        r"because|so that|resolv|enough|captur|fits?\b|holds?|needed|context|sees?\b",
        r"nucle|gland|cell|architect|tissue|stroma|mitos|pattern",
    )
    both = holds(spacing) and holds(tile)
    return grade(
        part("a reason from biology", reason),
        part(
            "values equal those of the specification",
            [*holds(spacing), *holds(tile), f"{SPEC}#/params"],
            when=bool(both),
        ),
    )


REFERENCE_SOURCES = {
    "molecular_assay": r"assay|sequenc|\bMAF\b|mutation call|\bWES\b|PCR|molecular",
    "ihc": r"\bIHC\b|immunohisto|FISH",
    "derived_expression": r"expression|RNA|transcript|subtype",
    "pathologist_diagnosis": r"patholog|reader|diagnos|annotat",
    "pathologist_adjudicated": r"patholog|reader|annotat|adjudicat",
    "outcome_record": r"follow[\s-]?up|registry|record|outcome|clinical (?:data|table)|TCGA-CDR",
    "clinical_stage_record": r"clinical|record|stag",
    "generator_parameter": r"generator|generated|simulat|synthetic",
}


def p2_s4(case: Case) -> Verdict:
    source = tokens(case.task["label_source"], shortest=4) - {"https", "split", "data"}

    def names_source(text: str) -> bool:
        return len(source & tokens(text, shortest=4)) >= max(1, min(2, len(source)))

    pattern = REFERENCE_SOURCES[case.task["label_reference_type"]]
    return grade(
        part(
            "where the label comes from",
            case.record.find_unit(PLAN, r"label|reference|ground truth|source", pattern, where=names_source),
        ),
        part(
            "its known error",
            case.record.find_unit(
                PLAN,
                r"label|reference|reader|assay|record",
                r"error|nois|disagree|inter-?observer|misclass|uncertain|imperfect|censor|subclon"
                r"|false (?:pos|neg)",
            ),
        ),
    )


def _unmet_inputs(case: Case) -> list[str]:
    """Inputs of steps that no earlier step makes and that the run was not given."""
    made: set[str] = set()
    unmet = []
    for step in case.steps:
        for path in _paths(step.get("inputs")):
            given = path.startswith(GIVEN_FOLDERS) or path in GIVEN_FILES
            if (
                not given
                and path not in made
                and not any(out.startswith(path.rstrip("/") + "/") for out in made)
            ):
                unmet.append(path)
        made.update(_paths(step.get("outputs")))
    return unmet


def _paths(value: object) -> list[str]:
    return [path for path in value if isinstance(path, str)] if isinstance(value, list) else []


def p3_s1(case: Case) -> Verdict:
    planned = [words_of(step.get("tool")) for step in case.steps]
    known = bool(planned) and all(tool in case.registry for tool in planned)
    covered = {words_of(case.registry[tool].get("role")) for tool in planned if tool in case.registry}
    needed = {"slide_processing", "feature_extraction", "model", "evaluation"}
    return grade(
        part("every tool is in the registry", [f"{SPEC}#/steps", "registry.json#/tools"], when=known),
        part("slide to metric covered", f"{SPEC}#/steps", when=needed <= covered),
        part("no gap between steps", f"{SPEC}#/steps", when=bool(planned) and not _unmet_inputs(case)),
        structured=True,
    )


def p3_s2(case: Case) -> Verdict:
    encoder = case.planned_values().get("encoder")
    named = rf"{re.escape(str(encoder))}|encoder|backbone" if encoder else r"encoder|backbone"
    why = r"because|since|so that|as it|given|for this|available|fits|suits"
    other = r"rather than|instead of|alternative|compared (?:to|with)|versus|\bvs\b|over mean|unlike"
    aggregator = r"attention|ABMIL|CLAM|TransMIL|mean[\s-]pool|max[\s-]pool|aggregat"
    return grade(
        part(
            "encoder with a reason or an alternative", case.record.find_unit(PLAN, named, rf"{why}|{other}")
        ),
        part("aggregator with a reason", case.record.find_unit(PLAN, aggregator, why)),
        part(
            "aggregator or encoder against an alternative",
            case.record.find_unit(PLAN, rf"{aggregator}|{named}", other),
        ),
    )


HEADS = {
    "binary": r"sigmoid|binary|two-class|softmax|cross-entropy|logit",
    "multiclass": r"softmax|multi-?class|cross-entropy|categorical",
    "ordinal": r"ordinal|order-aware|cumulative|CORAL|CORN|rank-consistent",
    "continuous": r"regress|linear head|squared error|\bMSE\b|Huber",
    "survival": r"\bCox\b|hazard|partial likelihood|discrete-time|DeepSurv",
}


def p3_s3(case: Case) -> Verdict:
    planned = case.spec_object("intent").get("output_type")
    output = case.task["output_type"]
    return grade(
        part(
            "a head that fits", case.record.find_unit(PLAN, HEADS[output], r"head|loss|output|model|classif")
        ),
        part(
            "the output structure named",
            case.record.find_unit(PLAN, rf"\b{output}\b|{HEADS[output] if output != 'binary' else 'binary'}"),
        ),
        veto=part(
            f"the specification plans {planned}, not {output}",
            f"{SPEC}#/intent/output_type",
            when=isinstance(planned, str) and not same(planned, output),
        ),
    )


def p3_s4(case: Case) -> Verdict:
    compute = r"\bCPU|\bGPU|memory|\bRAM\b|\bGB\b|minutes|hours|compute|cores?\b|budget"
    data = r"\b(?:few dozen|\d+|small number of|few|limited) (?:slides|patients|cases)|data ?set size|\bn\s*="
    choice = r"feasib|therefore|hence|fits?\b|afford|small|frozen|subsample|cap(?:ped)?\b|instead|cheap|light"
    return grade(
        part("compute limits with a choice", case.record.find_unit(PLAN, compute, choice)),
        part("data limits", case.record.find_unit(PLAN, data, rf"{choice}|limit")),
    )


def p4_s1(case: Case) -> Verdict:
    steps = case.steps
    full = bool(steps) and all(
        isinstance(step.get("params"), dict)
        and _paths(step.get("inputs"))
        and _paths(step.get("outputs"))
        and words(step.get("tool"))
        for step in steps
    )
    with_params = sum(bool(step.get("params")) for step in steps)
    ids = [step.get("id") for step in steps]
    return grade(
        part("inputs, parameters and outputs of every step", f"{SPEC}#/steps", when=full),
        part("inputs made by earlier steps", f"{SPEC}#/steps", when=bool(steps) and not _unmet_inputs(case)),
        part("parameters are set", f"{SPEC}#/steps", when=bool(steps) and with_params * 2 >= len(steps)),
        part(
            "step ids are unique", f"{SPEC}#/steps", when=bool(ids) and len({str(i) for i in ids}) == len(ids)
        ),
        structured=True,
    )


def _split_overlap(case: Case, path: str) -> bool | None:
    """Whether a split file puts a patient in two parts; None when it is not readable."""
    rows = case.record.table(path)
    if not rows or not {"patient_id", "split"} <= set(rows[0]):
        return None
    seen: dict[str, str] = {}
    return any(seen.setdefault(row["patient_id"], row["split"]) != row["split"] for row in rows)


def p4_s2(case: Case) -> Verdict:
    split = case.spec_object("split")
    source, unit, use = split.get("source"), str(split.get("unit", "")), str(split.get("test_use", ""))
    overlap = _split_overlap(case, source) if isinstance(source, str) else None
    kept_out = re.search(r"once|final|after|end|never|not|report|held|none", use, re.IGNORECASE)
    return grade(
        part(
            "split by patient from an existing file",
            f"{SPEC}#/split",
            when=overlap is False and "patient" in unit.lower(),
        ),
        part(
            "test part out of selection in the specification", f"{SPEC}#/split/test_use", when=bool(kept_out)
        ),
        part(
            "patient-disjoint in the plan",
            case.record.find_unit(PLAN, r"patient-?(?:disjoint|level|wise)|by patient|disjoint|no patient"),
        ),
        part("test part out of selection in the plan", case.record.find_unit(PLAN, TEST_NOT_FOR_SELECTION)),
        veto=part("the split file shares patients between parts", str(source), when=overlap is True),
    )


def p4_s3(case: Case) -> Verdict:
    evaluation = case.spec_object("evaluation")
    metric = evaluation.get("primary_metric")
    uncertainty = evaluation.get("uncertainty")
    method = isinstance(uncertainty, (str, dict)) and re.search(
        r"bootstrap|fold|interval|\bCI\b|DeLong|jackknife|repeat", str(uncertainty), re.IGNORECASE
    )
    return grade(
        part(
            "a metric of the family",
            f"{SPEC}#/evaluation/primary_metric",
            when=metric in (case.primary, *case.secondary),
        ),
        part("it is the primary one", f"{SPEC}#/evaluation/primary_metric", when=metric == case.primary),
        part("an uncertainty method", f"{SPEC}#/evaluation/uncertainty", when=bool(method)),
        structured=True,
    )


def p4_s4(case: Case) -> Verdict:
    return grade(
        part(
            "a stop rule",
            case.record.find_unit(
                PLAN, r"\bstop|at most|no (?:further )?improvement|plateau|maximum of|halt"
            ),
        ),
        part(
            "what a round may change",
            case.record.find_unit(
                PLAN,
                r"round|reflection",
                r"may change|can change|change (?:only|one)|may (?:vary|adjust|tune)|only the"
                r"|one (?:parameter|setting|change)",
            ),
        ),
    )


CUES: dict[str, Callable[[Case], Verdict]] = {
    "P1.s1": p1_s1,
    "P1.s2": p1_s2,
    "P1.s3": p1_s3,
    "P1.s4": p1_s4,
    "P2.s1": p2_s1,
    "P2.s2": p2_s2,
    "P2.s3": p2_s3,
    "P2.s4": p2_s4,
    "P3.s1": p3_s1,
    "P3.s2": p3_s2,
    "P3.s3": p3_s3,
    "P3.s4": p3_s4,
    "P4.s1": p4_s1,
    "P4.s2": p4_s2,
    "P4.s3": p4_s3,
    "P4.s4": p4_s4,
}
