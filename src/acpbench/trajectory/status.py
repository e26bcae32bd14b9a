"""How a run ended, as far as its own record shows: ``run_status`` and the one line that says why.

A harness adapter knows more (exit code, signal, watchdogs); an import knows this alone. Without an end
record, and without the evidence that stands for one in a family that writes none, a run is
``incomplete_stream``.
"""

from __future__ import annotations

from acpbench.trajectory.record import RunStatus
from acpbench.trajectory.typed import Terminal, TypedTrajectory

Status = tuple[RunStatus, str]
_BUDGET = ("error_max_turns", "error_max_budget")
_INSPECT_LIMITS: dict[str, RunStatus] = {
    "time": "timeout",
    "working": "timeout",
    "message": "budget",
    "turn": "budget",
    "token": "budget",
    "cost": "budget",
    "operator": "killed",
}


def stream_status(typed: TypedTrajectory) -> Status:
    """``run_status`` and its reason, by the rules of the family."""
    terminals = [event for event in typed.events if isinstance(event, Terminal) and event.agent is None]
    if terminals:
        return _by_terminal(typed, terminals[-1])
    rules = {
        "claude_code_session": _claude_session,
        "codex_rollout": _codex_rollout,
        "opencode_run": _opencode_run,
        "opencode_export": _opencode_export,
        "inspect_eval": _inspect,
        "atif": _atif,
    }
    rule = rules.get(typed.source_format)
    return rule(typed) if rule else ("incomplete_stream", "the stream has no terminal event")


def _by_terminal(typed: TypedTrajectory, last: Terminal) -> Status:
    if typed.evidence.get("active_after_terminal"):
        return "incomplete_stream", f"the agent went on after its last terminal event ({last.reason})"
    detail = f": {' '.join(last.detail.split())[:200]}" if last.detail and last.outcome == "error" else ""
    if last.outcome == "success" and not last.is_error:
        return "completed", f"terminal event {last.reason}"
    if last.reason == "refusal":
        return "refused", f"the model refused{detail}"
    if last.reason.startswith(_BUDGET):
        return "budget", f"terminal event {last.reason}{detail}"
    return "agent_error", f"terminal event {last.reason}{detail}"


def _claude_session(typed: TypedTrajectory) -> Status:
    """A session file never holds a result: its last message must end the turn, with no call open."""
    found = typed.evidence
    if found.get("pending_calls"):
        return "incomplete_stream", f"no end record; {found['pending_calls']} calls have no result"
    if found.get("last_speaker") != "assistant":
        return (
            "incomplete_stream",
            f"no end record; the last turn is the {found.get('last_speaker') or 'user'}'s",
        )
    if found.get("stop_reason") in ("end_turn", "stop_sequence"):
        return "completed", f"no end record; the last message ends its turn ({found['stop_reason']})"
    if found.get("stop_reason") == "refusal":
        return "refused", "no end record; the last message is a refusal"
    return "incomplete_stream", "no end record; the last message does not say that it ends its turn"


def _codex_rollout(typed: TypedTrajectory) -> Status:
    """Versions that write task events must end with one; older ones end with an answer and no open call."""
    found = typed.evidence
    if found.get("writes_task_events"):
        return "incomplete_stream", "the last task has no task_complete"
    if found.get("pending_calls"):
        return "incomplete_stream", f"no end record; {found['pending_calls']} calls have no output"
    if found.get("last_speaker") == "assistant":
        return "completed", "this version writes no end record; the last item is the agent's answer"
    return "incomplete_stream", f"no end record; the last item is the {found.get('last_speaker') or 'user'}'s"


def _opencode_run(typed: TypedTrajectory) -> Status:
    """The stream never holds an end record; a step closed with ``stop`` and no tool call stands for one."""
    found = typed.evidence
    if found.get("error_after_last_step"):
        return (
            "agent_error",
            f"no end record; error after the last step: {found['error_after_last_step'][:200]}",
        )
    if not found.get("steps_finished") or found.get("step_open"):
        return "incomplete_stream", "no end record; the last step is open"
    return _opencode_finish(found.get("last_finish"), found.get("last_step_tools") or 0)


def _opencode_finish(finish: str | None, tools: int) -> Status:
    if finish == "stop" and not tools:
        return "completed", "no end record; the last step finished (stop) without a tool call or error"
    if finish == "length":
        return "agent_error", "no end record; the last step was cut at its output limit (length)"
    if finish == "content-filter":
        return "refused", "no end record; the last step was stopped by a content filter"
    return "incomplete_stream", f"no end record; the last step finished with {finish or 'no reason'}" + (
        f" and {tools} tool calls" if tools else ""
    )


def _opencode_export(typed: TypedTrajectory) -> Status:
    found = typed.evidence
    if found.get("error_after_last_step"):
        return "agent_error", f"the last message has an error: {found['error_after_last_step'][:200]}"
    if found.get("last_role") != "assistant" or not found.get("completed"):
        return "incomplete_stream", "the last message is not a completed one of the agent"
    return _opencode_finish(found.get("last_finish"), 0)


def _inspect(typed: TypedTrajectory) -> Status:
    found = typed.evidence
    if found.get("error"):
        return "infra_error", f"the sample ended with an error: {str(found['error'])[:200]}"
    if found.get("limit"):
        limit = str(found["limit"])
        return _INSPECT_LIMITS.get(limit, "agent_error"), f"the sample reached its {limit} limit"
    if found.get("stop_reason") == "content_filter":
        return "refused", "the last answer was stopped by a content filter"
    if found.get("log_status") in ("started", "cancelled") and not found.get("sample_complete"):
        return "incomplete_stream", f"the log is {found['log_status']} and the sample has no result"
    if not found.get("n_acts") and not found.get("sample_complete"):
        return "incomplete_stream", "the sample holds no act of an agent and no result"
    return "completed", "the sample was written with its result and without an error"


def _atif(typed: TypedTrajectory) -> Status:
    return "incomplete_stream", "ATIF holds no end record"
