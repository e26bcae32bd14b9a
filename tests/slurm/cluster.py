"""A SLURM cluster on one machine for as long as a test needs it.

A controller and a few node daemons, all on the loopback interface at ports that were free, with a private
munge key and every file in one folder: no service manager, no accounting database, no control groups,
nothing under ``/etc``. A job's processes are known by their process group (``proctrack/pgid``): by
ancestry, those whose parent dies first would outlive a cancel, as they cannot where control groups hold
them. Node names are invented (``NodeName`` differs from ``NodeHostname``), processors and memory are
claimed (``config_overrides``), and GPUs are device files that anyone has. The daemons are children in the
foreground that end with this process, also when it is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
GPU_DEVICES = ("/dev/null", "/dev/zero")
"""One file a GPU: a node may not list one file twice."""
_CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")

_CONF = """\
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
KillWait=2
SlurmctldTimeout=60
SlurmdTimeout=60
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
GresTypes=gpu
"""


def reason_to_skip() -> str | None:
    """Why no cluster can be started here, or ``None``."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", *_CLIENTS) if _program(name) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian and Ubuntu: apt-get install slurm-wlm munge)"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "snakemake-executor-plugin-slurm is not installed"
    if shutil.which("setpriv") is None:
        return "setpriv (util-linux) is not installed"
    if os.geteuid() != 0:
        return "slurmd starts jobs as root only"
    return None


def _program(name: str) -> str | None:
    """Daemons lie in ``sbin``, which is not on everybody's path."""
    return shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_until(check: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until ``check`` holds. Raises ``TimeoutError``."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.2)


class Cluster:
    """Use as a context manager.

    Args:
        n_nodes, cpus, memory_mb, n_gpus: nodes, and what each of them claims to have.

    Attributes:
        folder: configuration, state and logs. A short path, as sockets lie in it.
        nodes: names of the nodes.
    """

    def __init__(self, n_nodes: int = 3, cpus: int = 2, memory_mb: int = 32_000, n_gpus: int = 2) -> None:
        self.nodes = [f"n{i}" for i in range(1, n_nodes + 1)]
        self.cpus, self.memory_mb, self.n_gpus = cpus, memory_mb, n_gpus
        self.folder = Path()
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            self._configure()
            self._start_munge()
            self._start("slurmctld", "-D", "-c")
            for name in self.nodes:
                self._start("slurmd", "-D", "-N", name)
            wait_until(lambda: self.states() == {"idle"}, START_TIMEOUT_S, "nodes are not idle")
        except BaseException:
            self._tell_logs()
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if len(self._daemons) > 1:
            # Jobs first: a node daemon that is gone cannot end its own.
            self.call("scancel", "--full", "--state=PENDING,RUNNING,SUSPENDED", f"--user={_user()}")
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not self.jobs_alive(), STOP_TIMEOUT_S, "jobs are left")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to meet this cluster and no other."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        foreign = {name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
        kept = {name: value for name, value in os.environ.items() if name not in foreign}
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    @property
    def pids(self) -> list[int]:
        """Processes of the daemons."""
        return [daemon.pid for daemon in self._daemons]

    def call(self, *command: str) -> str:
        """Standard output of a SLURM client."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def states(self) -> set[str]:
        """States of the nodes; empty while the controller does not answer."""
        return set(self.call("sinfo", "--noheader", "--Node", "--format=%T").split())

    def jobs_alive(self) -> list[str]:
        """``id state`` of every job that waits, runs or is being ended."""
        return self.call("squeue", "--noheader", "--format=%i %T").splitlines()

    def records(self) -> list[dict[str, str]]:
        """What the controller remembers of every job, as ``scontrol show job`` names it."""
        text = self.call("scontrol", "--details", "--oneliner", "show", "job")
        return [
            dict(field.split("=", 1) for field in line.split() if "=" in field)
            for line in text.splitlines()
            if line.startswith("JobId=")
        ]

    def listening_elsewhere(self) -> list[str]:
        """Addresses other than loopback on which a daemon of ours listens, from ``/proc``."""
        inodes = set()
        for pid in self.pids:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes and not fields[1].startswith("0100007F:"):
                    found.append(fields[1])
        return found

    def _configure(self) -> None:
        folder = self.folder
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        port, *node_ports = _free_ports(1 + len(self.nodes))
        lines = [_CONF.format(host=host, port=port, user=_user(), folder=folder)]
        devices = []
        for name, node_port in zip(self.nodes, node_ports, strict=True):
            (folder / "spool" / name).mkdir()
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={self.cpus} "
                f"RealMemory={self.memory_mb} Gres=gpu:{self.n_gpus} State=UNKNOWN\n"
            )
            devices += [f"NodeName={name} Name=gpu File={file}\n" for file in GPU_DEVICES[: self.n_gpus]]
        lines.append(
            f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        )
        (folder / "slurm.conf").write_text("".join(lines))
        (folder / "gres.conf").write_text("".join(devices))
        # The job step plugin of Snakemake takes SLURM_CONF out of the environment of srun, which would then
        # look for a cluster under /etc. These find ours whatever happens to the environment.
        for name in _CLIENTS:
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {_program(name)} "$@"\n')
            program.chmod(0o755)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.sock",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        wait_until((self.folder / "munge.sock").exists, START_TIMEOUT_S, "munged has no socket")

    def _start(self, name: str, *options: str) -> None:
        program = _program(name)
        assert program is not None
        with open(self.folder / f"{name}.out", "ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    # The kernel ends the daemon when this process is gone, however it went.
                    ["setpriv", "--pdeathsig", "TERM", program, *options],
                    env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                )
            )  # fmt: skip

    def _tell_logs(self) -> None:
        for log in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def ended(pid: int) -> bool:
    """Whether a process is gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def processes_that_name(text: str) -> list[str]:
    """Command lines of live processes with ``text`` in them, but for this one's."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text in line:
                    found.append(f"{folder.name} {line[:200]}")
    return found


def interrupt(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Stop a run as a user does, with SIGINT, and return its exit code."""
    process.send_signal(signal.SIGINT)
    return process.wait(timeout_s)
