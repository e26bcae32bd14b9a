"""Collect one run against the scripted model, in a network namespace that holds loopback alone.

    python -m tests.harness_cli.drive ORDER.json

The order names the settings of the run, the policy and the record's folder. The caller starts this under
``unshare --net`` with an environment of its own making; a namespace with any other interface is refused.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpbench.core.groups import ScriptedGroup
from acpbench.harness.collect import RunSettings, collect_run

MODEL_COMMAND = str(Path(sys.executable).parent / "acp-bench")
STOP_TIMEOUT_S = 20
WIRE = {"claude_code": "anthropic", "codex": "openai", "opencode": "openai"}


def only_loopback() -> None:
    """Raise the loopback interface, and make sure that there is no other."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        raise SystemExit(f"not alone: this namespace has the interfaces {', '.join(names)}")


@contextmanager
def scripted_model(policy: str, encoder: str, seed: int) -> Iterator[dict[str, Any]]:
    """The server as its command starts it; its addresses."""
    words = [
        "scripted-model",
        "--policy",
        policy,
        "--encoder",
        encoder,
        "--seed",
        str(seed),
        "--idle-s",
        "900",
    ]
    process = subprocess.Popen([MODEL_COMMAND, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        assert process.wait(STOP_TIMEOUT_S) == 0, "the scripted model did not end by the signal"


def main() -> None:
    """Entry point."""
    order = json.loads(Path(sys.argv[1]).read_text())
    only_loopback()
    values, run_dir = order["settings"], Path(order["run_dir"])
    settings = RunSettings.model_validate(values)
    if isinstance(settings.harness.root, ScriptedGroup):
        record = collect_run(settings, run_dir)
    else:
        with scripted_model(order["policy"], settings.encoder, settings.seed) as addresses:
            values["harness"]["base_url"] = addresses[WIRE[values["harness"]["harness"]]]
            record = collect_run(RunSettings.model_validate(values), run_dir)
    print(f"{record.run_status}: {record.status_reason}")


if __name__ == "__main__":
    main()
