"""Atomic writes, bounded reads, paths that cannot leave their folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acpbench.core import files
from acpbench.core.errors import InputError


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    files.write_json(target, {"x": 1})
    with pytest.raises(RuntimeError), files.atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(target.read_text()) == {"x": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_sigkill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    files.write_text(target, "old")
    code = (
        "import sys, time\nfrom acpbench.core.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as t:\n    t.write_text('new')\n"
        "    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert target.read_text() == "old"


def test_non_finite_numbers_become_null(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"x": float("nan"), "y": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [None, 1.5]}


@pytest.mark.parametrize("relative", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", "~/x", "a\\..\\b"])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(InputError):
        files.inside(tmp_path, relative)


def test_paths_through_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(InputError, match="symbolic link"):
        files.inside(tmp_path, "link/passwd")
    assert files.inside(tmp_path, "a/./b") == tmp_path / "a" / "b"


def test_reads_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(InputError, match="larger than the 10 bytes"):
        files.read_bytes(tmp_path / "big", max_bytes=10)
    assert files.read_bytes(tmp_path / "big", max_bytes=11) == b"x" * 11


def test_a_fifo_is_not_opened_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    start = time.monotonic()
    with pytest.raises(InputError, match="not a regular file"):
        files.read_bytes(tmp_path / "pipe")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,a\n1,2\n", "repeated column"),
        ("a,b\n1,2,3\n", "row 2 has 3 cells for 2 columns"),
    ],
)
def test_bad_tables_name_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        files.read_csv(tmp_path / "t.csv")


def test_tables_with_bom_tabs_and_short_rows(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes(b"\xef\xbb\xbfa\tb\n1\t2\n3\n")
    assert files.read_csv(tmp_path / "t.tsv") == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}]


@pytest.mark.parametrize(
    ("cell", "safe"),
    [("=1+1", "'=1+1"), ("@x", "'@x"), ("-3.5", "-3.5"), ("+cmd", "'+cmd"), ("plain", "plain"), (2, 2)],
)
def test_spreadsheet_formulas_are_defused(cell: object, safe: object) -> None:
    assert files.spreadsheet_safe(cell) == safe


def test_any_text_survives_a_table(tmp_path: Path) -> None:
    odd = ["a\rb", "a\nb", 'a"b', "a,b", "\r", "a\r\nb", " a ", "a\tb", "\u2028", ""]
    files.write_csv(tmp_path / "t.csv", ["x", "y"], [{"x": text, "y": 1} for text in odd])
    assert [row["x"] for row in files.read_csv(tmp_path / "t.csv")] == odd


def test_json_lines_split_on_newline_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"t": "a\u2028b"}\n\n{"t": 2}\n', encoding="utf-8")
    assert files.read_jsonl(tmp_path / "a.jsonl") == [{"t": "a\u2028b"}, {"t": 2}]
    (tmp_path / "b.jsonl").write_text('{"t": 1}\nnot json\n')
    with pytest.raises(InputError, match="line 2"):
        files.read_jsonl(tmp_path / "b.jsonl")


def test_canonical_hash_ignores_key_order() -> None:
    assert files.sha256_json({"a": 1, "b": [2]}) == files.sha256_json({"b": [2], "a": 1})
    assert files.sha256_json({"a": 1}) != files.sha256_json({"a": 2})
