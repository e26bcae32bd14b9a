"""The registry as an MCP server on standard input and output, with the official SDK.

The SDK's low-level server is used: schemas and arguments are those of the registry itself, so that a refused
call is logged like any other. Standard output carries the protocol alone; all else goes to standard error.
Tools run in worker threads, those that write one at a time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import BaseModel, Field, ValidationError, create_model

from acpbench import __version__
from acpbench.harness.context import RunContext
from acpbench.harness.registry import MAX_STEP_CHARS, TOOLS, Tool, answer_of, call_tool

SERVER_NAME = "acp"
PROGRESS_EVERY_S = 0.25
INSTRUCTIONS = (
    "Pathology tools of this run. Paths are relative to the workspace. Give step_id (the planned step) and "
    "round_id (0 for the first pass) with each call. A tool error says what to change."
)
CALL_FIELDS: dict[str, Any] = {
    "step_id": {
        "type": "string",
        "maxLength": MAX_STEP_CHARS,
        "description": "Id of the planned step that this call carries out.",
    },
    "round_id": {
        "type": "integer",
        "minimum": 0,
        "maximum": 5,
        "description": "Reflection round (0 = first pass).",
    },
}


class Output(BaseModel):
    """A file that a call wrote."""

    path: str
    sha256: str | None
    size: int | None = Field(description="Bytes.")


def input_schema(tool: Tool) -> dict[str, Any]:
    """Arguments of a tool, and the two optional fields that place the call in the plan."""
    schema = tool.args_model().model_json_schema()
    schema["properties"] = copy.deepcopy(CALL_FIELDS) | schema.get("properties", {})
    return schema


def output_schema(tool: Tool) -> dict[str, Any]:
    """The answer of a call that went well, with the tool's own result inside."""
    answer = create_model(
        f"{tool.result_model().__name__}Answer",
        call_id=(str, Field(description="The call in the evaluator's log.")),
        exit_status=(Literal["ok"], ...),
        error=(None, None),
        result=(tool.result_model(), ...),
        outputs=(list[Output], ...),
        cache=(Literal["hit", "miss"] | None, ...),
    )
    return answer.model_json_schema(mode="serialization")


def tool_entry(tool: Tool) -> types.Tool:
    """One tool as clients see it."""
    return types.Tool(
        name=tool.id,
        description=tool.description,
        input_schema=input_schema(tool),
        output_schema=output_schema(tool),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.read_only, destructive_hint=False, open_world_hint=False
        ),
    )


def split_arguments(tool_id: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``(tool arguments, keywords of call_tool)`` of what a client sent.

    A tool that has a ``round_id`` of its own keeps it.
    """
    arguments = dict(given)
    step_id = arguments.pop("step_id", None)
    tool = TOOLS.get(tool_id)
    own_round = tool is not None and "round_id" in tool.args_model().model_fields
    round_id = arguments.get("round_id") if own_round else arguments.pop("round_id", None)
    return arguments, {"step_id": step_id, "round_id": round_id}


class _Meter:
    """Turns the steps of a call's loops into one count that only grows, a few times a second."""

    def __init__(self, send: Callable[[float, float | None, str], None]) -> None:
        self._send = send
        self._label: str | None = None
        self._base = self._reached = 0
        self._sent = -1
        self._sent_s = 0.0

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label != self._label:
            self._label, self._base, self._sent_s = label, self._reached, 0.0
        self._reached = max(self._reached, self._base + done)
        now = time.monotonic()
        finished = total is not None and done == total
        if self._reached > self._sent and (finished or now - self._sent_s >= PROGRESS_EVERY_S):
            self._sent, self._sent_s = self._reached, now
            said = f"{label}: {done}" + ("" if total is None else f" of {total}")
            self._send(self._reached, None if total is None else self._base + total, said)


class ToolServer:
    """One run's tools behind MCP."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.tools = [tool_entry(tool) for tool in TOOLS.values()]
        self.server: Server[Any] = Server(
            SERVER_NAME,
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        self._writing = anyio.Lock()

    async def _list(self, ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self.tools)

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments, keywords = split_arguments(params.name, params.arguments or {})
        tool = TOOLS.get(params.name)
        loop = asyncio.get_running_loop()
        stop, ended = threading.Event(), anyio.Event()
        send, receive = anyio.create_memory_object_stream[tuple[float, float | None, str]](64)

        def offer(*report: Any) -> None:
            # A client that does not read its progress loses reports, never the call.
            if not stop.is_set():
                try:
                    send.send_nowait(report)
                except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return

        def work() -> dict[str, Any]:
            meter = _Meter(lambda *report: loop.call_soon_threadsafe(offer, *report))
            try:
                return call_tool(
                    self.context,
                    params.name,
                    arguments,
                    progress=meter,
                    cancelled=stop.is_set,
                    **keywords,
                )
            finally:
                loop.call_soon_threadsafe(ended.set)

        async def run() -> dict[str, Any]:
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except anyio.get_cancelled_exc_class():
                # The thread stops at its next step; its end is waited for, so that the log has it.
                stop.set()
                with anyio.CancelScope(shield=True):
                    await ended.wait()
                raise

        async def notify() -> None:
            async with receive:
                async for done, total, message in receive:
                    await ctx.session.report_progress(done, total, message)

        row: dict[str, Any] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(notify)
            async with send:
                if tool is None or tool.read_only:
                    row = await run()
                else:
                    await self._turn(stop, work)
                    try:
                        row = await run()
                    finally:
                        self._writing.release()
        return _result(answer_of(row))

    async def _turn(self, stop: threading.Event, work: Callable[[], Any]) -> None:
        """Wait until no other writing call is at work; a call cancelled here is logged as cancelled."""
        try:
            await self._writing.acquire()
        except anyio.get_cancelled_exc_class():
            stop.set()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(work)
            raise

    async def run_stdio(self) -> None:
        """Serve one client until it closes standard input."""
        async with stdio_server() as (read, write):
            await self.server.run(_Repaired(read), write, self.server.create_initialization_options())


class _Repaired:
    """The messages of a client, with those that the SDK could not read read again.

    Half a surrogate pair, or a number of thousands of digits, is JSON to the client that sends it: without an
    answer it would wait for its own time-out, and the call would be in no log.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Repaired:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> Any:
        return await self._stream.__aexit__(*details)

    def __aiter__(self) -> _Repaired:
        return self

    async def __anext__(self) -> Any:
        return _repaired(await self._stream.__anext__())

    async def receive(self) -> Any:
        return _repaired(await self._stream.receive())


def _repaired(item: Any) -> Any:
    if not isinstance(item, ValidationError):
        return item
    try:
        sent = item.errors(include_url=False)[0]["input"]
        value = json.loads(sent, parse_int=lambda digits: int(digits) if len(digits) < 100 else digits)
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except Exception:  # it stays what it was: no message
        return item


def _result(answer: dict[str, Any]) -> types.CallToolResult:
    """The answer as text and, when the call went well, as structured content too."""
    ok = answer["exit_status"] == "ok"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))],
        structured_content=answer if ok else None,
        is_error=not ok,
    )


def serve(context: RunContext) -> None:
    """Run the server on this process's standard streams."""
    anyio.run(ToolServer(context).run_stdio)
