"""Means, counts and reasons over trajectories. Pure functions; a mean always knows its n of N."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from acpbench.report.collect import STAGES, STATUSES, Cohort, StudyData, Trajectory
from acpbench.report.untrusted import listing, mapping, number, short

AGGREGATIONS = ("item_weighted", "stage_mean")
THRESHOLDS = ("0.70", "0.75", "0.80")
SUBCAPABILITIES = {
    "P1": "goal and task interpretation",
    "P2": "pathology grounding",
    "P3": "tool and pipeline selection",
    "P4": "configuration completeness",
    "A1": "tool invocation fidelity",
    "A2": "configuration loading",
    "A3": "documentation use",
    "A4": "error handling or recovery",
    "A5": "output generation",
    "A6": "output verification",
    "D1": "result discovery",
    "D2": "metric selection",
    "D3": "metric execution",
    "D4": "report generation",
    "D5": "uncertainty and limitation handling",
    "R1": "failure localization (weakest link)",
    "R2": "evidence-grounded critique",
    "R3": "update proposal",
    "R4": "update execution",
    "R5": "loop completeness",
}
CWAS3_PARTS = {"U": "unsupported completion", "N": "normalisation", "E": "evidence completeness"}
R6_PARTS = {
    "D": "endpoint drift",
    "O": "unsafe overclaim",
    "C": "conflicting evidence",
    "T": "temporal or source error",
    "R": "unsafe reflection",
}
FLAGS = ("yes", "possible", "no")
FUNNEL = ("candidate", "selected", "normalised", "probability")
EVIDENCE_CLASSES = ("strong", "partial", "weak")
MAX_EXCLUSIONS = 40
DIRECTIONS = ("improved", "unchanged", "worse", "not_comparable")


@dataclass(frozen=True)
class Mean:
    """A mean of the ``n`` values present among ``total``; without any, ``value`` is ``None``."""

    value: float | None
    n: int
    total: int
    reason: str | None = None


def mean_of(values: Iterable[float | None], reasons: Iterable[str] = ()) -> Mean:
    """Mean over the values that exist. Missing values leave n, never enter as 0.

    Args:
        values: one entry a member of the whole (``None`` where there is no value).
        reasons: why values are missing; the most frequent one is kept when none exists.
    """
    values = list(values)
    present = [value for value in values if value is not None]
    if present:
        return Mean(math.fsum(present) / len(present), len(present), len(values))
    common = Counter(reasons).most_common(1)
    why = f"no value in {len(values)} trajectories" + (f"; mostly: {common[0][0]}" if common else "")
    return Mean(None, 0, len(values), why)


def value_at(trajectory: Trajectory, file: str, *keys: str) -> float | None:
    """A finite number at ``keys`` inside a score file, or ``None``."""
    content: Any = trajectory.score(file)
    for key in keys:
        content = mapping(content).get(key)
    return number(content)


def mean_at(trajectories: Sequence[Trajectory], file: str, *keys: str) -> Mean:
    """:func:`mean_of` of :func:`value_at` over trajectories, with the reasons of those without."""
    values = [value_at(entry, file, *keys) for entry in trajectories]
    return mean_of(
        values, [entry.why_null(file) for entry, value in zip(trajectories, values) if value is None]
    )


def of_group(data: StudyData, group: str) -> list[Trajectory]:
    """The grid's trajectories of one group, in grid order."""
    return [entry for entry in data.trajectories if entry.group == group]


def is_scored(trajectory: Trajectory) -> bool:
    """Whether the workflow score holds at least one of its two aggregations."""
    return any(value_at(trajectory, "workflow_score.json", name) is not None for name in AGGREGATIONS)


def passes(trajectories: Sequence[Trajectory], threshold: str, aggregation: str) -> tuple[int, int]:
    """``(k, n)``: trajectories that pass among those with a decision. A null decision is in neither."""
    decisions = [
        mapping(mapping(entry.score("workflow_score.json").get("passes")).get(threshold)).get(aggregation)
        for entry in trajectories
    ]
    decided = [decision for decision in decisions if isinstance(decision, bool)]
    return sum(decided), len(decided)


