"""A workspace that changes while a tool works: what is hashed is read, and what is made is hashed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, sha256_file, write_text
from acpbench.harness import call_files, document_tools
from acpbench.harness.call_files import CallFiles
from acpbench.harness.context import RunContext
from acpbench.harness.registry import call_tool
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import ReadTableResult
from tests.harness.build import Side

DONE = ReadTableResult(n_rows=0, columns={}, head=[])


@pytest.fixture
def context(side: Side) -> RunContext:
    return side.context()


def use(monkeypatch: pytest.MonkeyPatch, tool: Any) -> None:
    """Put a function behind ``read_table``."""
    monkeypatch.setattr(document_tools, "read_table", tool)


def call(context: RunContext, path: str = "data/splits.csv") -> dict[str, Any]:
    return call_tool(context, "read_table", {"path": path})


def test_a_file_swapped_for_a_link_during_the_call_shows_nothing_of_the_evaluators(
    context: RunContext, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def tool(given: RunContext, args: Any) -> ToolOutcome:
        target = context.path("data/splits.csv")
        target.unlink()
        target.symlink_to(side.labels)
        seen.append(given.read_path("data/splits.csv").read_text())
        return ToolOutcome([], DONE)

    use(monkeypatch, tool)
    before = context.path("data/splits.csv").read_text()
    assert call(context)["exit_status"] == "ok"
    assert seen == [before]


def test_a_folder_swapped_for_a_link_takes_no_output_out_of_the_workspace(
    context: RunContext, side: Side, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def tool(given: RunContext, args: Any) -> ToolOutcome:
        write_text(given.write_path("outputs/round_0/new.csv"), "a\n1\n")
        folder = context.workspace / "outputs" / "round_0"
        folder.rename(folder.with_name("moved"))
        folder.symlink_to(tmp_path)
        return ToolOutcome(["outputs/round_0/new.csv"], DONE)

    use(monkeypatch, tool)
    row = call(context)
    assert row["exit_status"] == "error"
    assert "outputs/round_0/new.csv" in row["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_an_output_is_replaced_not_followed(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    victim = tmp_path / "labels.csv"
    victim.write_text("untouched")

    def tool(given: RunContext, args: Any) -> ToolOutcome:
        write_text(given.write_path("outputs/new.csv"), "mine")
        context.path("outputs/new.csv").symlink_to(victim)
        return ToolOutcome(["outputs/new.csv"], DONE)

    use(monkeypatch, tool)
    assert call(context)["exit_status"] == "ok"
    assert victim.read_text() == "untouched"
    made = context.workspace / "outputs" / "new.csv"
    assert not made.is_symlink()
    assert made.read_text() == "mine"


def test_the_logged_hash_is_of_what_the_tool_made(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    target = context.path("outputs/new.csv")

    def forge() -> None:
        while not stop.is_set():
            target.write_text("forged")

    def tool(given: RunContext, args: Any) -> ToolOutcome:
        write_text(given.write_path("outputs/new.csv"), "true")
        return ToolOutcome(["outputs/new.csv"], DONE)

    use(monkeypatch, tool)
    thread = threading.Thread(target=forge)
    thread.start()
    try:
        rows = [call(context) for _ in range(20)]
    finally:
        stop.set()
        thread.join()
    target.write_text("true")
    assert {row["outputs"][0]["sha256"] for row in rows} == {sha256_file(target)}


def test_the_logged_input_is_what_was_read(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def tool(given: RunContext, args: Any) -> ToolOutcome:
        context.path("data/splits.csv").write_text("other")
        rows = read_csv(given.read_path(args.path))
        return ToolOutcome([], DONE.model_copy(update={"n_rows": len(rows)}))

    use(monkeypatch, tool)
    digest = sha256_file(context.path("data/splits.csv"))
    row = call(context)
    assert row["result"]["n_rows"] == 18
    start = context.tool_log.read_text().split("\n")[0]
    assert digest in start


@pytest.mark.parametrize("failure", [InputError("no"), RuntimeError("no")])
def test_a_call_that_fails_leaves_the_workspace_as_it_was(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def tool(given: RunContext, args: Any) -> ToolOutcome:
        write_text(given.write_path("outputs/round_0/half.csv"), "half")
        raise failure

    use(monkeypatch, tool)
    assert call(context)["exit_status"] == "error"
    assert list((context.workspace / "outputs" / "round_0").iterdir()) == []


def test_messages_name_files_as_the_agent_knows_them(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool(given: RunContext, args: Any) -> ToolOutcome:
        made = given.write_path("outputs/round_0/made.csv")
        raise RuntimeError(f"{given.read_path(args.path)} {made} {made.parent}")

    use(monkeypatch, tool)
    error = call(context)["error"]
    assert "data/splits.csv outputs/round_0/made.csv workspace" in error
    assert "acp-call-" not in error and "/tmp" not in error


def test_a_fifo_and_a_folder_are_no_input(context: RunContext) -> None:
    os.mkfifo(context.path("data/pipe.csv"))
    assert "not a regular file" in call(context, "data/pipe.csv")["error"]
    assert "not a regular file" in call(context, "data")["error"]


def test_nothing_is_left_behind(context: RunContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    call(context)
    call(context, "data/none.csv")
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in context.workspace.rglob("*") if path.name.endswith(".tmp")]


def test_outside_a_call_paths_are_those_of_the_workspace(context: RunContext) -> None:
    assert context.read_path("data/splits.csv") == context.workspace / "data" / "splits.csv"
    assert context.write_path("outputs/x.csv") == context.workspace / "outputs" / "x.csv"


def test_a_full_disk_leaves_the_old_output_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, folder = tmp_path / "w", tmp_path / "f"
    workspace.mkdir()
    folder.mkdir()
    (workspace / "a.csv").write_text("old")
    files = CallFiles(workspace, folder)
    write_text(files.make("a.csv"), "new")

    def full(source: Any, target: Any, size: int) -> None:
        target.write(b"ne")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call_files.shutil, "copyfileobj", full)
    with pytest.raises(InputError, match=r"a\.csv: cannot be used \(No space left on device\)"):
        files.publish()
    assert [(path.name, path.read_text()) for path in workspace.iterdir()] == [("a.csv", "old")]
