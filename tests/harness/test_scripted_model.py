"""The scripted model plays the same policies as the built-in harness, over each of the three protocols."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.files import read_jsonl, walk_files
from acpbench.core.groups import Policy
from acpbench.harness.context import RunContext
from acpbench.harness.policies import POLICIES
from acpbench.harness.scripted_model import player as player_module
from acpbench.harness.scripted_model.server import MAX_REQUEST_BYTES, ModelServer
from acpbench.harness.scripted_model.toolkit import Offer, Toolkit
from tests.harness.build import DirectAgent, Side
from tests.harness.model_client import (
    CLIENTS,
    ClaudeClient,
    Client,
    CodexClient,
    Killed,
    OpenCodeClient,
    refused,
)


@contextmanager
def serving(policy: str, **options: Any) -> Iterator[ModelServer]:
    """The server in this process."""
    server = ModelServer(policy, **{"encoder": "color_stats", "seed": 3} | options)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)


def calls(context: RunContext) -> list[tuple[Any, ...]]:
    """Witnessed calls: tool, arguments, step, round and outcome."""
    if not context.tool_log.exists():
        return []
    rows = read_jsonl(context.tool_log)
    ends = {row["call_id"]: row["exit_status"] for row in rows if row["event"] == "end"}
    return [
        (row["tool"], row["args"], row["step_id"], row["round_id"], ends[row["call_id"]])
        for row in rows
        if row["event"] == "start"
    ]


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """One evaluator's side for all runs of this module."""
    return Side(tmp_path_factory.mktemp("side"))


@pytest.fixture(scope="module")
def builtin(side: Side) -> dict[str, RunContext]:
    """Every policy as the built-in harness plays it."""
    runs = {}
    for policy, behave in POLICIES.items():
        runs[policy] = side.context(f"builtin_{policy}")
        try:
            behave(DirectAgent(runs[policy]), "color_stats", 3)
        except SystemExit:
            assert policy == "crash"
    return runs


@pytest.mark.parametrize(
    ("protocol", "policy"),
    [(protocol, "complete") for protocol in CLIENTS]
    + [("anthropic", policy) for policy in sorted(set(POLICIES) - {"complete"})]
    + [("responses", "silent_failure"), ("chat", "report_only")],
)
def test_a_policy_leaves_the_same_files_and_calls_behind_any_protocol(
    side: Side, builtin: dict[str, RunContext], protocol: str, policy: str
) -> None:
    context = side.context(f"{protocol}_{policy}")
    with serving(policy) as server:
        client = CLIENTS[protocol](server.url, context)
        if policy == "crash":
            with pytest.raises(Killed):
                client.run()
        else:
            client.run()
            assert client.said[-1]
    expected, found = (dict(walk_files(run.workspace)) for run in (builtin[policy], context))
    assert set(found) == set(expected)
    differing = [name for name in found if found[name].read_bytes() != expected[name].read_bytes()]
    # Two runs get two receipts of the evaluator; what the report says of them differs in that alone.
    assert set(differing) <= {"reports/report.md", "reports/report.json"}
    for name in differing:
        texts = [without_receipt(run, run.workspace / name) for run in (builtin[policy], context)]
        assert texts[0] == texts[1]
    assert calls(context) == calls(builtin[policy])


def without_receipt(context: RunContext, path: Path) -> str:
    """A report without the ids of its run's receipts."""
    text = path.read_text()
    for row in read_jsonl(context.receipts):
        text = text.replace(row["receipt_id"], "RECEIPT")
    return text


def test_words_of_the_policy_come_with_its_deeds(side: Side) -> None:
    with serving("complete") as server:
        client = CodexClient(server.url, side.context("words"))
        client.run()
    assert client.said[0].startswith("Planning demo_pleomorphism")
    assert client.said[-1] == "The report is written; it stays within the task's claim boundary."
    assert len(client.said) == 2


def test_an_answer_that_was_lost_is_given_again(side: Side) -> None:
    with serving("report_only") as server:
        client = ClaudeClient(server.url, side.context("again"))
        client.turn()
        first = client.post(client.body())
        assert client.post(client.body()) == first
        client.run()
    assert client.said[-1] == "The analysis is complete and the report is ready."
    assert len({json.dumps(call) for call in client.made}) == len(client.made)


