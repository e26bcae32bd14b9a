"""Run a stand-in for a command line through the collector."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from acpbench.harness.collect import collect_run
from acpbench.trajectory.record import RunRecord
from tests.harness.build import Side

FAMILIES = {"claude_code": "claude", "codex": "codex", "opencode": "opencode"}
KEY = "sk-canary/7391+abcdef"
KEY_VARIABLE = "SOME_MODEL_KEY"


def install(folder: Path) -> Path:
    """The three stand-ins as programs in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    source = (Path(__file__).parent / "fake_cli.py").read_text()
    for name in FAMILIES.values():
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{source}")
        program.chmod(0o755)
    return folder


def group(harness: str, behaviour: str, programs: Path, **changes: Any) -> dict[str, Any]:
    """An entry of ``groups.yaml`` for a stand-in; unsandboxed unless said otherwise."""
    base_url = {"base_url": "http://127.0.0.1:9/v1"} if harness == "opencode" else {}
    return (
        {
            "label": behaviour,
            "harness": harness,
            "model": behaviour,
            "executable": str(programs / FAMILIES[harness]),
            "api_key_env": KEY_VARIABLE,
            "sandbox": {"kind": "none"},
        }
        | base_url
        | changes
    )


def run_dir(side: Side) -> Path:
    """Where the record goes."""
    return side.root / "results" / "trajectories" / "agents" / side.task_id / "1" / "run"


def collect(side: Side, entry: dict[str, Any], **changes: Any) -> RunRecord:
    """Collect one run of a group."""
    return collect_run(side.settings("complete", harness=entry, group="agents", **changes), run_dir(side))
