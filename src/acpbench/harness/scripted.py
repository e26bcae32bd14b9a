"""The built-in, model-free harness: it does the work through the tool registry, by a named policy.

It runs as a child process in a workspace like any other harness, writes its stream to standard output and
calls tools through ``acp-bench tool serve``. It exists to test the benchmark with known behaviour; it is not
a model and its scores say nothing about one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from acpbench.core.files import inside, read_text, write_text
from acpbench.trajectory.record import iso_time


class ToolError(RuntimeError):
    """A tool call that the registry answered with an error."""


class ScriptedAgent:
    """Hands of the scripted harness: read, write, call tools, and say so on the stream."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.log_rows: list[dict[str, Any]] = []
        self._server: subprocess.Popen[str] | None = None

    def emit(self, kind: str, **fields: Any) -> None:
        """One stream event."""
        print(json.dumps({"type": kind, "t": iso_time(time.time()), **fields}), flush=True)

    def say(self, text: str) -> None:
        """One message."""
        self.emit("message", text=text)

    def read(self, path: str) -> str:
        """Read a workspace file."""
        text = read_text(inside(self.workspace, path))
        self.emit("read", path=path, outcome=f"{len(text)} characters")
        return text

    def read_json(self, path: str) -> Any:
        """Read a workspace JSON file."""
        return json.loads(self.read(path))

    def write(self, path: str, text: str) -> None:
        """Write a workspace file."""
        write_text(inside(self.workspace, path), text)
        self.emit("write", path=path, outcome=f"{len(text)} characters")

    def write_json(self, path: str, value: Any) -> None:
        """Write a workspace JSON file."""
        self.write(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def tool(self, tool: str, args: dict[str, Any], *, step: str, round_id: int) -> dict[str, Any]:
        """Call one tool; returns its result. Raises :class:`ToolError` with the tool's own message."""
        answer = self._ask({"tool": tool, "args": args, "step_id": step, "round_id": round_id})
        self.emit(
            "tool",
            tool=tool,
            args=args,
            round_id=round_id,
            exit_status=answer["exit_status"],
            outcome=answer["error"] or json.dumps(answer["result"])[:2000],
        )
        self.log(round_id, step, tool, args, answer["exit_status"], answer["error"])
        if answer["exit_status"] != "ok":
            raise ToolError(answer["error"])
        return answer["result"]

    def _ask(self, call: dict[str, Any]) -> dict[str, Any]:
        """Put one call to the tool server (started on first use) and wait for its answer."""
        if self._server is None:
            self._server = subprocess.Popen(
                ["acp-bench", "tool", "serve"],
                cwd=self.workspace,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._server.stdin is not None and self._server.stdout is not None
        try:
            self._server.stdin.write(json.dumps(call) + "\n")
            self._server.stdin.flush()
            return json.loads(self._server.stdout.readline())
        except (OSError, ValueError):
            return {"exit_status": "error", "error": "the tool server is gone", "result": {}}

    def log(
        self, round_id: int, step: str, tool: str, args: dict[str, Any], exit_status: str, error: str | None
    ) -> None:
        """The agent's own log of what it did (a claim; the registry keeps the witnessed one)."""
        self.log_rows.append(
            {
                "seq": len(self.log_rows) + 1,
                "round": round_id,
                "step": step,
                "tool": tool,
                "args": args,
                "exit": exit_status,
                "error": error,
            }
        )
        write_text(
            self.workspace / "logs" / "events.jsonl", "".join(json.dumps(row) + "\n" for row in self.log_rows)
        )

    def die(self) -> None:
        """End at once, as a crashed process does."""
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Entry point of the child process."""
    from acpbench.harness.policies import POLICIES

    parser = argparse.ArgumentParser(description="scripted harness")
    parser.add_argument("--policy", choices=sorted(POLICIES), required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    agent = ScriptedAgent(Path.cwd())
    POLICIES[arguments.policy](agent, arguments.encoder, arguments.seed)
    agent.emit("result", outcome="finished")
