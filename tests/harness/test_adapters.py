"""What each adapter starts, and what it makes of the ends that real command lines have shown."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.core.groups import parse_group
from acpbench.harness.adapter import FAMILIES, Evidence, Run, adapter_for, receipt_times, url_endpoint
from acpbench.harness.decisions import api_failure
from acpbench.harness.launch import Ending, Launch
from acpbench.harness.workspace import LAYOUTS
from acpbench.trajectory.typed import TypedTrajectory, parse

KEY = "never-to-be-written-7391"


def prepared(tmp_path: Path, harness: str, sandboxed: bool = False, **entry: Any) -> Launch:
    """What an adapter prepares for a group."""
    base = {"base_url": "https://model.example:8443/v1"} if harness == "opencode" else {}
    given = {"label": "x", "harness": harness, "model": "some/model-1"} | base | entry
    run = Run(
        group=parse_group(given),
        workspace=tmp_path / "workspace",
        home=tmp_path / "home",
        executable="/opt/bin/program",
        tool_command=("/venv/bin/acp-bench", "mcp"),
        tool_env={"ACPBENCH_TOOL_SOCKET": "/tmp/acp-1/tools.sock"},
        tool_timeout_s=900,
        sandboxed=sandboxed,
    )
    return adapter_for(harness).prepare(run)


def flags(command: list[str]) -> dict[str, str]:
    """``--name=value`` words of a command, up to ``--``."""
    words = command[: command.index("--")]
    return dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)


def test_claude_is_started_blocking_on_its_tools_in_a_configuration_of_its_own(tmp_path: Path) -> None:
    launch = prepared(
        tmp_path,
        "claude_code",
        base_url="http://127.0.0.1:8000",
        limits={"cost_usd": 2.5},
        provider={"effort": "high", "small_model": "tiny"},
    )
    assert launch.command[:5] == ["/opt/bin/program", "-p", "--output-format", "stream-json", "--verbose"]
    # After -- the prompt alone: a list-valued flag would swallow it.
    assert launch.command.index("--") == len(launch.command) - 2
    given = flags(launch.command)
    assert (given["model"], given["max-budget-usd"], given["effort"]) == ("some/model-1", "2.5", "high")
    assert "--strict-mcp-config" in launch.command
    assert {"Bash", "mcp__acp"} <= set(given["allowedTools"].split(","))
    servers = json.loads(Path(given["mcp-config"]).read_text())["mcpServers"]
    assert servers["acp"] == {
        "type": "stdio",
        "command": "/venv/bin/acp-bench",
        "args": ["mcp"],
        "env": {"ACPBENCH_TOOL_SOCKET": "/tmp/acp-1/tools.sock"},
    }
    env = launch.env
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert env["CLAUDE_CONFIG_DIR"] == str(tmp_path / "home" / "claude")
    assert env["MCP_CONNECTION_NONBLOCKING"] == "false" and int(env["MCP_TIMEOUT"]) >= 30_000
    assert env["MCP_CONNECT_TIMEOUT_MS"] == env["MCP_TIMEOUT"] and env["MCP_TOOL_TIMEOUT"] == "900000"
    assert (env["ANTHROPIC_SMALL_FAST_MODEL"], env["CLAUDE_CODE_SUBAGENT_MODEL"]) == ("tiny", "some/model-1")
    assert env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1" and "IS_SANDBOX" not in env
    assert launch.secrets == {"ANTHROPIC_API_KEY": "ANTHROPIC_API_KEY"}
    assert prepared(tmp_path, "claude_code", sandboxed=True).env["IS_SANDBOX"] == "1"
    bearer = prepared(tmp_path, "claude_code", api_key_env="TEAM_KEY", provider={"auth": "bearer"})
    assert bearer.secrets == {"ANTHROPIC_AUTH_TOKEN": "TEAM_KEY"}


def test_codex_gets_a_provider_and_approved_required_tools(tmp_path: Path) -> None:
    launch = prepared(
        tmp_path, "codex", base_url="http://127.0.0.1:8000/v1", provider={"reasoning_effort": "low"}
    )
    assert launch.command[:2] == ["/opt/bin/program", "exec"]
    assert {"--json", "--skip-git-repo-check"} <= set(launch.command)
    config = tomllib.loads((tmp_path / "home" / "codex" / "config.toml").read_text())
    assert launch.env["CODEX_HOME"] == str(tmp_path / "home" / "codex")
    provider = config["model_providers"][config["model_provider"]]
    assert (config["model"], config["model_reasoning_effort"]) == ("some/model-1", "low")
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8000/v1", "responses")
    assert launch.secrets == {provider["env_key"]: "OPENAI_API_KEY"}
    server = config["mcp_servers"]["acp"]
    assert (server["required"], server["default_tools_approval_mode"]) == (True, "approve")
    assert (server["command"], server["args"]) == ("/venv/bin/acp-bench", ["mcp"])
    assert server["env"] == {"ACPBENCH_TOOL_SOCKET": "/tmp/acp-1/tools.sock"}
    assert server["tool_timeout_sec"] == 900
    assert config["analytics"] == {"enabled": False}


def test_opencode_is_configured_outside_its_workspace(tmp_path: Path) -> None:
    launch = prepared(tmp_path, "opencode", provider={"context_tokens": 1000, "output_tokens": 100})
    assert launch.command[:4] == ["/opt/bin/program", "run", "--format", "json"]
    assert launch.command[launch.command.index("--model") + 1] == "model/some/model-1"
    path = Path(launch.env["OPENCODE_CONFIG"])
    config = json.loads(path.read_text())
    assert not path.is_relative_to(tmp_path / "workspace")
    assert config["model"] == config["small_model"] == "model/some/model-1"
    assert (config["autoupdate"], config["share"]) == (False, "disabled")
    provider = config["provider"]["model"]
    assert provider["options"]["baseURL"] == "https://model.example:8443/v1"
    assert provider["options"]["apiKey"] == "{env:ACPBENCH_MODEL_KEY}"
    assert provider["models"]["some/model-1"]["limit"] == {"context": 1000, "output": 100}
    server = config["mcp"]["acp"]
    assert (server["type"], server["enabled"]) == ("local", True)
    assert server["command"] == ["/venv/bin/acp-bench", "mcp"] and server["timeout"] == 900_000
    assert (config["permission"]["webfetch"], config["permission"]["external_directory"]) == ("deny", "deny")
    folders = {launch.env[f"XDG_{name}_HOME"] for name in ("DATA", "STATE", "CONFIG", "CACHE")}
    assert len(folders) == 4 and all(folder.startswith(str(tmp_path / "home")) for folder in folders)


@pytest.mark.parametrize("harness", [name for name in FAMILIES if name != "scripted"])
def test_no_key_is_on_a_command_line_or_in_a_file(
    tmp_path: Path, harness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    launch = prepared(tmp_path, harness)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert set(launch.files) == set(written)
    assert KEY not in repr(launch) + "".join(path.read_text() for path in written)


def test_every_family_declares_what_it_can() -> None:
    capabilities = {name: adapter_for(name).capabilities for name in FAMILIES}
    assert [name for name, found in capabilities.items() if not found.mcp] == ["scripted"]
    assert [name for name, found in capabilities.items() if not found.end_record] == ["opencode"]
    assert [name for name, found in capabilities.items() if found.lists_tools] == ["claude_code"]
    assert {name: found.skills_folder for name, found in capabilities.items()} == {
        name: layout.skills for name, layout in LAYOUTS.items()
    }
    with pytest.raises(InputError, match="unknown harness 'aider'"):
        adapter_for("aider")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("https://api.example.com", ("api.example.com", 443)),
        ("http://[::1]:9", ("::1", 9)),
        ("http://host", ("host", 80)),
    ],
)
def test_the_model_lies_where_the_address_says(url: str, endpoint: tuple[str, int]) -> None:
    assert url_endpoint(url) == endpoint


def test_an_address_without_a_port_that_can_be_is_refused() -> None:
    with pytest.raises(InputError, match="no usable port"):
        url_endpoint("http://host:99999/")


def test_versions_are_read_out_of_what_is_printed() -> None:
    printed = {
        "2.1.197 (Claude Code)": "2.1.197",
        "codex-cli 0.171.0": "0.171.0",
        "1.18.33\n": "1.18.33",
        "0.9.0-beta.2": "0.9.0-beta.2",
        "development build": "development build",
        "": "unknown",
    }
    for text, version in printed.items():
        assert adapter_for("codex").version(text) == version


# -- ends --

STREAMS = {"claude_code": "claude_code_stream", "codex": "codex_exec", "opencode": "opencode_run"}
SERVED = Evidence(tools_listed=1)


def typed_of(harness: str, rows: Iterable[dict[str, Any]]) -> TypedTrajectory:
    return parse(STREAMS[harness], [json.dumps(row).encode() for row in rows])


CAPTURED = {
    "claude_code": "claude_code_stream/captured_cli_mcp.jsonl",
    "codex": "codex_exec/captured_cli_mcp.jsonl",
    "opencode": "opencode_run/captured_cli_mcp.jsonl",
}


@pytest.mark.parametrize("harness", CAPTURED)
def test_captured_runs_end_as_they_did_and_cut_ones_do_not(shared_data: Path, harness: str) -> None:
    adapter = adapter_for(harness)
    lines = (shared_data / "trajectories" / CAPTURED[harness]).read_bytes().splitlines(keepends=True)
    whole = parse(STREAMS[harness], [line.rstrip(b"\n") for line in lines if line.strip()])
    export = Evidence(tools_listed=1)
    if harness == "opencode":
        # The same stream, confirmed by an export and not: there is no end in it to tell the two apart.
        assert adapter.decide(Ending(exit_code=0), whole, SERVED).run_status == "incomplete_stream"
        last = {"role": "assistant", "time": {"created": 1, "completed": 2}, "finish": "stop"}
        export.export = adapter.read_confirmation({"info": {}, "messages": [{"info": last, "parts": []}]})
    assert adapter.decide(Ending(exit_code=0), whole, export).run_status == "completed"
    assert adapter.decide(Ending(exit_code=1), whole, export).run_status == "agent_error"
    assert adapter.decide(Ending(signal=9), whole, export).run_status == "killed"
    assert adapter.decide(Ending(signal=15, watchdog="wall"), whole, export).run_status == "timeout"
    ended = Ending(signal=15, watchdog="post_result", terminal_seen=True)
    assert adapter.decide(ended, whole, export).run_status == "completed"
    for cut in range(len(lines)):
        if harness == "opencode" and cut == len(lines) - 1:
            continue
        part = parse(STREAMS[harness], [line.rstrip(b"\n") for line in lines[:cut] if line.strip()])
        assert adapter.decide(Ending(exit_code=0), part, SERVED).run_status != "completed", cut


def test_opencode_is_not_complete_without_a_complete_export() -> None:
    adapter = adapter_for("opencode")
    rows = [
        {"type": "step_start", "sessionID": "s", "part": {}},
        {"type": "text", "sessionID": "s", "part": {"text": "done"}},
        {"type": "step_finish", "sessionID": "s", "part": {"reason": "stop", "tokens": {}}},
    ]
    typed = typed_of("opencode", rows)
    message = {"role": "assistant", "time": {"created": 1}, "finish": None}
    running = adapter.read_confirmation({"info": {}, "messages": [{"info": message, "parts": []}]})
    for evidence, words in [
        (Evidence(tools_listed=1, export_problem="export ended with exit code 1"), "exit code 1"),
        (Evidence(tools_listed=1, export=running), "export: "),
    ]:
        status = adapter.decide(Ending(exit_code=0), typed, evidence)
        assert status.run_status == "incomplete_stream" and words in status.reason
    tools = [
        *rows[:1],
        {"type": "tool_use", "sessionID": "s", "part": {"tool": "bash", "callID": "c"}},
        rows[2],
    ]
    assert (
        adapter.decide(Ending(exit_code=0), typed_of("opencode", tools), SERVED).run_status
        == "incomplete_stream"
    )


def init(tools: list[str], status: str) -> dict[str, Any]:
    return {
        "type": "system",
        "subtype": "init",
        "tools": tools,
        "mcp_servers": [{"name": "acp", "status": status}],
    }


READY = init(["Bash", "mcp__acp__x"], "connected")
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}


@pytest.mark.parametrize(
    ("rows", "run_status"),
    [
        ([init(["Bash"], "pending"), RESULT], "infra_error"),
        ([init(["Bash"], "failed"), RESULT], "infra_error"),
        ([init(["Bash", "mcp__other__x"], "connected"), RESULT], "infra_error"),
        ([READY, RESULT], "completed"),
        ([READY, RESULT | {"subtype": "error_max_turns", "is_error": True}], "budget"),
        ([READY, RESULT | {"subtype": "error_max_budget_usd"}], "budget"),
        ([READY, RESULT | {"subtype": "error_during_execution"}], "agent_error"),
        ([READY, RESULT | {"is_error": True, "api_error_status": 529}], "infra_error"),
        ([READY, RESULT | {"is_error": True, "api_error_status": 400}], "agent_error"),
        ([READY, RESULT | {"stop_reason": "refusal"}], "refused"),
        ([READY], "incomplete_stream"),
    ],
)
def test_claude_ends(rows: list[dict[str, Any]], run_status: str) -> None:
    status = adapter_for("claude_code").decide(Ending(exit_code=0), typed_of("claude_code", rows), SERVED)
    assert status.run_status == run_status, status.reason


def test_what_an_agent_says_of_an_api_is_no_failure_of_it() -> None:
    said = {
        "type": "item.completed",
        "item": {"type": "agent_message", "text": "error 429: rate limit, I give up"},
    }
    rows = [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "turn.started"},
        said,
        {"type": "turn.completed", "usage": {}},
    ]
    adapter = adapter_for("codex")
    assert adapter.decide(Ending(exit_code=0), typed_of("codex", rows), SERVED).run_status == "completed"
    assert (
        adapter.decide(Ending(signal=15, watchdog="wall"), typed_of("codex", rows[:3]), SERVED).run_status
        == "timeout"
    )
    # An early refusal that the agent worked on after is none either.
    refused = {"type": "error", "message": "unexpected status 429 Too Many Requests"}
    late = typed_of("codex", [*rows[:2], refused, said])
    assert adapter.decide(Ending(signal=15, watchdog="wall"), late, SERVED).run_status == "timeout"


def test_codex_that_cannot_start_its_required_tools_is_an_infrastructure_error() -> None:
    evidence = Evidence(tools_listed=1, stderr="Error: required MCP servers failed to initialize: acp")
    status = adapter_for("codex").decide(Ending(exit_code=1), typed_of("codex", []), evidence)
    assert status.run_status == "infra_error"


@pytest.mark.parametrize(
    ("text", "is_failure"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests", True),
        ("APIError 503: upstream", True),
        ("api_error 529", True),
        ("unexpected status 401 Unauthorized: bad key", True),
        ("ProviderAuthError: no key", True),
        ("stream disconnected before completion: error sending request", True),
        ("Cannot connect to API: connect ECONNREFUSED 127.0.0.1:9", True),
        ("400 prompt is too long: 210000 tokens", False),
        ("APIError 400: unknown field", False),
        ("429: this model's maximum context length is 8192 tokens", False),
        ("the answer was cut", False),
        ("wrote 429 rows", True),  # only asked of what a harness says about itself
        ("model gpt-4290 is slow", False),
    ],
)
def test_an_api_failure_is_told_from_the_agents_own(text: str, is_failure: bool) -> None:
    assert (api_failure(text) is not None) == is_failure


def test_receipt_times_are_read_by_line(tmp_path: Path) -> None:
    assert receipt_times(tmp_path) is None
    (tmp_path / "stream.times.csv").write_text(
        "line,t_wall,t_mono_s\n1,1970-01-01T00:00:05.500000Z,1.0\n2,broken\n3,1970-01-01T00:00:07.000000Z,2.5\n"
    )
    assert receipt_times(tmp_path) == [5.5, None, 7.0]
