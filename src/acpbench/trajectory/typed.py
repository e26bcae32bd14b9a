"""One typed trajectory for every harness: one model per event kind, totals by the family's own rule.

Events keep the order of the source. ``line`` is the 1-based line (or the index of the entry, for sources that
are one document) that an event comes from. What a parser cannot name is an ``unknown`` event with its raw
content, bounded; a line that holds no event is one with the raw kind ``malformed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from acpbench.trajectory.jsonl import Line

HarnessName = Literal["claude_code", "codex", "opencode", "scripted", "atif", "inspect"]
MALFORMED = "malformed"


class _Event(BaseModel):
    """Common fields. ``t``: ISO 8601 UTC with microseconds; ``agent``: a sub-agent (None: the main one)."""

    model_config = ConfigDict(extra="forbid")
    seq: int
    t: str | None = None
    line: int | None = None
    agent: str | None = None


class SessionEvent(_Event):
    """The start of a session, as far as the source tells. ``mcp_servers``: name → status."""

    kind: Literal["session"] = "session"
    session_id: str | None = None
    model: str | None = None
    harness_version: str | None = None
    cwd: str | None = None
    tools: list[str] = []
    mcp_servers: dict[str, str] = {}


class UserMessage(_Event):
    """What the agent was told: the task, or a further turn."""

    kind: Literal["user_message"] = "user_message"
    text: str


class AgentMessage(_Event):
    """What the agent said."""

    kind: Literal["agent_message"] = "agent_message"
    message_id: str | None = None
    text: str


class Reasoning(_Event):
    """Reasoning that the source shows; encrypted or omitted reasoning has empty text."""

    kind: Literal["reasoning"] = "reasoning"
    message_id: str | None = None
    text: str


class ToolCall(_Event):
    """A tool was asked for. ``name`` is bare; ``server`` is the MCP server it belongs to (None: built in)."""

    kind: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: dict[str, Any] = {}
    server: str | None = None
    message_id: str | None = None


class ToolResult(_Event):
    """What a call gave back. ``structured`` is the machine-readable part, where the source has one."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    content: str
    is_error: bool = False
    structured: dict[str, Any] | None = None


class Totals(BaseModel):
    """Tokens. ``input_tokens`` counts all input, cached too; None where the source does not say."""

    model_config = ConfigDict(extra="forbid")
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None

    def known(self) -> dict[str, int]:
        """The numbers that are known."""
        return self.model_dump(
            include={"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}, exclude_none=True
        )


class UsageEvent(_Event, Totals):
    """Tokens of one message or step, or (``cumulative``) of the session so far."""

    kind: Literal["usage"] = "usage"
    message_id: str | None = None
    cumulative: bool = False
    cost_usd: float | None = None


class FileChange(_Event):
    """A file that the harness reports as changed (``change``: add, update, delete, or its own word)."""

    kind: Literal["file_change"] = "file_change"
    path: str
    change: str
    is_error: bool = False


class TodoList(_Event):
    """The agent's list of things to do. ``call_id``: the tool call that set it, where one did."""

    kind: Literal["todo"] = "todo"
    items: list[dict[str, Any]]
    call_id: str | None = None


class Notice(_Event):
    """What the harness says about itself: API errors, rate limits, retries, hooks, printed text."""

    kind: Literal["notice"] = "notice"
    level: str
    text: str


class Terminal(_Event):
    """The end of a turn or run, as the harness reports it. ``is_error`` is the harness's own flag."""

    kind: Literal["terminal"] = "terminal"
    outcome: Literal["success", "error"]
    reason: str
    is_error: bool = False
    detail: str = ""


class Unknown(_Event):
    """What no parser here has a name for, raw and bounded."""

    kind: Literal["unknown"] = "unknown"
    raw_kind: str
    raw: Any = None


Event = Annotated[
    SessionEvent
    | UserMessage
    | AgentMessage
    | Reasoning
    | ToolCall
    | ToolResult
    | UsageEvent
    | FileChange
    | TodoList
    | Notice
    | Terminal
    | Unknown,
    Field(discriminator="kind"),
]


class Counts(BaseModel):
    """What a source held. Each entry gave an event, or was folded into another, or is malformed.

    ``lines``: entries that are not blank (lines, or list entries of a document). ``events``: kind → events.
    ``unknown``: raw kind → entries or blocks without a name. ``malformed``: entries that hold no readable
    event. ``folded``: raw kind → entries whose content another event carries (duplicates, bookkeeping).
    ``shortened``: texts and values cut to their limit. ``dropped``: events beyond the number kept.
    """

    model_config = ConfigDict(extra="forbid")
    lines: int = 0
    events: dict[str, int] = {}
    unknown: dict[str, int] = {}
    malformed: int = 0
    folded: dict[str, int] = {}
    shortened: int = 0
    dropped: int = 0

    @property
    def kept(self) -> int:
        """Events that have a name."""
        return sum(self.events.values()) - self.events.get("unknown", 0)

    @property
    def unnamed(self) -> int:
        """Entries and blocks without a name, malformed ones apart."""
        return sum(self.unknown.values())


class TypedTrajectory(BaseModel):
    """A trajectory of any harness. Totals and cost are None where the source does not say, never 0.

    ``evidence`` holds what the source shows about how the run ended beside terminal events (see
    :mod:`acpbench.trajectory.status`).
    """

    model_config = ConfigDict(extra="forbid")
    source_format: str
    harness: HarnessName
    agent_name: str | None = None
    harness_version: str | None = None
    model: str | None = None
    session_id: str | None = None
    events: list[Event] = []
    totals: Totals | None = None
    cost_usd: float | None = None
    cost_source: str | None = None
    counts: Counts = Field(default_factory=Counts)
    problems: list[str] = []
    evidence: dict[str, Any] = {}

    @property
    def times(self) -> tuple[str, str] | None:
        """First and last time of its events, None when no event has one."""
        known = [event.t for event in self.events if event.t is not None]
        return (min(known), max(known)) if known else None


STREAM_FORMATS = (
    "claude_code_stream",
    "claude_code_session",
    "codex_exec",
    "codex_rollout",
    "opencode_run",
    "scripted_stream",
)
"""Formats of one JSON object a line, for :func:`parse`."""
DOCUMENT_FORMATS = ("opencode_export", "atif", "inspect_eval")
"""Formats that are one document."""


def parse(
    source_format: str,
    lines: Iterable[bytes | Line],
    times: Sequence[float | None] | None = None,
) -> TypedTrajectory:
    """The typed trajectory of a stream; nothing raises on what its lines hold.

    Args:
        source_format: one of :data:`STREAM_FORMATS`.
        lines: lines as bytes, or as :func:`acpbench.trajectory.jsonl.read_lines` gives them.
        times: receipt time of each line in Unix seconds, blank lines counted; they come before times that the
            lines themselves give.

    Raises:
        ValueError: no such format.
    """
    from acpbench.trajectory.parsing import parse_sources

    return parse_sources(source_format, [lines], times)


def to_atif(
    typed: TypedTrajectory, *, session_id: str | None = None, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The trajectory as an ATIF document (see :func:`acpbench.trajectory.atif.to_atif`)."""
    from acpbench.trajectory import atif

    return atif.to_atif(typed, session_id=session_id, extra=extra)


def from_atif(document: Any) -> TypedTrajectory:
    """The trajectory of an ATIF document, 1.5 to 1.8 (see :mod:`acpbench.trajectory.atif_reader`)."""
    from acpbench.trajectory import atif_reader

    return atif_reader.from_atif(document)
