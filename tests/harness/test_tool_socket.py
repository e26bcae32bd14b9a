"""Tools behind a Unix socket: an agent's side without context, labels or log, and the same answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from acpbench.core.files import read_jsonl
from acpbench.harness.context import CONTEXT_VARIABLE, RunContext
from acpbench.harness.mcp_probe import probe
from acpbench.harness.registry import TOOLS
from acpbench.harness.tool_gate import ToolGate
from acpbench.harness.tool_socket import SOCKET_VARIABLE
from tests.harness.build import Side
from tests.harness.plugin import write_plugin

ACP_BENCH = str(Path(sys.executable).parent / "acp-bench")
PATH = {"PATH": os.environ["PATH"]}
TABLE = {"path": "data/splits.csv"}


class Outside:
    """The evaluator's side of one run: the gate, with the run's context."""

    def __init__(self, side: Side, folder: Path) -> None:
        self.context: RunContext = side.context()
        self.socket = folder / "tools.sock"
        file = side.root / "context.json"
        file.write_text(self.context.model_dump_json())
        plugins = write_plugin(side.root / "site")
        environment = PATH | {CONTEXT_VARIABLE: str(file), "PYTHONPATH": str(plugins)}
        self.gate = ToolGate(self.socket, environment, folder / "servers.log", side.root)
        self.inside = PATH | {SOCKET_VARIABLE: str(self.socket)}
        """The whole environment of the agent's side."""

    def call(self, tool: str, args: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ACP_BENCH, "tool", "call", tool, "--args", json.dumps(args), "--step", "s1", "--round", "0"],
            env=self.inside,
            cwd=self.context.workspace,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.context.tool_log)

    def wait_for(self, text: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.context.tool_log.exists() and text in self.context.tool_log.read_text():
                return
            time.sleep(0.02)
        pytest.fail(f"{text} did not appear in the log")


@pytest.fixture
def outside(side: Side, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    made = Outside(side, tmp_path_factory.mktemp("socket"))
    with made.gate:
        yield made


def servers() -> list[int]:
    """Tool servers that this process has started."""
    pid = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z" and b"acpbench.cli.main" in command:
                found.append(int(entry.name))
    return found


def test_a_shell_call_inside_is_answered_and_logged_outside(outside: Outside) -> None:
    done = outside.call("read_table", TABLE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["n_rows"] == 18
    start, end = outside.rows()
    assert (start["step_id"], start["round_id"], end["exit_status"]) == ("s1", 0, "ok")
    failed = outside.call("read_table", {"path": "data/none.csv"})
    assert failed.returncode == 1
    assert "data/none.csv" in json.loads(failed.stdout)["error"]


def test_serve_passes_lines_on(outside: Outside) -> None:
    asked = json.dumps({"tool": "read_table", "args": TABLE}) + "\n"
    done = subprocess.run(
        [ACP_BENCH, "tool", "serve"],
        env=outside.inside,
        input=asked * 2 + "{\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["exit_status"] for answer in answers] == ["ok", "ok", "error"]
    assert done.returncode == 0


def test_mcp_through_the_relay_with_progress_and_cancellation(outside: Outside) -> None:
    heard: list[float] = []

    async def main() -> Any:
        server = StdioServerParameters(
            command=ACP_BENCH, args=["mcp"], env=outside.inside, cwd=outside.context.workspace
        )
        with anyio.fail_after(90):
            async with Client(server, mode="legacy") as client:
                names = [tool.name for tool in (await client.list_tools()).tools]

                async def progress(done: float, total: float | None, message: str | None) -> None:
                    heard.append(done)

                with anyio.move_on_after(2):
                    await client.call_tool(
                        "count_slowly", {"steps": 400, "step_s": 0.05}, progress_callback=progress
                    )
                answer = await client.call_tool("read_table", TABLE)
                return names, answer.structured_content["result"]["n_rows"]

    names, n_rows = anyio.run(main)
    assert names[: len(TOOLS)] == list(TOOLS)
    assert n_rows == 18
    assert len(heard) >= 2
    outside.wait_for('"cancelled"')


def test_a_probe_through_the_relay_sees_the_tools(outside: Outside) -> None:
    names = probe([ACP_BENCH, "mcp"], outside.inside, outside.context.workspace, 60)
    assert names[: len(TOOLS)] == list(TOOLS)


def test_the_agents_side_has_no_context_and_loads_no_library(outside: Outside) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['x', 'tool', 'call', 'read_table', '--args', '{\"path\": \"data/splits.csv\"}']\n"
        "from acpbench.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([n for n in ('pydantic', 'mcp', 'numpy', 'torch') if n in sys.modules], file=sys.stderr)"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=outside.inside,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["exit_status"] == "ok"
    assert done.stderr.strip() == "[]"
    assert not any(str(outside.context.labels) in value for value in outside.inside.values())


@pytest.mark.parametrize("hello", [b"shell\n", b"mcp", b"\n", b"x" * 100, b""])
def test_a_connection_that_asks_for_something_else_is_closed(outside: Outside, hello: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(outside.socket))
        connection.sendall(hello)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert outside.call("read_table", TABLE).returncode == 0


def test_a_killed_server_process_ends_the_relay_and_leaves_the_start(outside: Outside) -> None:
    relay = subprocess.Popen(
        [ACP_BENCH, "tool", "serve"], env=outside.inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert relay.stdin is not None
    relay.stdin.write(json.dumps({"tool": "count_slowly", "args": {"steps": 400, "step_s": 0.05}}).encode())
    relay.stdin.write(b"\n")
    relay.stdin.flush()
    outside.wait_for('"count_slowly"')
    (child,) = servers()
    os.kill(child, signal.SIGKILL)
    assert relay.wait(20) == 1
    assert [row["event"] for row in outside.rows()] == ["start"]
    assert outside.call("read_table", TABLE).returncode == 0


def test_the_end_of_the_gate_ends_the_relay(outside: Outside) -> None:
    relay = subprocess.Popen(
        [ACP_BENCH, "mcp"], env=outside.inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 20
    while not servers() and time.monotonic() < deadline:
        time.sleep(0.05)
    (child,) = servers()
    outside.gate.close()
    assert relay.wait(20) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_without_a_gate_a_call_is_one_line_and_exit_2(tmp_path: Path) -> None:
    for command in (["tool", "call", "read_table"], ["mcp"], ["tool", "serve"]):
        done = subprocess.run(
            [ACP_BENCH, *command],
            env=PATH | {SOCKET_VARIABLE: str(tmp_path / "none.sock")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2, command
        assert "tool server cannot be reached" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
