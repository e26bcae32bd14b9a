"""Collect one trajectory: workspace, child process, raw stream, witness log, record.

Every attempt lives in ``attempts/<n>/`` and stays there. A finished attempt is published as ``run/`` by hard
links, ``run.json`` last; readers trust ``run.json``. A second collector waits for the first (file lock).
A finished record is never paid for twice: it is taken as it is, or shown again when the workflow has cleared
the files of an attempt that it had not yet accepted. Snakemake accepts by write-protecting (``protected()``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpbench import __version__
from acpbench.core.config import TaskBinding, parse_study
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, sha256_file, walk_files, write_json
from acpbench.core.ids import check_id, trajectory_id
from acpbench.harness.context import CONTEXT_VARIABLE, EvaluatorSide, RunContext, TilerSettings
from acpbench.harness.registry import registry_digest
from acpbench.harness.workspace import build_workspace, contents_digest, skills_digest
from acpbench.tasks.catalogue import load_task
from acpbench.trajectory.atif import AtifBuilder
from acpbench.trajectory.record import (
    Digests,
    Harness,
    RunRecord,
    iso_time,
    load_run,
    split_id,
    write_manifest,
)

ALLOWED_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
TERMINATE_GRACE_S = 10.0
DECLARED = ("run.json", "stream.jsonl", "tools.jsonl", "trajectory.json", "manifest.csv")
"""Files of ``run/`` that the workflow declares as outputs, and write-protects itself."""
UNSANDBOXED = "unsandboxed"


class RunSettings(EvaluatorSide):
    """Everything one run depends on. Paths are the evaluator's."""

    group: str
    replicate: str
    policy: str
    encoder: str
    skills: Path | None
    wall_limit_s: float = 1800.0


def agent_inputs(
    task_id: str, binding: TaskBinding, encoder: str, labels: Path, slides_csv: Path, features_index: Path
) -> dict[str, Any]:
    """``agent_inputs.json``: what agents on a task are given, with hashes, under a name that never changes.

    The rule of an agent run depends on this file alone, so that a study's other cohort, encoder or task file
    makes a new one of these but repeats no finished run.

    Args:
        binding: the study's entry of the task.
        encoder: the encoder whose features agents get.
        labels: the evaluator's label table of the task.
        slides_csv: the validated cohort table.
        features_index: list of the agents' feature files.
    """
    return {
        "schema": "acp-agent-inputs/0.1",
        "task_id": task_id,
        "cohort": binding.cohort,
        "encoder": encoder,
        "task_file": str(binding.definition),
        "labels": str(labels),
        "slides": str(slides_csv),
        "sha256": {
            "task_file": sha256_file(_checkout_path(str(binding.definition))),
            "labels": sha256_file(labels),
            "slides": sha256_file(slides_csv),
            "features_index": sha256_file(features_index),
        },
    }


def settings_from_study(
    study_file: Path, inputs_file: Path, group: str, replicate: str, results: Path
) -> RunSettings:
    """Settings of one run from the resolved study and the fixed layout of ``results/``.

    Raises:
        InputError: the group or the task is not part of the study, or a file is not the one that was listed.
    """
    document = read_json(study_file)
    study = parse_study(document["config"], study_file)
    groups = {entry["id"]: entry for entry in document["groups"]}
    if group not in groups:
        raise InputError(f"{group!r} is not a group of the study", file=study_file, field="groups")
    inputs = read_json(inputs_file)
    task_id = inputs["task_id"]
    if task_id not in study.agent_tasks:
        raise InputError(f"{task_id!r} is not a task of the study", file=study_file, field="tasks")
    binding = study.tasks[task_id]
    cohort = study.cohorts[inputs["cohort"]]
    generated = results / "generated" / inputs["cohort"]
    skills = study.trajectories.skills
    files = {
        "task_file": _checkout_path(inputs["task_file"]),
        "labels": Path(inputs["labels"]),
        "slides": Path(inputs["slides"]),
    }
    for name, path in files.items():
        if sha256_file(path) != inputs["sha256"][name]:
            raise InputError(f"has changed since {inputs_file.name} was written", file=path, field=name)
    return RunSettings(
        group=group,
        task_file=files["task_file"],
        replicate=replicate,
        policy=groups[group]["policy"],
        labels=files["labels"],
        slides_csv=files["slides"],
        exclusions_csv=files["slides"].with_name("exclusions.csv"),
        slides_base=generated if cohort.generator else _checkout_path(cohort.manifest).parent,
        slides_dir=results / "slides" / inputs["cohort"],
        features_dir=results / "features" / inputs["cohort"],
        store_dir=results / "store" / inputs["cohort"],
        encoders_config=_checkout_path(study.encoders_config),
        encoder=inputs["encoder"],
        skills=None if skills is None else _checkout_path(skills),
        tiler=TilerSettings(**study.tiling.model_dump(exclude={"min_tiles"})),
        label_column="time, event" if binding.time_column else "label",
        label_access=study.trajectories.label_access,
        test_evaluations=study.trajectories.test_evaluations,
        wall_limit_s=study.trajectories.wall_limit_s,
        offline=study.offline,
        seed=study.seed,
    )