def test_two_conversations_at_once_do_not_mix(side: Side) -> None:
    with serving("no_reflection") as server:
        clients = [
            ClaudeClient(server.url, side.context("one")),
            OpenCodeClient(server.url, side.context("two")),
        ]
        open_ones: list[Client] = list(clients)
        while open_ones:
            open_ones = [client for client in open_ones if client.turn()]
    assert calls(clients[0].context) == calls(clients[1].context)
    assert calls(clients[0].context)[-1][0] == "validate_report"


def test_a_request_without_tools_is_answered_and_moves_nothing(side: Side) -> None:
    with serving("report_only") as server:
        for kind in CLIENTS.values():
            aside = kind(server.url, side.context(f"aside_{kind.__name__}"), tools=False)
            assert aside.turn() is False
            assert aside.said == ["A task in computational pathology"]
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x" * 400}]}
        counted = json.loads(
            ClaudeClient(server.url, side.context("count")).post(body, "/v1/messages/count_tokens")
        )
        assert 100 <= counted["input_tokens"] <= 130
        head = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        head.request("HEAD", "/")
        assert head.getresponse().status == 200


@pytest.mark.parametrize(
    ("path", "key", "field"),
    [("/v1/messages", "content", "stop_reason"), ("/v1/chat/completions", "choices", "usage"),
     ("/v1/responses", "output", "usage")],
)  # fmt: skip
def test_without_streaming_the_answer_comes_in_one_piece(side: Side, path: str, key: str, field: str) -> None:
    kind = next(kind for kind in CLIENTS.values() if kind.path.startswith(path))
    with serving("report_only") as server:
        client = kind(server.url, side.context(f"whole_{kind.__name__}"))
        answer = json.loads(client.post(client.body() | {"stream": False}, path))
    assert answer[key] and answer[field]


