"""Small command lines in this process: they speak a protocol to the scripted model and do what it asks.

Each sends requests as its real counterpart was captured to send them, carries out the tool calls of the
answers on a workspace, and goes on until an answer has none.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acpbench.harness.context import RunContext
from acpbench.harness.registry import TOOLS, answer_of, call_tool

SCHEMA = {"type": "object"}
MAX_TURNS = 400


class Killed(Exception):
    """The shell killed its parent."""


def schema(*names: str) -> dict[str, Any]:
    """An input schema with text arguments of these names."""
    return SCHEMA | {"properties": {name: {"type": "string"} for name in names}}


class Client:
    """What the three have in common: their hands and their loop."""

    path = ""

    def __init__(self, url: str, context: RunContext, *, tools: bool = True) -> None:
        self.url, self.context, self.tools = url, context, tools
        self.history: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.made: list[tuple[str, dict[str, Any]]] = []

    # -- hands --

    def shell(self, command: str) -> tuple[str, int]:
        """Run a command line in the workspace; the one that kills its parent is told apart."""
        if "kill -KILL $PPID" in command:
            raise Killed
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.context.workspace, capture_output=True, text=True, timeout=60
        )
        return done.stdout + done.stderr, done.returncode

    def registry(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call a tool as the MCP server does; the answer as the text a harness passes on."""
        from acpbench.harness.mcp_server import split_arguments

        own, keywords = split_arguments(name, arguments)
        answer = answer_of(call_tool(self.context, name, own, **keywords))
        return json.dumps(answer, ensure_ascii=False), answer["exit_status"] != "ok"

    def write_file(self, path: str, text: str) -> None:
        """Write a file of the workspace by its absolute path."""
        target = Path(path)
        assert target.is_absolute() and target.is_relative_to(self.context.workspace)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    # -- wire --

    def post(self, body: dict[str, Any], path: str | None = None) -> bytes:
        """Send a request; the answer's body."""
        request = urllib.request.Request(
            self.url + (path or self.path),
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer none"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def run(self) -> None:
        """Ask until an answer has no call."""
        for _ in range(MAX_TURNS):
            if not self.turn():
                return
        raise AssertionError("the model does not stop")

    def turn(self) -> bool:
        """One request and its answer; False when nothing is left to do."""
        raise NotImplementedError


def server_events(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(event name, data)`` of a stream of server-sent events."""
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields and fields["data"] != "[DONE]":
            yield fields.get("event", ""), json.loads(fields["data"])


class ClaudeClient(Client):
    """Anthropic messages: ``Bash``, ``Read`` (numbered lines, ``→``), ``Write``, ``mcp__acp__*``."""

    path = "/v1/messages?beta=true"
    limit_lines = 2000

    def body(self) -> dict[str, Any]:
        """The request."""
        tools = [
            {"name": "Bash", "input_schema": schema("command", "timeout", "description")},
            {"name": "Read", "input_schema": schema("file_path", "offset", "limit")},
            {"name": "Write", "input_schema": schema("file_path", "content")},
            *({"name": f"mcp__acp__{name}", "input_schema": SCHEMA} for name in TOOLS),
        ]
        first = {"role": "user", "content": [{"type": "text", "text": "Do the task."}]}
        return {"model": "scripted", "max_tokens": 32000, "stream": True, "messages": [first, *self.history],
                "tools": tools if self.tools else []}  # fmt: skip

    def turn(self) -> bool:
        blocks: dict[int, dict[str, Any]] = {}
        stop = None
        for name, row in server_events(self.post(self.body())):
            assert name == row["type"]
            if name == "content_block_start":
                blocks[row["index"]] = row["content_block"] | {"json": ""}
            elif name == "content_block_delta" and row["delta"]["type"] == "text_delta":
                blocks[row["index"]]["text"] += row["delta"]["text"]
            elif name == "content_block_delta":
                blocks[row["index"]]["json"] += row["delta"]["partial_json"]
            elif name == "message_delta":
                stop = row["delta"]["stop_reason"]
                assert row["usage"]["output_tokens"] > 0
        self.said += [block["text"] for block in blocks.values() if block["type"] == "text"]
        calls = [block for block in blocks.values() if block["type"] == "tool_use"]
        assert stop == ("tool_use" if calls else "end_turn")
        results = []
        for block in calls:
            given = json.loads(block["json"])
            self.made.append((block["name"], given))
            text, failed = self.act(block["name"], given)
            results.append({"type": "tool_result", "tool_use_id": block["id"], "is_error": failed,
                            "content": [{"type": "text", "text": text}]})  # fmt: skip
            self.history.append({"role": "assistant", "content": [
                {"type": "tool_use", "id": block["id"], "name": block["name"], "input": given}]})  # fmt: skip
        self.history.append({"role": "user", "content": results})
        return bool(calls)

    def act(self, name: str, given: dict[str, Any]) -> tuple[str, bool]:
        """Carry out a call."""
        if name == "Bash":
            text, code = self.shell(given["command"])
            return text, code != 0
        if name == "Write":
            self.write_file(given["file_path"], given["content"])
            return f"File created successfully at: {given['file_path']}", False
        if name == "Read":
            lines = Path(given["file_path"]).read_text().split("\n")
            first = int(given.get("offset", 1))
            page = lines[first - 1 : first - 1 + int(given.get("limit", self.limit_lines))]
            numbered = "".join(f"{first + index:>6}→{line}\n" for index, line in enumerate(page))
            return numbered + "\n<system-reminder>\n1: not a line\n</system-reminder>", False
        return self.registry(name.removeprefix("mcp__acp__"), given)


class CodexClient(Client):
    """OpenAI responses: ``exec_command`` and the namespace ``mcp__acp``; output under a head."""

    path = "/v1/responses"

    def body(self) -> dict[str, Any]:
        """The request."""
        tools = [
            {"type": "function", "name": "exec_command",
             "parameters": schema("cmd", "workdir", "yield_time_ms", "max_output_tokens")},
            {"type": "function", "name": "write_stdin", "parameters": schema("session_id", "chars")},
            {"type": "web_search"},
            {"type": "namespace", "name": "mcp__acp",
             "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in TOOLS]},
        ]  # fmt: skip
        first = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Do the task."}],
        }
        return {"model": "scripted", "stream": True, "store": False, "input": [first, *self.history],
                "tools": tools if self.tools else []}  # fmt: skip

    def turn(self) -> bool:
        items: list[dict[str, Any]] = []
        usage = None
        for name, row in server_events(self.post(self.body())):
            assert name == row["type"]
            if name == "response.output_item.done":
                items.append(row["item"])
            elif name == "response.completed":
                usage = row["response"]["usage"]
                assert row["response"]["output"] == items
        assert usage is not None and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        self.said += [item["content"][0]["text"] for item in items if item["type"] == "message"]
        calls = [item for item in items if item["type"] == "function_call"]
        for item in calls:
            given = json.loads(item["arguments"])
            self.made.append((item["name"], given))
            if item["name"] == "exec_command":
                text, code = self.shell(given["cmd"])
                text = (
                    f"Chunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code {code}\nOutput:\n{text}"
                )
            else:
                assert item["namespace"] == "mcp__acp"
                text = f"Wall time: 0.1 seconds\nOutput:\n{self.registry(item['name'], given)[0]}"
            output = {"type": "function_call_output", "call_id": item["call_id"], "output": text}
            self.history += [item, output]
        return bool(calls)


class OpenCodeClient(Client):
    """OpenAI chat: ``bash``, ``read`` (numbered lines), ``write``, ``acp_*``; failures have no mark."""

    path = "/v1/chat/completions"

    def body(self) -> dict[str, Any]:
        """The request."""
        offers = {
            "bash": schema("command", "timeout"),
            "read": schema("filePath", "offset", "limit"),
            "write": schema("content", "filePath"),
        } | {f"acp_{name}": SCHEMA for name in TOOLS}
        tools = [
            {"type": "function", "function": {"name": name, "parameters": parameters}}
            for name, parameters in offers.items()
        ]
        first = {"role": "user", "content": "Do the task."}
        body = {"model": "scripted", "stream": True, "messages": [first, *self.history]}
        return body | ({"tools": tools, "tool_choice": "auto"} if self.tools else {})

    def turn(self) -> bool:
        data = self.post(self.body())
        assert data.endswith(b"data: [DONE]\n\n")
        text, calls, reason, usage = "", [], None, None
        for _, row in server_events(data):
            (choice,) = row["choices"]
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls", [])
            reason, usage = choice["finish_reason"] or reason, row.get("usage") or usage
        assert reason == ("tool_calls" if calls else "stop")
        assert usage is not None and usage["prompt_tokens"] > 0
        self.said += [text] if text else []
        self.history.append({"role": "assistant", "content": text, "tool_calls": calls})
        for call in calls:
            given = json.loads(call["function"]["arguments"])
            self.made.append((call["function"]["name"], given))
            answer = self.act(call["function"]["name"], given)
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
        return bool(calls)

    def act(self, name: str, given: dict[str, Any]) -> str:
        """Carry out a call."""
        if name == "bash":
            return self.shell(given["command"])[0]
        if name == "write":
            self.write_file(given["filePath"], given["content"])
            return "Wrote file successfully."
        if name == "read":
            path = Path(given["filePath"])
            lines = path.read_text().removesuffix("\n").split("\n")
            first = int(given.get("offset", 1))
            page = lines[first - 1 : first - 1 + int(given.get("limit", 2000))]
            numbered = "\n".join(f"{first + index}: {line}" for index, line in enumerate(page))
            return (
                f"<path>{path}</path>\n<type>file</type>\n<content>\n{numbered}\n\n(End of file)\n</content>"
            )
        return self.registry(name.removeprefix("acp_"), given)[0]


CLIENTS: dict[str, type[Client]] = {
    "anthropic": ClaudeClient,
    "responses": CodexClient,
    "chat": OpenCodeClient,
}


def refused(client: Client, body: bytes, path: str, headers: dict[str, str] | None = None) -> int:
    """HTTP status of a request that is not to be served."""
    request = urllib.request.Request(client.url + path, body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
