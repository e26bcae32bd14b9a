"""Deterministic rules of the reflection stage (R1-R5): whole loop, and one round at a time."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from acpbench.core.errors import describe_validation
from acpbench.rubric.case import Case, Outcome, Rejected, decide, failed, partial, passed, rule
from acpbench.rubric.evidence import MAX_ROUND, round_folder
from acpbench.rubric.formats import flatten, items, mapping, number, same_value, whole, words
from acpbench.rubric.recompute import (
    DELTA_THRESHOLD,
    LOWER_IS_BETTER,
    REPORT_TOLERANCE,
    claimed,
    compare,
    split_name,
    squash,
)
from acpbench.rubric.rules_action import config_is_witnessed
from acpbench.trajectory.documents import Update

SUMMARY = "reflection/summary.json"
_SAME_RESULT = re.compile(
    r"\b(?:identical|unchanged|the same|same (?:predictions|result)|equal|no (?:change|effect|difference)|"
    r"did not change)\b",
    re.IGNORECASE,
)


def _round_entries(case: Case) -> dict[int, dict[str, Any]]:
    """Entries of the reflection summary by round number.

    Raises:
        Rejected: no summary, no list of rounds, an entry without a number, a number twice.
    """
    entries: dict[int, dict[str, Any]] = {}
    for entry in items(case.need_object(SUMMARY).get("rounds")):
        round_id = whole(mapping(entry).get("round_id"))
        if round_id is None or round_id in entries:
            raise Rejected(f"{SUMMARY} has a round without a number or a number twice")
        entries[round_id] = mapping(entry)
    case.cite(f"{SUMMARY}#/rounds")
    return entries


# -- whole loop --


@rule("R1.d1")
def a_round_exists(case: Case) -> Outcome:
    """At least one reflection round left files."""
    rounds = case.evidence.rounds
    for number_ in rounds[:MAX_ROUND]:
        case.cite(case.evidence.files(round_folder(number_) + "/")[0])
    return decide(
        1 in rounds, f"{len(rounds)} rounds left files", "reflection/round_1 holds no file of this run"
    )


@rule("R2.d1")
def summary_exists(case: Case) -> Outcome:
    """A summary over rounds."""
    case.need_object(SUMMARY)
    return passed("a reflection summary exists")


@rule("R3.d1")
def changed_steps_listed(case: Case) -> Outcome:
    """Each attempted round has a ``changed_step``."""
    entries = _round_entries(case)
    rounds = case.evidence.rounds
    if not rounds:
        return failed("no round was attempted")
    lacking = [str(k) for k in rounds if not words(entries.get(k, {}).get("changed_step"))]
    return decide(
        not lacking,
        f"{len(rounds)} rounds name the changed step",
        f"no changed_step for round {', '.join(lacking[:5])}",
    )


@rule("R4.d1")
def rounds_without_gaps(case: Case) -> Outcome:
    """Rounds are numbered 1, 2, ... without gaps, at most five, in the summary as in the folders."""
    listed = sorted(k for k in _round_entries(case) if k != 0)
    rounds = case.evidence.rounds
    if not listed or not rounds:
        return failed("no round was attempted")
    if listed != list(range(1, len(listed) + 1)) or rounds != listed:
        return failed("the rounds of the summary and the round folders are not 1, 2, ... without gaps")
    return decide(len(listed) <= MAX_ROUND, f"rounds 1 to {len(listed)}", f"more than {MAX_ROUND} rounds")


@rule("R5.d1")
def comparable_rounds(case: Case) -> Outcome:
    """Two rounds (the first state counts) carry the same metric on the same split, and it recomputes."""
    name = case.task.metric_family.primary
    by_split: dict[str, list[int]] = {}
    for k in [0, *(k for k in case.evidence.rounds if 1 <= k <= MAX_ROUND)]:
        one = Case(case.evidence, k)
        try:
            outcome = compare(one, name)
            split = split_name(one.need_metrics(k).get("split"))
        except Rejected:
            continue
        if outcome.status == "PASS" and split:
            by_split.setdefault(split, []).append(k)
            case.cite(f"{one.folder}/metrics.json")
    found = max(by_split.values(), key=len, default=[])
    return decide(
        len(found) >= 2,
        f"{name} is comparable over rounds {', '.join(map(str, found))}",
        f"fewer than two rounds carry {name} on one split with predictions that reproduce it",
    )


@rule("R5.d2")
def selection_recorded(case: Case) -> Outcome:
    """The selected round exists and a reason to stop is given."""
    summary = case.need_object(SUMMARY)
    chosen = whole(summary.get("selected_round"))
    lacking = [] if chosen is not None and 0 <= chosen <= MAX_ROUND else ["selected_round"]
    lacking += [] if words(summary.get("stop_reason")) else ["stop_reason"]
    if lacking:
        return failed(f"not set: {', '.join(lacking)}")
    assert chosen is not None
    return decide(
        case.evidence.round_exists(chosen),
        f"round {chosen} is selected with a reason to stop",
        f"the selected round {chosen} left no file",
    )


# -- one round --


def _critique(case: Case) -> dict[str, Any]:
    return case.need_object(f"{case.folder}/critique.json")


def _weakest_link(case: Case) -> dict[str, Any]:
    return mapping(_critique(case).get("weakest_link"))


def _evidence_refs(case: Case) -> list[str]:
    refs = [words(ref) for ref in items(_weakest_link(case).get("evidence"))]
    if not refs or not all(refs):
        raise Rejected(f"{case.folder}/critique.json: weakest_link.evidence lists no path")
    case.cite(f"{case.folder}/critique.json#/weakest_link/evidence")
    return refs


@rule("R1.dk1")
def critique_exists(case: Case) -> Outcome:
    """The round's critique has content."""
    _critique(case)
    return passed("a critique record exists")


