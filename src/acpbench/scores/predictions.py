"""Find the prediction tables an agent left, choose one, and bring its rows into one form.

Candidate: a table whose columns predict something, or whose name says that they should. Every candidate
that is not chosen keeps its reason. Labels that count are the evaluator's, joined by id; the agent's own
copy is kept beside them and a difference is a ``label_conflict``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.core.files import walk_files
from acpbench.mil.cells import parse_event, parse_number
from acpbench.scores.columns import ColumnMap, canonical_split, class_of, map_columns, training_log_like
from acpbench.scores.labels import ReferenceLabels, ReferenceRow
from acpbench.scores.tables import TABLE_SUFFIXES, Table, read_table
from acpbench.tasks.models import Task

MAX_TABLES_READ = 400
_SKIPPED_FOLDERS = ("data/", "skills/", "schemas/", "memory/")
_NAMED_LIKE_PREDICTIONS = re.compile(r"pred|inference|infer_|scores?_test|test_results", re.IGNORECASE)
_ROUND = re.compile(r"(?:^|/)round[_-]?(\d{1,3})(?:/|_|\.|$)")


@dataclass
class Row:
    """One prediction after normalisation. Empty text means missing.

    ``split`` is the evaluator's for a known case when labels are held out, else the table's own.
    """

    slide_id: str
    patient_id: str
    split: str
    split_agent: str
    y_true_agent: str
    y_true_reference: str
    y_pred: str
    probabilities: dict[str, float | None]
    time: str
    event: str
    risk: str
    label_conflict: bool = False
    agent_label_given: bool = False
    matched: bool = False
    unmappable: str = ""
    contradiction: str = ""

    @property
    def usable(self) -> bool:
        """Whether the row pairs a reference label with a prediction."""
        return self.matched and not self.unmappable


@dataclass
class Candidate:
    """A table considered as predictions; ``reason`` says why it is excluded (``None``: usable)."""

    path: str
    reason: str | None
    detail: str = ""
    round_id: int | None = None
    columns: ColumnMap = field(default_factory=ColumnMap)
    rows: list[Row] = field(default_factory=list)
    n_source_rows: int = 0
    n_duplicates: int = 0

    def usable_rows(self, split: str | None = None) -> list[Row]:
        """Rows that pair with a reference label, of one split or of all."""
        return [row for row in self.rows if row.usable and (split is None or row.split == split)]


class Selection(NamedTuple):
    """The chosen candidate and the rule that chose it (``none`` when there is nothing to choose)."""

    candidate: Candidate | None
    rule: str


def round_of(path: str) -> int | None:
    """Round number named by a path (``reflection/round_2/predictions.csv`` is 2), if any."""
    match = _ROUND.search(path)
    return int(match.group(1)) if match else None


def find_candidates(
    workspace: Path, task: Task, labels: ReferenceLabels, *, label_access: str
) -> list[Candidate]:
    """Every table in the workspace that predicts, in path order, each with its rows or its reason.

    Of very many tables those are read first whose name says that they predict.
    """
    tables = [
        (not _NAMED_LIKE_PREDICTIONS.search(path.name), relative, path)
        for relative, path in walk_files(workspace)
        if relative.casefold().endswith(TABLE_SUFFIXES) and not relative.startswith(_SKIPPED_FOLDERS)
    ]
    found = []
    for place, (unnamed, relative, path) in enumerate(sorted(tables)):
        if place >= MAX_TABLES_READ:
            if not unnamed:
                found.append(Candidate(relative, "too_large", "too many tables in the workspace"))
            continue
        candidate = _candidate(relative, read_table(path), not unnamed, task, labels, label_access)
        if candidate is not None:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.path)


def _candidate(
    relative: str, table: Table, named: bool, task: Task, labels: ReferenceLabels, label_access: str
) -> Candidate | None:
    round_id = round_of(relative)
    if table.reason is not None:
        reason = "no_paired_columns" if table.reason == "not_a_table" else table.reason
        # A file of unknown content is a candidate only when its name claims predictions.
        return Candidate(relative, reason, table.detail, round_id) if named else None
    columns = map_columns(table.columns, task, table.rows)
    if training_log_like(table.columns):
        return Candidate(relative, "training_log_like", "progress counter beside a loss", round_id)
    if not columns.predicts and not named:
        return None
    if not table.rows:
        return Candidate(relative, "empty", "a header without rows", round_id, columns)
    if not columns.paired(task.output_type):
        detail = "neither a label nor an id column"
        if task.output_type == "survival" and columns.risk is None:
            detail = "no column is named as a risk (a prediction may be a time, with the other sign)"
        elif not columns.predicts:
            detail = "no prediction column"
        return Candidate(relative, "no_paired_columns", detail, round_id, columns)
    if columns.conflict:
        return Candidate(relative, "ambiguous_columns", columns.conflict, round_id, columns)
    candidate = Candidate(relative, None, "", round_id, columns, n_source_rows=len(table.rows))
    candidate.rows, candidate.n_duplicates = normalise(table.rows, columns, task, labels, label_access)
    return candidate


def normalise(
    rows: Sequence[dict[str, str]],
    columns: ColumnMap,
    task: Task,
    labels: ReferenceLabels,
    label_access: str,
) -> tuple[list[Row], int]:
    """Rows in one form, and how many repeats of a case within a split were left out (the first counts).

    A case is the slide, or the patient, of the reference that a row joins, however its identifiers are
    spelled: no case counts twice because it has two names. Of one patient the reference's slides count; where
    there are none, a row of the whole patient; else the first of the names that the reference does not know.
    """
    joined = [_normalise_row(source, columns, task, labels, label_access) for source in rows]
    best: dict[tuple[str, ...], int] = {}
    for _, case in joined:
        best[case.patient] = min(case.rank, best.get(case.patient, case.rank))
    normalised: list[Row] = []
    seen: set[tuple[str, ...]] = set()
    for row, case in joined:
        name = (*case.patient, case.slide)
        if case.identified and (case.rank > best[case.patient] or name in seen):
            continue
        seen.add(name)
        normalised.append(row)
    return normalised, len(joined) - len(normalised)


class _Case(NamedTuple):
    """Of whom a row speaks: ``slide`` is empty for a whole patient, and for a slide nobody knows."""

    patient: tuple[str, ...]  # (known or not, split, patient)
    slide: str
    rank: int  # lower counts first: a slide, a whole patient, a name that the reference does not know
    identified: bool


def _normalise_row(
    source: dict[str, str],
    columns: ColumnMap,
    task: Task,
    labels: ReferenceLabels,
    label_access: str,
) -> tuple[Row, _Case]:

    def get(column: str | None) -> str:
        return source.get(column, "") if column else ""

    slide, patient, other = get(columns.slide), get(columns.patient), get(columns.any_id)
    reference, named, contradiction = labels.find(slide=slide, patient=patient, other=other)
    split_agent = canonical_split(get(columns.split))
    split = split_agent
    if reference is not None and reference.split and (label_access == "heldout" or not split):
        split = reference.split
    row = Row(
        slide_id=slide or (reference.slide_id if reference and named == "slide" else ""),
        patient_id=(reference.patient_id if reference else patient or ("" if slide else other)),
        split=split,
        split_agent=split_agent,
        y_true_agent=get(columns.y_true),
        y_true_reference=reference.label if reference else "",
        y_pred=get(columns.y_pred),
        probabilities={label: parse_number(get(column)) for label, column in columns.probabilities.items()},
        time=reference.time if reference else "",
        event=reference.event if reference else "",
        risk=get(columns.risk),
        contradiction=contradiction,
    )
    if task.output_type == "survival":
        _finish_survival(row, get(columns.time), get(columns.event), reference)
    elif task.output_type == "continuous":
        _finish_continuous(row, reference)
    else:
        _finish_classes(row, task, reference)
    if reference is None:
        # Rows that join nobody are kept apart from those of a case, whatever their cells say.
        return row, _Case(("", split, row.patient_id), slide, 0, bool(slide or row.patient_id))
    rank = ("slide", "patient", "unknown_slide").index(named)
    of_slide = reference.slide_id if named == "slide" else ""
    return row, _Case(("known", split, reference.patient_id), of_slide, rank, True)


def _finish_survival(row: Row, time: str, event: str, reference: ReferenceRow | None) -> None:
    row.agent_label_given = bool(time or event)
    row.y_true_agent = f"{time}|{event}" if row.agent_label_given else ""
    row.matched = reference is not None and parse_number(row.time) is not None and row.event != ""
    if parse_number(row.risk) is None:
        row.unmappable = "risk is not a number"
    if row.matched and row.agent_label_given:
        same_time = _close(time, row.time, 0.05)
        row.label_conflict = not same_time or parse_event(event) != parse_event(row.event)


def _finish_continuous(row: Row, reference: ReferenceRow | None) -> None:
    row.agent_label_given = row.y_true_agent != ""
    row.matched = reference is not None and parse_number(row.y_true_reference) is not None
    if parse_number(row.y_pred) is None:
        row.unmappable = "prediction is not a number"
    if row.matched and row.agent_label_given:
        row.label_conflict = not _close(row.y_true_agent, row.y_true_reference, 1e-3)


def _finish_classes(row: Row, task: Task, reference: ReferenceRow | None) -> None:
    row.agent_label_given = row.y_true_agent != ""
    truth = task.canonical_label(row.y_true_reference) if row.y_true_reference else None
    row.y_true_reference = truth or ""
    row.matched = reference is not None and truth is not None
    if row.agent_label_given:
        agent = class_of(row.y_true_agent, task)
        row.y_true_agent = agent if agent is not None else row.y_true_agent
        row.label_conflict = row.matched and row.y_true_agent != truth
    _complete_binary(row.probabilities, task)
    values = list(row.probabilities.values())
    if row.y_pred:
        predicted = class_of(row.y_pred, task)
        if predicted is None:
            row.unmappable = "prediction is not a class of the task"
        else:
            row.y_pred = predicted
    elif not values or None in values:
        row.unmappable = "no prediction"
    elif not _are_probabilities(values, task):
        row.unmappable = "no prediction, and values that are no probabilities"
    else:
        # Ties go to the earlier class, as argmax does.
        row.y_pred = max(task.classes, key=lambda label: row.probabilities[label])  # type: ignore[arg-type,return-value]


def _complete_binary(probabilities: dict[str, float | None], task: Task) -> None:
    """Fill the other class of a binary table that gives one named class."""
    if len(probabilities) == 1 and len(task.classes) == 2:
        (known, value), *_ = probabilities.items()
        if value is None or 0 <= value <= 1:
            other = next(label for label in task.classes if label != known)
            probabilities[other] = None if value is None else 1.0 - value


def _are_probabilities(values: Sequence[float], task: Task) -> bool:
    """Whether values are one probability a class, rounded perhaps, as :mod:`acpbench.mil` asks for them."""
    in_range = all(-1e-6 <= value <= 1 + 1e-6 for value in values)
    return in_range and len(values) == len(task.classes) and abs(sum(values) - 1) <= 1e-2


def _close(left: str, right: str, tolerance: float) -> bool:
    a, b = parse_number(left), parse_number(right)
    return a is not None and b is not None and abs(a - b) <= tolerance + 1e-9


def select(
    candidates: Iterable[Candidate], *, report: dict[str, Any], selected_round: int | None
) -> Selection:
    """Choose the table that stands for the run.

    Of those that the report's own keys name; else of those in its headline's folder or among its artifacts;
    else of the selected round's; else of all: the one with the best evidence. Of tables that the report
    names, the selected round's go first.
    """
    usable = [candidate for candidate in candidates if candidate.reason is None]
    if not usable:
        return Selection(None, "none")
    for paths in _paths_named(report):
        named = [candidate for candidate in usable if candidate.path in paths]
        if named:
            return Selection(
                max(_of_round(named, selected_round) or named, key=evidence_rank), "report_named"
            )
    of_round = _of_round(usable, selected_round)
    if of_round:
        return Selection(max(of_round, key=evidence_rank), "selected_round")
    return Selection(max(usable, key=evidence_rank), "best_evidence")


def _of_round(candidates: Iterable[Candidate], round_id: int | None) -> list[Candidate]:
    return [candidate for candidate in candidates if round_id is not None and candidate.round_id == round_id]


def evidence_rank(candidate: Candidate) -> tuple[int, int, int, bool, tuple[int, ...]]:
    """What makes a table the better evidence, most weighty first.

    Test rows that pair with a reference label, then validation rows that do (of a table without: all rows),
    then the later round, then the plain name ``predictions.*``, then the path.
    """
    return (
        len(candidate.usable_rows("test")),
        len(candidate.usable_rows("validation")) or len(candidate.usable_rows()),
        -1 if candidate.round_id is None else candidate.round_id,
        candidate.path.rsplit("/", 1)[-1].startswith("predictions."),
        tuple(-ord(char) for char in candidate.path),
    )


def _paths_named(report: dict[str, Any]) -> list[set[str]]:
    """Workspace paths that a structured report names, as predictions and otherwise; pointers are cut off."""
    own: list[Any] = [report.get(name) for name in ("predictions", "predictions_file", "predictions_path")]
    beside: list[Any] = []
    headline = report.get("headline")
    if isinstance(headline, dict) and isinstance(headline.get("file"), str) and "/" in headline["file"]:
        # Metrics and the predictions they were computed from live in one folder.
        beside.append(headline["file"].rsplit("/", 1)[0] + "/predictions.csv")
    artifacts = report.get("artifacts")
    if isinstance(artifacts, list):
        beside.extend(artifacts[:200])
    elif isinstance(artifacts, dict):
        beside.extend(artifacts.values())
    return [
        {item.split("#", 1)[0].removeprefix("./") for item in named if isinstance(item, str)}
        for named in (own, beside)
    ]
