"""Read a results folder and a study file into plain data. Missing files are findings, not failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json
from acpbench.core.ids import check_id, trajectory_id
from acpbench.core.progress import track
from acpbench.report.untrusted import (
    listing,
    mapping,
    number,
    read_json_head,
    read_jsonl_head,
    short,
)

SCORE_FILES = ("workflow_score.json", "diagnostic.json", "cwas3.json", "r6.json", "reflection.json")
ITEM_FILES = ("checks.jsonl", "judgements.jsonl", "adjudicated.jsonl")
STAGES = ("planning", "action", "diagnosis", "reflection")
STATUSES = ("PASS", "PARTIAL", "FAIL", "NA", "SKIP", "not_implemented", "unscored")
OFFLINE_JUDGE = "offline cue judge: built-in rules, no language model"


@dataclass(frozen=True)
class Named:
    """An id and the label shown for it."""

    id: str
    label: str
    description: str = ""


@dataclass(frozen=True)
class Study:
    """What the study set out to run: the grid, the reference pipeline and the terms of the run.

    Groups stand in the order in which the study's own configuration lists them, if it does.
    """

    name: str
    synthetic: bool
    groups: tuple[Named, ...]
    tasks: tuple[Named, ...]
    replicates: tuple[str, ...]
    encoders: tuple[str, ...]
    control_encoder: str | None
    cohorts: tuple[str, ...]
    reference_tasks: tuple[str, ...]
    judge: str
    label_access: str
    rubric: str | None = None


@dataclass
class Trajectory:
    """One cell of the grid with whatever files it has.

    Attributes:
        problems: file name → why it could not be used (``is missing``, ``is not valid JSON``, …).
        items: ``(checkpoint, stage, subcapability, kind)`` → counts of final statuses.
        judges: names of the judges of the semantic first pass.
        decided: ``(kind, decided_by)`` → number of items.
    """

    group: str
    task: str
    replicate: str
    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    items: dict[tuple[str, str, str, str], Counter[str]] = field(default_factory=dict)
    judges: set[str] = field(default_factory=set)
    decided: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def id(self) -> str:
        """``group/task/replicate``."""
        return f"{self.group}/{self.task}/{self.replicate}"

    @property
    def page(self) -> str:
        """File name of the trajectory's own page."""
        return f"{self.group}__{self.task}__{self.replicate}.html"

    @property
    def recorded(self) -> bool:
        """Whether a readable ``run.json`` exists."""
        return bool(self.run)

    @property
    def sandbox(self) -> str | None:
        """How the run was isolated, by its record."""
        value = self.run.get("sandbox")
        return short(value, 40) if isinstance(value, str) else None

    @property
    def run_status(self) -> str | None:
        """How the run ended, by its record."""
        status = self.run.get("run_status")
        return short(status, 40) if isinstance(status, str) else None

    def score(self, file: str) -> dict[str, Any]:
        """A score file's content, or an empty dictionary."""
        return self.scores.get(file, {})

    def why_null(self, file: str) -> str:
        """Why a value of ``file`` is missing, in words."""
        if file in self.problems:
            return f"{file} {self.problems[file]}"
        content = self.score(file)
        reason = content.get("reason") or content.get("grade_status")
        return f"{file}: {short(reason, 120)}" if reason else f"{file} has no value"


class ReliabilityBin(NamedTuple):
    """Patients given a like probability: how many, its mean, the share in which it came true."""

    n: int
    mean_probability: float
    observed: float


@dataclass
class Reference:
    """One encoder's result on one reference task."""

    task: str
    encoder: str
    metrics: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    bins: list[ReliabilityBin] = field(default_factory=list)


