"""The built-in scripted harness as an adapter: a Python child that plays a named policy."""

from __future__ import annotations

import sys

from acpbench.core.groups import ScriptedGroup
from acpbench.harness.adapter import Adapter, Capabilities, Evidence, Run, Status
from acpbench.harness.decisions import before_the_stream
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.meters import Meter
from acpbench.trajectory.typed import Terminal, TypedTrajectory


class ScriptedAdapter(Adapter):
    """Calls no model, so it has no endpoint, no key, no limit but time; its tools run in its own process."""

    name = "scripted"
    meter = Meter
    capabilities = Capabilities(
        mcp=False,
        skills_folder=None,
        cost_reported=True,
        usage="none",
        live_usage=False,
        end_record=True,
        lists_tools=False,
        stream_format="scripted_stream",
        sandbox=False,
    )

    def prepare(self, run: Run) -> Launch:
        """The child process of :mod:`acpbench.harness.scripted`."""
        assert isinstance(run.group, ScriptedGroup)
        command = [sys.executable, "-m", "acpbench.harness", "--policy", run.group.policy]
        command += ["--encoder", run.encoder, "--seed", str(run.seed)]
        env = run.tool_env | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
        return Launch(command, run.workspace, env)

    def decide(self, ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status:
        """Its stream ends with a ``result``; the exit code must agree."""
        earlier = before_the_stream(ending, typed, evidence)
        if earlier is not None:
            return earlier
        if ending.exit_code:
            return Status("agent_error", f"the agent process exited with code {ending.exit_code}")
        if not any(isinstance(event, Terminal) and event.outcome == "success" for event in typed.events):
            return Status("incomplete_stream", "the agent exited 0 without a terminal event")
        return Status("completed", "the agent reported its end and exited 0")
