"""Small parent of an agent's process: it can end every descendant, also one that left session and group.

Run by path with the bare interpreter (``python -I -S supervisor.py``): it imports the standard library
only, so it starts in milliseconds and is the same in and outside a virtual environment.

    supervisor.py CONTROL_FD STATUS_FD GRACE_S -- COMMAND ...

On ``STATUS_FD`` it writes ``started PID``, ``exited CODE`` or ``signaled N`` (of the command itself),
``failed REASON`` when the command cannot be started, and ``gone`` when no descendant is left. On
``CONTROL_FD`` it takes ``term`` (TERM, a grace, then KILL, to all) and ``kill``; the end of that pipe means
``kill``: the collector died, and nothing the agent does would be recorded any more.

A subreaper inherits the orphans of its descendants (``prctl``, Linux; no privilege needed), so a grandchild
that called ``setsid`` or forked twice is still found under it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def become_subreaper() -> bool:
    """Ask the kernel for the orphans of all descendants. False where the system cannot."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def parents() -> dict[int, int]:
    """Process → parent, of every process that is not a zombie."""
    if not os.path.isdir("/proc/self"):
        return parents_by_ps()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as handle:
                # The command's name may hold spaces and brackets: fields start after the last bracket.
                state, parent = handle.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            found[int(name)] = int(parent)
    return found


def parents_by_ps() -> dict[int, int]:
    """The same where there is no ``/proc``."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False)
    rows = [line.split() for line in listed.stdout.split("\n") if len(line.split()) >= 3]
    return {int(row[0]): int(row[1]) for row in rows if not row[2].startswith("Z")}


def descendants(root: int) -> list[int]:
    """Living descendants of a process, nearest first."""
    children: dict[int, list[int]] = {}
    for process, parent in parents().items():
        children.setdefault(parent, []).append(process)
    found, waiting = [], [root]
    while waiting:
        for child in children.get(waiting.pop(0), []):
            found.append(child)
            waiting.append(child)
    return found


def signal_all(sign: int) -> int:
    """Send a signal to every descendant. Returns how many there were."""
    living = descendants(os.getpid())
    for process in living:
        try:
            os.kill(process, sign)
        except (ProcessLookupError, PermissionError):
            continue
    return len(living)


class Supervisor:
    """The command, its descendants, and the two pipes."""

    def __init__(self, control: int, status: int, grace_s: float, command: list[str]) -> None:
        self.control, self.status, self.grace_s, self.command = control, status, grace_s, command
        self.ended = False
        self.deadline: float | None = None
        self.killing = False

    def tell(self, text: str) -> None:
        """One line to the collector, if it still lives."""
        with contextlib.suppress(OSError):
            os.write(self.status, f"{text}\n".encode())

    def run(self) -> None:
        """Start the command and stay until nothing of it is left."""
        become_subreaper()
        try:
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self.tell(f"failed {error.strerror}: {self.command[0]}")
            self.tell("gone")
            return
        self.tell(f"started {process.pid}")
        # Else the stream would not end before the supervisor does.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        while True:
            self.reap(process.pid)
            if self.ended and not descendants(os.getpid()):
                break
            self.listen()
            self.press()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self.tell("gone")

    def reap(self, main: int) -> None:
        """Collect every ended child; the command's own end starts the end of the rest."""
        while True:
            try:
                process, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.ended = True
                return
            if process == 0:
                return
            if process == main:
                self.ended = True
                sign = os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0
                self.tell(f"signaled {sign}" if sign else f"exited {os.WEXITSTATUS(code)}")
                self.start_ending()

    def start_ending(self) -> None:
        """TERM to what is there; after the grace :meth:`press` kills."""
        if self.deadline is None:
            self.deadline = time.monotonic() + self.grace_s
            signal_all(signal.SIGTERM)

    def listen(self) -> None:
        """Take one word from the collector, or wait a little."""
        if self.control < 0:
            time.sleep(POLL_S)
            return
        ready, _, _ = select.select([self.control], [], [], POLL_S)
        if not ready:
            return
        word = os.read(self.control, 64)
        if b"kill" in word or not word:
            self.killing = True
        elif b"term" in word:
            self.start_ending()
        if not word:
            self.control = -1

    def press(self) -> None:
        """Kill what outlives its grace, again and again: it may fork."""
        if self.killing or (self.deadline is not None and time.monotonic() > self.deadline):
            self.killing = True
            signal_all(signal.SIGKILL)


def main() -> None:
    """Entry point."""
    for sign in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A handler, not SIG_IGN: that one would be inherited by the command.
        signal.signal(sign, lambda *_: None)
    control, status, grace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    Supervisor(control, status, grace, sys.argv[sys.argv.index("--") + 1 :]).run()


if __name__ == "__main__":
    main()