@rule("R1.dk2")
def weakest_link_is_step(case: Case) -> Outcome:
    """The weakest link is a step of the specification."""
    step = words(_weakest_link(case).get("step"))
    known = {words(planned["id"]) for planned in case.steps()}
    return decide(
        step in known, f"the weakest link is step {step[:40]}", "weakest_link.step is no planned step"
    )


@rule("R1.dk3")
def weakest_link_has_evidence(case: Case) -> Outcome:
    """The weakest link cites a path or log line."""
    refs = [ref for ref in _evidence_refs(case) if re.fullmatch(r"(run:)?[\w./-]+(#\S+)?", ref)]
    return decide(bool(refs), f"{len(refs)} citations", "weakest_link.evidence names no path or log line")


@rule("R2.dk1")
def critique_evidence_exists(case: Case) -> Outcome:
    """Each path the critique cites exists."""
    refs = _evidence_refs(case)
    broken = [ref for ref in refs if case.evidence.resolve(ref) is None]
    return decide(
        not broken, f"{len(refs)} citations resolve", f"{len(broken)} of {len(refs)} citations do not resolve"
    )


@rule("R2.dk2")
def quoted_metrics_equal(case: Case) -> Outcome:
    """Metric values the critique quotes are those of the state before the round (three decimals)."""
    quoted = {
        str(name): number(value)
        for name, value in mapping(_critique(case).get("metrics")).items()
        if value is not None
    }
    if not quoted:
        return failed("the critique quotes no metric value")
    for base in case.evidence.bases(case.round):
        path = f"{round_folder(base)}/metrics.json"
        document = mapping(case.evidence.json(path).value)
        found = {name: claimed(document, name) for name in quoted}
        if all(
            value is not None and found[name] is not None and abs(value - found[name]) <= REPORT_TOLERANCE
            for name, value in quoted.items()
        ):
            case.cite(path)
            return passed(f"{len(quoted)} quoted values equal {path}")
    return failed("a quoted value is not that of the state before this round")


def _update(case: Case) -> dict[str, Any]:
    return case.need_object(f"{case.folder}/update.json")


@rule("R3.dk1")
def update_validates(case: Case) -> Outcome:
    """The update names step, parameter, old and new value and the expected effect, and changes something."""
    document = _update(case)
    try:
        update = Update.model_validate(document, strict=True)
    except ValidationError as error:
        return failed(str(describe_validation(error, f"{case.folder}/update.json"))[:240])
    return decide(
        not same_value(update.old, update.new), "the update is complete", "old and new value are the same"
    )


def _field(config: Any, parameter: str) -> tuple[bool, Any, str]:
    """Find a dotted parameter in a configuration: exactly, or by a last name that occurs once."""
    flat = flatten(config)
    if parameter in flat:
        return True, flat[parameter], parameter
    last = parameter.rsplit(".", 1)[-1]
    named = [key for key in flat if key.rsplit(".", 1)[-1] == last]
    return (True, flat[named[0]], named[0]) if len(named) == 1 else (False, None, "")


def _config(case: Case, round_id: int) -> dict[str, Any] | None:
    path = f"{round_folder(round_id)}/config.yaml"
    value = case.evidence.yaml(path).value
    return value if isinstance(value, dict) and value else None


@rule("R3.dk2")
def old_value_is_previous(case: Case) -> Outcome:
    """The old value is that of the configuration before the round."""
    update = _update(case)
    parameter = words(update.get("parameter"))
    for base in case.evidence.bases(case.round):
        found, value, _ = _field(_config(case, base), parameter)
        if found and "old" in update and same_value(update["old"], value):
            case.cite(f"{round_folder(base)}/config.yaml")
            return passed(f"the old value of {parameter[:60]} is that of {round_folder(base)}")
    return failed("the old value is not in the configuration before this round")


@rule("R4.dk1")
def config_differs_as_proposed(case: Case) -> Outcome:
    """The round's configuration differs from the one before in the proposed field, and the record says so."""
    update = _update(case)
    parameter = words(update.get("parameter"))
    path = f"{case.folder}/config.yaml"
    current = case.need_config(path)
    changed = mapping(case.need_object(f"{case.folder}/config_diff.json").get("changed"))
    found, value, name = _field(current, parameter)
    if not found or not same_value(value, update.get("new")):
        return failed("the round's configuration does not hold the proposed value")
    if name.rsplit(".", 1)[-1] not in {str(key).rsplit(".", 1)[-1] for key in changed}:
        return failed("config_diff.json does not list the proposed field")
    witnessed, reason = config_is_witnessed(case, case.round, path)
    if not witnessed and "not the one" in reason:
        return failed(reason)
    for base in case.evidence.bases(case.round):
        had, before, _ = _field(_config(case, base), name)
        if had and not same_value(before, value):
            case.cite(f"{round_folder(base)}/config.yaml")
            return passed(f"{name[:60]} differs from {round_folder(base)} as proposed")
    return failed("the configuration does not differ from the round before in the proposed field")