def test_a_harness_without_the_benchmarks_tools_is_told_so(
    side: Side, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.harness.model_client.TOOLS", {})
    with serving("complete") as server:
        client = OpenCodeClient(server.url, side.context("toolless"))
        with pytest.raises(urllib.error.HTTPError, match="400"):
            client.run()
    assert "does not offer the tool validate_spec" in capfd.readouterr().err


def test_a_harness_that_survives_its_end_loses_its_connection(side: Side) -> None:
    class Survivor(ClaudeClient):
        def shell(self, command: str) -> tuple[str, int]:
            return ("", 0) if "kill" in command else super().shell(command)

    with serving("crash") as server:
        client = Survivor(server.url, side.context("survivor"))
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            client.run()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            client.turn()


def test_a_file_tool_that_fails_gives_way_to_the_shell(side: Side, builtin: dict[str, RunContext]) -> None:
    class NoFiles(OpenCodeClient):
        def act(self, name: str, given: dict[str, Any]) -> str:
            return "Error: permission denied" if name in ("read", "write") else super().act(name, given)

    with serving("no_reflection") as server:
        client = NoFiles(server.url, side.context("no_files"))
        client.run()
    for name in ("plan/plan.md", "plan/workflow_spec.json", "logs/events.jsonl", "scripts/run_workflow.sh"):
        expected = (builtin["no_reflection"].workspace / name).read_bytes()
        assert (client.context.workspace / name).read_bytes() == expected


def test_a_command_that_fails_ends_the_policy(side: Side, capfd: pytest.CaptureFixture[str]) -> None:
    context = side.context("no_task")
    (context.workspace / "task.json").unlink()
    with serving("report_only") as server, pytest.raises(urllib.error.HTTPError, match="400"):
        CodexClient(server.url, context).run()
    assert "NoWay: Read task.json" in capfd.readouterr().err


TEXTS = {
    "a_quote's.txt": 'it\'s "quoted" $HOME `id` \\ back\\slash\nEND_OF_FILE\n',
    "no_end": "no end of line: 'x'",
    "empty": "",
    "deep/er/unicode.md": "µm ≤ 5 \t tab\n\n\n",
    "long.csv": "".join(f"row {number},{'x' * 90}\n" for number in range(3000)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_shell_writes_the_exact_bytes(tmp_path: Path, name: str) -> None:
    commands = Toolkit.write_commands(f"out/{name}", TEXTS[name])
    for command in commands:
        assert len(command.encode()) < 100_000
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=20)
    assert (tmp_path / "out" / name).read_text() == TEXTS[name]


def test_a_long_file_is_read_page_by_page(side: Side) -> None:
    context = side.context("pages")
    task = json.loads((context.workspace / "task.json").read_text())
    task["padding"] = [f"{number}: →\t" for number in range(2500)]
    (context.workspace / "task.json").write_text(json.dumps(task, indent=1, ensure_ascii=False) + "\n")
    for kind in CLIENTS.values():
        with serving("report_only") as server:
            client = kind(server.url, context)
            client.run()
        assert task["target"] in (context.workspace / "reports/report.md").read_text()
        assert len(client.made) >= 4
        (context.workspace / "reports/report.md").unlink()


def test_a_free_form_patch_tool_writes_files() -> None:
    toolkit = Toolkit([Offer("apply_patch", {}, kind="custom")])
    call = toolkit.write("plan/plan.md", "# Plan\n\ngo\n")
    assert call is not None and call.kind == "custom"
    assert call.body == ("*** Begin Patch\n*** Add File: plan/plan.md\n+# Plan\n+\n+go\n*** End Patch\n")


@pytest.mark.parametrize(
    ("offer", "called"),
    [
        (Offer("mcp__acp__train_mil", {}), ("mcp__acp__train_mil", None)),
        (Offer("acp_train_mil", {}), ("acp_train_mil", None)),
        (Offer("train_mil", {}, "mcp__acp"), ("train_mil", "mcp__acp")),
        (Offer("mcp__other__train_mil", {}), None),
        (Offer("train_mil", {}), None),
    ],
)
def test_only_the_benchmarks_own_server_is_called(
    offer: Offer, called: tuple[str, str | None] | None
) -> None:
    call = Toolkit([offer]).registry("train_mil", {"seed": 1})
    assert (None if call is None else (call.name, call.namespace)) == called


def test_what_cannot_be_a_request_is_refused_and_the_server_lives_on(side: Side) -> None:
    with serving("report_only") as server:
        client = ClaudeClient(server.url, side.context("refusals"))
        assert refused(client, b"[1]", "/v1/messages") == 400
        assert refused(client, b"{", "/v1/responses") == 400
        assert refused(client, b"[" * 100_000, "/v1/responses") == 400
        assert refused(client, b"{}", "/v1/embeddings") == 404
        too_long = {"Content-Length": str(MAX_REQUEST_BYTES + 1)}
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("POST", "/v1/messages", headers=too_long)
        assert connection.getresponse().status == 413
        with socket.create_connection(server.server_address[:2], 10) as half:
            half.sendall(b"POST /v1/messages HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        for odd in ({"messages": 5, "tools": [1, {"name": None}]}, {"messages": [{"content": [None]}]}):
            assert refused(client, json.dumps(odd).encode(), "/v1/messages") == 200
        client.run()
    assert client.said[-1].startswith("The analysis is complete")


def test_the_oldest_conversation_gives_way(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player_module, "MAX_CONVERSATIONS", 3)
    before = threading.active_count()
    with serving("complete") as server:
        client = ClaudeClient(server.url, side.context("many"))
        for _ in range(12):
            client.post(client.body())
        deadline = time.monotonic() + 10
        while threading.active_count() > before + 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        policies = [thread for thread in threading.enumerate() if thread.name.startswith("policy-")]
        assert len(policies) <= 3


def test_the_server_is_on_loopback_alone() -> None:
    with serving("complete") as server:
        assert server.server_address[0] == "127.0.0.1"


def command(*words: str) -> subprocess.Popen[str]:
    """The server as a user starts it."""
    program = Path(sys.executable).parent / "acp-bench"
    return subprocess.Popen(
        [str(program), "scripted-model", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_tells_its_addresses_and_ends_by_a_signal() -> None:
    process = command("--policy", "complete")
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["openai"] == told["anthropic"] + "/v1"
        port = int(told["anthropic"].rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "scripted"
        second = command("--policy", "complete", "--port", str(port))
        assert second.communicate(timeout=60)[1].startswith("acp-bench: error: --port: cannot listen")
        assert second.returncode == 2
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_command_ends_by_itself_when_nobody_asks() -> None:
    process = command("--policy", "crash", "--idle-s", "1")
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_command_offers_the_policies_that_there_are() -> None:
    from acpbench.cli.scripted_model import POLICIES as OFFERED

    assert set(OFFERED) == set(POLICIES) == set(Policy.__args__)
