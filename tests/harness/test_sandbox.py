"""What an agent in a sandbox can see and reach, and what is refused where it cannot be kept."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_jsonl, walk_files
from acpbench.core.groups import Sandbox
from acpbench.harness import sandbox, tool_gate
from acpbench.harness.mounts import Setting
from acpbench.harness.mounts import programs as programs_of
from acpbench.harness.sandbox import bubblewrap, open_box
from tests.harness.agents import KEY, KEY_VARIABLE, collect, group, install, run_dir
from tests.harness.build import REPOSITORY, Side

FAKE_SERVER = (sys.executable, str(Path(__file__).parent / "fake_tool_server.py"))
FOUND, REASON = bubblewrap()
boxed = pytest.mark.skipif(FOUND is None, reason=f"no sandbox here: {REASON}")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(tool_gate, "SERVER", FAKE_SERVER)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins."""
    return install(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def model() -> Iterator[int]:
    """A web server on loopback; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def seen_by(side: Side, programs: Path, network: str, port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    """What an agent saw of the world from inside."""
    entry = group(
        "claude_code",
        "survey",
        programs,
        base_url=f"http://{host}:{port}",
        sandbox={"kind": "bubblewrap", "network": network},
    )
    record = collect(side, entry, skills=REPOSITORY / "skills")
    assert record.run_status == "completed", record.status_reason
    assert record.isolation is not None
    assert (record.isolation.kind, record.isolation.network) == ("bubblewrap", network)
    assert record.sandbox.startswith("bubblewrap ")
    return json.loads((run_dir(side) / "workspace" / "outputs" / "seen.json").read_text())


@boxed
@pytest.mark.parametrize(
    ("network", "own", "outside", "reached"),
    [
        ("none", "unreachable", "unreachable", "unreachable"),
        ("loopback", "reached", "unreachable", "refused"),
        ("model_only", "reached", "unreachable", "HTTP/1.0 200"),
        ("host", "reached", None, "HTTP/1.0 200"),
    ],
)
def test_the_network_is_what_was_asked_for(
    side: Side, programs: Path, model: int, network: str, own: str, outside: str | None, reached: str
) -> None:
    seen = seen_by(side, programs, network, model)
    assert own in seen["own"]
    assert reached in seen["model"]
    # On the machine's own network an address that nobody has may be refused in several ways.
    assert outside is None or outside in seen["outside"]


@boxed
def test_the_model_is_reached_by_name_where_only_it_may_be(
    side: Side, programs: Path, model: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name is known to nobody but this run: outside it stands for the server, inside for the gate to it.
    from acpbench.harness import model_relay

    connect = model_relay.socket.create_connection
    asked: list[tuple[str, int]] = []

    def known(address: tuple[str, int], *rest: Any) -> Any:
        asked.append(address)
        return connect(("127.0.0.1", address[1]), *rest)

    monkeypatch.setattr(model_relay.socket, "create_connection", known)
    seen = seen_by(side, programs, "model_only", model, host="model.example")
    assert "HTTP/1.0 200" in seen["model"]
    assert asked == [("model.example", model)]


@boxed
def test_an_agent_sees_its_workspace_and_no_file_of_the_evaluator(
    side: Side, programs: Path, model: int
) -> None:
    side.draw_slide("S00", np.full((32, 32, 3), 200, dtype=np.uint8))
    seen = seen_by(side, programs, "loopback", model)
    assert seen["parent"] == ["workspace"]
    assert "agent:x:" in seen["passwd"] and "root:" not in seen["passwd"]
    # A slide is there by its id and can be read, not written; the names of the cohort's files stay outside.
    assert seen["slides"] == ["S00.svs"]
    assert not {"home", "opt", "srv", "mnt", "media"} & set(seen["root"])
    assert "TMPDIR" not in seen["env"]
    if os.geteuid() == 0:
        assert seen["uid"] == 1000


@boxed
def test_an_agent_that_reaches_out_of_its_sandbox_touches_nothing(side: Side, programs: Path) -> None:
    before = {path for _, path in walk_files(side.root)}
    record = collect(
        side,
        group("codex", "escapes", programs, sandbox={"kind": "bubblewrap"}),
        skills=REPOSITORY / "skills",
    )
    assert record.run_status == "completed", record.status_reason
    said = [
        row["item"]["text"]
        for row in read_jsonl(run_dir(side) / "stream.jsonl")
        if row["type"] == "item.completed" and row["item"]["type"] == "agent_message"
    ]
    told = dict(line.split(": ", 1) for line in said)
    assert "Read-only file system" in told["skill"]
    # No label table lies anywhere in what it can see. The one of this run exists outside.
    assert told["labels"] == "0" and side.labels.is_file()
    rows = read_jsonl(run_dir(side) / "tools.jsonl")
    assert [row["event"] for row in rows] == ["start", "end"]
    assert not (run_dir(side) / "tools.edited.jsonl").exists()
    skill = (run_dir(side) / "workspace" / "skills" / "evaluation" / "SKILL.md").read_bytes()
    assert skill == (REPOSITORY / "skills" / "evaluation" / "SKILL.md").read_bytes()
    outside = {path for _, path in walk_files(side.root)} - before
    assert all(run_dir(side).parent in path.parents for path in outside)
    assert not [path for path in outside if path.name == "x"]


@boxed
def test_the_tool_server_is_out_of_a_sandboxed_agents_reach(side: Side, programs: Path) -> None:
    record = collect(side, group("codex", "server_killed", programs, sandbox={"kind": "bubblewrap"}))
    assert record.run_status == "completed", record.status_reason
    ends = [row for row in read_jsonl(run_dir(side) / "tools.jsonl") if row["event"] == "end"]
    assert [row["exit_status"] for row in ends] == ["ok", "ok"]


@boxed
@pytest.mark.parametrize(
    ("behaviour", "run_status", "sign"), [("killed", "killed", 9), ("exit_3", "agent_error", None)]
)
def test_a_signal_is_told_from_an_exit_code_inside_a_sandbox(
    side: Side, programs: Path, behaviour: str, run_status: str, sign: int | None
) -> None:
    record = collect(side, group("codex", behaviour, programs, sandbox={"kind": "bubblewrap"}))
    assert (record.run_status, record.signal) == (run_status, sign)


@boxed
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become another user"
)
@pytest.mark.parametrize(
    ("network", "port"), [("model_only", 443), ("model_only", 8443), ("none", 443), ("host", 1)]
)
def test_the_sandbox_needs_no_privilege(
    tmp_path_factory: pytest.TempPathFactory, network: str, port: int
) -> None:
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    system = "/usr/bin/python3"
    if not Path(system).exists():
        pytest.skip("no Python that another user may run")
    folder = Path("/tmp") / f"acp-test-{os.getpid()}-{network}-{port}"
    for name in ("workspace", "home", "private"):
        (folder / name).mkdir(parents=True)
    try:
        setting = Setting(
            folder / "workspace", folder / "home", folder / "private", endpoint=("model.example", port)
        )
        found = subprocess.run([*nobody, str(FOUND.path), "--ro-bind", "/", "/", "true"], check=False)
        if found.returncode != 0:
            pytest.skip("namespaces are not permitted for users")
        command = open_box(Sandbox(kind="bubblewrap", network=network), setting).wrap(["touch", "made"])
        # Root's Python is not for others to run: the gate runs under the system's.
        command = [system if word == sys.executable else word for word in command]
        if network == "none" and "--user" not in command:
            place = command.index("--net")
            command[place:place] = ["--user", "--map-current-user"]
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534)
        drop = {str(path) for path in programs_of(setting) if not path.is_relative_to(REPOSITORY / "src")}
        while place := next(
            (i for i, word in enumerate(command) if word in drop and command[i - 1] == "--ro-bind"), 0
        ):
            del command[place - 1 : place + 2]
        done = subprocess.run([*nobody, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (folder / "workspace" / "made").exists()
    finally:
        shutil.rmtree(folder)


def setting_of(tmp_path: Path, endpoint: tuple[str, int] | None = ("model.example", 443)) -> Setting:
    return Setting(tmp_path, tmp_path, tmp_path, endpoint=endpoint, env_names=("KEY",), name="box-1")


@pytest.mark.parametrize("network", ["none", "loopback", "model_only"])
def test_a_network_that_cannot_be_kept_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: (None, "bubblewrap (bwrap) is not installed"))
    with pytest.raises(InputError, match=f"network: {network} cannot be kept without bubblewrap"):
        open_box(Sandbox(network=network), setting_of(tmp_path))


def test_without_bubblewrap_a_run_is_marked_and_a_demanded_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: (None, "namespaces are not permitted here"))
    box = open_box(Sandbox(), setting_of(tmp_path))
    assert (box.summary, box.wrap) == ("unsandboxed", None)
    assert "namespaces are not permitted" in box.notes[0]
    with pytest.raises(InputError, match="kind: bubblewrap cannot be kept on this machine: namespaces"):
        open_box(Sandbox(kind="bubblewrap"), setting_of(tmp_path))


def test_a_bubblewrap_that_does_not_work_is_no_sandbox(tmp_path: Path) -> None:
    old, denied = tmp_path / "old", tmp_path / "denied"
    old.write_text("#!/bin/sh\necho bubblewrap 0.3.1\n")
    denied.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.8.0 && exit\n"
        "echo 'setting up uid map: Permission denied' >&2; exit 1\n"
    )
    for program in (old, denied):
        program.chmod(0o755)
    assert sandbox._probe("") == (None, "bubblewrap (bwrap) is not installed")
    assert sandbox._probe(str(old)) == (None, "bwrap bubblewrap 0.3.1 is older than 0.4")
    assert "Permission denied" in sandbox._probe(str(denied))[1]


@boxed
def test_model_only_needs_a_name_that_can_stand_for_the_gate(tmp_path: Path) -> None:
    wanted = Sandbox(kind="bubblewrap", network="model_only")
    with pytest.raises(InputError, match="give a name"):
        open_box(wanted, setting_of(tmp_path, ("203.0.113.7", 443)))
    with pytest.raises(InputError, match="needs a model's address"):
        open_box(wanted, setting_of(tmp_path, None))


def test_a_command_of_the_users_own_is_filled_in(tmp_path: Path) -> None:
    wanted = Sandbox(
        kind="command",
        command=["env", "{env}", "--volume={workspace}:{workspace}", "--name", "{name}", "image:1"],
        stop=["true", "{name}"],
    )
    box = open_box(wanted, setting_of(tmp_path))
    assert box.wrap is not None
    volume = f"--volume={tmp_path}:{tmp_path}"
    named = ["env", "--env", "KEY", volume, "--name", "box-1", "image:1", "claude", "-p"]
    assert box.wrap(["claude", "-p"]) == named
    assert box.stop == ["true", "box-1"]
    with pytest.raises(InputError, match=r"\{data\} is none of"):
        open_box(Sandbox(kind="command", command=["env", "{data}"]), setting_of(tmp_path))
    with pytest.raises(InputError, match="no-such-program is not on PATH"):
        open_box(Sandbox(kind="command", command=["no-such-program"]), setting_of(tmp_path))


def test_an_agent_under_a_command_of_the_users_own_is_recorded_as_such(side: Side, programs: Path) -> None:
    entry = group("codex", "complete", programs, sandbox={"kind": "command", "command": ["nice", "-n", "1"]})
    record = collect(side, entry)
    assert (record.run_status, record.sandbox) == (
        "completed",
        "command nice, network host (as the command keeps it)",
    )
