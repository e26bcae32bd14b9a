"""Cue functions of A4 to A6: failures, outputs and their verification. Witnessed calls decide."""

from __future__ import annotations

import re
from collections.abc import Callable

from acpbench.adjudication.cues import (
    ROUND_0,
    Case,
    Verdict,
    grade,
    not_applicable,
    part,
    tokens,
)
from acpbench.adjudication.cues_action import CONFIG, PREDICTIONS, WORK_TOOLS, assignments
from acpbench.rubric.formats import number
from acpbench.trajectory.events import Event

NO_ERRORS = (
    r"\bno (?:errors?|failures?)\b|\b(?:errors?|failures?)\s*[:=]\s*(?:none|0)\b|without (?:an )?errors?"
)


def failures(case: Case, round_id: int | None = None) -> list[Event]:
    """Witnessed calls that ended in error, or never ended."""
    return [
        call
        for call in case.record.calls
        if call.exit_status != "ok" and (round_id is None or call.round_id == round_id)
    ]


def _repair(case: Case, failed: Event) -> Event | None:
    """The next successful call of the same tool, if any."""
    return next(
        (call for call in case.record.ok_calls(failed.name) if call.seq > failed.seq), None
    )  # calls are in time order


def _noticed(case: Case, failed: Event) -> tuple[list[str], list[str]]:
    """Citations of notes that name the failed tool, and of those that also name the cause."""
    mention = rf"{re.escape(failed.name)}"
    error_words = sorted(tokens(failed.error or "", shortest=4))[:40]
    noted = case.record.find(case.notes, mention, r"error|fail|wrong|crash|not found|refus|exception")
    cause: list[str] = []
    for pattern in (r"because|cause[d]?\b|due to|reason",):
        cause += case.record.find(case.notes, mention, pattern)
    for path in case.logs:
        for line_number, line in enumerate(case.record.lines(path), start=1):
            if failed.name in line and len(tokens(line, shortest=4) & set(error_words)) >= 3:
                cause.append(f"{path}#L{line_number}")
    return noted, cause[:2]


def _nothing_failed(case: Case, round_id: int | None = None) -> Verdict:
    """Without a failure: PASS when the agent's own notes say so (as the witness does), NA otherwise."""
    said = case.record.find(case.notes, NO_ERRORS)
    ended = [call.ref for call in case.record.ok_calls(round_id=round_id)]
    if said and ended:
        return grade(
            part("notes say that nothing failed", said[:1]), part("the witness agrees", [ended[0], ended[-1]])
        )
    return not_applicable("no failed call was witnessed and no note speaks of failures")


def a4_s1(case: Case) -> Verdict:
    failed = failures(case)
    if not failed:
        return _nothing_failed(case)
    seen = [_noticed(case, call) for call in failed]
    noticed = [noted[0] for noted, _ in seen if noted]
    caused = [cause[0] for _, cause in seen if cause]
    return grade(
        part("an error was noticed", [failed[0].ref, *noticed[:2]], when=bool(noticed)),
        part("every error was noticed", noticed[:3], when=len(noticed) == len(failed)),
        part("each cause was named", caused[:3], when=len(caused) == len(failed)),
    )


def a4_s2(case: Case) -> Verdict:
    failed = failures(case)
    if not failed:
        return _nothing_failed(case)
    repaired, changed = [], []
    for call in failed:
        repair = _repair(case, call)
        if repair is None:
            continue
        repaired.append(repair.ref)
        between = [
            c for c in case.record.ok_calls() if call.seq < c.seq < repair.seq and c.name in WORK_TOOLS
        ]
        if repair.args != call.args or between:
            changed.append(repair.ref)
    blind = [
        later.ref
        for call in failed
        for later in failed
        if later.seq > call.seq and later.name == call.name and later.args == call.args
    ]
    return grade(
        part("a failed call was repaired", [failed[0].ref, *repaired[:2]], when=bool(repaired)),
        part("every failed call was repaired", repaired[:3], when=len(repaired) == len(failed)),
        part("the repair changed something", changed[:3], when=len(changed) == len(failed)),
        soft_veto=part("a blind retry", blind[:2]),
        structured=True,
    )


