"""A plug-in package with a slow, noisy tool, written into a folder for ``PYTHONPATH``."""

from __future__ import annotations

from pathlib import Path

MODULE = """
import os, time
from acpbench.core.progress import track
from acpbench.harness.tool_base import Tool, ToolArgs, ToolOutcome, ToolResult

class CountArgs(ToolArgs):
    steps: int = 5
    step_s: float = 0.0

class CountResult(ToolResult):
    n_steps: int

def count(context, args):
    print("noise on standard output")
    os.write(1, b"noise below python\\n")
    for _ in track(range(args.steps), label="counting"):
        time.sleep(args.step_s)
    return ToolOutcome([], CountResult(n_steps=args.steps))

def tools():
    return [
        Tool("count_slowly", "verification", False, "acp_counter:count", "acp_counter:CountArgs",
             "acp_counter:CountResult", "Count to a number."),
        Tool("count_quietly", "verification", True, "acp_counter:count", "acp_counter:CountArgs",
             "acp_counter:CountResult", "Count to a number; reads only."),
    ]
"""


def write_plugin(folder: Path, *, entry: str = "acp_counter:tools", module: str = MODULE) -> Path:
    """Write the package; returns the folder to put on ``PYTHONPATH``."""
    information = folder / "acp_counter-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acp-counter\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[acpbench.tools]\ncounter = {entry}\n")
    (folder / "acp_counter.py").write_text(module)
    return folder
