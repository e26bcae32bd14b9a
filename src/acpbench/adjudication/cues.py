"""Building blocks of the offline cue judge: named parts with citations, and what both need to read.

A checkpoint's cue function returns parts; a part is met when it has a citation. All parts met is PASS, the
leading (core) parts and at least half of all is PARTIAL, anything else FAIL. A veto is a fact that speaks
against: it forbids PASS, or everything.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from acpbench.adjudication.view import RecordView, Unit
from acpbench.rubric.evidence import trusted_registry
from acpbench.rubric.formats import number
from acpbench.rubric.language import find_overclaims

SPEC = "plan/workflow_spec.json"
PLAN = "plan/plan.md"
REPORT = "reports/report.md"
REPORT_JSON = "reports/report.json"
ROUND_0 = "outputs/round_0"
MAX_REFS = 6
_STOP = {"the", "and", "for", "from", "with", "status", "class", "type", "versus", "present", "group"}


class Part(NamedTuple):
    """One thing a checkpoint asks for; met when it has a citation."""

    name: str
    refs: tuple[str, ...]


class Verdict(NamedTuple):
    """Outcome of one cue function."""

    status: str
    refs: tuple[str, ...]
    rationale: str
    confidence: str


def part(name: str, refs: Iterable[str] | str | None, *, when: bool = True) -> Part:
    """A part with the given citations, unmet when there are none or the condition is false."""
    if not when or not refs:
        return Part(name, ())
    return Part(name, (refs,) if isinstance(refs, str) else tuple(refs))


def grade(
    *parts: Part,
    core: int = 1,
    veto: Part | None = None,
    soft_veto: Part | None = None,
    structured: bool = False,
) -> Verdict:
    """Fold parts into a verdict.

    Args:
        core: how many leading parts nothing above FAIL is possible without.
        veto: a fact that, when cited, makes the item FAIL.
        soft_veto: a fact that, when cited, forbids PASS.
        structured: the parts rest on structured files or witnessed events rather than on wording, which is
            worth medium confidence instead of low. A cue is never worth high.
    """
    met = [one for one in parts if one.refs]
    unmet = [one.name for one in parts if not one.refs]
    confidence = "medium" if structured else "low"
    refs = tuple(dict.fromkeys(ref for one in met for ref in one.refs))[:MAX_REFS]
    said = f"met: {', '.join(one.name for one in met) or 'nothing'}"
    said += f"; missing: {', '.join(unmet)}" if unmet else ""
    if veto is not None and veto.refs:
        return Verdict("FAIL", veto.refs[:MAX_REFS], f"{veto.name}; {said}", confidence)
    if any(not one.refs for one in parts[:core]) or len(met) * 2 < len(parts):
        return Verdict("FAIL", refs, said, confidence)
    if soft_veto is not None and soft_veto.refs:
        return Verdict(
            "PARTIAL", (refs + soft_veto.refs)[-MAX_REFS:], f"{soft_veto.name}; {said}", confidence
        )
    return Verdict("PARTIAL" if unmet else "PASS", refs, said, confidence)


def not_applicable(why: str) -> Verdict:
    """NA with its reason (by the status policy it counts 0 and stays in the denominator)."""
    return Verdict("NA", (), why, "low")


def overclaim_refs(record: RecordView, path: str, *, about: str | None = None) -> list[str]:
    """Citations of phrases in a file that go beyond any claim boundary (negated and hedged ones are none).

    Args:
        about: only lines in which this regex occurs.
    """
    lines = record.lines(path)
    spans = find_overclaims("\n".join(lines))
    return [
        f"{path}#L{span.line}"
        for span in spans
        if about is None or re.search(about, lines[span.line - 1], re.IGNORECASE)
    ][:3]


# ---- values -------------------------------------------------------------------------------------------
def folded(text: object) -> str:
    """Lower-case text without accents, punctuation as spaces, British spellings as American."""
    plain = unicodedata.normalize("NFKD", str(text)).encode("ascii", "ignore").decode().lower()
    plain = plain.replace("tumour", "tumor").replace("grading", "grade")
    return " ".join(re.sub(r"[^a-z0-9.]+", " ", plain).split())


def tokens(text: object, *, shortest: int = 3) -> set[str]:
    """Content words of a text."""
    return {word for word in folded(text).replace(".", " ").split() if len(word) >= shortest} - _STOP


def same(left: object, right: object, tolerance: float = 1e-9) -> bool:
    """Equal values; numbers within a tolerance, text without regard to case."""
    a, b = number(left), number(right)
    if a is not None and b is not None:
        return abs(a - b) <= tolerance
    if isinstance(left, str) and isinstance(right, str):
        return left.strip().lower() == right.strip().lower()
    return type(left) is type(right) and left == right


def words(text: object) -> int:
    """Number of words of a text value, 0 for anything that is not text."""
    return len(text.split()) if isinstance(text, str) else 0


def decimals(text: str) -> list[str]:
    """Decimal numbers written in a text (``0.71``; not versions, dates or section numbers)."""
    return re.findall(r"(?<![\w.])-?\d+\.\d+(?![\w.]*\d)(?!\.\d)", text)


def written(value: float, text: str) -> bool:
    """Whether a value is written in a text, rounded to whatever number of decimals (two at least)."""
    for found in decimals(text):
        places = len(found.split(".")[1])
        if places >= 2 and abs(float(found) - value) <= 0.5 * 10**-places + 1e-9:
            return True
    return False


ALIASES = {
    "mpp": "spacing_um",
    "spacing": "spacing_um",
    "tile_px": "tile_size_px",
    "tile_size": "tile_size_px",
    "lr": "learning_rate",
    "epochs": "max_epochs",
}


def canonical_parameter(name: str) -> str:
    """Last part of a dotted parameter name, known synonyms folded."""
    last = name.rsplit(".", 1)[-1]
    return ALIASES.get(last, last)


# ---- context ------------------------------------------------------------------------------------------
@dataclass
class Case:
    """One item under judgement: the record, the task's facts, the round (or None)."""

    record: RecordView
    task: dict[str, Any]
    round: int | None = None

    # -- task ---------------------------------------------------------------------------------------
    @property
    def classes(self) -> list[str]:
        """Class names of the task in order (empty for survival and continuous)."""
        values = self.task["label_values"]
        if isinstance(values, dict):
            return [str(name) for name in values.values()]
        return [str(name) for name in values] if isinstance(values, list) else []

    @property
    def primary(self) -> str:
        """Primary metric of the task."""
        return self.task["metric_family"]["primary"]

    @property
    def secondary(self) -> list[str]:
        """Secondary metrics of the task."""
        return self.task["metric_family"]["secondary"]

    @property
    def survival(self) -> bool:
        """Whether the endpoint is time to event."""
        return self.task["output_type"] == "survival"

    def names_target(self, text: str) -> bool:
        """Whether a text names the endpoint: its words, or the short name in front of them."""
        target = re.sub(r"\([^()]*\)", " ", self.task["target"])
        wanted = tokens(target, shortest=2) or tokens(self.task["target"], shortest=2)
        return bool(wanted) and wanted <= tokens(text, shortest=2)

    @staticmethod
    def metric_pattern(name: str) -> str:
        """Regex of a metric's name in prose (``balanced_accuracy`` also as ``balanced accuracy``)."""
        loose = re.escape(name).replace("_", r"[\s_-]*")
        more = {
            "AUROC": r"|ROC[\s-]*AUC|\bAUC\b",
            "macro_OvR_AUROC": r"|macro[\s-]*(?:OvR[\s-]*)?AUROC",
            "c_index": r"|C[\s-]?index|concordance",
            "quadratic_weighted_kappa": r"|\bQWK\b|weighted kappa",
            "spearman_rho": r"|spearman",
            "F1": r"|F1[\s-]*score",
        }.get(name, "")
        return rf"(?<![A-Za-z]){loose}(?![A-Za-z])" + more

    # -- plan ---------------------------------------------------------------------------------------
    @cached_property
    def spec(self) -> dict[str, Any]:
        """The workflow specification."""
        return self.record.object(SPEC)

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """Steps of the specification that are objects."""
        steps = self.spec.get("steps")
        return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []

    @property
    def step_ids(self) -> set[str]:
        """Ids of the specification's steps."""
        return {step["id"] for step in self.steps if isinstance(step.get("id"), str)}

    @cached_property
    def registry(self) -> dict[str, dict[str, Any]]:
        """Tool id → entry of the registry that the run was given, not of what the agent made of it."""
        given = self.record.json("registry.json") if self.record.untouched("registry.json") else None
        tools = trusted_registry(given).get("tools")
        return {
            tool["id"]: tool
            for tool in (tools if isinstance(tools, list) else [])
            if isinstance(tool, dict) and isinstance(tool.get("id"), str)
        }

    def spec_object(self, key: str) -> dict[str, Any]:
        """An object field of the specification, empty when it is anything else."""
        value = self.spec.get(key)
        return value if isinstance(value, dict) else {}

    def planned_values(self) -> dict[str, Any]:
        """Parameters the plan fixes: global ones and those of its steps, by canonical name."""
        values: dict[str, Any] = {}
        for step in self.steps:
            params = step.get("params")
            if isinstance(params, dict):
                values |= {canonical_parameter(k): v for k, v in params.items()}
        values |= {canonical_parameter(k): v for k, v in self.spec_object("params").items()}
        if "seed" in self.spec:
            values["seed"] = self.spec["seed"]
        return values

    # -- logs ---------------------------------------------------------------------------------------
    @cached_property
    def logs(self) -> list[str]:
        """The agent's text logs (not its event list, which repeats arguments rather than says anything)."""
        return [path for path in self.record.matching("logs/") if path != "logs/events.jsonl"]

    @cached_property
    def notes(self) -> list[str]:
        """Where an agent may have written what it noticed: logs and memory."""
        return [*self.record.matching("logs/"), *self.record.matching("memory/")]

    @cached_property
    def scripts(self) -> list[str]:
        """Files under ``scripts/``."""
        return self.record.matching("scripts/")

    # -- rounds -------------------------------------------------------------------------------------
    def folder(self, round_id: int) -> str:
        """Folder of a round's outputs."""
        return ROUND_0 if round_id == 0 else f"reflection/round_{round_id}"

    def metrics_file(self, round_id: int) -> str:
        """Path of a round's metrics."""
        return f"{self.folder(round_id)}/metrics.json"

    def metrics(self, round_id: int) -> dict[str, Any]:
        """``metrics`` object of a round's metrics file."""
        value = self.record.object(self.metrics_file(round_id)).get("metrics")
        return value if isinstance(value, dict) else {}

    def rounds(self) -> list[int]:
        """Rounds (0 included) that left a metrics file."""
        return [k for k in range(6) if self.record.has(self.metrics_file(k))]

    @property
    def previous(self) -> int:
        """Round before this one."""
        return (self.round or 1) - 1

    def round_file(self, name: str) -> str:
        """A file of this round."""
        return f"{self.folder(self.round or 0)}/{name}"

    # -- report -------------------------------------------------------------------------------------
    @cached_property
    def report_units(self) -> list[Unit]:
        """Text units of the report, headings apart."""
        return [unit for unit in self.record.units(REPORT) if unit.text.lower() != unit.section]

    @cached_property
    def headline(self) -> dict[str, Any]:
        """The structured report's headline."""
        value = self.record.object(REPORT_JSON).get("headline")
        return value if isinstance(value, dict) else {}

    def headline_in_file(self) -> bool:
        """Whether the headline's file exists and holds its value."""
        metric, file = self.headline.get("metric"), self.headline.get("file")
        if not isinstance(metric, str) or not isinstance(file, str) or not self.record.has(file):
            return False
        values = self.record.object(file).get("metrics")
        held = number(values.get(metric)) if isinstance(values, dict) else None
        stated = number(self.headline.get("value"))
        return held is not None and stated is not None and abs(held - stated) <= 5e-4

    def predictions(self, round_id: int) -> list[dict[str, str]]:
        """Rows of a round's predictions."""
        return self.record.table(f"{self.folder(round_id)}/predictions.csv")

    def witnessed_predictions(self, round_id: int) -> list[str]:
        """Citation of the call that wrote a round's predictions exactly as they are now."""
        path = f"{self.folder(round_id)}/predictions.csv"
        ref = self.record.witnessed_hashes.get(self.record.sha256(path) or "")
        return [ref] if ref else []
