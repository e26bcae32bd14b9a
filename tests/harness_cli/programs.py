"""The three real command lines, installed from npm into a folder of the test cache."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

PACKAGES = {
    "claude_code": ("@anthropic-ai/claude-code@2.1.197", "claude"),
    "codex": ("@openai/codex@0.171.0", "codex"),
    "opencode": ("opencode-ai@1.18.33", "opencode"),
}
MIN_NODE = 20
INSTALL_TIMEOUT_S = 400
ASK_TIMEOUT_S = 60


class Missing(RuntimeError):
    """Why a command line cannot be had here."""


def _asked(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise Missing(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[:2])} did not answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise Missing(f"{' '.join(command[:2])}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout.strip()


def check_node() -> None:
    """Raise :class:`Missing` without a Node that the packages run on."""
    version = _asked(["node", "--version"], ASK_TIMEOUT_S)
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < MIN_NODE:
        raise Missing(f"Node {version} is older than {MIN_NODE}")


def check_namespace() -> None:
    """Raise :class:`Missing` where no network namespace can be made."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed")
    _asked([*namespace(), "ip", "link", "set", "lo", "up"], ASK_TIMEOUT_S)


def namespace() -> list[str]:
    """Words that start a command in a network namespace of its own."""
    import os

    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--"]


def install(harness: str, folder: Path) -> Path:
    """The program of a family, installed once a version. Raises :class:`Missing`."""
    package, program = PACKAGES[harness]
    check_node()
    target = folder / package.replace("/", "_")
    path = target / "node_modules" / ".bin" / program
    if not path.exists():
        unfinished = target.with_name(f"{target.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.mkdir(parents=True)
        words = ["--prefix", str(unfinished), "--no-audit", "--no-fund", package]
        _asked(["npm", "install", *words], INSTALL_TIMEOUT_S)
        unfinished.rename(target)
    return path