def _checkout_path(path: str) -> Path:
    """A path of the study: in the working directory, else in the checkout this package lies in."""
    here = Path(path)
    return here if here.is_absolute() or here.exists() else Path(__file__).resolve().parents[3] / path


@contextmanager
def _collecting(trajectory_dir: Path) -> Iterator[None]:
    """Hold the trajectory's lock: one collector at a time, also after a killed workflow left one behind."""
    trajectory_dir.mkdir(parents=True, exist_ok=True)
    with open(trajectory_dir / ".collect.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _last_attempt(trajectory_dir: Path) -> int:
    attempts = trajectory_dir / "attempts"
    numbers = (
        [int(path.name) for path in attempts.iterdir() if path.name.isdigit()] if attempts.is_dir() else []
    )
    return max(numbers, default=0)


def _context(settings: RunSettings, attempt: Path, identity: str) -> RunContext:
    return RunContext(
        trajectory_id=identity,
        workspace=(attempt / "workspace").resolve(),
        tool_log=(attempt / "tools.jsonl").resolve(),
        receipts=(attempt / "receipts.jsonl").resolve(),
        split_id=split_id(read_csv(settings.labels)),
        **settings.shared(),
    )


class _StreamRecorder(threading.Thread):
    """Copy the child's standard output to ``stream.jsonl`` line by line as it comes, each line fsynced."""

    def __init__(self, pipe: Any, target: Path) -> None:
        super().__init__(daemon=True)
        self.pipe, self.target = pipe, target

    def run(self) -> None:
        with open(self.target, "ab") as handle:
            for line in iter(self.pipe.readline, b""):
                handle.write(line)
                handle.flush()
                os.fsync(handle.fileno())


def _group_is_gone(group: int, grace_s: float) -> bool:
    """Whether the process group ends within a grace."""
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the child's whole process group, its tool server too: TERM, then KILL after a grace."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        # Reap the child itself, or it would count as a living member of its group.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_GRACE_S)
        if _group_is_gone(process.pid, TERMINATE_GRACE_S):
            break
    process.wait()


def _launch(command: list[str], attempt: Path, context_file: Path, wall_limit_s: float) -> tuple[int, bool]:
    """Run the child in the workspace. Returns its return code and whether the wall limit ended it."""
    environment = {name: os.environ[name] for name in ALLOWED_ENVIRONMENT if name in os.environ}
    environment |= {
        CONTEXT_VARIABLE: str(context_file),
        "HOME": str(context_file.parent / f"{attempt.name}.home"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]),
    }
    with open(attempt / "stderr.log", "wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=attempt / "workspace",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        recorder = _StreamRecorder(process.stdout, attempt / "stream.jsonl")
        recorder.start()
        timed_out = False
        try:
            process.wait(wall_limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _stop_group(process)
        recorder.join(TERMINATE_GRACE_S)
    return process.returncode, timed_out


def _stream_rows(stream: Path) -> list[dict[str, Any]]:
    rows = []
    for line in stream.read_bytes().split(b"\n") if stream.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _normalise(rows: list[dict[str, Any]], identity: str, policy: str) -> dict[str, Any]:
    """ATIF document of the scripted harness's stream."""
    builder = AtifBuilder(
        session_id=identity, agent_name="scripted", agent_version=__version__, model=f"policy:{policy}"
    )
    functions = {"read": "read_file", "write": "write_file", "command": "run_command"}
    for row in rows:
        kind, moment = row.get("type"), row.get("t")
        if kind == "message":
            builder.message("agent", str(row.get("text", "")), moment)
        elif kind in functions:
            arguments = {key: row[key] for key in ("path", "command") if key in row}
            builder.call(functions[kind], arguments, str(row.get("outcome", "")), moment)
        elif kind == "tool":
            builder.call(
                str(row.get("tool")),
                row.get("args") or {},
                str(row.get("outcome", "")),
                moment,
                extra={"exit_status": row.get("exit_status"), "round_id": row.get("round_id")},
            )
    return builder.document(extra={"acpbench": {"trajectory_id": identity}})


def _status(returncode: int, timed_out: bool, rows: list[dict[str, Any]]) -> tuple[str, str]:
    """``run_status`` and its reason, from the exit, the watchdog and the terminal event together."""
    if timed_out:
        return "timeout", "the wall limit ended the run"
    if returncode < 0:
        return "killed", f"the agent process died by {signal.Signals(-returncode).name}"
    if returncode > 0:
        return "agent_error", f"the agent process exited with code {returncode}"
    if not any(row.get("type") == "result" for row in rows):
        return "incomplete_stream", "the agent exited 0 without a terminal event"
    return "completed", "the agent reported its end and exited 0"


def _show(attempt: Path, run_dir: Path) -> None:
    """Link the files of an attempt into ``run/`` that are not there yet, ``run.json`` last.

    The declared files stay writable until the workflow has accepted them: Snakemake refuses to start over a
    read-only output that a killed workflow left behind, unless the user is root.
    """
    for relative, path in sorted(walk_files(attempt), key=lambda item: item[0] == "run.json"):
        target = run_dir / relative
        if target.exists():
            continue
        path.chmod(0o644 if relative in DECLARED else 0o444)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def _unaccepted(attempt: Path, run_dir: Path) -> bool:
    """Whether ``run/`` is what is left of this finished attempt, which no workflow has accepted yet."""
    record, witness = attempt / "run.json", run_dir / "stderr.log"
    return (
        record.is_file()
        and bool(record.stat().st_mode & stat.S_IWUSR)
        and witness.is_file()
        and witness.samefile(attempt / "stderr.log")
    )


def collect_run(settings: RunSettings, run_dir: Path) -> RunRecord:
    """Run one group on one task and leave the record in ``run_dir``.

    A run that dies is a complete record with its ``run_status``; only the collector's own failure raises. A
    record that is there already is returned: delete ``run_dir`` to run again.

    Raises:
        InputError: an id, the task file or a table does not fit.
    """
    task = load_task(settings.task_file)
    identity = trajectory_id(settings.group, task.task_id, settings.replicate)
    check_id(settings.policy, "policy")
    trajectory_dir = run_dir.parent
    with _collecting(trajectory_dir):
        number = _last_attempt(trajectory_dir)
        attempt = trajectory_dir / "attempts" / str(number)
        if _unaccepted(attempt, run_dir):
            _show(attempt, run_dir)
        if (run_dir / "run.json").is_file():
            return load_run(run_dir)
        number += 1
        attempt = attempt.with_name(str(number))
        attempt.mkdir(parents=True)
        build_workspace(
            attempt / "workspace",
            task=task,
            labels_csv=settings.labels,
            slides_csv=settings.slides_csv,
            skills=settings.skills,
            label_access=settings.label_access,
            test_evaluations=settings.test_evaluations,
        )
        initial = contents_digest(attempt / "workspace")
        context_file = attempt.with_name(f"{number}.context.json")
        write_json(context_file, _context(settings, attempt, identity).model_dump(mode="json"))
        (attempt / "tools.jsonl").touch()
        command = [
            sys.executable,
            "-m",
            "acpbench.harness",
            "--policy",
            settings.policy,
            "--encoder",
            settings.encoder,
            "--seed",
            str(settings.seed),
        ]
        start_s = time.time()
        returncode, timed_out = _launch(command, attempt, context_file.resolve(), settings.wall_limit_s)
        end_s = time.time()

        rows = _stream_rows(attempt / "stream.jsonl")
        run_status, reason = _status(returncode, timed_out, rows)
        write_json(attempt / "trajectory.json", _normalise(rows, identity, settings.policy))
        write_manifest(attempt / "workspace", attempt / "manifest.csv")
        record = RunRecord(
            trajectory_id=identity,
            group=settings.group,
            task_id=task.task_id,
            replicate=settings.replicate,
            attempt=number,
            harness=Harness(name="scripted", version=__version__, policy=settings.policy),
            label_access=settings.label_access,
            run_status=run_status,
            status_reason=reason,
            exit_code=returncode if returncode >= 0 else None,
            signal=-returncode if returncode < 0 else None,
            t_start=iso_time(start_s),
            t_end=iso_time(end_s),
            wall_s=round(end_s - start_s, 3),
            cost_usd=0.0,
            cost_source="built-in harness: no model is called",
            limits={"wall_s": settings.wall_limit_s},
            sandbox=UNSANDBOXED,
            digests=Digests(
                task=sha256_file(settings.task_file),
                skills=skills_digest(settings.skills),
                tools=registry_digest(),
                workspace_initial=initial,
                split=split_id(read_csv(settings.labels)),
            ),
            package_version=__version__,
            seed=settings.seed,
        )
        if run_dir.exists():
            shutil.rmtree(run_dir)
        _show(attempt, run_dir)
        # Written when the rest is shown: an attempt with a run.json has left its mark in run/.
        write_json(attempt / "run.json", record.model_dump(mode="json", by_alias=True))
        _show(attempt, run_dir)
    return record
