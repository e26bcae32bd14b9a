"""What an adapter of a harness family offers: capabilities, how to start it, what its end means.

Families differ in one class each (:mod:`~acpbench.harness.scripted_adapter`,
:mod:`~acpbench.harness.claude_code`, :mod:`~acpbench.harness.codex`, :mod:`~acpbench.harness.opencode`).
All that is not a family's own (recording, watchdogs, sandbox, secrets) is done once, around them.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import urlsplit

from acpbench.core.errors import InputError
from acpbench.core.groups import AnyGroup
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.meters import Meter
from acpbench.trajectory.jsonl import read_lines
from acpbench.trajectory.record import RunStatus, parse_time
from acpbench.trajectory.typed import TypedTrajectory, parse

SERVER_NAME = "acp"
"""Name of the MCP server, so that its tools are ``mcp__acp__<tool>`` or ``acp_<tool>``."""
PROMPT = (
    "Your working directory holds one computational-pathology task. Read TASK.md first, then do "
    "the whole task with the tools of the MCP server `acp` and the files of this directory, and leave every "
    "output that TASK.md asks for. Nobody will answer questions: decide by yourself, and stop when the task "
    "is done."
)


@dataclass(frozen=True)
class Capabilities:
    """What a family can do, and what its record shows.

    ``usage``: how tokens are counted. ``live_usage``: whether they can be seen before the end.
    ``end_record``: whether the stream says that the run is over. ``lists_tools``: whether the stream lists
    the tools the agent got.
    """

    mcp: bool
    skills_folder: str | None
    cost_reported: bool
    usage: Literal["none", "last per message", "running total", "sum of steps"]
    live_usage: bool
    end_record: bool
    lists_tools: bool
    stream_format: str
    sandbox: bool = True


@dataclass(frozen=True)
class Run:
    """What an adapter is given to prepare a run.

    ``home`` lies outside the workspace and becomes the harness's home. ``tool_command`` and ``tool_env``
    start the relay to the tool server. ``sandboxed``: whether something stands between the agent and the
    machine.
    """

    group: AnyGroup
    workspace: Path
    home: Path
    executable: str = ""
    tool_command: tuple[str, ...] = ()
    tool_env: dict[str, str] = field(default_factory=dict)
    tool_timeout_s: float = 3600.0
    prompt: str = PROMPT
    sandboxed: bool = False
    encoder: str = ""
    seed: int = 0


class Status(NamedTuple):
    """``run_status`` and the line that says why."""

    run_status: RunStatus
    reason: str


@dataclass
class Evidence:
    """What is known beside exit and stream.

    ``tools_listed``: how many sessions asked the tool server for its tools; None when nobody counted.
    ``tools_died``: how the tool server ended before the run did. ``export``: the harness's own account of the
    session, for a family whose stream has no end. ``own_bytes``: what the agent left on a disk that was
    found full.
    """

    tools_listed: int | None = None
    tools_died: str | None = None
    calls_after_death: bool = False
    export: TypedTrajectory | None = None
    export_problem: str | None = None
    disk_free_bytes: int = 0
    own_bytes: int = 0
    stderr: str = ""


class Adapter(ABC):
    """One harness family."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    meter: ClassVar[type[Meter]] = Meter
    version_arguments: ClassVar[tuple[str, ...]] = ("--version",)
    session_globs: ClassVar[tuple[str, ...]] = ()
    """Files of the home that are the harness's own record of the session."""

    @abstractmethod
    def prepare(self, run: Run) -> Launch:
        """Write configuration into the run's home and give the command."""

    @abstractmethod
    def decide(self, ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status:
        """``run_status`` from exit, watchdog and terminal event together."""

    def endpoint(self, group: AnyGroup) -> tuple[str, int] | None:
        """Host and port of the model, None when the family calls none."""
        return None

    def secrets(self, group: AnyGroup) -> dict[str, str]:
        """Variable of the child → variable of the collector that holds its value."""
        return {}

    def normalise(self, attempt: Path) -> TypedTrajectory:
        """The typed trajectory of an attempt's stream."""
        return parse(
            self.capabilities.stream_format, read_lines(attempt / "stream.jsonl"), receipt_times(attempt)
        )

    def version(self, printed: str) -> str:
        """The version in what the command prints for it."""
        found = re.search(r"(?<!\d)\d+\.\d+(\.\d+)?[\w.+-]*", printed)
        return found.group() if found else " ".join(printed.split())[:80] or "unknown"

    def confirm_command(self, run: Run, typed: TypedTrajectory) -> list[str] | None:
        """Command that prints the harness's own account of the session, for a stream without an end."""
        return None

    def read_confirmation(self, document: dict[str, Any]) -> TypedTrajectory:
        """The typed trajectory of what :meth:`confirm_command` printed."""
        raise NotImplementedError


def receipt_times(attempt: Path) -> list[float | None] | None:
    """Unix time at which each line of the stream was received, None when nobody wrote it down."""
    path = attempt / "stream.times.csv"
    if not path.is_file():
        return None
    times: list[float | None] = []
    with open(path, encoding="utf-8") as handle:
        next(handle, None)
        for row in handle:
            try:
                times.append(parse_time(row.split(",")[1]))
            except (IndexError, ValueError):
                times.append(None)
    return times


def url_endpoint(url: str) -> tuple[str, int]:
    """Host and port of an http(s) address.

    Raises:
        InputError: it has none.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise InputError(f"{url!r} has no usable port", field="base_url") from None
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise InputError(f"{url!r} is not an http address", field="base_url")
    return parts.hostname, port or {"http": 80, "https": 443}[parts.scheme]


_ADAPTERS = {
    "scripted": "acpbench.harness.scripted_adapter:ScriptedAdapter",
    "claude_code": "acpbench.harness.claude_code:ClaudeCodeAdapter",
    "codex": "acpbench.harness.codex:CodexAdapter",
    "opencode": "acpbench.harness.opencode:OpenCodeAdapter",
}
FAMILIES: Sequence[str] = tuple(_ADAPTERS)


def adapter_for(harness: str) -> Adapter:
    """The adapter of a family.

    Raises:
        InputError: there is none of that name.
    """
    if harness not in _ADAPTERS:
        raise InputError(f"unknown harness {harness!r}; known are {', '.join(_ADAPTERS)}", field="harness")
    module, _, name = _ADAPTERS[harness].partition(":")
    return getattr(importlib.import_module(module), name)()
