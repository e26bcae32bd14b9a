"""Collect one trajectory: workspace, harness, raw stream, witnessed log, record.

A run that dies is a complete record with its ``run_status``; only a collector that cannot do its own work
raises. See :mod:`acpbench.harness.attempts` for attempts and publishing, and docs/howto-agents.md for the
whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from acpbench import __version__
from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_json, write_text
from acpbench.core.groups import AnyGroup, Limits, Sandbox, ScriptedGroup
from acpbench.core.ids import trajectory_id
from acpbench.harness import preflight
from acpbench.harness.adapter import PROMPT, Evidence, Run, Status, adapter_for
from acpbench.harness.attempts import DECLARED, collecting, last_attempt, show, unaccepted
from acpbench.harness.conclude import conclude, open_folders
from acpbench.harness.context import CONTEXT_VARIABLE, RunContext
from acpbench.harness.environment import (
    agent_environment,
    configuration_digest,
    search_path,
    tool_environment,
)
from acpbench.harness.launch import Ending, Launch, run_child
from acpbench.harness.memory import GIVEN_FILE, carried_memory, write_memory
from acpbench.harness.model_relay import ModelRelay
from acpbench.harness.mounts import Setting
from acpbench.harness.sandbox import MODEL_SOCKET, Box, open_box
from acpbench.harness.scrub import MIN_SECRET_CHARS, Scrubber, secret_values
from acpbench.harness.sessions import calls_missing_from_stream, confirm, keep_session_files
from acpbench.harness.settings import RunSettings, agent_inputs, settings_from_study
from acpbench.harness.tool_gate import ToolGate
from acpbench.harness.tool_socket import SOCKET_VARIABLE
from acpbench.harness.witness import LogWitness
from acpbench.harness.workspace import LAYOUTS, build_workspace, contents_digest
from acpbench.mil.splits import split_id
from acpbench.tasks.catalogue import load_task
from acpbench.tasks.models import Task
from acpbench.trajectory.record import RunRecord, load_run

__all__ = ["DECLARED", "RunSettings", "agent_inputs", "collect_run", "settings_from_study"]

PROMPT_FILE = "prompt.txt"
TOOL_SOCKET = "tools.sock"
STOP_TIMEOUT_S = 60.0


def collect_run(settings: RunSettings, run_dir: Path) -> RunRecord:
    """Run one group on one task and leave the record in ``run_dir``.

    A record that is there already is returned: delete ``run_dir`` to run again.

    Raises:
        InputError: an id, the task file or a table does not fit; or, before an attempt is begun, a key's
            variable is not set, the harness is not installed, or the sandbox asked for cannot be kept here.
    """
    task = load_task(settings.task_file)
    identity = trajectory_id(settings.group, task.task_id, settings.replicate)
    trajectory_dir = run_dir.parent
    with collecting(trajectory_dir):
        number = last_attempt(trajectory_dir)
        attempt = trajectory_dir / "attempts" / str(number)
        if unaccepted(attempt, run_dir):
            show(attempt, run_dir)
        if (run_dir / "run.json").is_file():
            return load_run(run_dir)
        with _private_folder() as private:
            collection = Collection(settings, task, identity, run_dir, private)
            collection.check()
            return collection.collect(attempt.with_name(str(number + 1)))


@contextlib.contextmanager
def _private_folder() -> Any:
    """A folder for the run's sockets. Its path is short: a Unix socket's has 107 bytes at most."""
    roots = [root for root in ("/tmp", tempfile.gettempdir()) if os.access(root, os.W_OK)]
    with tempfile.TemporaryDirectory(prefix="acp-", dir=roots[0], ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Collection:
    """One attempt from its empty folder to its record."""

    def __init__(
        self, settings: RunSettings, task: Task, identity: str, run_dir: Path, private: Path
    ) -> None:
        self.settings, self.task, self.identity = settings, task, identity
        self.run_dir, self.private = run_dir, private
        self.group: AnyGroup = settings.harness.root
        self.adapter = adapter_for(self.group.harness)
        self.notes: list[str] = []
        self.evidence = Evidence()
        self.version = __version__
        self.gate: ToolGate | None = None
        self.tool_list: str | None = None
        self.config_digest: str | None = None
        self.memory = carried_memory(settings.memory_from) if settings.memory else None

    # -- before anything is written --

    @property
    def scripted(self) -> bool:
        """Whether this is the built-in harness: no key, no sandbox, its tools in its own process."""
        return isinstance(self.group, ScriptedGroup)

    def check(self) -> None:
        """Refuse what cannot work, before an attempt is begun. Raises :class:`InputError`."""
        group = self.group
        names: list[str] = []
        self.executable = sys.executable
        if not isinstance(group, ScriptedGroup):
            names = [*self.adapter.secrets(group).values(), *group.pass_env]
            self.executable = group.executable
            found = preflight.find_executable(group.executable)
            if group.sandbox.kind != "command":
                if found is None:
                    raise InputError(
                        f"{group.executable!r} is not installed (not on PATH)",
                        file=f"groups.{self.settings.group}",
                        field="executable",
                    )
                self.executable = str(found)
        vision = self.settings.vision
        tool_names = [vision.api_key_env] if vision is not None and vision.api_key_env else []
        self.secrets = secret_values(dict.fromkeys([*names, *tool_names]))
        self.scrubber = Scrubber(self.secrets)
        short = [name for name, value in self.secrets.items() if len(value) < MIN_SECRET_CHARS]
        self.notes += [f"the value of {name} is too short to be taken out of the record" for name in short]
        self.box = open_box(self._wanted_sandbox(), self._setting(self.run_dir.parent / "attempts" / "0"))

    def _wanted_sandbox(self) -> Sandbox:
        group = self.group
        return Sandbox(kind="none") if isinstance(group, ScriptedGroup) else group.sandbox

    def _setting(self, attempt: Path) -> Setting:
        """Places of an attempt, as a sandbox needs them."""
        workspace = attempt.resolve() / "workspace"
        layout = LAYOUTS[self.adapter.name]
        mirrors = ["skills", *([layout.skills] if layout.skills else [])]
        env_names: tuple[str, ...] = ()
        executables: tuple[Path, ...] = ()
        slides: dict[str, Path] = {}
        if not isinstance(self.group, ScriptedGroup):
            executables = (Path(self.executable),)
            slides = {
                row["slide_id"]: self.settings.slides_base / row["path"]
                for row in read_csv(self.settings.slides_csv)
            }
            env_names = (*self.adapter.secrets(self.group), *self.group.pass_env)
        return Setting(
            workspace=workspace,
            home=attempt.resolve().with_name(f"{attempt.name}.home"),
            private=self.private,
            read_only=tuple(workspace / mirror for mirror in mirrors),
            slides=slides,
            executables=executables,
            endpoint=self.adapter.endpoint(self.group),
            name=f"acpbench-{self.private.name}",
            env_names=env_names,
        )

    # -- the run --

    def collect(self, attempt: Path) -> RunRecord:
        """Do the attempt and publish it."""
        self.attempt = attempt
        self.workspace = (attempt / "workspace").resolve()
        self.home = attempt.resolve().with_name(f"{attempt.name}.home")
        attempt.mkdir(parents=True)
        self.home.mkdir()
        self.witness = LogWitness(attempt / "tools.jsonl")
        try:
            self._build()
            ending, status = self._run()
            return conclude(self, ending, status)
        finally:
            # Caches, and whatever a harness remembers of its login: no part of the record.
            open_folders(self.home)
            shutil.rmtree(self.home, ignore_errors=True)

    def _build(self) -> None:
        settings = self.settings
        build_workspace(
            self.workspace,
            task=self.task,
            labels_csv=settings.labels,
            slides_csv=settings.slides_csv,
            skills=settings.skills,
            label_access=settings.label_access,
            test_evaluations=settings.test_evaluations,
            harness=self.adapter.name,
            memory=self.memory,
        )
        self.initial = contents_digest(self.workspace)
        if self.memory is not None:
            write_memory(self.attempt / GIVEN_FILE, self.memory)
        self.context_file = self.attempt.resolve().with_name(f"{self.attempt.name}.context.json")
        context = RunContext(
            trajectory_id=self.identity,
            workspace=self.workspace,
            tool_log=(self.attempt / "tools.jsonl").resolve(),
            receipts=(self.attempt / "receipts.jsonl").resolve(),
            split_id=split_id(read_csv(settings.labels)),
            **settings.shared(),
        )
        write_json(self.context_file, context.model_dump(mode="json"))
        for name in ("tools.jsonl", "stream.jsonl", "stderr.log"):
            (self.attempt / name).touch()
        if not self.scripted:
            write_text(self.attempt / PROMPT_FILE, PROMPT + "\n")

    def _run(self) -> tuple[Ending, Status | None]:
        """Launch, or say why not. The status is None where the ending and the stream decide."""
        # The run's window is the harness's own: without what comes before and after it.
        self.start_s = self.end_s = time.time()
        self.evidence.disk_free_bytes = shutil.disk_usage(self.attempt).free
        full = preflight.disk_problem(self.attempt)
        if full is not None:
            return Ending(), Status("infra_error", f"pre-flight: {full}")
        if self.scripted:
            run = self._prepared({CONTEXT_VARIABLE: str(self.context_file)}, None)
            return self._launched(self.adapter.prepare(run)), None
        self.box = box = open_box(self._wanted_sandbox(), self._setting(self.attempt))
        self.notes += box.notes
        socket = self.private / TOOL_SOCKET
        errors = self.attempt.with_name(f"{self.attempt.name}.tools.log")
        with contextlib.ExitStack() as stack:
            environment = tool_environment(self.context_file, self.settings.vision, self.secrets)
            gate = stack.enter_context(
                ToolGate(socket, environment, errors, self.workspace, self.witness.look)
            )
            endpoint = self.adapter.endpoint(self.group)
            if box.network == "model_only" and box.kind == "bubblewrap" and endpoint is not None:
                stack.enter_context(ModelRelay(self.private / MODEL_SOCKET, *endpoint))
            run = self._prepared({SOCKET_VARIABLE: str(socket)}, box)
            launch = self.adapter.prepare(run)
            environment = agent_environment(launch, self.home, own_tmp=self.box.kind == "bubblewrap")
            found = preflight.check(
                self.adapter, self.executable, environment, self.workspace, run.tool_command, self._wrap
            )
            self.version = found.version or "unknown"
            if found.problem is not None:
                return Ending(), Status("infra_error", found.problem)
            before = gate.mark()
            self.gate = gate
            ending = self._launched(launch)
            self.evidence.tools_listed = gate.listed(before)
            self.evidence.tools_died = gate.died(before)
            self.evidence.calls_after_death = gate.calls_after_death(before)
            self.tool_list = gate.tools_digest()
            self.gate = None
            typed = self.adapter.normalise(self.attempt)
            confirm(
                self.adapter,
                run,
                typed,
                environment | {name: self.secrets[source] for name, source in launch.secrets.items()},
                self.attempt,
                self.scrubber,
                self._wrap,
                self.evidence,
            )
        open_folders(self.home)
        self.notes += keep_session_files(self.adapter, self.home, self.attempt, self.scrubber)
        missing = calls_missing_from_stream(self.adapter, self.attempt, typed, self.evidence.export)
        self.notes += [missing] if missing else []
        if box.stop is not None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(box.stop, capture_output=True, timeout=STOP_TIMEOUT_S, check=False)
        return ending, None

    def _tool_at_work(self) -> bool:
        """Look at the tool log; whether a call has begun and not ended."""
        self.witness.look()
        return self.witness.open_calls > 0 and (self.gate is None or self.gate.serving())

    def _wrap(self, command: list[str]) -> list[str]:
        return command if self.box.wrap is None else self.box.wrap(command)

    def _prepared(self, tool_env: dict[str, str], box: Box | None) -> Run:
        """What the adapter needs to know of this run."""
        command = self._wanted_sandbox().kind == "command"
        relay = "acp-bench" if command else str(Path(sys.executable).parent / "acp-bench")
        path = search_path()
        return Run(
            group=self.group,
            workspace=self.workspace,
            home=self.home,
            executable=self.executable,
            tool_command=(relay, "mcp"),
            # A harness may hand its servers a few variables only: what the relay needs is named.
            tool_env=tool_env if self.scripted else tool_env | {"PATH": path},
            tool_timeout_s=self.limits()[1],
            sandboxed=box is not None and box.wrap is not None,
            encoder=self.settings.encoder,
            seed=self.settings.seed,
        )

    def limits(self) -> tuple[Limits, float]:
        """The limits, and the wall limit in force."""
        limits = Limits(idle_s=None) if isinstance(self.group, ScriptedGroup) else self.group.limits
        return limits, limits.wall_s or self.settings.wall_limit_s

    def _launched(self, launch: Launch) -> Ending:
        """Run the child; see :func:`acpbench.harness.launch.run_child`."""
        limits, wall_s = self.limits()
        pass_env = [] if isinstance(self.group, ScriptedGroup) else self.group.pass_env
        launch = Launch(
            launch.command,
            launch.cwd,
            agent_environment(launch, self.home, own_tmp=self.box.kind == "bubblewrap"),
            launch.secrets | {name: name for name in pass_env},
            launch.files,
        )
        self.start_s = time.time()
        self.config_digest = configuration_digest(
            launch, {"ATTEMPT": self.attempt.resolve(), "PRIVATE": self.private}
        )
        ending = run_child(
            launch,
            self.attempt,
            wrap=self.box.wrap,
            limits=limits,
            wall_s=wall_s,
            meter=self.adapter.meter(),
            scrubber=self.scrubber,
            secret_values=self.secrets,
            on_look=self._tool_at_work,
        )
        self.end_s = time.time()
        self.notes += ending.notes
        return ending
