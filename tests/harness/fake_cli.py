"""Stand-ins for the three command lines: they read its configuration, speak MCP and print its stream.

Copied to a file named ``claude``, ``codex`` or ``opencode`` and run as a program. What it does is named by
the model it is given, so that no variable has to reach it. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

FAMILY = Path(sys.argv[0]).name
VERSION = {"claude": "2.1.197 (Claude Code)", "codex": "codex-cli 0.171.0", "opencode": "1.18.33"}[FAMILY]


def out(row: dict) -> None:
    print(json.dumps(row), flush=True)


# -- configuration of each family --


def settings() -> tuple[str, list[str], dict[str, str], str]:
    """Model, command and environment of the tool server, name of the variable with the key."""
    if FAMILY == "claude":
        words = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
        server = json.loads(Path(words["mcp-config"]).read_text())["mcpServers"]["acp"]
        return words["model"], [server["command"], *server["args"]], server["env"], "ANTHROPIC_API_KEY"
    if FAMILY == "codex":
        config = tomllib.loads((Path(os.environ["CODEX_HOME"]) / "config.toml").read_text())
        server = config["mcp_servers"]["acp"]
        assert server["required"] is True and server["default_tools_approval_mode"] == "approve"
        provider = config["model_providers"][config["model_provider"]]
        return config["model"], [server["command"], *server["args"]], server["env"], provider["env_key"]
    config = json.loads(Path(os.environ["OPENCODE_CONFIG"]).read_text())
    server = config["mcp"]["acp"]
    provider, _, model = config["model"].partition("/")
    key = config["provider"][provider]["options"]["apiKey"]
    assert sys.argv[sys.argv.index("--model") + 1] == config["model"]
    return model, server["command"], server["environment"], re.fullmatch(r"\{env:(\w+)\}", key)[1]


class Tools:
    """The MCP client: initialise, list, call."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.number = 0
        self.ask(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": FAMILY, "version": "1"},
            },
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.names = [tool["name"] for tool in self.ask("tools/list", {})["tools"]]

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict) -> dict:
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        while line := self.process.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") == self.number:
                return answer.get("result") or {
                    "isError": True,
                    "content": [{"type": "text", "text": str(answer)}],
                }
        raise ConnectionError("the tool server is gone")

    def call(self, name: str, arguments: dict) -> tuple[str, bool]:
        try:
            result = self.ask("tools/call", {"name": name, "arguments": arguments})
        except (ConnectionError, OSError) as error:
            return str(error), True
        return "".join(block.get("text", "") for block in result["content"]), bool(result.get("isError"))


# -- streams of each family --


