"""Rules of the end that the command-line families share: whose fault it was, and what is left to decide.

In this order: the child could not be started, the record is incomplete for want of disk, the agent had no
tools, the model's API refused, a limit fired, the tool server died, a signal, and only then what the stream
says. Whether an API refused is read from what the harness says about itself (result, error and notice
events), never from what the agent or a tool wrote.
"""

from __future__ import annotations

import re
import signal

from acpbench.harness.adapter import SERVER_NAME, Evidence, Status
from acpbench.harness.launch import Ending
from acpbench.trajectory.bounded import mapping
from acpbench.trajectory.status import stream_status
from acpbench.trajectory.typed import (
    AgentMessage,
    FileChange,
    Notice,
    Reasoning,
    SessionEvent,
    Terminal,
    ToolCall,
    ToolResult,
    TypedTrajectory,
    Unknown,
    UsageEvent,
)

INFRASTRUCTURE_CODES = {401, 402, 403, 404, 408, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
"""HTTP answers that say nothing about the agent: keys, quotas, rate limits, overload, a wrong address."""
_CODE = re.compile(r"(?<![\d.])([45]\d\d)(?![\d.])")
_UNREACHABLE = re.compile(
    r"econnrefused|econnreset|enotfound|etimedout|connection (refused|reset|error|closed)|fetch failed"
    r"|socket hang up|error sending request|stream disconnected|network error|unable to connect|getaddrinfo"
    r"|dns error|cannot connect|connection was closed",
    re.IGNORECASE,
)
_REFUSED_BY_API = re.compile(
    r"rate.?limit|too many requests|overloaded|authentication|unauthorized|invalid.api.key|billing|quota"
    r"|usage limit|insufficient.credit|server.?error|service unavailable|bad gateway|providerautherror",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context.?(length|window)|prompt is too long|maximum context|too many tokens", re.IGNORECASE
)
_POLICY = re.compile(r"content.?filter|content.?policy|usage polic|safety system|refusal", re.IGNORECASE)
_BUDGET_WORDS = {
    "output": "the harness wrote more output than its limit",
    "tokens": "the token limit ended the run",
    "cost": "the cost limit ended the run",
    "turns": "the limit of turns ended the run",
}


def api_failure(text: str) -> str | None:
    """The reason, in one line, when an error of the harness is the API's or the network's; else None.

    A context window that is too small for what the agent said is the agent's failure.
    """
    line = " ".join(text.split())
    if _CONTEXT.search(line):
        return None
    codes = [int(code) for code in _CODE.findall(line)]
    if any(code in INFRASTRUCTURE_CODES for code in codes):
        return line[:300]
    if codes:
        return None
    return line[:300] if _REFUSED_BY_API.search(line) or _UNREACHABLE.search(line) else None


def _api_text(event: object) -> str | None:
    """What an event says about the API, if it is of a kind that speaks for the harness."""
    if isinstance(event, Notice) and event.level in (
        "api_error",
        "api_retry",
        "error",
        "error_item",
        "rate_limit",
        "retry",
    ):
        return event.text or event.level
    if isinstance(event, Unknown) and event.raw_kind == "system/api_retry":
        raw = mapping(event.raw)
        # Without an answer (no status) the address was not reached.
        return f"api_retry {raw.get('error_status') or 'connection error'} {raw.get('error') or ''}"
    # Why a model refused is told in the model's own words.
    if isinstance(event, Terminal) and event.outcome == "error" and event.reason != "refusal":
        return f"{event.reason}: {event.detail}"
    return None


def ends_in_api_failure(typed: TypedTrajectory) -> str | None:
    """The API's refusal with which a trajectory ends: nothing but such errors after the agent's last act."""
    for event in reversed(typed.events):
        text = _api_text(event)
        failure = api_failure(text) if text is not None else None
        if failure is not None:
            return failure
        if isinstance(event, AgentMessage) and api_failure(event.text) and event.text.startswith("API Error"):
            continue  # the harness's own words, put in the agent's mouth
        if isinstance(event, (AgentMessage, Reasoning, ToolCall, ToolResult, FileChange)):
            return None
        if isinstance(event, Terminal) and event.outcome == "success":
            return None
        if isinstance(event, (Notice, UsageEvent, SessionEvent, Unknown, Terminal)):
            continue
    return None


def refusal(typed: TypedTrajectory) -> str | None:
    """The reason when the harness says that the model refused."""
    last = next((event for event in reversed(typed.events) if isinstance(event, Terminal)), None)
    if last is not None and last.outcome == "error" and _POLICY.search(f"{last.reason} {last.detail}"):
        return f"the model refused: {' '.join(last.detail.split())[:200] or last.reason}"
    return None


def no_tools(ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> str | None:
    """Why the agent had no tools, if it had none."""
    if any(isinstance(event, ToolCall) and event.server == SERVER_NAME for event in typed.events):
        return None
    first = next((event for event in typed.events if isinstance(event, SessionEvent) and event.tools), None)
    if first is not None:
        status = first.mcp_servers.get(SERVER_NAME, "missing")
        if not any(tool.startswith(f"mcp__{SERVER_NAME}__") for tool in first.tools):
            return f"the agent started without the benchmark's tools (tool server {status})"
        return None
    killed = ending.signal is not None and ending.watchdog is None
    if evidence.tools_listed == 0 and not killed:
        return "the harness never asked the tool server for its tools"
    return None


def before_the_stream(ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status | None:
    """What decides before the stream's own end is looked at; None when nothing does."""
    if ending.failed is not None:
        return Status("infra_error", f"the harness could not be started: {ending.failed}")
    if ending.disk_full or ending.lost_output:
        if evidence.own_bytes > evidence.disk_free_bytes / 2:
            return Status("agent_error", f"the agent filled the disk ({evidence.own_bytes} bytes of its own)")
        return Status("infra_error", "the disk was full")
    missing = no_tools(ending, typed, evidence)
    if missing is not None:
        return Status("infra_error", missing)
    refused = ends_in_api_failure(typed)
    if refused is not None and (ending.watchdog in ("wall", "idle", None) or ending.terminal_seen):
        when = {"wall": " until the wall limit", "idle": " until the idle limit"}.get(
            ending.watchdog or "", ""
        )
        return Status("infra_error", f"the model's API refused{when}: {refused}")
    if ending.watchdog in ("wall", "idle"):
        what = "wall" if ending.watchdog == "wall" else "idle"
        return Status("timeout", f"the {what} limit ended the run")
    if ending.watchdog in _BUDGET_WORDS:
        return Status("budget", _BUDGET_WORDS[ending.watchdog])
    if evidence.tools_died is not None and not evidence.calls_after_death:
        return Status("infra_error", f"the tool server {evidence.tools_died} during the run")
    if ending.signal is not None and ending.watchdog != "post_result":
        name = (
            signal.Signals(ending.signal).name if ending.signal in set(signal.Signals) else str(ending.signal)
        )
        return Status("killed", f"the harness died by {name}")
    return None


def by_the_stream(ending: Ending, typed: TypedTrajectory) -> Status:
    """The stream's own end, weighed against the exit code."""
    refused = refusal(typed)
    if refused is not None:
        return Status("refused", refused)
    run_status, reason = stream_status(typed)
    return with_exit(ending, Status(run_status, reason))


def with_exit(ending: Ending, status: Status) -> Status:
    """A success that the exit code contradicts is none; an exit code explains a missing end."""
    if ending.watchdog == "post_result":
        return Status(status.run_status, f"{status.reason}; it did not exit by itself and was ended")
    if ending.exit_code in (0, None):
        return status
    if status.run_status == "completed":
        return Status("agent_error", f"exit code {ending.exit_code} after {status.reason}")
    if status.run_status == "incomplete_stream":
        return Status("agent_error", f"exit code {ending.exit_code}: {status.reason}")
    return status
