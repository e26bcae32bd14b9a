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
from acpbench.harness.policy_agent import EVENT_LOG, PolicyAgent
from acpbench.trajectory.record import iso_time


class ScriptedAgent(PolicyAgent):
    """Hands of the scripted harness: it does each deed itself, and says so on the stream."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self.workspace = workspace
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

    def write(self, path: str, text: str) -> None:
        """Write a workspace file."""
        write_text(inside(self.workspace, path), text)
        self.emit("write", path=path, outcome=f"{len(text)} characters")

    def skill_files(self) -> list[str]:
        """Skills in the workspace."""
        found = (self.workspace / "skills").glob("*/SKILL.md")
        return sorted(path.relative_to(self.workspace).as_posix() for path in found)

    def call(self, tool: str, args: dict[str, Any], step: str, round_id: int) -> dict[str, Any]:
        """Call one tool and say what came of it."""
        answer = self._ask({"tool": tool, "args": args, "step_id": step, "round_id": round_id})
        self.emit(
            "tool",
            tool=tool,
            args=args,
            round_id=round_id,
            exit_status=answer["exit_status"],
            outcome=answer["error"] or json.dumps(answer["result"])[:2000],
        )
        return answer

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

    def keep_log(self, text: str) -> None:
        """The agent's own log: no event of the stream."""
        write_text(self.workspace / EVENT_LOG, text)

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
