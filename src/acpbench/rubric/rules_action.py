"""Deterministic rules of the action stage on calls, configuration, guidance and errors (A1-A4)."""

from __future__ import annotations

from acpbench.core.files import sha256_json
from acpbench.rubric import formats
from acpbench.rubric.case import Case, Outcome, Rejected, decide, failed, partial, passed, rule
from acpbench.rubric.evidence import ROUND_ZERO
from acpbench.rubric.formats import mapping, words
from acpbench.rubric.rules_planning import is_model_call
from acpbench.rubric.witness import cite_events, match_steps, not_after, reads, reads_guidance
from acpbench.trajectory.events import Event

CONFIG = f"{ROUND_ZERO}/config.yaml"
MEMORY = "memory/execution_memory.jsonl"
GIVEN_SPLITS = "data/splits.csv"


def _need_calls(case: Case) -> list[Event]:
    calls = case.evidence.tool_events
    if not calls:
        raise Rejected("no registry call was witnessed")
    return calls


# -- A1 tool invocation --


@rule("A1.d1")
def planned_steps_ran(case: Case) -> Outcome:
    """A successful call for each planned step that is not a report step."""
    steps = [step for step in case.steps() if case.role(step) != "report"]
    matched = match_steps(steps, _need_calls(case))
    cite_events(case, matched.values(), most=12)
    lacking = [words(step["id"]) for step in steps if words(step["id"]) not in matched]
    return decide(
        bool(steps) and not lacking,
        f"{len(steps)} planned steps were run",
        f"no successful call for {', '.join(lacking)[:160]}" if steps else "the plan has report steps only",
    )


@rule("A1.d2")
def calls_are_complete(case: Case) -> Outcome:
    """Each call carries tool, arguments, start, end and exit status."""
    calls = _need_calls(case)
    broken = [
        call
        for call in calls
        if call.name in ("", "None") or call.t is None or call.t_end is None or call.exit_status is None
    ]
    cite_events(case, broken or calls)
    return decide(
        not broken,
        f"{len(calls)} calls with start, end and exit status",
        f"{len(broken)} of {len(calls)} calls lack a tool, start, end or exit status",
    )


@rule("A1.d3")
def share_of_steps_ran(case: Case) -> Outcome:
    """Share of planned steps with a successful call: PASS at 0.9, PARTIAL at 0.5."""
    steps = case.steps()
    matched = match_steps(steps, _need_calls(case))
    cite_events(case, matched.values(), most=12)
    line = f"{len(matched)} of {len(steps)} planned steps have a successful call"
    share = len(matched) / len(steps)
    return passed(line) if share >= 0.9 else partial(line) if share >= 0.5 else failed(line)


# -- A2 configuration --


@rule("A2.d1")
def config_saved(case: Case) -> Outcome:
    """The resolved configuration is saved."""
    case.need_config(CONFIG)
    return passed("a resolved configuration is saved")


def _witnessed_config(case: Case, round_id: int) -> Event | None:
    """The last successful modelling call of a round that says which configuration it used."""
    calls = [
        event
        for event in case.evidence.tool_events
        if is_model_call(case, event.name)
        and event.exit_status == "ok"
        and (event.round_id or 0) == round_id
        and words(event.result.get("config_sha256"))
    ]
    return calls[-1] if calls else None


def config_is_witnessed(case: Case, round_id: int, path: str) -> tuple[bool, str]:
    """Whether a saved configuration is the one the registry saw, and why not."""
    call = _witnessed_config(case, round_id)
    if call is None:
        return False, "no successful modelling call with a configuration hash was witnessed"
    case.cite(call.ref)
    same = words(call.result["config_sha256"]) == case.evidence.manifest[path].sha256
    return same, "" if same else "the saved configuration is not the one the modelling call used"


@rule("A2.d2")
def config_fits_task(case: Case) -> Outcome:
    """Task, label column and split of the configuration are those the run was given.

    The label column is one of the given tables' (``label``; ``time`` and ``event``), one named by
    ``task.json``, or the evaluator's binding, which the witnessed configuration hash vouches for. The split
    id is the given split file: its name or its SHA-256 (at least 8 hex digits).
    """
    config = case.need_config(CONFIG)
    given = mapping(case.evidence.given_json("task.json").value)
    wrong = [] if config.get("task_id") in (None, case.task.task_id) else ["task_id"]
    label = config.get("label_column")
    columns = label if isinstance(label, list) else [label]
    survival = case.task.output_type == "survival"
    known = {"time", "event"} if survival else {"label", "y_true"}
    known |= {words(given.get(name)) for name in ("label_column", "time_column", "event_column")} - {""}
    if not all(words(column) in known for column in columns) and not (
        words(label) and config_is_witnessed(case, 0, CONFIG)[0]
    ):
        wrong.append("label_column")
    if not _is_given_split(case, words(config.get("split_id")), words(given.get("split_id"))):
        wrong.append("split_id")
    case.cite(GIVEN_SPLITS)
    return decide(
        not wrong,
        "task, label column and split are the given ones",
        f"differs from what was given: {', '.join(wrong)}",
    )


