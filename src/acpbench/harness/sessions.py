"""After a run: the harness's own files of the session, kept beside the stream and held against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from acpbench.core.files import MAX_TEXT_BYTES, write_bytes
from acpbench.harness.adapter import Adapter, Evidence, Run
from acpbench.harness.scrub import Scrubber
from acpbench.trajectory.jsonl import read_lines
from acpbench.trajectory.typed import ToolCall, TypedTrajectory, parse

SESSION_FOLDER = "session"
EXPORT_FILE = "export.json"
EXPORT_TIMEOUT_S = 120.0
MAX_EXPORT_BYTES = 16 * MAX_TEXT_BYTES
MAX_SESSION_FILES = 500
MAX_SESSION_BYTES = 512 * 1024 * 1024


def keep_session_files(adapter: Adapter, home: Path, attempt: Path, scrubber: Scrubber) -> list[str]:
    """Copy the harness's session files into ``session/``, without secrets. Returns what could not be kept."""
    notes = []
    kept, total = 0, 0
    for pattern in adapter.session_globs:
        for source in sorted(home.glob(pattern)):
            if source.is_symlink() or not source.is_file() or not _inside(source, home):
                continue
            size, name = source.stat().st_size, scrubber.text(source.name)
            if kept >= MAX_SESSION_FILES or total + size > MAX_SESSION_BYTES:
                notes.append(f"session file {name} ({size} bytes) was not kept")
                continue
            # The places of sub-agents' files beside their session tell whose they are.
            target = attempt / SESSION_FOLDER / scrubber.text(str(source.relative_to(home)))
            try:
                write_bytes(target, scrubber.clean(source.read_bytes()))
            except OSError as error:
                notes.append(f"session file {name} was not kept ({os.strerror(error.errno or 0)})")
                continue
            kept, total = kept + 1, total + size
    return notes[:20]


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def confirm(
    adapter: Adapter,
    run: Run,
    typed: TypedTrajectory,
    env: Mapping[str, str],
    attempt: Path,
    scrubber: Scrubber,
    wrap: Callable[[list[str]], list[str]],
    evidence: Evidence,
) -> None:
    """Ask a harness whose stream has no end for its own account; what came goes into ``evidence``."""
    command = adapter.confirm_command(run, typed)
    if command is None:
        evidence.export_problem = None if adapter.capabilities.end_record else "the stream names no session"
        return
    target = attempt / SESSION_FOLDER / EXPORT_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    # To a file, not a pipe: a command that ends before its pipe is read may lose the end of what it printed.
    # The file has no name: whatever the agent left in its home, nothing is written through it.
    with tempfile.TemporaryFile(dir=target.parent) as out:
        process = subprocess.Popen(
            wrap(command),
            cwd=run.workspace,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(EXPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            evidence.export_problem = f"export did not end within {EXPORT_TIMEOUT_S:g} s"
            return
        size = out.seek(0, os.SEEK_END)
        if size > MAX_EXPORT_BYTES:
            evidence.export_problem = f"export of {size} bytes is too large"
            return
        out.seek(0)
        data = scrubber.clean(out.read())
    write_bytes(target, data)
    if code != 0:
        evidence.export_problem = f"export ended with exit code {code}"
        return
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError
    except (ValueError, RecursionError):
        evidence.export_problem = "export printed no JSON document"
        return
    evidence.export = adapter.read_confirmation(document)


def calls_missing_from_stream(
    adapter: Adapter, attempt: Path, typed: TypedTrajectory, export: TypedTrajectory | None
) -> str | None:
    """A line that says so when the harness's own files show tool calls that its stream does not."""
    shown = {event.call_id for event in typed.events if isinstance(event, ToolCall)}
    own: set[str] = set()
    if export is not None:
        own = {event.call_id for event in export.events if isinstance(event, ToolCall)}
    elif adapter.name == "claude_code":
        for path in sorted((attempt / SESSION_FOLDER).rglob("*.jsonl")):
            session = parse("claude_code_session", read_lines(path))
            own |= {event.call_id for event in session.events if isinstance(event, ToolCall)}
    missing = own - shown
    return f"{len(missing)} tool calls of the session are missing from the stream" if missing else None
