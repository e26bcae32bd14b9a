"""Writer for the Agent Trajectory Interchange Format (ATIF v1.7), the normalised record of a run.

Rules kept here (from the format's specification): step ids run from 1 without gaps; agent-only fields
appear on agent steps only; call ids are unique; every observation of a call stands in the call's own step.
What the format has no field for (how a call ended, its server, notices, the end of the run) is under
``extra``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from acpbench.trajectory.typed import (
    AgentMessage,
    FileChange,
    Reasoning,
    ToolCall,
    ToolResult,
    TypedTrajectory,
    UsageEvent,
    UserMessage,
)

SCHEMA_VERSION = "ATIF-v1.7"
NAMESPACE = "acpbench"
"""Key under ``extra`` for what is not the format's own."""
FILE_CHANGE = "file_change"
_NO_EVENT = "The harness produced no event."


class AtifBuilder:
    """Collect steps in order, then :meth:`document`."""

    def __init__(self, *, session_id: str, agent_name: str, agent_version: str, model: str | None) -> None:
        self._head = {
            "schema_version": SCHEMA_VERSION,
            "session_id": session_id,
            "agent": {"name": agent_name, "version": agent_version}
            | ({"model_name": model} if model else {}),
        }
        self._steps: list[dict[str, Any]] = []
        self._call_ids: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def message(
        self, source: str, text: str, timestamp: str | None, *, extra: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Add a message of ``system``, ``user`` or ``agent``; returns the step."""
        step: dict[str, Any] = {"step_id": len(self._steps) + 1, "source": source, "message": text}
        if timestamp:
            step["timestamp"] = timestamp
        if extra:
            step["extra"] = extra
        self._steps.append(step)
        return step

    def call(
        self,
        function: str,
        arguments: dict[str, Any],
        observation: str,
        timestamp: str | None,
        *,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Add an agent step with one tool call and what came back."""
        step = self.message("agent", "", timestamp)
        call_id = self.add_call(step, f"call_{len(self._steps)}", function, arguments, extra=extra)
        self.observe(step, call_id, observation)

    def add_call(
        self,
        step: dict[str, Any],
        call_id: str,
        function: str,
        arguments: dict[str, Any],
        *,
        extra: dict[str, Any] | None = None,
    ) -> str:
        """Add a call to an agent step; returns its id, made unique in the document."""
        unique = call_id
        while not unique or unique in self._call_ids:
            self._repeats[call_id] += 1
            unique = f"{call_id or 'call'}#{self._repeats[call_id] + 1}"
        self._call_ids.add(unique)
        call: dict[str, Any] = {
            "tool_call_id": unique,
            "function_name": function or "(no name)",
            "arguments": arguments,
        }
        if extra:
            call["extra"] = extra
        step.setdefault("tool_calls", []).append(call)
        return unique

    def observe(
        self,
        step: dict[str, Any],
        call_id: str | None,
        content: str,
        *,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Add a result to the step that holds its call (None: a result that answers no call)."""
        result: dict[str, Any] = {} if call_id is None else {"source_call_id": call_id}
        result["content"] = content
        if extra:
            result["extra"] = extra
        step.setdefault("observation", {"results": []})["results"].append(result)

    def document(
        self, *, extra: dict[str, Any] | None = None, metrics: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The ATIF document. A run that never spoke gets one system step saying so: the format needs one."""
        steps = self._steps or [{"step_id": 1, "source": "system", "message": _NO_EVENT}]
        return self._head | {
            "steps": steps,
            "final_metrics": (metrics or {}) | {"total_steps": len(steps)},
            "extra": extra or {},
        }


class _Exporter:
    """Groups typed events into steps: what an agent says and asks for until something answers is one step."""

    def __init__(self, builder: AtifBuilder, events: Sequence[Any]) -> None:
        self.builder = builder
        # A result may be written down before its call: it waits for it.
        self.to_come = Counter(event.call_id for event in events if isinstance(event, ToolCall))
        self.early: dict[str, deque[ToolResult]] = {}
        self.current: dict[str, Any] | None = None
        self.key: tuple[str | None, str | None] = (None, None)
        self.waiting: dict[str, deque[tuple[dict[str, Any], dict[str, Any]]]] = {}
        self.answered: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.metered: dict[tuple[str | None, str | None], dict[str, Any]] = {}

    def _agent_step(self, event: Any, message_id: str | None) -> dict[str, Any]:
        """The open agent step of this message, or a new one."""
        step, key = self.current, (event.agent, message_id)
        if step is None or key != self.key or "observation" in step:
            step = self.builder.message("agent", "", event.t, extra=_marks(event))
            self.current, self.key = step, key
        return step

    def add(self, event: Any) -> None:
        if isinstance(event, AgentMessage):
            step = self._agent_step(event, event.message_id)
            if step["message"] or "tool_calls" in step:
                self.current = None
                step = self._agent_step(event, event.message_id)
            step["message"] = event.text
        elif isinstance(event, Reasoning):
            step = self._agent_step(event, event.message_id)
            if step["message"] or "tool_calls" in step or "reasoning_content" in step:
                self.current = None
                step = self._agent_step(event, event.message_id)
            step["reasoning_content"] = event.text
        elif isinstance(event, ToolCall):
            self._call(event)
        elif isinstance(event, ToolResult):
            self._result(event)
        elif isinstance(event, FileChange):
            self.current = None
            step = self.builder.message("agent", "", event.t, extra=_marks(event))
            status = "error" if event.is_error else "ok"
            self.builder.add_call(
                step,
                f"file_change_{event.seq}",
                FILE_CHANGE,
                {"path": event.path, "change": event.change},
                extra={"exit_status": status},
            )
        elif isinstance(event, UsageEvent) and self._metrics(event):
            pass
        elif isinstance(event, UserMessage):
            self.current = None
            self.builder.message("user", event.text, event.t, extra=_marks(event))
        else:
            self._other(event)

    def _call(self, event: ToolCall) -> None:
        step = self._agent_step(event, event.message_id)
        extra: dict[str, Any] = {"t": event.t} if event.t else {}
        if event.server:
            extra["server"] = event.server
        given = {name: event.arguments.get(name) for name in ("step_id", "round_id")}
        extra |= {name: value for name, value in given.items() if value is not None}
        unique = self.builder.add_call(step, event.call_id, event.name, event.arguments, extra=extra)
        call = next(call for call in reversed(step["tool_calls"]) if call["tool_call_id"] == unique)
        self.waiting.setdefault(event.call_id, deque()).append((step, call))
        self.to_come[event.call_id] -= 1
        if self.early.get(event.call_id):
            self._result(self.early[event.call_id].popleft())

    def _result(self, event: ToolResult) -> None:
        waiting = self.waiting.get(event.call_id)
        if waiting:
            self.answered[event.call_id] = waiting.popleft()
        pair = self.answered.get(event.call_id)
        if pair is None and self.to_come[event.call_id] > len(self.early.get(event.call_id, ())):
            self.early.setdefault(event.call_id, deque()).append(event)
            return
        extra: dict[str, Any] = {"is_error": event.is_error} | ({"t": event.t} if event.t else {})
        if event.structured:
            extra["structured"] = event.structured
        if pair is None:
            self.current = None
            marks = _marks(event) or {NAMESPACE: {}}
            marks[NAMESPACE] |= {"call_id": event.call_id, "is_error": event.is_error}
            step = self.builder.message("system", "A result that answers no call.", event.t, extra=marks)
            self.builder.observe(step, None, event.content, extra=extra)
            return
        step, call = pair
        self.builder.observe(step, call["tool_call_id"], event.content, extra=extra)
        marks = call.setdefault("extra", {})
        marks["exit_status"] = "error" if event.is_error else "ok"
        if event.t:
            marks["t_end"] = event.t

    def _metrics(self, event: UsageEvent) -> bool:
        """Usage of one message becomes the metrics of its step, while that is the last one.

        A message may be shown in several steps, its usage repeated with each: only the last step has it, so
        that the sum over steps counts a message once.
        """
        step, owner = self.current, (event.agent, event.message_id)
        if event.cumulative or step is None or event.agent != self.key[0]:
            return False
        if event.message_id is None:
            if "observation" in step:
                return False
        elif owner != self.key:
            return False
        elif owner in self.metered:
            self.metered[owner].pop("metrics", None)
        self.metered[owner] = step
        step["metrics"] = _metric_fields(event, event.cost_usd)
        return True

    def _other(self, event: Any) -> None:
        """Events that the format has no place for: a system step that carries the event whole."""
        self.current = None
        body = event.model_dump(exclude={"seq"}, exclude_none=True)
        text = getattr(event, "text", "") or getattr(event, "detail", "")
        self.builder.message(
            "system", f"[{event.kind}] {text}".strip(), event.t, extra={NAMESPACE: {"event": body}}
        )


def _marks(event: Any) -> dict[str, Any] | None:
    """Where an event comes from, under the project's own name."""
    marks = {"line": event.line, "agent": event.agent, "message_id": getattr(event, "message_id", None)}
    known = {key: value for key, value in marks.items() if value is not None}
    return {NAMESPACE: known} if known else None


def _metric_fields(used: Any, cost_usd: float | None) -> dict[str, Any]:
    fields = {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "cost_usd": cost_usd,
    }
    found: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    if used.reasoning_tokens is not None:
        found["extra"] = {"reasoning_tokens": used.reasoning_tokens}
    return found


def to_atif(
    typed: TypedTrajectory, *, session_id: str | None = None, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The ATIF document of a typed trajectory.

    Args:
        session_id: identity of the run; the trajectory's own session when None.
        extra: more fields for the document's ``extra``.

    Returns:
        A document that keeps the format's rules. Each call's ``extra`` has ``exit_status`` (``ok``,
        ``error``; absent when no result was seen), ``server``, ``step_id``, ``round_id``, ``t`` and
        ``t_end``.
    """
    builder = AtifBuilder(
        session_id=session_id or typed.session_id or "unknown",
        agent_name=typed.agent_name or typed.harness,
        agent_version=typed.harness_version or "unknown",
        model=typed.model,
    )
    exporter = _Exporter(builder, typed.events)
    for event in typed.events:
        exporter.add(event)
    totals = typed.totals
    metrics = {} if totals is None else _metric_fields(totals, None)
    if typed.cost_usd is not None:
        metrics["cost_usd"] = typed.cost_usd
    final = {f"total_{key}" if key != "extra" else key: value for key, value in metrics.items()}
    own = {
        "source_format": typed.source_format,
        "harness": typed.harness,
        "session_id": typed.session_id,
        "cost_source": typed.cost_source,
        "counts": typed.counts.model_dump(),
        "problems": typed.problems,
        "evidence": typed.evidence,
    }
    given = dict(extra or {})
    own |= given.pop(NAMESPACE, {})
    return builder.document(extra=given | {NAMESPACE: own}, metrics=final)
