"""Deterministic rules of the action stage on outputs and their verification (A5-A6)."""

from __future__ import annotations

from typing import Any

from acpbench.mil.cells import is_missing, parse_event, parse_number
from acpbench.rubric import formats
from acpbench.rubric.case import Case, Outcome, Rejected, decide, failed, partial, passed, rule
from acpbench.rubric.evidence import ROUND_ZERO
from acpbench.rubric.formats import words
from acpbench.rubric.recompute import split_name
from acpbench.rubric.witness import reads

PREDICTIONS = f"{ROUND_ZERO}/predictions.csv"
SPLITS = f"{ROUND_ZERO}/splits.csv"
FEATURES = f"{ROUND_ZERO}/features_index.csv"


# -- A5 outputs --


def required_columns(case: Case) -> tuple[str, ...]:
    """Columns of a predictions table for the task's output type."""
    if case.task.output_type == "survival":
        return ("case_id", "time", "event", "risk")
    return ("case_id", "y_true", "y_pred")


@rule("A5.d1")
def predictions_columns(case: Case) -> Outcome:
    """Predictions have their columns and a row."""
    table = case.need_table(PREDICTIONS, required_columns(case))
    return passed(f"{len(table.rows)} rows with the required columns")


@rule("A5.d2")
def test_cases_covered(case: Case) -> Outcome:
    """Share of the benchmark's test patients with a prediction: PASS at 0.95, PARTIAL at 0.5."""
    table = case.need_table(PREDICTIONS, ("case_id",))
    column = "risk" if case.task.output_type == "survival" else "y_pred"
    wanted = {
        patient
        for patient, row in case.evidence.reference.items()
        if row.split == "test" and (row.label or row.time)
    }
    if not wanted:
        raise Rejected("the benchmark's label table has no test patient")
    covered = {
        row["case_id"]
        for row in table.rows
        if split_name(row.get("split")) == "test" and not is_missing(row.get(column))
    }
    line = f"{len(covered & wanted)} of {len(wanted)} test patients have a prediction"
    share = len(covered & wanted) / len(wanted)
    return passed(line) if share >= 0.95 else partial(line) if share >= 0.5 else failed(line)


@rule("A5.d3")
def slide_manifest_kept(case: Case) -> Outcome:
    """Slide manifest with a filled quality status."""
    path = f"{ROUND_ZERO}/slide_manifest.csv"
    table = case.need_table(path, ("slide_id",))
    column = next(
        (name for name in ("status", "qc_status", "quality_status", "qc") if name in table.columns), None
    )
    if column is None:
        return failed(f"{path} has no quality status column")
    blank = sum(is_missing(row[column]) for row in table.rows)
    return decide(not blank, f"{len(table.rows)} slides with a status", f"{blank} slides have no status")


@rule("A5.d4")
def features_index_points(case: Case) -> Outcome:
    """The feature index points at files of the workspace, or at the shared store as a tool wrote it.

    The store lies outside the record, so ``store:`` rows count when a feature-extraction call was witnessed
    to write this very index.
    """
    table = case.need_table(FEATURES, ("path",))
    paths = [row["path"] for row in table.rows]
    missing = [path for path in paths if not path.startswith("store:") and path not in case.evidence.manifest]
    if missing:
        return failed(f"{len(missing)} of {len(paths)} indexed files do not exist")
    if any(path.startswith("store:") for path in paths):
        maker = next(
            (
                call
                for call in case.evidence.tool_events
                if call.exit_status == "ok"
                and case.evidence.tool_roles.get(call.name, call.name)
                in ("feature_extraction", "extract_features")
                and any(
                    words(output.get("path")) == FEATURES
                    and output.get("sha256") == case.evidence.manifest[FEATURES].sha256
                    for output in call.outputs
                )
            ),
            None,
        )
        if maker is None:
            return failed("the index names stored features, but no extraction call wrote this index")
        case.cite(maker.ref)
    return passed(f"{len(paths)} indexed feature files exist")


@rule("A5.d5")
def model_saved(case: Case) -> Outcome:
    """A fitted model or its parameters."""
    for path in case.evidence.files(f"{ROUND_ZERO}/model."):
        if "/" not in path.removeprefix(f"{ROUND_ZERO}/") and case.evidence.status(path) is None:
            case.cite(path)
            return passed("a fitted model is saved")
    return failed(f"{ROUND_ZERO}/model.* is missing")


@rule("A5.d6")
def scripts_kept(case: Case) -> Outcome:
    """Scripts used in the run."""
    kept = [path for path in case.evidence.files("scripts/") if case.evidence.status(path) is None]
    for path in kept[:5]:
        case.cite(path)
    return decide(bool(kept), f"{len(kept)} scripts are kept", "scripts/ holds no file of this run")


# -- A6 verification --