def run_counts(data: StudyData) -> list[tuple[str, int]]:
    """How the runs ended, most frequent first; cells of the grid without a record are ``not recorded``."""
    counts = Counter(
        (entry.run_status or "no status") if entry.recorded else "not recorded" for entry in data.trajectories
    )
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def bases(trajectories: Sequence[Trajectory]) -> list[tuple[str, int]]:
    """What the workflow scores rest on (``basis``), with counts over scored trajectories."""
    counts = Counter(
        short(entry.score("workflow_score.json").get("basis") or "not stated", 60)
        for entry in trajectories
        if is_scored(entry)
    )
    return sorted(counts.items())


def coverage(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Sums of the items' coverage over the trajectories that have it, with n of N."""
    names = ("n_items", "n_scored", "n_skip", "n_unscored", "n_not_implemented")
    parts = [mapping(entry.score("workflow_score.json").get("coverage")) for entry in trajectories]
    parts = [part for part in parts if part]
    sums: dict[str, Any] = {
        name: (int(math.fsum(number(part.get(name)) or 0 for part in parts)) if parts else None)
        for name in names
    }
    return {**sums, "n": len(parts), "total": len(trajectories)}


def diagnostic_value(trajectory: Trajectory) -> dict[str, Any]:
    """The diagnostic lane's primary metric of one trajectory with its patients, split, interval or reason.

    ``n_text`` says of how many patients when some of the split were not predicted.
    """
    content = trajectory.score("diagnostic.json")
    split = content.get("headline_split")
    split = short(split, 20) if isinstance(split, str) else None
    metric = content.get("primary_metric")
    interval = [number(bound) for bound in listing(content.get("primary_interval"))]
    n, expected = number(content.get("n_patients")), number(content.get("n_expected"))
    return {
        "metric": short(metric, 40) if isinstance(metric, str) else None,
        "value": number(content.get("primary_value")),
        "interval": interval if len(interval) == 2 and None not in interval else None,
        "split": split,
        "n": n,
        "n_expected": expected,
        "n_text": of_expected(n, expected, number(content.get("n_other_split"))),
        "reason": trajectory.why_null("diagnostic.json"),
    }


def of_expected(n: float | None, expected: float | None, n_other_split: float | None = None) -> str | None:
    """``8``, ``5 of 8`` where fewer than expected were predicted, ``8 (3 of another split)``, or None."""
    if n is None:
        return None
    if n_other_split:
        return f"{n:.0f} ({n_other_split:.0f} of another split)"
    return f"{n:.0f}" if expected is None or n >= expected else f"{n:.0f} of {expected:.0f}"


def funnel(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many trajectories reach each step: a candidate, a selected table, rows, probabilities."""
    reached = dict.fromkeys(FUNNEL, 0)
    for entry in trajectories:
        steps = mapping(entry.score("diagnostic.json").get("funnel"))
        selected = steps.get("selected")
        marks = (
            (number(steps.get("n_candidates")) or 0) > 0,
            isinstance(selected, str) and bool(selected),
            (number(steps.get("n_normalised")) or 0) > 0,
            (number(steps.get("n_probability")) or 0) > 0,
        )
        for name, mark in zip(FUNNEL, marks):
            if not mark:
                break
            reached[name] += 1
    return reached


def component(trajectory: Trajectory, file: str, part: str) -> dict[str, Any]:
    """One component of CWAS-3 or R6: value and status (CWAS-3) or flag (R6), ``None`` when missing."""
    content = mapping(mapping(trajectory.score(file).get("components")).get(part))
    label = content.get("status") if file == "cwas3.json" else content.get("flag")
    return {"value": number(content.get("value")), "label": short(label, 12) if label else None}


def component_counts(trajectories: Sequence[Trajectory], file: str, part: str) -> Counter[str]:
    """Counts of statuses or flags of one component; trajectories without one are not counted."""
    labels = (component(entry, file, part)["label"] for entry in trajectories)
    return Counter(label for label in labels if label)


def reflection_counts(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Counts of evidence classes and directions, with the n they rest on."""
    contents = [entry.score("reflection.json") for entry in trajectories]
    classes = Counter(
        short(entry.get("evidence_class"), 20) for entry in contents if entry.get("evidence_class")
    )
    directions = Counter(short(entry.get("direction"), 20) for entry in contents if entry.get("direction"))
    return {
        "classes": classes,
        "directions": directions,
        "n": sum(classes.values()),
        "n_direction": sum(directions.values()),
        "total": len(trajectories),
    }


def cohort_flow(cohort: Cohort) -> dict[str, Any]:
    """CONSORT-like counts of one cohort.

    ``slides.csv`` may or may not still hold slides excluded at a later stage, so: considered = slides of
    either table, included = slides of ``slides.csv`` that no exclusion names. A row without id counts once.

    Returns:
        ``considered``, ``included``, ``patients`` (of included slides), ``lost`` (patients without a slide
        left), ``excluded``; ``reasons``: rows of ``{stage, reason, n}``, n in distinct slides; ``slides``:
        the first excluded slides, ``listed`` when these are all. Counts are ``None`` when ``slides.csv`` is
        unreadable.
    """
    excluded: dict[str, tuple[str, str]] = {}
    for number_, row in enumerate(cohort.exclusions):
        key = row.get("slide_id") or f"\0row{number_}"
        excluded.setdefault(key, (row.get("stage") or "not stated", row.get("reason") or "not stated"))
    order = {stage: index for index, stage in enumerate(("manifest", "inspect", "tile", "features"))}
    counts = Counter(excluded.values())
    reasons = [
        {"stage": short(stage, 40), "reason": short(reason, 160), "n": count}
        for (stage, reason), count in sorted(
            counts.items(), key=lambda pair: (order.get(pair[0][0], 9), -pair[1], pair[0])
        )
    ]
    flow: dict[str, Any] = {
        "id": cohort.id,
        "excluded": len(excluded),
        "reasons": reasons,
        "slides": [
            {
                name: short(row.get(name) or "", 200)
                for name in ("slide_id", "patient_id", "stage", "reason", "detail")
            }
            for row in cohort.exclusions[:MAX_EXCLUSIONS]
        ],
        "listed": len(cohort.exclusions) <= MAX_EXCLUSIONS,
        "problems": sorted(f"{name} {why}" for name, why in cohort.problems.items()),
    }
    if "slides.csv" in cohort.problems:
        return {**flow, "considered": None, "included": None, "patients": None, "lost": None}
    slides = {row.get("slide_id", ""): row.get("patient_id", "") for row in cohort.slides}
    kept = {slide: patient for slide, patient in slides.items() if slide not in excluded}
    patients = {patient for patient in kept.values() if patient}
    everyone = {row.get("patient_id") or "" for row in (*cohort.slides, *cohort.exclusions)} - {""}
    return {
        **flow,
        "considered": len(slides.keys() | excluded.keys()),
        "included": len(kept),
        "patients": len(patients),
        "lost": len(everyone - patients),
    }


def item_totals(trajectories: Sequence[Trajectory]) -> dict[tuple[str, str, str, str], Counter[str]]:
    """Final statuses per checkpoint over trajectories, in the order of stages and then of checkpoints."""
    totals: dict[tuple[str, str, str, str], Counter[str]] = {}
    for entry in trajectories:
        for key, counts in entry.items.items():
            totals.setdefault(key, Counter()).update(counts)
    stage_order = {stage: index for index, stage in enumerate(STAGES)}
    return dict(
        sorted(totals.items(), key=lambda pair: (stage_order.get(pair[0][1], 9), pair[0][2], pair[0][0]))
    )


def status_totals(trajectories: Sequence[Trajectory]) -> Counter[str]:
    """Final statuses of all items, every known status present."""
    totals = Counter(dict.fromkeys(STATUSES, 0))
    for entry in trajectories:
        for counts in entry.items.values():
            totals.update(counts)
    return totals


def decided_totals(trajectories: Sequence[Trajectory]) -> Counter[tuple[str, str]]:
    """``(kind, decided_by)`` → items, summed over trajectories."""
    totals: Counter[tuple[str, str]] = Counter()
    for entry in trajectories:
        totals.update(entry.decided)
    return totals
