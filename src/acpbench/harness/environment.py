"""Variables of the agent and of the tool server, and the digest of how a harness was started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from acpbench.core.files import sha256_json
from acpbench.harness.context import CONTEXT_VARIABLE, VisionEndpoint
from acpbench.harness.launch import Launch

ALLOWED_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables of the collector that an agent gets; everything else is set for the run."""
TOOL_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
"""Variables of the collector that the tool server gets: it runs on the evaluator's side."""


def search_path() -> str:
    """The collector's PATH, this Python's commands first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def agent_environment(launch: Launch, home: Path, *, own_tmp: bool) -> dict[str, str]:
    """The child's environment without its secrets. ``own_tmp``: its sandbox has its own /tmp."""
    environment = {name: os.environ[name] for name in ALLOWED_ENVIRONMENT if name in os.environ}
    if own_tmp:
        environment.pop("TMPDIR", None)
    return environment | {"HOME": str(home), "PATH": search_path()} | launch.env


def tool_environment(
    context_file: Path, vision: VisionEndpoint | None, secrets: Mapping[str, str]
) -> dict[str, str]:
    """The tool server's environment: the evaluator's side, with the context and the captioning key."""
    environment = {name: os.environ[name] for name in TOOL_ENVIRONMENT if name in os.environ}
    if vision is not None and vision.api_key_env:
        environment[vision.api_key_env] = secrets[vision.api_key_env]
    fixed = {"PATH": search_path(), CONTEXT_VARIABLE: str(context_file), "PYTHONHASHSEED": "0"}
    return {"OMP_NUM_THREADS": "1"} | environment | fixed


def configuration_digest(launch: Launch, places: Mapping[str, Path]) -> str:
    """Hash of how the harness was started: command, variables, names of secrets, files.

    Args:
        launch: what is started.
        places: name → folder of this run alone, put in the place of its path.
    """

    def plain(text: str) -> str:
        for name, place in places.items():
            text = text.replace(str(place), name)
        return text

    variables = {name: plain(value) for name, value in launch.env.items() if name not in ALLOWED_ENVIRONMENT}
    files = {path.name: plain(path.read_text()) for path in launch.files}
    command = [plain(word) for word in launch.command]
    return sha256_json([command, variables, sorted(launch.secrets), files])