@dataclass
class Cohort:
    """A cohort's slide and exclusion tables."""

    id: str
    slides: list[dict[str, str]] = field(default_factory=list)
    exclusions: list[dict[str, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


@dataclass
class StudyData:
    """Everything the report is made of."""

    study: Study
    trajectories: list[Trajectory]
    references: list[Reference]
    cohorts: list[Cohort]
    results: Path


def _named(entries: Any, what: str, file: Path) -> tuple[Named, ...]:
    if isinstance(entries, dict):
        entries = [{"id": key, "label": value} for key, value in entries.items()]
    if not isinstance(entries, list):
        raise InputError("expected a list", file=file, field=what)
    named = []
    for entry in entries:
        identity = entry.get("id") if isinstance(entry, dict) else entry
        label = (entry.get("label") if isinstance(entry, dict) else None) or identity
        text = mapping(entry).get("description")
        named.append(
            Named(
                check_id(identity, what, file=file),
                short(label, 60),
                short(text, 200) if isinstance(text, str) else "",
            )
        )
    if len({entry.id for entry in named}) != len(named):
        raise InputError("has a repeated id", file=file, field=what)
    return tuple(named)


def load_study(path: Path) -> Study:
    """Read a study file (JSON).

    Raises:
        InputError: not an object, or a field with a value that cannot be used.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError("expected a JSON object", file=path)

    def ids(name: str) -> tuple[str, ...]:
        return tuple(entry.id for entry in _named(content.get(name) or [], name, path))

    if not content.get("study"):
        raise InputError("is missing or empty", file=path, field="study")
    for required in ("groups", "tasks"):
        # Empty is a study without agents: its report holds the reference pipeline.
        if content.get(required) is None:
            raise InputError("is missing", file=path, field=required)
    replicates = content.get("replicates", 1)
    if isinstance(replicates, int) and not isinstance(replicates, bool) and 1 <= replicates <= 1000:
        replicates = list(range(1, replicates + 1))
    if not isinstance(replicates, list) or not replicates:
        raise InputError("expected a whole number from 1, or a list of ids", file=path, field="replicates")
    control = content.get("control_encoder")
    config = mapping(content.get("config"))
    wanted = [str(entry) for entry in listing(mapping(config.get("trajectories")).get("groups"))]
    groups = _named(content["groups"], "groups", path)
    rubric = config.get("rubric")
    return Study(
        name=short(content["study"], 120),
        synthetic=content.get("synthetic") is True,
        groups=tuple(
            sorted(groups, key=lambda group: wanted.index(group.id) if group.id in wanted else len(wanted))
        ),
        tasks=_named(content["tasks"], "tasks", path),
        replicates=tuple(check_id(str(entry), "replicates", file=path) for entry in replicates),
        encoders=ids("encoders"),
        control_encoder=None if control is None else check_id(control, "control_encoder", file=path),
        cohorts=ids("cohorts"),
        reference_tasks=ids("reference_tasks"),
        judge=short(content.get("judge") or "none", 80),
        label_access=short(content.get("label_access") or "not stated", 40),
        rubric=rubric if isinstance(rubric, str) else None,
    )


def judge_name(judge: Any) -> str | None:
    """How a judge is named wherever its results appear; ``None`` when the record names none."""
    if isinstance(judge, str):
        return OFFLINE_JUDGE if judge == "offline" else short(judge, 80)
    judge = mapping(judge)
    if judge.get("provider") == "offline":
        return OFFLINE_JUDGE
    parts = [short(judge[key], 60) for key in ("provider", "model", "version") if judge.get(key)]
    return " ".join(parts) or None


def _problem(error: InputError) -> str:
    return short(error.message, 160)


def _read_items(trajectory: Trajectory) -> None:
    rows: list[dict[str, Any]] = []
    for name in ITEM_FILES:
        try:
            loaded, bad, cut = read_jsonl_head(trajectory.folder, name)
        except InputError as error:
            trajectory.problems[name] = _problem(error)
            continue
        if bad or cut:
            trajectory.problems[name] = f"was read in part ({bad} bad lines{', too long' if cut else ''})"
        if name == "judgements.jsonl":
            trajectory.judges = {found for row in loaded if (found := judge_name(row.get("judge")))}
        if name == "adjudicated.jsonl":
            rows = loaded
    for row in rows:
        key = tuple(
            short(row.get(name) or "", 60) for name in ("checkpoint", "stage", "subcapability", "kind")
        )
        counts = trajectory.items.setdefault(key, Counter())  # type: ignore[arg-type]
        counts[final_status(row)] += 1
        trajectory.decided[(key[3], short(row.get("decided_by") or "none", 20))] += 1


def final_status(row: dict[str, Any]) -> str:
    """The final status of an adjudicated row; ``unscored`` when it is null or not a known status."""
    status = row.get("final_status")
    return status if isinstance(status, str) and status in STATUSES else "unscored"


def load_trajectory(results: Path, group: str, task: str, replicate: str) -> Trajectory:
    """Read one trajectory's record header, scores and item counts; what is missing goes into ``problems``."""
    folder = results / "trajectories" / trajectory_id(group, task, replicate)
    trajectory = Trajectory(group, task, replicate, folder)
    for name in ("run/run.json", *SCORE_FILES):
        try:
            content = read_json_head(folder, name)
            if not isinstance(content, dict):
                raise InputError("is not a JSON object")
        except InputError as error:
            trajectory.problems[name] = _problem(error)
            continue
        if name == "run/run.json":
            trajectory.run = content
        else:
            trajectory.scores[name] = content
    _read_items(trajectory)
    if not (folder / "predictions.csv").is_file():
        trajectory.problems["predictions.csv"] = "is missing"
    return trajectory


def _load_reference(results: Path, task: str, encoder: str) -> Reference:
    reference = Reference(task, encoder)
    try:
        content = read_json(results / "reference" / task / encoder / "metrics.json")
        if not isinstance(content, dict):
            raise InputError("is not a JSON object")
        reference.metrics = content
    except InputError as error:
        reference.problem = "metrics.json " + _problem(error)
    reference.bins = _reliability_bins(results / "reference" / task / encoder / "reliability.csv")
    return reference


def _reliability_bins(path: Path) -> list[ReliabilityBin]:
    """The bins of a reliability table that hold patients; none where the table is missing or does not hold
    (endpoints without class probabilities have an empty one)."""
    try:
        rows = read_csv(path, max_bytes=1024 * 1024)
        bins = [
            ReliabilityBin(int(row["n"]), float(row["mean_probability"]), float(row["observed"]))
            for row in rows
            if row["n"] != "0"
        ]
    except (InputError, KeyError, ValueError):
        return []
    if not all(one.n > 0 and 0 <= one.mean_probability <= 1 and 0 <= one.observed <= 1 for one in bins):
        return []
    return bins


def _load_cohort(results: Path, identity: str) -> Cohort:
    cohort = Cohort(identity)
    for name, target in (("slides.csv", cohort.slides), ("exclusions.csv", cohort.exclusions)):
        try:
            target.extend(read_csv(results / "cohorts" / identity / name, max_bytes=128 * 1024 * 1024))
        except InputError as error:
            cohort.problems[name] = _problem(error)
    return cohort


def collect(results: Path, study: Study) -> StudyData:
    """Read everything the study's grid names under ``results``. Nothing missing stops it.

    Raises:
        InputError: ``results`` is not a folder, or two trajectories would share one page name.
    """
    results = Path(results)
    if not results.is_dir():
        raise InputError("is not a folder", file=results)
    cells = [
        (group.id, task.id, replicate)
        for group in study.groups
        for task in study.tasks
        for replicate in study.replicates
    ]
    trajectories = [load_trajectory(results, *cell) for cell in track(cells, label="reading trajectories")]
    if len({entry.page for entry in trajectories}) != len(trajectories):
        raise InputError("two trajectories would get the same page name; avoid '__' in ids")
    return StudyData(
        study=study,
        trajectories=trajectories,
        references=[
            _load_reference(results, task, encoder)
            for task in study.reference_tasks
            for encoder in study.encoders
        ],
        cohorts=[_load_cohort(results, identity) for identity in study.cohorts],
        results=results,
    )


def primary(reference: Reference) -> dict[str, Any]:
    """The primary metric of a reference result: name, value, interval (or ``None``), n, n_events,
    folds, reason."""
    content = reference.metrics
    name = content.get("primary_metric")
    name = name if isinstance(name, str) else None
    bounds = [number(bound) for bound in listing(mapping(content.get("intervals")).get(name))]
    reason = mapping(content.get("notes")).get(name) or reference.problem or "not in metrics.json"
    return {
        "metric": name,
        "value": number(mapping(content.get("metrics")).get(name)),
        "interval": bounds if len(bounds) == 2 and None not in bounds else None,
        "n": number(content.get("n")),
        "n_events": number(content.get("n_events")),
        "folds": number(content.get("n_folds")),
        "reason": short(reason, 160),
    }


def per_fold(reference: Reference) -> list[dict[str, Any]]:
    """The primary metric of each fold: fold, n, value, reason (of a missing value)."""
    name = reference.metrics.get("primary_metric")
    return [
        {
            "fold": number(row.get("fold")),
            "n": number(row.get("n")),
            "value": number(row.get(name)) if isinstance(name, str) else None,
            "reason": short(row.get("note") or "not in metrics.json", 160),
        }
        for row in map(mapping, listing(reference.metrics.get("per_fold"))[:100])
    ]


def over_control(reference: Reference) -> dict[str, Any] | None:
    """How far the primary metric lies above the control's on the same patients (paired): difference, interval
    (or ``None``), p, n, method, reason. ``None`` where ``metrics.json`` compares with nothing."""
    content = mapping(reference.metrics.get("comparison"))
    if not content:
        return None
    bounds = [number(bound) for bound in listing(content.get("interval"))]
    return {
        "difference": number(content.get("difference")),
        "interval": bounds if len(bounds) == 2 and None not in bounds else None,
        "p": number(content.get("p")),
        "n": number(content.get("n")),
        "method": short(content.get("method") or "", 80),
        "reason": short(content.get("note") or "not in metrics.json", 160),
    }
