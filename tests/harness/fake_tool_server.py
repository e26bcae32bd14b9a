"""A tool server that starts at once: one tool of the real one's name, the same log, the same protocol."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

CONTEXT = json.loads(Path(os.environ["ACPBENCH_RUN_CONTEXT"]).read_text())
LOG = Path(CONTEXT["tool_log"])


def log(row: dict) -> None:
    seq = LOG.read_bytes().count(b"\n") + 1
    moment = (
        datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
    with open(LOG, "ab") as handle:
        handle.write(json.dumps({"seq": seq, "call_id": "c1", "t": moment} | row).encode() + b"\n")


def call(name: str, arguments: dict) -> dict:
    log(
        {
            "event": "start",
            "tool": name,
            "args": arguments,
            "step_id": arguments.get("step_id"),
            "round_id": 0,
        }
    )
    path = Path(CONTEXT["workspace"]) / arguments.get("path", "")
    n_rows = path.read_text().count("\n") - 1 if path.is_file() else 0
    text = f"{n_rows} rows" if path.is_file() else f"{arguments['path']} does not exist"
    status = "ok" if path.is_file() else "error"
    log({"event": "end", "tool": name, "exit_status": status, "outputs": [], "error": None, "result": {}})
    return {"content": [{"type": "text", "text": text}], "isError": status == "error"}


def main() -> None:
    assert sys.argv[1:] in (["mcp"], ["tool", "serve"])
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "acp", "version": "1"},
            }
        elif method == "tools/list":
            tools = [
                {"name": name, "inputSchema": {"type": "object"}} for name in ("read_table", "train_mil")
            ]
            result = {"tools": tools}
        elif method == "tools/call":
            result = call(params["name"], params["arguments"])
        else:
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


main()