def _is_given_split(case: Case, split_id: str, named: str) -> bool:
    row = case.evidence.manifest.get(GIVEN_SPLITS)
    if not split_id or row is None or not case.evidence.untouched(GIVEN_SPLITS):
        return False
    digest = split_id.removeprefix("sha256:").lower()
    return split_id in (named, GIVEN_SPLITS, "splits.csv") or (
        len(digest) >= 8 and row.sha256.startswith(digest)
    )


@rule("A2.d3")
def config_hash_matches(case: Case) -> Outcome:
    """The configuration hash in the witnessed log is that of the saved file."""
    case.need_config(CONFIG)
    same, reason = config_is_witnessed(case, 0, CONFIG)
    return decide(same, "the modelling call used the saved configuration", reason)


# -- A3 documentation --


@rule("A3.d1")
def guidance_before_tools(case: Case) -> Outcome:
    """A skill, README or help page was read before the first registry call."""
    first = _need_calls(case)[0]
    case.cite(first.ref)
    for event in case.evidence.events:
        if event.source == "stream" and event.seq < first.seq and reads_guidance(event):
            case.cite(event.ref)
            return passed("guidance was read before the first tool call")
    return failed("no skill, README or help page was read before the first tool call")


@rule("A3.d2")
def task_read_before_plan(case: Case) -> Outcome:
    """The task file was read before the plan was finished."""
    plan_times = [
        case.evidence.manifest[path].mtime
        for path in case.evidence.files("plan/")
        if case.evidence.status(path) is None
    ]
    if not plan_times:
        raise Rejected("no plan was written in this run")
    ended = max(plan_times)
    for event in case.evidence.events:
        if (
            event.source == "stream"
            and not_after(event, ended)
            and reads(event, ("task.json", "TASK.md", "task.yaml"))
        ):
            case.cite(event.ref)
            return passed("the task file was read before planning ended")
    return failed("no read of the task file before planning ended was witnessed")


# -- A4 errors --


@rule("A4.d1")
def no_traceback(case: Case) -> Outcome:
    """The latest log ends without an unhandled traceback (its last 4 MiB are read)."""
    logs = [
        path
        for path in case.evidence.files("logs/")
        if path.endswith((".log", ".txt")) and case.evidence.status(path) is None
    ]
    if not logs:
        raise Rejected("logs/ holds no log of this run")
    latest = max(logs, key=lambda path: (case.evidence.manifest[path].mtime, path))
    file, problem = formats.locate(case.evidence.workspace, latest)
    text, problem = formats.read_tail(file) if file else (None, problem)
    if text is None:
        raise Rejected(f"{latest} {problem}")
    case.cite(latest)
    return decide(
        "Traceback (most recent call last)" not in text,
        "the latest log shows no traceback",
        f"{latest} holds a traceback",
    )


@rule("A4.d2")
def failures_handled(case: Case) -> Outcome:
    """Each failed call has a later changed, successful retry or a stop record. SKIP without failure."""
    calls = _need_calls(case)
    failures = [call for call in calls if call.exit_status != "ok"]
    if not failures:
        cite_events(case, calls[-1:])
        return Outcome("SKIP", "no tool call failed")
    open_failures = [
        failure
        for failure in failures
        if not _retried(case, failure, calls) and not _stop_recorded(case, failure)
    ]
    cite_events(case, failures)
    names = ", ".join(sorted({failure.name for failure in open_failures}))[:120]
    return decide(
        not open_failures,
        f"{len(failures)} failed calls were retried with a change or recorded",
        f"{len(open_failures)} of {len(failures)} failed calls have no changed retry or stop record: {names}",
    )


def _retried(case: Case, failure: Event, calls: list[Event]) -> bool:
    before = sha256_json(failure.args)
    for call in calls:
        if (
            call.seq > failure.seq
            and call.name == failure.name
            and call.exit_status == "ok"
            and sha256_json(call.args) != before
        ):
            case.cite(call.ref)
            return True
    return False


def _stop_recorded(case: Case, failure: Event) -> bool:
    """A failure record in the execution memory that names the tool or its step."""
    records = case.evidence.jsonl(MEMORY)
    for record in records.value or []:
        text = words(record.get("text"))
        named = failure.name in text or failure.name == words(record.get("tool"))
        named = named or (failure.step_id is not None and words(record.get("step_id")) == failure.step_id)
        if words(record.get("kind")) == "failure" and text and named:
            case.cite(MEMORY)
            return True
    return False


@rule("A4.d3")
def memory_kept(case: Case) -> Outcome:
    """Execution memory has a record of a success or a failure."""
    records = case.need_records(MEMORY)
    kept = [row for row in records if row.get("kind") in ("success", "failure") and words(row.get("text"))]
    return decide(bool(kept), f"{len(kept)} memory records", "no success or failure record with a text")