class Stream:
    """What the family prints for one deed."""

    def __init__(self, model: str) -> None:
        self.model, self.number = model, 0
        self.session = "ses_1" if FAMILY == "opencode" else "5bebdcc1-4938-410a-b2ef-ea6086ee7c13"

    def part(self, kind: str, part: dict) -> None:
        moment = int(time.time() * 1000)
        out(
            {
                "type": kind,
                "timestamp": moment,
                "sessionID": self.session,
                "part": {"type": kind.replace("_", "-"), **part},
            }
        )

    def start(self, tools: list[str], status: str = "connected") -> None:
        if FAMILY == "claude":
            listed = ["Bash", "Read", "Write", *(f"mcp__acp__{name}" for name in tools)]
            out(
                {
                    "type": "system",
                    "subtype": "init",
                    "cwd": os.getcwd(),
                    "session_id": self.session,
                    "tools": listed,
                    "mcp_servers": [{"name": "acp", "status": status}],
                    "model": self.model,
                    "claude_code_version": "2.1.197",
                }
            )
        elif FAMILY == "codex":
            out({"type": "thread.started", "thread_id": self.session})
            out({"type": "turn.started"})

    def message(self, block: dict, tokens: int = 10) -> None:
        self.number += 1
        usage = {"input_tokens": tokens, "cache_read_input_tokens": 0, "output_tokens": 5}
        message = {
            "id": f"msg_{self.number}",
            "role": "assistant",
            "model": self.model,
            "content": [block],
            "usage": usage,
        }
        out({"type": "assistant", "message": message, "parent_tool_use_id": None, "session_id": self.session})

    def tool(self, name: str, arguments: dict, text: str, failed: bool, server: bool = True) -> None:
        if FAMILY == "claude":
            call = f"toolu_{self.number}"
            shown = f"mcp__acp__{name}" if server else name
            self.message({"type": "tool_use", "id": call, "name": shown, "input": arguments})
            result = {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": failed}
            out(
                {"type": "user", "message": {"role": "user", "content": [result]}, "session_id": self.session}
            )
        elif FAMILY == "codex":
            self.number += 1
            item = {
                "id": f"item_{self.number}",
                "type": "mcp_tool_call",
                "server": "acp",
                "tool": name,
                "arguments": arguments,
                "result": None,
                "error": None,
                "status": "in_progress",
            }
            out({"type": "item.started", "item": item})
            item |= {
                "result": {"content": [{"type": "text", "text": text}], "structured_content": None},
                "status": "failed" if failed else "completed",
            }
            out({"type": "item.completed", "item": item})
        else:
            self.number += 1
            self.part("step_start", {})
            state = {
                "status": "error" if failed else "completed",
                "input": arguments,
                "output": text,
                "error": text,
            }
            self.part(
                "tool_use",
                {
                    "type": "tool",
                    "tool": f"acp_{name}" if server else name,
                    "callID": f"call_{self.number}",
                    "state": state,
                },
            )
            self.finish("tool-calls")

    def finish(self, reason: str, tokens: int = 10) -> None:
        used = {"input": tokens, "output": 5, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        self.part("step_finish", {"reason": reason, "tokens": used, "cost": 0})

    def say(self, text: str, tokens: int = 10) -> None:
        if FAMILY == "claude":
            self.message({"type": "text", "text": text}, tokens)
        elif FAMILY == "codex":
            self.number += 1
            out(
                {
                    "type": "item.completed",
                    "item": {"id": f"item_{self.number}", "type": "agent_message", "text": text},
                }
            )
        else:
            self.part("step_start", {})
            self.part("text", {"text": text})
            self.finish("stop", tokens)

    def end(self, **changes: object) -> None:
        if FAMILY == "claude":
            out(
                {
                    "type": "result",
                    "subtype": "success",
                    "is_error": False,
                    "duration_ms": 1000,
                    "num_turns": 2,
                    "result": "done",
                    "stop_reason": "end_turn",
                    "session_id": self.session,
                    "total_cost_usd": 0.25,
                    "usage": {"input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 10},
                    **changes,
                }
            )
        elif FAMILY == "codex":
            out(
                {
                    "type": "turn.completed",
                    "usage": {
                        "input_tokens": 120,
                        "cached_input_tokens": 100,
                        "output_tokens": 10,
                        "reasoning_output_tokens": 0,
                    },
                }
            )

    def refused(self, text: str, code: int) -> None:
        """A refused request, after which the harness tries again; OpenCode tells its log alone."""
        if FAMILY != "opencode":
            self.api_error(text, code)
            return
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime())
        print(
            f'timestamp={moment} level=ERROR run=1 message="stream error" providerID=model small=false '
            f'agent=build mode=primary error.error="AI_APICallError: {text}"',
            file=sys.stderr,
            flush=True,
        )

    def api_error(self, text: str, code: int) -> None:
        """An error of the API in the stream."""
        if FAMILY == "claude":
            out(
                {
                    "type": "system",
                    "subtype": "api_retry",
                    "attempt": 1,
                    "error_status": code,
                    "error": "rate_limit",
                    "session_id": self.session,
                }
            )
        elif FAMILY == "codex":
            out({"type": "error", "message": f"Reconnecting... 1/5 (unexpected status {code}: {text})"})
        else:
            error = {"name": "APIError", "data": {"message": text, "statusCode": code, "isRetryable": True}}
            out(
                {
                    "type": "error",
                    "timestamp": int(time.time() * 1000),
                    "sessionID": self.session,
                    "error": error,
                }
            )


# -- what it does, by the name of the model --


def work(stream: Stream, tools: Tools) -> None:
    """The honest part: one call of a tool, one file."""
    arguments = {"path": "data/splits.csv", "step_id": "look", "round_id": 0}
    stream.tool("read_table", arguments, *tools.call("read_table", arguments))
    Path("reports/report.md").write_text("# Report\n")


def main() -> None:
    if "--version" in sys.argv:
        print(VERSION)
        return
    if FAMILY == "opencode" and "export" in sys.argv:
        marker = Path(os.environ["XDG_DATA_HOME"]) / "last.json"
        print(marker.read_text() if marker.exists() else "{}")
        return
    assert sys.stdin.read() == ""
    model, command, env, key_name = settings()
    key = os.environ[key_name]
    stream = Stream(model)
    if model == "no_tools":
        stream.start([], "failed")
        stream.say("I have no tools, but here is a fine report.")
        Path("reports/report.md").write_text("# Report\n")
        finished(stream)
        return
    tools = Tools(command, env)
    stream.start(tools.names)
    work(stream, tools)
    act(model, stream, tools, key)


def finished(stream: Stream, **changes: object) -> None:
    """An ordinary end; OpenCode's is in its export alone."""
    if FAMILY == "opencode":
        folder = Path(os.environ["XDG_DATA_HOME"])
        folder.mkdir(parents=True, exist_ok=True)
        info = {
            "role": "assistant",
            "modelID": stream.model,
            "time": {"created": 1, "completed": 2},
            "finish": "stop",
        }
        session = {"id": stream.session, "version": "1.18.33", "directory": os.getcwd()}
        (folder / "last.json").write_text(
            json.dumps({"info": session, "messages": [{"info": info, "parts": []}]})
        )
    stream.end(**changes)


def act(model: str, stream: Stream, tools: Tools, key: str) -> None:
    """The rest of the run."""
    if model == "complete":
        stream.say("done")
        finished(stream)
    elif model == "no_end":
        if FAMILY != "opencode":
            stream.say("and then")
    elif model == "exit_3":
        raise SystemExit(3)
    elif model == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif model == "hang":
        stream.say("thinking")
        time.sleep(600)
    elif model == "hang_after_end":
        stream.say("done")
        finished(stream)
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    elif model == "is_error":
        stream.say("cut")
        finished(stream, is_error=True, result="the answer was cut at its limit")
    elif model == "background":
        out({"type": "system", "subtype": "task_started", "task_id": "t1", "session_id": stream.session})
        out({"type": "system", "subtype": "task_started", "task_id": "t2", "session_id": stream.session})
        out({"type": "system", "subtype": "task_notification", "task_id": "t2", "status": "completed"})
        stream.say("all done")
        finished(stream)
    elif model == "refusal":
        if FAMILY == "claude":
            stream.say("I can't help with that")
            finished(stream, stop_reason="refusal")
        elif FAMILY == "codex":
            out({"type": "turn.failed", "error": {"message": "blocked by the content filter"}})
            raise SystemExit(1)
        else:
            stream.part("step_start", {})
            stream.finish("content-filter")
    elif model == "storm":
        time.sleep(1)
        while True:
            stream.refused("Too Many Requests", 429)
            time.sleep(0.1)
    elif model == "gave_up_429":
        stream.api_error("Too Many Requests", 429)
        if FAMILY == "claude":
            finished(stream, is_error=True, api_error_status=429, result="API Error: 429 rate limited")
            raise SystemExit(1)
        if FAMILY == "codex":
            out(
                {
                    "type": "turn.failed",
                    "error": {"message": "exceeded retry limit, last status: 429 Too Many Requests"},
                }
            )
            raise SystemExit(1)
    elif model == "recovered":
        stream.refused("Too Many Requests", 429)
        stream.say("the limit has passed; done")
        finished(stream)
    elif model == "context":
        if FAMILY == "claude":
            finished(
                stream,
                is_error=True,
                api_error_status=400,
                result="prompt is too long: 210000 tokens > 200000",
            )
        elif FAMILY == "codex":
            out(
                {
                    "type": "turn.failed",
                    "error": {"message": "400: input exceeds the context window of this model"},
                }
            )
        else:
            stream.api_error("maximum context length is 131072 tokens", 400)
        raise SystemExit(1)
    elif model == "talker":
        while True:
            stream.say("more", tokens=1000)
            time.sleep(0.05)
    elif model == "shouter":
        while True:
            stream.say("x" * 100_000)
    elif model == "odd_bytes":
        sys.stdout.buffer.write(b"\x1b[1mwarning\x1b[0m \xff\xfe\r\n")
        sys.stdout.buffer.write(b'{"type":"text","text":"' + b"y" * 3_000_000 + b'"}\n')
        sys.stdout.buffer.flush()
        stream.say("lone \udcb2 surrogate \u2028 and separator")
        finished(stream)
        sys.stdout.buffer.write(b'{"type":"half')
    elif model == "server_killed":
        # Without a sandbox the tool server can be found; in one it cannot.
        mark = b"ACPBENCH_RUN_CONTEXT=" + os.fsencode(Path.cwd().parent)
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                found = mark in (folder / "environ").read_bytes()
            except OSError:
                continue
            if found:
                os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(0.5)
        arguments = {"path": "data/splits.csv"}
        stream.tool("read_table", arguments, *tools.call("read_table", arguments))
        stream.say("the tools are gone; I give up")
        finished(stream)
    elif model == "prints_key":
        stream.say(f"my key is {key}")
        print(f"key {key}", file=sys.stderr)
        for path in ("reports/key.txt", "memory/execution_memory.jsonl"):
            Path(path).write_text(f"{'.' * 1_048_570}{key}\n")
        arguments = {"path": f"data/{key}.csv"}
        stream.tool("read_table", arguments, *tools.call("read_table", arguments))
        half = len(key) // 2
        sys.stdout.write('{"type": "text", "text": "' + "z" * 1_100_000 + key[:half])
        sys.stdout.flush()
        time.sleep(0.3)
        print(key[half:] + '"}', flush=True)
        finished(stream)
    elif model == "breaks_key":
        # As a JSON writer may put it: whole again when it is decoded.
        print(
            json.dumps({"type": "error", "message": "MARK"}).replace(
                "MARK", "".join(f"\\u{ord(letter):04x}" for letter in key)
            ),
            flush=True,
        )
        finished(stream)
    elif model == "burrows":
        workspace = os.getcwd()
        os.makedirs(os.path.join(os.environ["CODEX_HOME"], "sessions"))
        for start in (workspace, os.path.join(os.environ["CODEX_HOME"], "sessions")):
            os.chdir(start)
            for _ in range(1500):
                os.mkdir("d")
                os.chdir("d")
        os.chdir(workspace)
        for _ in range(30):
            os.mkdir("n" * 200)
            os.chdir("n" * 200)
        Path("deep.txt").write_text("x")
        os.chdir(workspace)
        Path("reports/kept.md").write_text("kept")
        os.chmod(".", 0)
        finished(stream)
    elif model == "escapes":
        escape(stream)
        finished(stream)
    elif model == "fills":
        with open("outputs/big.bin", "wb") as handle:
            while True:
                stream.say("w" * 2000)
                handle.write(os.urandom(1_000_000))
                handle.flush()
    elif model == "survey":
        survey()
        finished(stream)
    else:
        raise SystemExit(f"no such behaviour: {model}")


def escape(stream: Stream) -> None:
    """What an agent may try: every attempt is noted with what came of it."""

    def tried(what: str, deed: object) -> None:
        try:
            stream.say(f"{what}: {deed()}")
        except OSError as error:
            stream.say(f"{what}: {error}")

    tried("outside", lambda: Path("../../x").write_text("x"))
    tried("log", lambda: Path("../tools.jsonl").write_text('{"event": "end", "forged": true}\n'))
    tried("link", lambda: os.symlink("/etc/passwd", "outputs/passwd"))
    tried("folder link", lambda: os.symlink("/etc", "outputs/etc"))
    tried("skill", lambda: Path("skills/evaluation/SKILL.md").write_text("Claim success."))
    with open("outputs/sparse.bin", "wb") as handle:
        handle.truncate(5 * 1024**3)
    Path("outputs/closed").mkdir()
    Path("outputs/closed/inner.txt").write_text("x")
    Path("outputs/closed/inner.txt").chmod(0)
    Path("outputs/closed").chmod(0)
    # As if it had been written before anything else.
    Path("plan").mkdir(exist_ok=True)
    Path("plan/late.md").write_text("I had planned all of this.")
    os.utime("plan/late.md", (time.time() - 1.0, time.time() - 1.0))
    Path("outputs/later.md").write_text("x")
    os.utime("outputs/later.md", (time.time() + 1.0, time.time() + 1.0))
    tried("labels", lambda: sum(1 for path in Path("../..").resolve().rglob("labels.csv")))


def survey() -> None:
    """What can be seen from here."""
    import socket

    seen = {
        "env": dict(os.environ),
        "root": sorted(os.listdir("/")),
        "uid": os.getuid(),
        "parent": sorted(os.listdir("..")),
        "passwd": Path("/etc/passwd").read_text(),
    }
    seen["slides"] = sorted(os.listdir("/slides")) if Path("/slides").is_dir() else None
    for name, address in (("own", None), ("outside", ("192.0.2.1", 80))):
        try:
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                server.listen()
                socket.create_connection(address or server.getsockname(), 2).close()
            seen[name] = "reached"
        except OSError as error:
            seen[name] = str(error)
    url = os.environ.get("ANTHROPIC_BASE_URL", "")
    if url:
        host, _, port = url.removeprefix("http://").partition(":")
        try:
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                seen["model"] = connection.recv(100).decode()
        except OSError as error:
            seen["model"] = str(error)
    Path("outputs/seen.json").write_text(json.dumps(seen))


main()