def a4_s3(case: Case) -> Verdict:
    open_failures = [call for call in failures(case) if _repair(case, call) is None]
    if not open_failures:
        return _nothing_failed(case)
    effect = r"affect|effect|without|exclud|missing|therefore|reduc|cannot|could not|so that|no result"
    noted = [_noticed(case, call)[0] for call in open_failures]
    effects = [case.record.find(case.notes, re.escape(call.name), effect) for call in open_failures]
    return grade(
        part("recorded", [ref for refs in noted for ref in refs][:2], when=all(noted)),
        part("with its effect", [ref for refs in effects for ref in refs][:2], when=all(effects)),
    )


def a5_s1(case: Case) -> Verdict:
    cohort = case.record.given_table("data/slide_manifest.csv")
    listed = {row.get("slide_id"): row for row in case.record.table(f"{ROUND_0}/slide_manifest.csv")}
    wanted = {row["slide_id"] for row in cohort if row.get("slide_id")}
    dropped = [row for row in listed.values() if row.get("status", "ok") != "ok"]
    reasons = all(row.get("reason", "").strip() for row in dropped)
    patients = {row.get("patient_id") for row in cohort if row.get("split") in ("validation", "test")}
    kept = {row.get("patient_id") for row in listed.values() if row.get("status", "ok") == "ok"}
    predicted = {row.get("case_id") for row in case.predictions(0)}
    return grade(
        part(
            "every slide of the cohort is listed",
            f"{ROUND_0}/slide_manifest.csv",
            when=bool(wanted) and wanted <= set(listed),
        ),
        part("dropped slides have reasons", f"{ROUND_0}/slide_manifest.csv", when=bool(listed) and reasons),
        part(
            "every held-out patient is predicted or dropped",
            PREDICTIONS,
            when=bool(predicted) and patients & kept <= predicted,
        ),
        structured=True,
    )


def a5_s2(case: Case) -> Verdict:
    models = case.record.matching(f"{ROUND_0}/model.*")
    features = case.record.table(f"{ROUND_0}/features_index.csv")
    hashes = bool(features) and all(
        row.get("path") and row.get("sha256") for row in features if row.get("n_tiles") not in ("0", "")
    )
    return grade(
        part("a model file", models[:1]),
        part("features are indexed with hashes", f"{ROUND_0}/features_index.csv", when=hashes),
        part("configuration kept", CONFIG, when=bool(case.record.yaml(CONFIG))),
        part(
            "witnessed or scripted, so reproducible",
            [*[c.ref for c in case.record.ok_calls("train_mil")][:1], *case.scripts[:1]],
        ),
        structured=True,
    )


def held_out_only(case: Case, round_id: int) -> bool:
    """Whether predictions cover held-out patients only, going by the given split file."""
    given = assignments(case.record.given_table("data/splits.csv"))
    rows = case.predictions(round_id)
    return bool(rows) and all(
        given.get(row.get("case_id", "")) in ("validation", "test")
        and row.get("split") == given[row["case_id"]]
        for row in rows
    )


def a5_s3(case: Case) -> Verdict:
    witnessed = case.witnessed_predictions(0)
    scripted = case.record.find(case.scripts, r"train_mil|predict|model")
    return grade(
        part("written by a witnessed call", witnessed),
        part("held-out patients only", [PREDICTIONS, "data/splits.csv"], when=held_out_only(case, 0)),
        part("a script shows the model step", scripted[:1]),
        structured=True,
    )


def _after(case: Case, call: Event) -> list[Event]:
    return [event for event in case.record.events if event.seq > call.seq]


