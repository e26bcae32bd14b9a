"""What a scripted policy is played on: hands that read, write, call tools and speak.

The same policy functions (:mod:`acpbench.harness.policies`) drive two kinds of hands: those of the built-in
harness (:mod:`acpbench.harness.scripted`), and those of a model behind a real command line
(:mod:`acpbench.harness.scripted_model`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

EVENT_LOG = "logs/events.jsonl"


class ToolError(RuntimeError):
    """A tool call that the registry answered with an error."""


class PolicyAgent(ABC):
    """Paths are relative to the workspace. A subclass says how each deed is done."""

    def __init__(self) -> None:
        self.log_rows: list[dict[str, Any]] = []

    @abstractmethod
    def say(self, text: str) -> None:
        """One message."""

    @abstractmethod
    def read(self, path: str) -> str:
        """Read a workspace file, whole."""

    @abstractmethod
    def write(self, path: str, text: str) -> None:
        """Write a workspace file."""

    @abstractmethod
    def skill_files(self) -> list[str]:
        """Paths of the skills that the workspace holds, sorted."""

    @abstractmethod
    def call(self, tool: str, args: dict[str, Any], step: str, round_id: int) -> dict[str, Any]:
        """Put one call to the registry; its answer: ``exit_status``, ``error``, ``result``."""

    @abstractmethod
    def keep_log(self, text: str) -> None:
        """Write the agent's own log of what it did (a claim; the registry keeps the witnessed one)."""

    @abstractmethod
    def die(self) -> None:
        """End at once, as a crashed process does."""

    def look(self, path: str) -> None:
        """Read a workspace file for guidance; a part of a long one is enough."""
        self.read(path)

    def read_json(self, path: str) -> Any:
        """Read a workspace JSON file."""
        return json.loads(self.read(path))

    def write_json(self, path: str, value: Any) -> None:
        """Write a workspace JSON file."""
        self.write(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def tool(self, tool: str, args: dict[str, Any], *, step: str, round_id: int) -> dict[str, Any]:
        """Call one tool; returns its result. Raises :class:`ToolError` with the tool's own message."""
        answer = self.call(tool, args, step, round_id)
        self.log_rows.append(
            {
                "seq": len(self.log_rows) + 1,
                "round": round_id,
                "step": step,
                "tool": tool,
                "args": args,
                "exit": answer["exit_status"],
                "error": answer["error"],
            }
        )
        self.keep_log("".join(json.dumps(row) + "\n" for row in self.log_rows))
        if answer["exit_status"] != "ok":
            raise ToolError(answer["error"])
        return answer["result"]
