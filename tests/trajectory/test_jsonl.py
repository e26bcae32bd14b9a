"""Lines are split on ``\\n`` only, within bounded memory, and no line is lost silently."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.trajectory import jsonl
from acpbench.trajectory.jsonl import UNTERMINATED, Line, decode_line, read_lines, shorten


def lines(data: bytes, **settings: int) -> list[Line]:
    return list(read_lines(io.BytesIO(data), **settings))


def test_only_a_newline_ends_a_line() -> None:
    text = '{"a":"x\u2028y\u2029z\x85w"}'
    data = text.encode() + b"\n{\x0b\x0c\x1c}\r\n\nlast\n"
    assert lines(data) == [
        Line(1, text.encode(), None),
        Line(2, b"{\x0b\x0c\x1c}\r", None),
        Line(3, b"", None),
        Line(4, b"last", None),
    ]


def test_a_last_line_without_a_newline_is_marked() -> None:
    assert lines(b'{"a":1}\n{"b":2') == [Line(1, b'{"a":1}', None), Line(2, b'{"b":2', UNTERMINATED)]
    assert lines(b"") == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1024])
def test_lines_are_the_same_whatever_the_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "CHUNK_BYTES", chunk)
    data = b"one\n\n" + b"x" * 50 + b"\nend"
    assert [line.data for line in lines(data)] == [b"one", b"", b"x" * 50, b"end"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 4096])
def test_a_long_line_keeps_its_structure_and_loses_the_middle_of_strings(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(jsonl, "KEEP_STRING_BYTES", 10)
    row = {"type": "user", "text": 'quote " backslash \\ newline \n' * 20, "n": 7, "end": "short"}
    (line,) = lines(json.dumps(row).encode() + b"\n", max_line_bytes=200)
    found = json.loads(line.data)
    assert (found["type"], found["n"], found["end"]) == ("user", 7, "short")
    assert found["text"].startswith('quote " ba') or found["text"].startswith('quote " b')
    assert "bytes cut]" in found["text"]
    assert line.problem is not None and str(len(json.dumps(row))) in line.problem


@pytest.mark.parametrize("keep", range(6, 40))  # from 6: no key of the object is cut itself
def test_a_cut_never_falls_inside_an_escape_or_a_character(
    keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "KEEP_STRING_BYTES", keep)
    for text in ("é漢𝄞" * 30, "\\" * 99, '"' * 99, "a\u2028\n" * 60, "𝄞\\𝄞" * 40):
        for ascii_only in (True, False):
            data = json.dumps({"k": text, "after": 1}, ensure_ascii=ascii_only).encode()
            short, problem = shorten(data, len(data) - 1)
            assert problem
            found = json.loads(short)
            assert found["after"] == 1
            kept = found["k"].split("...[")[0].encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
            assert text.startswith(kept)


def test_the_number_of_bytes_cut_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "KEEP_STRING_BYTES", 4)
    short, problem = shorten(b'{"a":"' + b"0" * 100 + b'"}', 60)
    assert json.loads(short) == {"a": "0000...[96 bytes cut]"}
    assert problem == "a line of 108 bytes: strings over 4 bytes are shortened"


def test_a_long_line_of_many_small_values_keeps_its_head_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "KEEP_HEAD_BYTES", 16)
    (line, after) = lines(b"[" + b"1," * 500 + b"1]\n{}\n", max_line_bytes=100)
    assert line.data == b"[1,1,1,1,1,1,1,1"
    assert line.problem == "a line of 1003 bytes: only its first 16 are kept"
    assert after == Line(2, b"{}", None)


def test_objects_text_and_malformed_lines_are_told_apart() -> None:
    assert decode_line(b'{"a":1}').objects == [{"a": 1}]
    assert decode_line(b"[SandboxDebug] starting").text == "[SandboxDebug] starting"
    assert decode_line(b"permission requested: bash; auto-rejecting").text
    assert decode_line(b'{"a":1').malformed == "does not parse as JSON at character 6"
    assert decode_line(b"42").malformed == "is JSON but no object (int)"
    assert decode_line(b'"text"').malformed == "is JSON but no object (str)"
    assert decode_line(b"[1]").malformed == "is JSON but no object (list)"
    assert decode_line(b" \r\x00") == jsonl.Rows([], None, None, ["NUL bytes around the line were dropped"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a":1}\r', {"a": 1}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'\x00\x00\x00{"a":1}\x00', {"a": 1}),
        (b'\x1b[2K\x1b[1G{"a":1}\x1b[0m', {"a": 1}),
        (b'\x1b]0;title\x07{"a":1}', {"a": 1}),
        (b'{"a":"x\x1b[31my\ttab\x00nul"}', {"a": "x\x1b[31my\ttab\x00nul"}),
        (b'{"a":"\\ud83d"}', {"a": "\ud83d"}),
        (b'{"a":"\xff"}', {"a": "\udcff"}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":NaN,"b":Infinity}', None),
    ],
)
def test_odd_bytes_do_not_lose_an_object(data: bytes, expected: dict | None) -> None:
    rows = decode_line(data)
    assert len(rows.objects) == 1 and rows.malformed is None
    assert expected is None or rows.objects[0] == expected


def test_a_number_of_many_digits_does_not_lose_an_object() -> None:
    rows = decode_line(b'{"n":' + b"9" * 100_000 + b',"k":"v"}')
    assert rows.objects[0]["k"] == "v"
    assert rows.objects[0]["n"] == "9" * 100_000


def test_two_objects_on_one_line_are_two() -> None:
    assert decode_line(b'{"a":1}{"b":2} {"c":3}').objects == [{"a": 1}, {"b": 2}, {"c": 3}]
    torn = decode_line(b'{"a":1}{"b":')
    assert torn.objects == [{"a": 1}] and torn.malformed


def test_a_repeated_key_is_said() -> None:
    assert decode_line(b'{"a":1,"a":2}').notes == ["a repeated key: the last value counts"]


def test_deep_nesting_is_malformed_not_a_crash() -> None:
    assert decode_line(b'{"a":' + b"[" * 200_000).malformed == "JSON is nested too deeply"


def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        next(read_lines(tmp_path / "pipe"))
    with pytest.raises(InputError, match="is a folder"):
        next(read_lines(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        next(read_lines(tmp_path / "none"))


# Not ru_maxrss: that one remembers the size of the process that started this one.
PEAK_KIB = r"int(re.search(r'VmHWM:\s+(\d+)', open('/proc/self/status').read())[1])"


def test_a_line_of_100_mb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with open(path, "wb") as handle:
        handle.write(b'{"type":"user","text":"')
        for _ in range(100):
            handle.write(b'x\\n"'.replace(b'"', b'\\"') * (1024 * 1024 // 5))
        handle.write(b'","after":1}\n{"type":"result"}\n')
    code = (
        "import sys, json, re; from acpbench.trajectory.jsonl import read_lines;"
        f"before = {PEAK_KIB};"
        f"rows = [json.loads(line.data) for line in read_lines({str(path)!r})];"
        "assert rows[0]['after'] == 1 and rows[1] == {'type': 'result'};"
        f"print({PEAK_KIB} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 1024  # KiB
