"""Writer for the Agent Trajectory Interchange Format (ATIF v1.7), the normalised record of a run.

Rules kept here (from the format's specification): step ids run from 1 without gaps; agent-only fields
appear on agent steps only; every observation points at a tool call of the same step.
"""

from __future__ import annotations

from typing import Any

SCHEMA_VERSION = "ATIF-v1.7"


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

    def message(self, source: str, text: str, timestamp: str | None) -> None:
        """Add a message of ``system``, ``user`` or ``agent``."""
        self._add(source, text, timestamp)

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
        call_id = f"call_{len(self._steps) + 1}"
        step = self._add("agent", "", timestamp)
        call: dict[str, Any] = {
            "tool_call_id": call_id,
            "function_name": function,
            "arguments": arguments,
        }
        if extra:
            call["extra"] = extra
        step["tool_calls"] = [call]
        step["observation"] = {"results": [{"source_call_id": call_id, "content": observation}]}

    def _add(self, source: str, text: str, timestamp: str | None) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": len(self._steps) + 1, "source": source, "message": text}
        if timestamp:
            step["timestamp"] = timestamp
        self._steps.append(step)
        return step

    def document(self, *, extra: dict[str, Any] | None = None) -> dict[str, Any]:
        """The ATIF document. A run that never spoke gets one system step saying so: the format needs one."""
        steps = self._steps or [
            {"step_id": 1, "source": "system", "message": "The harness produced no event."}
        ]
        return self._head | {
            "steps": steps,
            "final_metrics": {"total_steps": len(steps)},
            "extra": extra or {},
        }