@rule("A6.d1")
def labels_agree(case: Case) -> Outcome:
    """Labels in the predictions are the benchmark's on the joined ids; blank test labels do not count."""
    table = case.need_table(PREDICTIONS, required_columns(case))
    compared, differing = 0, 0
    for row in table.rows:
        reference = case.evidence.reference.get(row["case_id"])
        if reference is None or not (reference.label or reference.time):
            continue
        columns = ("time", "event") if case.task.output_type == "survival" else ("y_true",)
        blank = all(is_missing(row[column]) for column in columns)
        if blank and split_name(row.get("split")) == "test":
            continue
        compared += 1
        differing += not _same_label(case, row, reference)
    if not compared:
        return failed("no labelled row joins the benchmark's label table")
    return decide(
        not differing,
        f"{compared} labels equal the benchmark's",
        f"{differing} of {compared} labels differ from the benchmark's",
    )


def _same_label(case: Case, row: dict[str, str], reference: Any) -> bool:
    if case.task.output_type == "survival":
        times = parse_number(row["time"]), parse_number(reference.time)
        return formats.same_value(*times) and parse_event(row["event"]) == parse_event(reference.event)
    if case.task.output_type == "continuous":
        a, b = parse_number(row["y_true"]), parse_number(reference.label)
        return a is not None and b is not None and abs(a - b) <= 1e-6 * max(1.0, abs(b))
    label = case.evidence.canonical(row["y_true"])
    return label is not None and label == case.evidence.canonical(reference.label)


@rule("A6.d2")
def splits_disjoint(case: Case) -> Outcome:
    """Train and test share no patient, by the agent's split and by the benchmark's."""
    table = case.need_table(SPLITS, ("split",))
    key = next((name for name in ("patient_id", "case_id") if name in table.columns), None)
    if key is None:
        return failed(f"{SPLITS} has no patient_id column")
    groups: dict[str, set[str]] = {"train": set(), "validation": set(), "test": set()}
    for row in table.rows:
        name = split_name(row["split"])
        if name:
            groups[name].add(row[key])
    if not groups["train"] or not groups["test"]:
        return failed(f"{SPLITS} names no patients of train and test")
    held_back = {patient for patient, row in case.evidence.reference.items() if row.split == "test"}
    shared = groups["train"] & (groups["test"] | held_back)
    return decide(
        not shared, "train and test share no patient", f"{len(shared)} patients are in train and test"
    )


@rule("A6.d3")
def predictions_sane(case: Case) -> Outcome:
    """No missing or constant prediction; probabilities within [0, 1]."""
    survival = case.task.output_type == "survival"
    column = "risk" if survival else "y_pred"
    table = case.need_table(PREDICTIONS, (column,))
    blank = sum(is_missing(row[column]) for row in table.rows)
    if blank:
        return failed(f"{blank} rows have no {column}")
    probabilities = [name for name in table.columns if name.startswith("prob_")]
    values: list[tuple[Any, ...]] = []
    for row in table.rows:
        numbers = [parse_number(row[name]) for name in probabilities]
        if any(value is None or not 0 <= value <= 1 for value in numbers):
            return failed("a probability is missing or outside [0, 1]")
        if survival or case.task.output_type == "continuous":
            numbers = [parse_number(row[column])]
            if numbers[0] is None:
                return failed(f"a {column} is not a number")
        values.append(tuple(numbers) if numbers else (row[column],))
    return decide(
        len(set(values)) > 1,
        "no missing or constant prediction",
        "all predictions are the same",
    )


@rule("A6.d4")
def outputs_read_back(case: Case) -> Outcome:
    """Predictions or metrics were read after they were written."""
    wanted = {
        path: case.evidence.manifest[path].mtime
        for path in case.evidence.manifest
        if path.startswith(("outputs/", "reflection/"))
        and path.endswith(("/predictions.csv", "/metrics.json"))
        and case.evidence.status(path) is None
    }
    if not wanted:
        raise Rejected("there are no predictions and no metrics")
    for event in case.evidence.events:
        if event.kind == "tool" and (event.source != "registry" or event.exit_status != "ok"):
            continue
        for path in reads(event, wanted):
            if event.t is not None and event.t >= wanted[path]:
                case.cite(event.ref)
                case.cite(path)
                return passed(f"{path} was read after it was written")
    return failed("no read of predictions or metrics after they were written was witnessed")


@rule("A6.d5")
def outputs_inside_window(case: Case) -> Outcome:
    """All files under ``outputs/`` were written in this run."""
    paths = case.evidence.files("outputs/")
    if not paths:
        raise Rejected("outputs/ is empty")
    outside = [path for path in paths if case.evidence.status(path) not in (None, "is empty")]
    for path in (outside or paths)[:5]:
        case.cite(path)
    return decide(
        not outside,
        f"{len(paths)} output files were written during the run",
        f"{len(outside)} of {len(paths)} output files were not written during the run",
    )
