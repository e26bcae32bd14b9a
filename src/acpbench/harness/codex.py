"""Codex without a terminal (``codex exec --json``).

Everything comes from a ``config.toml`` in the run's own ``CODEX_HOME``: the endpoint as a provider whose
key is named by a variable, and the tool server, which must start (``required``) and whose calls need no
approval (else ``codex exec`` cancels them). Its own sandbox is off: the run's is around it.
"""

from __future__ import annotations

import json
from typing import Any

from acpbench.core.files import write_text
from acpbench.core.groups import AnyGroup, CodexGroup
from acpbench.harness.adapter import SERVER_NAME, Adapter, Capabilities, Evidence, Run, Status, url_endpoint
from acpbench.harness.decisions import before_the_stream, by_the_stream
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.meters import CodexMeter
from acpbench.trajectory.typed import Terminal, TypedTrajectory

DEFAULT_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "ACPBENCH_MODEL_KEY"
STREAM_IDLE_MS = 600_000


def toml_text(tables: dict[str, dict[str, Any]]) -> str:
    """A TOML document of one level of tables; ``""`` is the root. A JSON string is a TOML string."""
    lines = []
    for name, values in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


class CodexAdapter(Adapter):
    """``codex``."""

    name = "codex"
    meter = CodexMeter
    session_globs = ("codex/sessions/**/rollout-*.jsonl",)
    capabilities = Capabilities(
        mcp=True,
        skills_folder=".agents/skills",
        cost_reported=False,
        usage="running total",
        live_usage=False,
        end_record=True,
        lists_tools=False,
        stream_format="codex_exec",
    )

    def endpoint(self, group: AnyGroup) -> tuple[str, int] | None:
        """The group's address, else OpenAI's."""
        assert isinstance(group, CodexGroup)
        return url_endpoint(group.base_url or DEFAULT_URL)

    def secrets(self, group: AnyGroup) -> dict[str, str]:
        """The key, under the name that ``env_key`` says."""
        assert isinstance(group, CodexGroup)
        return {KEY_VARIABLE: group.api_key_env}

    def prepare(self, run: Run) -> Launch:
        """Write ``config.toml`` and give the command."""
        group = run.group
        assert isinstance(group, CodexGroup)
        home = run.home / "codex"
        home.mkdir(parents=True, exist_ok=True)
        config = home / "config.toml"
        tables: dict[str, dict[str, Any]] = {
            "": {
                "model": group.model,
                "model_provider": SERVER_NAME,
                "model_reasoning_effort": group.provider.reasoning_effort,
                "model_context_window": group.provider.context_tokens,
                "approval_policy": "never",
                "sandbox_mode": "danger-full-access",
                "web_search": "disabled",
                "check_for_update_on_startup": False,
                # Instructions are read from the workspace alone, not from folders above it.
                "project_root_markers": [],
            },
            "analytics": {"enabled": False},
            f"model_providers.{SERVER_NAME}": {
                "name": SERVER_NAME,
                "base_url": group.base_url or DEFAULT_URL,
                "env_key": KEY_VARIABLE,
                "wire_api": group.provider.wire_api,
                "stream_idle_timeout_ms": STREAM_IDLE_MS,
            },
            f"mcp_servers.{SERVER_NAME}": {
                "command": run.tool_command[0],
                "args": list(run.tool_command[1:]),
                "env": run.tool_env,
                "required": True,
                "startup_timeout_sec": 120,
                "tool_timeout_sec": int(run.tool_timeout_s),
                "default_tools_approval_mode": "approve",
            },
        }
        write_text(config, toml_text(tables))
        command = [run.executable, "exec", "--json", "--skip-git-repo-check"]
        command += ["--dangerously-bypass-approvals-and-sandbox", "--", run.prompt]
        env = run.tool_env | {"CODEX_HOME": str(home)}
        return Launch(command, run.workspace, env, self.secrets(group), (config,))

    def decide(self, ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status:
        """``turn.completed`` or ``turn.failed``; an exit of 0 without either is no end."""
        earlier = before_the_stream(ending, typed, evidence)
        if earlier is not None:
            return earlier
        ended = any(isinstance(event, Terminal) for event in typed.events)
        if (
            not ended
            and ending.exit_code
            and "mcp" in evidence.stderr.lower()
            and not typed.counts.events.get("tool_call")
        ):
            # ``required = true``: Codex refuses to begin when the server does not start.
            return Status("infra_error", "Codex did not start with the benchmark's tools (see stderr.log)")
        return by_the_stream(ending, typed)