@rule("R4.dk2")
def rerun_witnessed(case: Case) -> Outcome:
    """A working tool ran successfully with this round's id after the update was written."""
    path = f"{case.folder}/update.json"
    case.need_file(path)
    written = case.evidence.manifest[path].mtime
    for call in case.evidence.tool_events:
        role = case.evidence.tool_roles.get(call.name, "")
        if (
            call.round_id == case.round
            and call.exit_status == "ok"
            and role not in ("verification", "report")
            and call.t is not None
            and call.t >= written
        ):
            case.cite(call.ref)
            return passed(f"{call.name} ran for round {case.round} after the update")
    return failed(f"no successful call for round {case.round} after the update was witnessed")


@rule("R4.dk3")
def rerun_predictions(case: Case) -> Outcome:
    """The round has predictions."""
    table = case.need_table(case.predictions_path())
    return passed(f"{len(table.rows)} rerun predictions")


def _predicted(case: Case, round_id: int) -> list[tuple[str, ...]]:
    """What a round predicted: case, split and every prediction column, order aside."""
    table = case.need_table(f"{round_folder(round_id)}/predictions.csv", ("case_id",))
    columns = [name for name in table.columns if name in ("y_pred", "risk") or name.startswith("prob_")]
    return sorted(
        (row["case_id"], row.get("split", ""), *(row[name] for name in columns)) for row in table.rows
    )


@rule("R4.dk4")
def predictions_differ(case: Case) -> Outcome:
    """Predictions differ from the round before; PARTIAL when equal and the round's record says so."""
    if _predicted(case, case.round) != _predicted(case, case.round - 1):
        return passed("the predictions differ from the round before")
    path = f"{case.folder}/summary.json"
    summary = mapping(case.evidence.json(path).value)
    said = " ".join(words(summary.get(name)) for name in ("statement", "reason", "note"))
    if _SAME_RESULT.search(said):
        case.cite(path)
        return partial("the predictions equal the round before, and the record says so")
    return failed("the predictions equal the round before, without a recorded reason")


@rule("R5.dk1")
def round_metrics_exist(case: Case) -> Outcome:
    """The round's metrics hold the primary metric."""
    name = case.task.metric_family.primary
    value = claimed(case.need_metrics(case.round), name)
    case.cite(f"{case.folder}/metrics.json#/metrics")
    return decide(value is not None, f"{name} is present", f"{name} has no value")


@rule("R5.dk2")
def round_metric_recomputes(case: Case) -> Outcome:
    """The round's primary metric agrees with its recomputation (0.005)."""
    return compare(case, case.task.metric_family.primary)


@rule("R5.dk3")
def same_cases(case: Case) -> Outcome:
    """Case ids and splits are those of the first state."""
    ids = []
    for k in (case.round, 0):
        table = case.need_table(f"{round_folder(k)}/predictions.csv", ("case_id", "split"))
        ids.append({(row["case_id"], split_name(row["split"]) or row["split"]) for row in table.rows})
    return decide(
        ids[0] == ids[1],
        f"the same {len(ids[0])} cases and splits",
        f"{len(ids[0] ^ ids[1])} cases or splits differ from round 0",
    )


@rule("R5.dk4")
def round_summary_complete(case: Case) -> Outcome:
    """Delta, a verdict that fits it at 0.001, and a decision."""
    path = f"{case.folder}/summary.json"
    summary = case.need_object(path)
    delta, decision = number(summary.get("delta")), words(summary.get("decision")).lower()
    verdict = words(summary.get("verdict")).lower()
    lacking = [] if delta is not None else ["delta"]
    lacking += [] if verdict in ("improved", "unchanged", "worse") else ["verdict"]
    lacking += [] if decision in ("keep", "revert", "stop") else ["decision"]
    if lacking or delta is None:
        return failed(f"not set: {', '.join(lacking)}")
    before, after = number(summary.get("previous")), number(summary.get("current"))
    if before is not None and after is not None and abs(after - before - delta) > REPORT_TOLERANCE:
        return failed("delta is not the difference of the two values given")
    name = words(summary.get("metric")) or case.task.metric_family.primary
    gain = -delta if squash(name) in LOWER_IS_BETTER else delta
    fits = "improved" if gain > DELTA_THRESHOLD else "worse" if gain < -DELTA_THRESHOLD else "unchanged"
    near = abs(abs(gain) - DELTA_THRESHOLD) <= 1e-9
    return decide(
        verdict == fits or (near and verdict == "unchanged"),
        f"{verdict}, {decision}",
        f"the verdict {verdict} does not fit the delta",
    )
