"""After the child has ended: what was left is made safe, counted, judged for its end, and published."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpbench import __version__
from acpbench.core.files import json_text, read_csv, sha256_file, walk_files, write_json, write_text
from acpbench.core.groups import ClaudeCodeGroup, ScriptedGroup
from acpbench.harness.adapter import Status
from acpbench.harness.attempts import show
from acpbench.harness.launch import Ending
from acpbench.harness.memory import memory_digest
from acpbench.harness.registry import registry_digest
from acpbench.harness.scrub import Scrubber
from acpbench.harness.workspace import skills_digest
from acpbench.trajectory.record import (
    Digests,
    Harness,
    Isolation,
    RunRecord,
    changed_times,
    iso_time,
    split_id,
    write_manifest,
)
from acpbench.trajectory.typed import TypedTrajectory, to_atif

if TYPE_CHECKING:
    from acpbench.harness.collect import Collection

STDERR_TAIL_BYTES = 64 * 1024
MAX_NOTES = 100
MAX_DEPTH = 64
MAX_PATH_BYTES = 3_500
"""Of a path in the workspace, so that every name beside it is within the system's 4,096."""


def conclude(run: Collection, ending: Ending, status: Status | None) -> RunRecord:
    """Normalise, list what was left, decide, and publish with ``run.json`` last.

    Args:
        run: the collection, its child ended.
        ending: how the child ended.
        status: ``run_status`` where it is decided already (nothing was launched).
    """
    attempt, evidence = run.attempt, run.evidence
    edited = run.witness.settle()
    run.notes += [edited] if edited else []
    run.notes += open_folders(run.workspace)
    changed = changed_times(run.workspace)
    run.notes += make_safe(run.workspace, attempt, run.scrubber)
    if ending.disk_full or ending.lost_output:
        evidence.own_bytes = allocated(run.workspace) + allocated(run.home)
    evidence.stderr = tail(attempt / "stderr.log")
    typed = run.adapter.normalise(attempt)
    if evidence.export is not None:
        typed.model = typed.model or evidence.export.model
        typed.harness_version = typed.harness_version or evidence.export.harness_version
    typed.harness_version = typed.harness_version or run.version
    if status is None:
        status = run.adapter.decide(ending, typed, evidence)
    if isinstance(run.group, ScriptedGroup):
        typed.model = f"policy:{run.group.policy}"
    write_json(attempt / "trajectory.json", to_atif(typed, session_id=run.identity))
    # Once more: decoded from the stream, a value may be whole that was broken up or escaped there.
    run.scrubber.clean_file(attempt / "trajectory.json")
    write_manifest(run.workspace, attempt / "manifest.csv", changed)
    record = run_record(run, ending, status, typed)
    if run.run_dir.exists():
        shutil.rmtree(run.run_dir)
    show(attempt, run.run_dir)
    # Written when the rest is shown: an attempt with a run.json has left its mark in run/.
    write_text(
        attempt / "run.json", run.scrubber.text(json_text(record.model_dump(mode="json", by_alias=True)))
    )
    show(attempt, run.run_dir)
    return record


def open_folders(workspace: Path) -> list[str]:
    """Leave a workspace that is a folder of its own whose every folder can be entered.

    Folders nested too deeply, and paths too long to be opened, are removed: nothing could read them.

    Returns:
        Notes of what had to be done.
    """
    notes = []
    if workspace.is_symlink() or not workspace.is_dir():
        workspace.unlink(missing_ok=True)
        workspace.mkdir()
        notes.append("the agent replaced its workspace; what it put in its place is not read")
    folders, removed = [(workspace, 0)], 0
    while folders:
        folder, depth = folders.pop()
        try:
            _allow(folder, stat.S_IRWXU)
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError as error:
            notes.append(f"a folder of the workspace cannot be read ({os.strerror(error.errno or 0)})")
            continue
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if len(os.fsencode(entry.path)) > MAX_PATH_BYTES or (is_folder and depth >= MAX_DEPTH):
                # A program of its own: Python's own removal recurses and needs whole paths.
                subprocess.run(["rm", "-rf", "--", entry.path], check=False, stderr=subprocess.DEVNULL)
                removed += 1
            elif is_folder:
                folders.append((Path(entry.path), depth + 1))
    if removed:
        notes.append(f"{removed} files or folders nested too deeply were removed")
    return notes[:MAX_NOTES]


