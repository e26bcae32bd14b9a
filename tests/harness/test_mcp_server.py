"""The registry over MCP, by real standard streams and the SDK's own client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from acpbench.core.files import read_jsonl
from acpbench.harness.context import CONTEXT_VARIABLE, RunContext
from acpbench.harness.mcp_server import input_schema, output_schema, split_arguments
from acpbench.harness.registry import TOOLS
from acpbench.trajectory.events import tool_calls
from tests.harness.build import Side
from tests.harness.plugin import write_plugin

ACP_BENCH = str(Path(sys.executable).parent / "acp-bench")
TABLE = {"path": "data/splits.csv"}
LONG = {"steps": 400, "step_s": 0.05}
"""Twenty seconds: no test waits for it to end."""


class Run:
    """A run's context on disk and the way to a server of it."""

    def __init__(self, side: Side) -> None:
        self.context: RunContext = side.context()
        file = side.root / "context.json"
        file.write_text(self.context.model_dump_json())
        plugins = write_plugin(side.root / "site")
        self.environment = {
            CONTEXT_VARIABLE: str(file),
            "PYTHONPATH": str(plugins),
            "PATH": os.environ["PATH"],
        }

    def talk(
        self, work: Callable[[Client], Awaitable[Any]], *, mode: str = "legacy", timeout_s: float = 60
    ) -> Any:
        """Run a conversation with a fresh server."""

        async def main() -> Any:
            server = StdioServerParameters(
                command=ACP_BENCH, args=["mcp"], env=self.environment, cwd=self.context.workspace
            )
            with anyio.fail_after(timeout_s):
                async with Client(server, mode=mode) as client:
                    return await work(client)

        return anyio.run(main)

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.context.tool_log)

    def start(self) -> subprocess.Popen[bytes]:
        """A server whose streams this test holds itself."""
        return subprocess.Popen(
            [ACP_BENCH, "mcp"],
            cwd=self.context.workspace,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def wait_for_start(self, tool: str, timeout_s: float = 30) -> None:
        """Until the log has the start of a call."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.context.tool_log.exists() and f'"{tool}"'.encode() in self.context.tool_log.read_bytes():
                return
            time.sleep(0.02)
        pytest.fail(f"no call of {tool} was logged")


@contextlib.contextmanager
def ended_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """End a server that does not answer, so that reading from it ends too."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture
def run(side: Side) -> Run:
    return Run(side)


def line(number: int, method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


HELLO = (
    line(
        1,
        "initialize",
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
    )
    + b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_it_lists_the_registry_with_schemas_and_hints(run: Run, mode: str) -> None:
    async def work(client: Client) -> Any:
        assert client.server_info is not None
        assert client.server_info.name == "acp"
        return (await client.list_tools()).tools

    listed = {tool.name: tool for tool in run.talk(work, mode=mode)}
    assert list(listed)[: len(TOOLS)] == list(TOOLS)
    for name, tool in TOOLS.items():
        told = listed[name]
        assert told.description == tool.description
        assert told.annotations is not None
        assert told.annotations.read_only_hint is tool.read_only
        assert told.input_schema == input_schema(tool)
        assert told.output_schema == output_schema(tool)


@pytest.mark.parametrize("name", list(TOOLS))
def test_input_schemas_are_closed_and_place_the_call_in_the_plan(name: str) -> None:
    schema = input_schema(TOOLS[name])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator.check_schema(output_schema(TOOLS[name]))
    assert schema["additionalProperties"] is False
    assert {"step_id", "round_id"} <= set(schema["properties"])
    assert not {"step_id", "round_id"} & set(schema.get("required", []))
    assert set(schema["properties"]) - {"step_id", "round_id"} == set(
        TOOLS[name].args_model().model_fields
    ) - {"round_id"}


def test_a_call_is_answered_as_text_and_structure_and_logged_with_its_step(run: Run) -> None:
    async def work(client: Client) -> Any:
        return await client.call_tool("read_table", TABLE | {"step_id": "s5", "round_id": 2})

    answer = run.talk(work)
    assert answer.is_error is False
    assert json.loads(answer.content[0].text) == answer.structured_content
    told = answer.structured_content
    assert (told["exit_status"], told["result"]["n_rows"], told["call_id"]) == ("ok", 18, "c0001")
    jsonschema.validate(told, output_schema(TOOLS["read_table"]))
    start, end = run.rows()
    assert (start["step_id"], start["round_id"], start["args"]) == ("s5", 2, TABLE)
    assert end["result"] == told["result"]


def test_errors_are_answers_to_repair_from_and_are_logged(run: Run) -> None:
    asked: list[tuple[str, dict[str, Any], list[str]]] = [
        ("read_table", {"path": "data/none.csv"}, ["data/none.csv", "splits.csv"]),
        ("read_table", {}, ["path: Field required"]),
        ("no_such_tool", {"path": "x"}, ["no_such_tool", "read_table"]),
        ("read_table", TABLE | {"round_id": 9}, ["round_id", "0 to 5"]),
        ("read_table", TABLE | {"step_id": ["s"]}, ["step_id"]),
        ("read_table", {"path": "../labels.csv"}, ["leaves its folder"]),
    ]

    async def work(client: Client) -> Any:
        return [await client.call_tool(name, args) for name, args, _ in asked]

    for answer, (name, _, words) in zip(run.talk(work), asked, strict=True):
        assert answer.is_error, name
        assert answer.structured_content is None
        error = json.loads(answer.content[0].text)["error"]
        for word in words:
            assert word in error
    ends = [row for row in run.rows() if row["event"] == "end"]
    assert [row["exit_status"] for row in ends] == ["error"] * len(asked)


def test_a_round_of_the_tools_own_serves_both() -> None:
    args, keywords = split_arguments(
        "evaluate_predictions", {"predictions": "p", "output": "o", "round_id": 3, "step_id": "s"}
    )
    assert args == {"predictions": "p", "output": "o", "round_id": 3}
    assert keywords == {"step_id": "s", "round_id": 3}


def test_a_long_call_reports_growing_progress_while_its_noise_stays_off_the_protocol(run: Run) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def work(client: Client) -> Any:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            heard.append((done, total, message))

        return await client.call_tool("count_slowly", {"steps": 8, "step_s": 0.1}, progress_callback=progress)

    answer = run.talk(work)
    assert answer.structured_content["result"] == {"n_steps": 8}
    done = [report[0] for report in heard]
    assert done == sorted(set(done))
    assert 3 <= len(done) <= 9
    assert heard[-1] == (8.0, 8.0, "counting: 8 of 8")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_cancelled_call_stops_and_the_server_goes_on(run: Run, mode: str) -> None:
    async def work(client: Client) -> Any:
        started = anyio.Event()

        async def progress(done: float, total: float | None, message: str | None) -> None:
            started.set()

        async with anyio.create_task_group() as group:

            async def long_call() -> None:
                await client.call_tool("count_slowly", LONG, progress_callback=progress)

            group.start_soon(long_call)
            await started.wait()
            group.cancel_scope.cancel()
        return await client.call_tool("count_slowly", {"steps": 2})

    begin = time.monotonic()
    answer = run.talk(work, mode=mode)
    assert answer.structured_content["result"] == {"n_steps": 2}
    assert time.monotonic() - begin < 18
    calls = tool_calls(run.context.tool_log.parent)
    assert [call.exit_status for call in calls] == ["cancelled", "ok"]
    assert calls[0].error == "cancelled by the caller"


def test_a_call_cancelled_before_its_turn_is_in_the_log(run: Run) -> None:
    async def work(client: Client) -> None:
        async with anyio.create_task_group() as group:

            async def long_call() -> None:
                await client.call_tool("count_slowly", {"steps": 30, "step_s": 0.1})

            group.start_soon(long_call)
            while not run.context.tool_log.exists():
                await anyio.sleep(0.02)
            with anyio.move_on_after(0.5) as waiting:
                await client.call_tool("count_slowly", {"steps": 7})
            assert waiting.cancelled_caught

    run.talk(work)
    ended = {call.args["steps"]: call.exit_status for call in tool_calls(run.context.tool_log.parent)}
    assert ended == {30: "ok", 7: "cancelled"}


def test_a_writing_call_waits_its_turn_and_a_reading_one_does_not(run: Run) -> None:
    order: list[str] = []

    async def work(client: Client) -> None:
        async def call(name: str, args: dict[str, Any]) -> None:
            answer = await client.call_tool(name, args)
            assert not answer.is_error
            order.append(name if name == "read_table" else f"{name} {args['steps']}")

        async with anyio.create_task_group() as group:
            group.start_soon(call, "count_slowly", {"steps": 15, "step_s": 0.1})
            await anyio.sleep(0.5)
            group.start_soon(call, "count_slowly", {"steps": 1})
            for _ in range(4):
                group.start_soon(call, "read_table", TABLE)

    run.talk(work)
    assert order == ["read_table"] * 4 + ["count_slowly 15", "count_slowly 1"]
    rows = run.rows()
    assert [row["seq"] for row in rows] == list(range(1, 13))
    assert all(row["exit_status"] == "ok" for row in rows if row["event"] == "end")


def test_a_killed_server_leaves_the_start_of_its_call(run: Run) -> None:
    process = run.start()
    assert process.stdin is not None
    process.stdin.write(HELLO + line(2, "tools/call", {"name": "count_slowly", "arguments": LONG}))
    process.stdin.flush()
    run.wait_for_start("count_slowly")
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    (row,) = run.rows()
    assert (row["event"], row["tool"], row["args"]) == ("start", "count_slowly", LONG)
    (call,) = tool_calls(run.context.tool_log.parent)
    assert call.exit_status is None
    # The next server of the run goes on where the log ends.

    async def work(client: Client) -> Any:
        return await client.call_tool("read_table", TABLE)

    assert run.talk(work).structured_content["call_id"] == "c0002"


def test_a_client_that_is_gone_cancels_its_call(run: Run) -> None:
    process = run.start()
    assert process.stdin is not None
    process.stdin.write(HELLO + line(2, "tools/call", {"name": "count_slowly", "arguments": LONG}))
    process.stdin.flush()
    run.wait_for_start("count_slowly")
    process.stdin.close()
    assert process.wait(15) == 0
    assert run.rows()[-1]["exit_status"] == "cancelled"


ODD_CALLS = [
    b'{"path": "."}',
    b'{"path": "outputs/.."}',
    b'{"path": "' + b"a" * 300 + b'"}',
    b'{"path": "' + b"a/" * 3000 + b'b"}',
    b'{"path": "\\ud800"}',
    b'{"path": "data/splits.csv", "max_rows": 1' + b"0" * 5000 + b"}",
    b'{"path": "data/splits.csv", "step_id": {"a": 1}}',
    b'{"path": "data/splits.csv", "round_id": -7}',
    b'{"path": "data/splits.csv", "round_id": NaN}',
]


def test_odd_arguments_are_answered_and_logged(run: Run) -> None:
    process = run.start()
    assert process.stdin is not None and process.stdout is not None
    frame = b'{"jsonrpc": "2.0", "id": %d, "method": "tools/call", '
    frame += b'"params": {"name": "read_table", "arguments": %b}}\n'
    process.stdin.write(HELLO + b"".join(frame % (10 + n, args) for n, args in enumerate(ODD_CALLS)))
    process.stdin.write(line(2, "tools/call", {"name": "read_table", "arguments": TABLE}))
    process.stdin.flush()
    answers: dict[Any, dict[str, Any]] = {}
    wanted = {2, *range(10, 10 + len(ODD_CALLS))}
    with ended_after(process, 40):
        while not wanted <= set(answers):
            text = process.stdout.readline()
            assert text, f"no answer to {wanted - set(answers)}"
            message = json.loads(text)
            answers[message.get("id")] = message
    process.stdin.close()
    assert process.wait(15) == 0
    for number in range(10, 10 + len(ODD_CALLS)):
        assert answers[number]["result"]["isError"] is True, answers[number]
    assert answers[2]["result"].get("isError") is not True
    ends = [row["exit_status"] for row in run.rows() if row["event"] == "end"]
    assert sorted(ends) == ["error"] * len(ODD_CALLS) + ["ok"]
    starts = [row for row in run.rows() if row["event"] == "start"]
    assert {row["step_id"] for row in starts} == {None} and {row["round_id"] for row in starts} == {None}


def test_bad_requests_do_not_end_the_server(run: Run) -> None:
    process = run.start()
    assert process.stdin is not None and process.stdout is not None
    bad = [
        b"not json\n",
        b"\n",
        b"[]\n",
        b'{"jsonrpc": "2.0"}\n',
        b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 3}}\n',
        b'{"jsonrpc": "2.0", "id": 8, "method": "no/such"}\n',
        line(9, "tools/call", {"name": "read_table", "arguments": [1]}),
        b"\xff\xfe\x00\n",
        b'{"a": ' + b"[" * 5000 + b"\n",
        b"x" * 1_000_000 + b"\n",
    ]
    good = line(2, "tools/call", {"name": "read_table", "arguments": TABLE})
    process.stdin.write(HELLO + b"".join(bad) + good)
    process.stdin.flush()
    answers: dict[Any, dict[str, Any]] = {}
    deadline = time.monotonic() + 40
    while 2 not in answers and time.monotonic() < deadline:
        text = process.stdout.readline()
        assert text, process.stderr.read() if process.stderr else ""
        message = json.loads(text)
        answers[message.get("id")] = message
    process.stdin.close()
    assert process.wait(15) == 0
    assert json.loads(answers[2]["result"]["content"][0]["text"])["result"]["n_rows"] == 18
    assert "error" in answers[7] and "error" in answers[8] and "error" in answers[9]


def test_without_a_context_it_exits_2_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [ACP_BENCH, "mcp"],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no run context" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_server_loads_nothing_heavy_before_a_call_needs_it() -> None:
    heavy = ("torch", "sklearn", "skimage", "openslide", "pandas", "matplotlib", "h5py", "scipy")
    code = (
        "import sys, acpbench.harness.mcp_server as m; [m.tool_entry(t) for t in m.TOOLS.values()];"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
