"""What must hold before an agent is launched: room on the disk, the harness itself, and tools that answer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from acpbench.core.errors import InputError
from acpbench.harness.adapter import Adapter
from acpbench.harness.mcp_probe import probe

MIN_FREE_BYTES = 256 * 1024 * 1024
VERSION_TIMEOUT_S = 90.0
PROBE_TIMEOUT_S = 120.0


@dataclass
class Preflight:
    """What was found. ``problem``: why the run must not start (None: it may)."""

    version: str | None = None
    tools: list[str] = field(default_factory=list)
    problem: str | None = None


def find_executable(name: str) -> Path | None:
    """Where a command lies, links kept: what is started is what the user named."""
    found = shutil.which(name)
    return None if found is None else Path(found).absolute()


def disk_problem(folder: Path) -> str | None:
    """Why the disk has too little room, if it has."""
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        return (
            f"{free // 2**20} MiB are free on the disk of the results, {MIN_FREE_BYTES // 2**20} are needed"
        )
    return None


def harness_version(
    adapter: Adapter,
    executable: str,
    env: Mapping[str, str],
    cwd: Path,
    wrap: Callable[[list[str]], list[str]],
) -> str:
    """What the harness says for its version.

    Raises:
        InputError: it does not run, or fails.
    """
    command = wrap([executable, *adapter.version_arguments])
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{executable} did not tell its version within {VERSION_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise InputError(f"{executable} does not run ({error.strerror})") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().split("\n")[-1][-200:]
        raise InputError(f"{executable} does not run (exit code {done.returncode}: {said})")
    return adapter.version(done.stdout)


def check(
    adapter: Adapter,
    executable: str,
    env: Mapping[str, str],
    cwd: Path,
    tool_command: tuple[str, ...],
    wrap: Callable[[list[str]], list[str]],
) -> Preflight:
    """Ask the harness for its version and the tool server for its tools, as the agent would meet them."""
    found = Preflight()
    try:
        found.version = harness_version(adapter, executable, env, cwd, wrap)
        found.tools = probe(wrap(list(tool_command)), env, cwd, PROBE_TIMEOUT_S)
    except InputError as error:
        found.problem = f"pre-flight: {error}"
    return found