def _allow(path: Path, wanted: int) -> None:
    mode = path.lstat().st_mode
    if mode & wanted != wanted:
        path.chmod(stat.S_IMODE(mode) | wanted)


def make_safe(workspace: Path, attempt: Path, scrubber: Scrubber) -> list[str]:
    """Leave files that can be read, and no known secret in the workspace or the logs.

    Returns:
        Notes of what had to be done.
    """
    notes = []
    for relative, path in walk_files(workspace):
        try:
            _allow(path, stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            notes.append(f"{relative} cannot be read ({os.strerror(error.errno or 0)})")
    in_output = scrubber.count
    found = scrubber.clean_tree(workspace)
    for name in ("tools.jsonl", "receipts.jsonl"):
        path = attempt / name
        found += [f"a secret was taken out of {name}"] if path.is_file() and scrubber.clean_file(path) else []
    notes += found[:50]
    return notes + (["a secret was taken out of the output"] if in_output else [])


def allocated(folder: Path) -> int:
    """Bytes that a folder's files take on the disk."""
    return sum(path.stat().st_blocks * 512 for _, path in walk_files(folder))


def tail(path: Path) -> str:
    """The end of a log."""
    with open(path, "rb") as handle:
        handle.seek(max(0, handle.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        return handle.read().decode("utf-8", "replace")


def run_record(run: Collection, ending: Ending, status: Status, typed: TypedTrajectory) -> RunRecord:
    """``run.json`` of a collection."""
    settings, group = run.settings, run.group
    limits, wall_s = run.limits()
    in_force: Mapping[str, Any] = {"wall_s": wall_s}
    model, policy = None, None
    if isinstance(group, ScriptedGroup):
        policy = group.policy
    else:
        in_force = limits.model_dump(exclude_none=True) | {"wall_s": wall_s}
        model = {
            "requested": group.model,
            "reported": typed.model,
            "base_url": group.base_url,
            "api_key_env": group.api_key_env,
            "provider": group.provider.model_dump(exclude_none=True),
        }
    return RunRecord(
        trajectory_id=run.identity,
        group=settings.group,
        task_id=run.task.task_id,
        replicate=settings.replicate,
        attempt=int(run.attempt.name),
        harness=Harness(name=run.adapter.name, version=typed.harness_version or "unknown", policy=policy),
        model=model,
        label_access=settings.label_access,
        run_status=status.run_status,
        status_reason=run.scrubber.text(status.reason),
        exit_code=ending.exit_code,
        signal=ending.signal,
        t_start=iso_time(run.start_s),
        t_end=iso_time(run.end_s),
        wall_s=round(run.end_s - run.start_s, 3),
        tokens=typed.totals.known() if typed.totals is not None else None,
        cost_usd=typed.cost_usd,
        cost_source=_cost_source(run, typed),
        limits=in_force,
        sandbox=run.box.summary,
        isolation=Isolation(kind=run.box.kind, network=run.box.network, version=run.box.version),
        watchdog=ending.watchdog,
        notes=[run.scrubber.text(note) for note in [*run.notes, *typed.problems][:MAX_NOTES]],
        digests=Digests(
            task=sha256_file(settings.task_file),
            skills=skills_digest(settings.skills),
            tools=registry_digest(),
            workspace_initial=run.initial,
            split=split_id(read_csv(settings.labels)),
            tool_list=run.tool_list,
            harness_config=run.config_digest,
            memory=None if run.memory is None else memory_digest(run.memory),
        ),
        package_version=__version__,
        seed=settings.seed,
    )


def _cost_source(run: Collection, typed: TypedTrajectory) -> str | None:
    """Where a cost comes from; a harness prices another maker's model by its own list."""
    foreign = isinstance(run.group, ClaudeCodeGroup) and run.group.base_url is not None
    if typed.cost_source is None or not foreign:
        return typed.cost_source
    return f"{typed.cost_source}, by Claude Code's own price list (the endpoint is {run.group.base_url})"
