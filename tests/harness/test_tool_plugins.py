"""Tools of other packages: found by entry point, listed beside ours, refused when they do not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acpbench.harness.registry import TOOLS
from tests.harness.plugin import MODULE, write_plugin

ACP_BENCH = str(Path(sys.executable).parent / "acp-bench")


def listed(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ACP_BENCH, "tool", "list", "--format", "json"],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_plugins_tools_come_after_the_built_in_ones_with_their_schemas(tmp_path: Path) -> None:
    done = listed(write_plugin(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)["tools"]
    assert [entry["id"] for entry in entries] == [*TOOLS, "count_quietly", "count_slowly"]
    assert entries[-1]["args_schema"]["properties"]["steps"]["type"] == "integer"
    assert entries[-1]["result_schema"]["required"] == ["n_steps"]


@pytest.mark.parametrize(
    ("entry", "module", "words"),
    [
        ("acp_counter:nothing", MODULE, ["counter (acp_counter:nothing)", "does not load"]),
        ("acp_counter:tools", "raise RuntimeError('no licence')", ["does not load", "no licence"]),
        ("acp_counter:tools", "def tools(): return [3]", ["expected a Tool"]),
        (
            "acp_counter:tools",
            MODULE.replace('"count_slowly"', '"train_mil"'),
            ["'train_mil' exists already"],
        ),
        ("acp_counter:tools", MODULE.replace('"count_slowly"', '"a b"'), ["'a b' is not a valid"]),
    ],
)
def test_a_plugin_that_does_not_fit_stops_with_its_name(
    tmp_path: Path, entry: str, module: str, words: list[str]
) -> None:
    done = listed(write_plugin(tmp_path / "site", entry=entry, module=module))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
