"""Execution memory: failures seen and configurations that worked, carried from task to task of a group.

A run's memory is a pure function of records: what the run before it was given (``memory.jsonl`` beside its
``tools.jsonl``, the evaluator's copy) and what that run's own record shows. Nothing is appended to a shared
file, so a chain can be resumed, and rebuilt, at any link. See docs/decisions/011-execution-memory.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, read_jsonl, sha256_json, write_jsonl
from acpbench.trajectory.documents import MemoryEntry
from acpbench.trajectory.events import Event, tool_calls

GIVEN_FILE = "memory.jsonl"
"""In a record: the evaluator's copy of what the run was given."""
OWN_FILE = "memory/execution_memory.jsonl"
"""In a workspace: what the agent wrote."""
MAX_CARRIED = 200
MAX_OWN = 40
MAX_TEXT = 600
MAX_OWN_BYTES = 1024 * 1024
_WORK = ("tile_slides", "extract_features", "train_mil")


def carried_memory(previous_run: str | os.PathLike[str] | None) -> list[MemoryEntry]:
    """What a run is given by the one before it: that run's memory and the entries of its record, newest last.

    At most 200 entries are carried; the oldest go first. An entry that repeats an earlier one is left out.

    Args:
        previous_run: folder ``run`` of the previous task's record, ``None`` for the first task.
    """
    if previous_run is None:
        return []
    kept: dict[tuple[str, str], MemoryEntry] = {}
    for entry in [*read_memory(Path(previous_run) / GIVEN_FILE), *record_entries(previous_run)]:
        # The newest of equal entries says the most recent time that it held.
        kept.pop((entry.kind, entry.text), None)
        kept[entry.kind, entry.text] = entry
    return list(kept.values())[-MAX_CARRIED:]


def read_memory(path: str | os.PathLike[str]) -> list[MemoryEntry]:
    """Entries of a memory file that :func:`write_memory` wrote; none when there is no file.

    Raises:
        InputError: a line is no memory entry.
    """
    if not Path(path).is_file():
        return []
    try:
        return [MemoryEntry.model_validate(row) for row in read_jsonl(path)]
    except ValidationError:
        raise InputError("holds a line that is no memory entry", file=path) from None


def write_memory(path: str | os.PathLike[str], entries: Sequence[MemoryEntry]) -> None:
    """Write entries, one a line; none give an empty file."""
    write_jsonl(path, [_row(entry) for entry in entries])


def memory_digest(entries: Sequence[MemoryEntry]) -> str:
    """Hash of a memory, for ``digests.memory`` of ``run.json``."""
    return sha256_json([_row(entry) for entry in entries])


def _row(entry: MemoryEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude_none=True)


def record_entries(run_dir: str | os.PathLike[str]) -> list[MemoryEntry]:
    """What one record adds: failed calls and their repair, configurations that worked, the agent's own notes.

    Test metrics never go in: the same patients may be test patients of the next task. Of the agent's notes,
    lines that name a slide or patient of the cohort, or speak of the test, are left out for the same reason.
    """
    run_dir = Path(run_dir)
    run = read_json(run_dir / "run.json") if (run_dir / "run.json").is_file() else {}
    about = {"task_id": run.get("task_id"), "run": run.get("trajectory_id")}
    calls = tool_calls(run_dir)
    found = [*_failures(calls, about), *_configurations(calls, about), *_own(run_dir, about)]
    return found


def _entry(about: dict[str, Any], **fields: Any) -> MemoryEntry:
    text = " ".join(str(fields.pop("text")).split())[:MAX_TEXT]
    return MemoryEntry(text=text, **about, **fields)


def _failures(calls: list[Event], about: dict[str, Any]) -> list[MemoryEntry]:
    """One entry a distinct error of a tool, with the call that later did what it had failed to do."""
    found: dict[tuple[str, str], MemoryEntry] = {}
    for place, call in enumerate(calls):
        if call.exit_status == "ok" or call.name == "evaluate_test":
            continue
        error = call.error or "the call did not end (its process was stopped)"
        if (call.name, error) in found:
            continue
        repair = next(
            (later for later in calls[place + 1 :] if later.name == call.name and later.exit_status == "ok"),
            None,
        )
        changed = {} if repair is None else _changed(call.args, repair.args)
        text = f"{call.name} failed: {error[:400]}"
        if repair is None:
            text += " It was not repaired in that run."
        elif changed:
            text += f" It worked with {json.dumps(changed, ensure_ascii=False)[:160]}."
        else:
            text += " The same call worked later."
        found[call.name, error] = _entry(
            about,
            kind="failure",
            text=text,
            tool=call.name,
            round_id=call.round_id,
            step_id=call.step_id,
            source="witnessed",
        )
    return list(found.values())


def _changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if before.get(name) != value}


def _configurations(calls: list[Event], about: dict[str, Any]) -> list[MemoryEntry]:
    """One entry a training that was evaluated on validation patients: its settings and what they gave."""
    found = []
    settings: dict[str, dict[str, Any]] = {}
    trained: Event | None = None
    for call in calls:
        if call.exit_status != "ok":
            continue
        if call.name in _WORK:
            settings[call.name] = {
                name: value
                for name, value in call.args.items()
                if name not in ("output_dir", "features_index")
            }
        if call.name == "train_mil":
            trained = call
        if call.name == "evaluate_predictions" and trained is not None:
            metrics = call.result.get("metrics")
            if not isinstance(metrics, dict):
                continue
            told = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
            used = settings.get("extract_features", {}) | settings["train_mil"]
            said = ", ".join(f"{name} {value:.4g}" for name, value in told.items())
            found.append(
                _entry(
                    about,
                    kind="success",
                    text=f"train_mil with {json.dumps(used, ensure_ascii=False)[:300]}: on "
                    f"{call.result.get('n')} validation patients {said or 'no metric could be computed'}.",
                    tool="train_mil",
                    args=used,
                    round_id=trained.round_id,
                    step_id=trained.step_id,
                    source="witnessed",
                )
            )
            trained = None
    return found


def _own(run_dir: Path, about: dict[str, Any]) -> list[MemoryEntry]:
    """The agent's notes that may be carried: bounded, one line each, none about a named case or the test."""
    path = run_dir / "workspace" / OWN_FILE
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_OWN_BYTES:
        return []
    cases = _case_ids(run_dir / "workspace" / "data" / "slide_manifest.csv")
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            given = MemoryEntry.model_validate(json.loads(line))
        except (ValueError, RecursionError):
            continue
        words = set(re.findall(r"[A-Za-z0-9._-]+", given.text))
        if (
            words & cases
            or "evaluate_test" in given.text
            or re.search(r"\btest\b", given.text, re.IGNORECASE)
        ):
            continue
        found.append(
            _entry(
                about,
                kind=given.kind,
                text=given.text,
                tool=given.tool if given.tool and len(given.tool) <= 80 else None,
                round_id=given.round_id,
                source="agent",
            )
        )
        if len(found) == MAX_OWN:
            break
    return found


def _case_ids(manifest: Path) -> set[str]:
    try:
        rows = read_csv(manifest)
    except InputError:
        return set()
    return {row[name] for row in rows for name in ("slide_id", "patient_id") if row.get(name)}
