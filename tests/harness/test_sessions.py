"""The harness's own files after a run: kept without secrets, and nothing is written through what was left."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acpbench.harness.adapter import Evidence
from acpbench.harness.scrub import Scrubber
from acpbench.harness.sessions import EXPORT_FILE, SESSION_FOLDER, confirm, keep_session_files

SECRET = "0123456789abcdef"


def asked(tmp_path: Path, command: list[str]) -> tuple[Evidence, Path]:
    """An export by ``command`` with ``tmp_path/home`` as the agent left it."""
    home, attempt = tmp_path / "home", tmp_path / "attempt"
    home.mkdir(exist_ok=True)
    attempt.mkdir()
    adapter: Any = SimpleNamespace(
        confirm_command=lambda run, typed: command, read_confirmation=lambda document: document
    )
    evidence = Evidence()
    run: Any = SimpleNamespace(home=home, workspace=tmp_path)
    typed: Any = None
    confirm(adapter, run, typed, dict(os.environ), attempt, Scrubber({"KEY": SECRET}), list, evidence)
    return evidence, attempt / SESSION_FOLDER / EXPORT_FILE


@pytest.mark.parametrize("left", ["link", "pipe", "folder"])
def test_an_export_is_not_written_through_what_the_agent_left(tmp_path: Path, left: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    (tmp_path / "home").mkdir()
    trap = tmp_path / "home" / "export.out"
    {"link": lambda: trap.symlink_to(outside), "pipe": lambda: os.mkfifo(trap), "folder": trap.mkdir}[left]()
    evidence, kept = asked(tmp_path, ["printf", '{"key": "%s"}', SECRET])
    assert evidence.export == {"key": "[secret:KEY]"} and evidence.export_problem is None
    assert kept.read_text() == '{"key": "[secret:KEY]"}'
    assert outside.read_text() == "of somebody else"
    assert sorted(path.name for path in kept.parent.iterdir()) == [EXPORT_FILE]


def test_an_export_that_is_none_says_so(tmp_path: Path) -> None:
    evidence, _ = asked(tmp_path, ["printf", "no document"])
    assert evidence.export is None and evidence.export_problem == "export printed no JSON document"


def test_session_files_of_any_name_are_kept_or_told(tmp_path: Path) -> None:
    home, attempt = tmp_path / "home", tmp_path / "attempt"
    (home / "sessions").mkdir(parents=True)
    names = ["a.jsonl", f"{'l' * 245}.jsonl", f"{SECRET}.jsonl", "e\udcff.jsonl", "x." + "y" * 200]
    for name in names:
        (home / "sessions" / name).write_text(f"key {SECRET}")
    (home / "sessions" / "link.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(home / "sessions" / "pipe.jsonl")
    adapter: Any = SimpleNamespace(session_globs=["sessions/*"])
    notes = keep_session_files(adapter, home, attempt, Scrubber({"KEY": SECRET}))
    kept = {path.name: path.read_text() for path in (attempt / SESSION_FOLDER / "sessions").iterdir()}
    assert notes == []
    assert set(kept) == {*names} - {f"{SECRET}.jsonl"} | {"[secret:KEY].jsonl"}
    assert set(kept.values()) == {"key [secret:KEY]"}