def a6_s1(case: Case) -> Verdict:
    trained = case.record.ok_calls("train_mil", round_id=0)[:1]
    later = _after(case, trained[0]) if trained else []
    opened = [
        event.ref
        for event in later
        if (
            event.kind == "tool"
            and event.source == "registry"
            and event.exit_status == "ok"
            and event.name == "read_table"
            and "predictions" in str(event.args.get("path"))
        )
        or (event.kind == "read" and "predictions" in event.name)
    ]
    other = [
        event.ref
        for event in case.record.events
        if (
            event.kind == "read"
            or (event.name == "read_table" and event.exit_status == "ok" and event.source == "registry")
        )
        and re.search(
            r"metrics\.json|slide_manifest|features_index|splits", event.name + str(event.args.get("path"))
        )
        and "data/" not in event.name
    ]
    said = case.record.find(case.logs, r"check|verif|inspect", r"rows?|range|missing|duplicat|distinct")
    return grade(
        part("predictions were opened after they were written", opened[:2]),
        part("another key output was opened", other[:2]),
        part("rows, ranges or missing values noted", said[:1]),
        structured=True,
    )


def a6_s2(case: Case) -> Verdict:
    where = [*case.logs, *case.scripts]
    leak = case.record.find(where, r"leak|overlap|disjoint|two splits|both splits|no patient")
    join = case.record.find(where, r"join|match|merge|align", r"label|patient|slide|\bid")
    rows = assignments(case.record.table(f"{ROUND_0}/splits.csv"))
    ran = [
        call.ref
        for call in case.record.ok_calls("read_table")
        if re.search(r"split|manifest", str(call.args.get("path")))
    ]
    given = assignments(case.record.given_table("data/splits.csv"))
    differing = bool(rows) and any(given.get(patient, split) != split for patient, split in rows.items())
    return grade(
        part("a leakage check", leak[:1]),
        part("a label-join check", join[:1]),
        part(
            "evidence behind it",
            [*ran[:1], f"{ROUND_0}/splits.csv"],
            when=bool(rows) and not differing and (bool(ran) or held_out_only(case, 0)),
        ),
        veto=part("the split used differs from the given one", f"{ROUND_0}/splits.csv", when=differing),
    )


def implausible(case: Case) -> list[str]:
    """Citations of values that should raise a question: perfect ranking, constant predictions."""
    refs = []
    for k in case.rounds():
        for name, value in case.metrics(k).items():
            found = number(value)
            if (
                name in ("AUROC", "macro_OvR_AUROC", "c_index", "quadratic_weighted_kappa", "accuracy")
                and found is not None
                and found >= 0.995
            ):
                refs.append(f"{case.metrics_file(k)}#/metrics/{name}")
        rows = case.predictions(k)
        column = next((n for n in (rows[0] if rows else {}) if n.startswith("prob_") or n == "risk"), None)
        if column and len(rows) > 2 and len({row[column] for row in rows}) == 1:
            refs.append(f"{case.folder(k)}/predictions.csv")
    return refs


def a6_s3(case: Case) -> Verdict:
    strange = implausible(case)
    checked = [
        call.ref for call in case.record.ok_calls("read_table") if "predictions" in str(call.args.get("path"))
    ]
    if strange:
        noticed = case.record.find(
            case.logs, r"implausib|suspicious|too good|perfect|constant|unexpected|leak", limit=4
        )
        followed = case.record.find(
            case.logs,
            r"implausib|suspicious|too good|perfect|constant|unexpected",
            r"check|again|inspect|verif|rerun|because",
        )
        return grade(
            part("implausible values were noticed", [strange[0], *noticed[:2]], when=bool(noticed)),
            part("and followed up", followed[:1]),
            part("by a witnessed look", checked[:1]),
        )
    looked = case.record.find(
        case.logs, r"range|constant|plausib|distinct|unique|spread|chance|missing", r"check|predict|value"
    )
    return grade(part("ranges were looked at", looked[:1]), part("by a witnessed look", checked[:1]))


CUES: dict[str, Callable[[Case], Verdict]] = {
    "A4.s1": a4_s1,
    "A4.s2": a4_s2,
    "A4.s3": a4_s3,
    "A5.s1": a5_s1,
    "A5.s2": a5_s2,
    "A5.s3": a5_s3,
    "A6.s1": a6_s1,
    "A6.s2": a6_s2,
    "A6.s3": a6_s3,
}
