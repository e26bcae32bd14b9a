"""What stands between an agent and the machine: bubblewrap, a command of the user's own, or nothing.

Under bubblewrap an agent sees the system's programs read-only, its workspace (skills and slides in it
read-only), its own home, and a folder with the sockets of the run. No label, log, record of another run,
key of the tools or home of the user is there to be found. Without it the run is marked ``unsandboxed``.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from acpbench.core.errors import InputError
from acpbench.core.groups import Sandbox
from acpbench.harness import netgate
from acpbench.harness.mounts import (
    MAX_SLIDES,
    SYSTEM_FOLDERS,
    Setting,
    etc,
    is_address,
    programs,
    slides,
    system,
)

UNSANDBOXED = "unsandboxed"
MIN_BUBBLEWRAP = (0, 4)
PROBE_TIMEOUT_S = 20.0
MODEL_SOCKET = "model.sock"
USER_ID = 1000


@dataclass(frozen=True)
class Box:
    """A sandbox ready for use: ``wrap`` puts it around a command, ``summary`` goes into the record."""

    kind: str
    network: str
    version: str | None
    summary: str
    wrap: Callable[[list[str]], list[str]] | None
    stop: list[str] | None = None
    notes: tuple[str, ...] = ()


def open_box(wanted: Sandbox, setting: Setting) -> Box:
    """The sandbox that was asked for.

    Raises:
        InputError: this machine cannot keep what was asked for; the reason is said.
    """
    if wanted.kind == "command":
        return _command_box(wanted, setting)
    if wanted.kind == "none":
        return _no_box("asked for")
    found, reason = bubblewrap()
    if found is not None:
        return _bubblewrap_box(found, wanted, setting)
    if wanted.kind == "bubblewrap":
        raise InputError(f"kind: bubblewrap cannot be kept on this machine: {reason}", field="sandbox.kind")
    if wanted.network != "host":
        raise InputError(
            f"network: {wanted.network} cannot be kept without bubblewrap ({reason}); install it, or say "
            "network: host",
            field="sandbox.network",
        )
    return _no_box(reason)


def _no_box(reason: str) -> Box:
    return Box("none", "host", None, UNSANDBOXED, None, notes=(f"no sandbox: {reason}",))


# -- bubblewrap --


@dataclass(frozen=True)
class Bubblewrap:
    """A bubblewrap that works here. ``user_namespace``: whether it may make one (else root stays root)."""

    path: str
    version: str
    user_namespace: bool


def bubblewrap() -> tuple[Bubblewrap | None, str]:
    """The bubblewrap of this machine, or why there is none that works."""
    return _probe(shutil.which("bwrap") or "")


@functools.lru_cache(maxsize=8)
def _probe(path: str) -> tuple[Bubblewrap | None, str]:
    if not path:
        return None, "bubblewrap (bwrap) is not installed"
    try:
        said = _run([path, "--version"])
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"bwrap does not run ({error})"
    numbers = re.search(r"(?<!\d)(\d+)\.(\d+)", said.stdout)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_BUBBLEWRAP:
        return None, f"bwrap {said.stdout.strip() or '?'} is older than 0.4"
    reason = ""
    for user_namespace in (True, False):
        trial = [
            path,
            *_isolation(user_namespace),
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "true",
        ]
        try:
            done = _run(trial)
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return Bubblewrap(path, numbers[0], user_namespace), ""
        reason = " ".join(done.stderr.split())[-200:]
    return None, f"namespaces are not permitted here ({reason})"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PROBE_TIMEOUT_S,
        check=False,
    )


def _isolation(user_namespace: bool, user: int = USER_ID) -> list[str]:
    words = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--die-with-parent", "--new-session"]
    if user_namespace:
        words += ["--unshare-user", "--uid", str(user), "--gid", str(user)]
    return words


def _low_port(wanted: Sandbox, setting: Setting) -> bool:
    """Whether the model's port on the sandbox's loopback is one that only root of it may offer."""
    return wanted.network == "model_only" and setting.endpoint is not None and setting.endpoint[1] < 1024


def _bubblewrap_box(found: Bubblewrap, wanted: Sandbox, setting: Setting) -> Box:
    before, gate = _network(found, wanted, setting)
    return Box(
        "bubblewrap",
        wanted.network,
        found.version,
        f"bubblewrap {found.version}, network {wanted.network}",
        wrap=lambda command: [*before, *_bubblewrap_words(found, wanted, setting), "--", *gate, *command],
        notes=(f"{len(setting.slides)} slides are too many to mount",)
        if len(setting.slides) > MAX_SLIDES
        else (),
    )


def _bubblewrap_words(found: Bubblewrap, wanted: Sandbox, setting: Setting) -> list[str]:
    """The mounts and namespaces, for the folders as they are when a command is wrapped."""
    low_port = _low_port(wanted, setting)
    user = (0 if low_port else USER_ID) if found.user_namespace else os.geteuid()
    words = [found.path, *_isolation(found.user_namespace, user), "--hostname", "sandbox"]
    words += ["--cap-add", "CAP_NET_BIND_SERVICE"] if low_port else []
    if wanted.network in ("loopback", "model_only"):
        words.append("--unshare-net")
    for folder in SYSTEM_FOLDERS:
        words += system(Path(folder))
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var/tmp"]
    words += etc(wanted, setting, user)
    for path in programs(setting):
        words += ["--ro-bind", str(path), str(path)]
    words += ["--bind", str(setting.home), str(setting.home)]
    words += ["--ro-bind", str(setting.private), str(setting.private)]
    words += ["--bind", str(setting.workspace), str(setting.workspace)]
    for path in setting.read_only:
        if path.exists() and not path.is_symlink():
            words += ["--ro-bind", str(path), str(path)]
    return [*words, *slides(setting), "--chdir", str(setting.workspace)]


def _network(found: Bubblewrap, wanted: Sandbox, setting: Setting) -> tuple[list[str], list[str]]:
    """Words before bubblewrap, and words around the command inside it."""
    if wanted.network == "none":
        # bubblewrap raises the loopback of a network namespace of its own making; one made before it stays
        # down.
        unshare = shutil.which("unshare")
        user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
        if unshare is None or _run([unshare, *user, "--net", "true"]).returncode != 0:
            raise InputError(
                "network: none needs unshare(1) and the right to use it", field="sandbox.network"
            )
        return [unshare, *user, "--net", "--"], []
    if wanted.network != "model_only":
        return [], []
    if setting.endpoint is None:
        raise InputError("network: model_only needs a model's address (base_url)", field="sandbox.network")
    host, port = setting.endpoint
    address = _loopback(host)
    if address is None and is_address(host):
        raise InputError(
            f"network: model_only maps a host's name to loopback, and base_url names the address {host}; "
            "give a name",
            field="sandbox.network",
        )
    gate = [sys.executable, "-I", "-S", netgate.__file__, address or "127.0.0.1", str(port)]
    return [], [*gate, str(setting.private / MODEL_SOCKET), "--"]


def _loopback(host: str) -> str | None:
    """The loopback address that a host names, if it names one."""
    if host == "localhost":
        return "127.0.0.1"
    return host if is_address(host) and ipaddress.ip_address(host).is_loopback else None


# -- a command of the user's --


def _command_box(wanted: Sandbox, setting: Setting) -> Box:
    assert wanted.command is not None
    prefix = _filled(wanted.command, setting)
    if shutil.which(prefix[0]) is None:
        raise InputError(f"{prefix[0]} is not on PATH", field="sandbox.command")
    return Box(
        "command",
        wanted.network,
        None,
        f"command {Path(prefix[0]).name}, network {wanted.network} (as the command keeps it)",
        lambda command: [*prefix, *command],
        None if wanted.stop is None else _filled(wanted.stop, setting),
    )


def _filled(template: Sequence[str], setting: Setting) -> list[str]:
    """A template's words with places filled in; ``{env}`` alone becomes ``--env NAME`` for each variable."""
    places = {
        "workspace": str(setting.workspace),
        "home": str(setting.home),
        "private": str(setting.private),
        "name": setting.name,
    }
    words: list[str] = []
    for word in template:
        if word == "{env}":
            words += [part for name in setting.env_names for part in ("--env", name)]
            continue
        unknown = set(re.findall(r"\{(\w+)\}", word)) - set(places)
        if unknown:
            raise InputError(
                f"{{{sorted(unknown)[0]}}} is none of {', '.join(places)}, env", field="sandbox.command"
            )
        words.append(re.sub(r"\{(\w+)\}", lambda match: places[match[1]], word))
    return words
