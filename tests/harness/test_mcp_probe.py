"""The pre-flight look at an MCP server: its tools, or one reason why it cannot be used."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.harness.context import CONTEXT_VARIABLE
from acpbench.harness.mcp_probe import probe
from acpbench.harness.registry import TOOLS
from tests.harness.build import Side

ACP_BENCH = str(Path(sys.executable).parent / "acp-bench")
ENVIRONMENT = {"PATH": os.environ["PATH"]}

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, params = asked["method"], asked.get("params") or {}
    if method == "initialize":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}))
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {}, "serverInfo": {}}
    elif "cursor" in params:
        result = {"tools": [{"name": "b"}]}
    else:
        result = {"tools": [{"name": "a"}], "nextCursor": "2"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_runs_own_server_lists_the_registry(side: Side) -> None:
    context = side.context()
    file = side.root / "context.json"
    file.write_text(context.model_dump_json())
    names = probe([ACP_BENCH, "mcp"], ENVIRONMENT | {CONTEXT_VARIABLE: str(file)}, context.workspace, 60)
    assert names == list(TOOLS)
    assert not context.tool_log.exists()


def test_any_server_is_asked_page_by_page(tmp_path: Path) -> None:
    assert probe(script(SERVER), ENVIRONMENT, tmp_path, 30) == ["a", "b"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/no/such/server"], ["does not start"]),
        (script("import sys; print('trouble', file=sys.stderr); sys.exit(3)"), ["exit code 3", "trouble"]),
        (script("print('Welcome!', flush=True); input(); input()"), ["not the protocol", "Welcome!"]),
        (
            script("import json; input(); print(json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': "
                   "{'code': -1, 'message': 'no licence'}}), flush=True); input()"),
            ["refuses initialize", "no licence"],
        ),
        (script(SERVER.replace('[{"name": "a"}], "nextCursor": "2"', "[]")), ["offers no tool"]),
        (script(SERVER.replace('{"tools": [{"name": "a"}], "nextCursor": "2"}', "{}")), ["another form"]),
        ([ACP_BENCH, "mcp"], ["no run context", "exit code 2"]),
    ],
)  # fmt: skip
def test_an_unusable_server_is_one_reason(tmp_path: Path, command: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as told:
        probe(command, ENVIRONMENT, tmp_path, 60)
    for word in words:
        assert word in str(told.value)


def test_a_server_that_does_not_answer_is_ended_in_time(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    hanging = (
        "import os, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    begin = time.monotonic()
    with pytest.raises(InputError, match="did not answer initialize within 3 s"):
        probe(script(hanging), ENVIRONMENT, tmp_path, 3)
    assert time.monotonic() - begin < 15
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_the_environment_is_the_one_given_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACPBENCH_TEST_CANARY", "x")
    told = SERVER.replace('{"name": "b"}', '{"name": str(sorted(__import__("os").environ))}')
    names = probe(script(told), {"ONLY": "1"}, tmp_path, 30)
    assert "ONLY" in names[1]
    assert "CANARY" not in names[1] and "HOME" not in names[1]
