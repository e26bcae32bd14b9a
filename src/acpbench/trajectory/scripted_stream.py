"""The scripted harness's stream: ``message``, ``read``, ``write``, ``command``, ``tool``, ``result``."""

from __future__ import annotations

from typing import Any

from acpbench.trajectory.bounded import mapping, words
from acpbench.trajectory.parsing import Collector
from acpbench.trajectory.typed import AgentMessage, SessionEvent, Terminal, ToolCall, ToolResult

REGISTRY_SERVER = "acp"
_FUNCTIONS = {"read": "read_file", "write": "write_file", "command": "run_command"}


class ScriptedStream:
    """One JSON object a line; each action with its outcome."""

    def __init__(self, collector: Collector) -> None:
        self.out = collector
        self.calls = 0

    def feed(self, row: dict[str, Any]) -> None:
        """Add the events of one line."""
        kind = row.get("type")
        # A line is received up to some ms after it was written, when the tool after it may have begun.
        self.out.at(row.get("t"), trusted=True)
        if kind == "message":
            self.out.add(AgentMessage, text=self.out.text(row.get("text")))
        elif kind in _FUNCTIONS:
            arguments = {key: row[key] for key in ("path", "command") if key in row}
            self._call(_FUNCTIONS[kind], arguments, None, row, "ok")
        elif kind == "tool":
            arguments = dict(mapping(row.get("args")))
            arguments |= {key: row[key] for key in ("step_id", "round_id") if row.get(key) is not None}
            self._call(row.get("tool"), arguments, REGISTRY_SERVER, row, row.get("exit_status"))
        elif kind == "session":
            self.out.typed.session_id = words(row.get("session_id"))
            self.out.typed.model = words(row.get("model"))
            self.out.add(SessionEvent, session_id=words(row.get("session_id")), model=words(row.get("model")))
        elif kind == "result":
            outcome = self.out.text(row.get("outcome") or "finished", 200)
            self.out.add(
                Terminal,
                outcome="success" if outcome == "finished" else "error",
                reason=outcome,
                is_error=outcome != "finished",
            )
        else:
            self.out.unknown(kind if isinstance(kind, str) else "(no type)", row)

    def _call(
        self, name: Any, arguments: dict[str, Any], server: str | None, row: dict[str, Any], status: Any
    ) -> None:
        self.calls += 1
        call_id = f"call_{self.calls}"
        self.out.add(
            ToolCall,
            call_id=call_id,
            name=self.out.text(name or "(no name)", 300),
            arguments=self.out.bounds.mapping(arguments),
            server=server,
        )
        self.out.add(
            ToolResult,
            call_id=call_id,
            content=self.out.text(row.get("outcome")),
            is_error=status not in ("ok", None),
        )

    def finish(self) -> None:
        """The harness calls no model: there are no tokens, and it costs nothing."""
        self.out.total(None, 0.0, "built-in harness: no model is called")
