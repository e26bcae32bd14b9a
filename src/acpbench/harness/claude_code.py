"""Claude Code in its print mode (``claude -p --output-format stream-json``).

The tool server is named on the command line alone (``--strict-mcp-config``), its start blocks the first
turn (else a run may begin without tools and say nothing), the configuration folder is the run's own, and
nothing but the model is called (telemetry, updates and error reports are off).
"""

from __future__ import annotations

from acpbench.core.files import write_json
from acpbench.core.groups import AnyGroup, ClaudeCodeGroup
from acpbench.harness.adapter import SERVER_NAME, Adapter, Capabilities, Evidence, Run, Status, url_endpoint
from acpbench.harness.decisions import before_the_stream, by_the_stream
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.meters import ClaudeMeter
from acpbench.trajectory.typed import TypedTrajectory

ALLOWED_TOOLS = (
    "Bash",
    "Read",
    "Write",
    "Edit",
    "NotebookEdit",
    "Glob",
    "Grep",
    "Skill",
    "Task",
    "TodoWrite",
    f"mcp__{SERVER_NAME}",
)
DENIED_TOOLS = ("WebFetch", "WebSearch")
DEFAULT_ENDPOINT = ("api.anthropic.com", 443)
MCP_START_MS = 120_000
_QUIET = {
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_BUG_COMMAND": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
_BLOCKING = {
    "MCP_CONNECTION_NONBLOCKING": "false",
    "MCP_TIMEOUT": str(MCP_START_MS),
    "MCP_CONNECT_TIMEOUT_MS": str(MCP_START_MS),
}


class ClaudeCodeAdapter(Adapter):
    """``claude``."""

    name = "claude_code"
    meter = ClaudeMeter
    session_globs = ("claude/projects/**/*.jsonl",)
    capabilities = Capabilities(
        mcp=True,
        skills_folder=".claude/skills",
        cost_reported=True,
        usage="last per message",
        live_usage=True,
        end_record=True,
        lists_tools=True,
        stream_format="claude_code_stream",
    )

    def endpoint(self, group: AnyGroup) -> tuple[str, int] | None:
        """The group's address, else Anthropic's."""
        assert isinstance(group, ClaudeCodeGroup)
        return url_endpoint(group.base_url) if group.base_url else DEFAULT_ENDPOINT

    def secrets(self, group: AnyGroup) -> dict[str, str]:
        """The key, under the name that fits how it is sent."""
        assert isinstance(group, ClaudeCodeGroup)
        name = "ANTHROPIC_API_KEY" if group.provider.auth == "api_key" else "ANTHROPIC_AUTH_TOKEN"
        return {name: group.api_key_env}

    def prepare(self, run: Run) -> Launch:
        """Write the MCP configuration and give the command."""
        group = run.group
        assert isinstance(group, ClaudeCodeGroup)
        config = run.home / "claude"
        config.mkdir(parents=True, exist_ok=True)
        servers = run.home / "mcp.json"
        server = {
            "type": "stdio",
            "command": run.tool_command[0],
            "args": list(run.tool_command[1:]),
            "env": run.tool_env,
        }
        write_json(servers, {"mcpServers": {SERVER_NAME: server}})
        command = [run.executable, "-p", "--output-format", "stream-json", "--verbose"]
        command += [f"--model={group.model}", f"--mcp-config={servers}", "--strict-mcp-config"]
        command += [
            f"--allowedTools={','.join(ALLOWED_TOOLS)}",
            f"--disallowedTools={','.join(DENIED_TOOLS)}",
        ]
        if group.limits.cost_usd is not None:
            command.append(f"--max-budget-usd={group.limits.cost_usd}")
        if group.provider.effort is not None:
            command.append(f"--effort={group.provider.effort}")
        command += ["--", run.prompt]
        small = group.provider.small_model or group.model
        env = _QUIET | _BLOCKING | run.tool_env
        env |= {
            "CLAUDE_CONFIG_DIR": str(config),
            "MCP_TOOL_TIMEOUT": str(int(run.tool_timeout_s * 1000)),
            "ANTHROPIC_MODEL": group.model,
            "ANTHROPIC_SMALL_FAST_MODEL": small,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": small,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": group.model,
            "ANTHROPIC_DEFAULT_OPUS_MODEL": group.model,
            "CLAUDE_CODE_SUBAGENT_MODEL": group.model,
        }
        if group.base_url is not None:
            env["ANTHROPIC_BASE_URL"] = group.base_url
        if group.provider.max_output_tokens is not None:
            env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(group.provider.max_output_tokens)
        if run.sandboxed:
            env["IS_SANDBOX"] = "1"
        return Launch(command, run.workspace, env, self.secrets(group), (servers,))

    def decide(self, ending: Ending, typed: TypedTrajectory, evidence: Evidence) -> Status:
        """The last ``result``; a success beside work that still ran is not the end of that work."""
        earlier = before_the_stream(ending, typed, evidence)
        if earlier is not None:
            return earlier
        status = by_the_stream(ending, typed)
        if status.run_status == "completed" and ending.open_work:
            return Status(
                "incomplete_stream",
                f"success was reported while {ending.open_work} background tasks were running",
            )
        return status
