"""Known secrets are taken out, in every form, and nothing else is touched."""

from __future__ import annotations

import base64
import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from acpbench.core.errors import InputError
from acpbench.harness.scrub import CHUNK_BYTES, Scrubber, data_chunks, secret_values

VALUE = 'pa"ss/w\\rd+é-0815'


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        'pa\\"ss/w\\\\rd+\\u00e9-0815',
        'pa\\"ss/w\\\\rd+é-0815',
        'pa\\"ss\\/w\\\\rd+\\u00e9-0815',
        "pa%22ss%2Fw%5Crd%2B%C3%A9-0815",
        base64.b64encode(VALUE.encode()).decode(),
    ],
)
def test_every_form_of_a_value_is_replaced(form: str) -> None:
    scrubber = Scrubber({"KEY": VALUE})
    assert scrubber.clean(f'{{"a": "{form}"}}'.encode()) in (
        b'{"a": "[secret:KEY]"}',
        b'{"a": "[secret:KEY]=="}',
    )
    assert scrubber.count == 1


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, bytes.hex])
def test_a_value_is_found_inside_something_encoded(encode: Callable[[bytes], bytes | str]) -> None:
    for before in range(7):
        for after in range(4):
            coded = encode(b"u" * before + VALUE.encode() + b":" * after)
            text = coded if isinstance(coded, bytes) else coded.encode()
            assert Scrubber({"KEY": VALUE}).clean(text).count(b"[secret:KEY]") == 1, (before, after)


def test_short_values_and_absent_ones_change_nothing() -> None:
    data = bytes(range(256)) * 3
    assert Scrubber({"KEY": "dummy"}).clean(b"dummy " + data) == b"dummy " + data
    assert Scrubber().clean(data) == data
    assert Scrubber({"KEY": VALUE}).clean(data) == data


def test_values_must_be_set_and_of_one_line() -> None:
    assert secret_values(["A"], {"A": "x", "B": "y"}) == {"A": "x"}
    for bad in ({}, {"A": ""}, {"A": "x\ny"}):
        with pytest.raises(InputError, match=r"\bA\b"):
            secret_values(["A"], bad)


def test_a_file_is_cleaned_wherever_the_value_lies_and_keeps_its_times(tmp_path: Path) -> None:
    secret = "0123456789abcdef"
    rng = random.Random(5)
    for offset in (0, CHUNK_BYTES - 8, CHUNK_BYTES, 2 * CHUNK_BYTES - 1, rng.randrange(CHUNK_BYTES)):
        path = tmp_path / f"{offset}.txt"
        path.write_bytes(b"." * offset + secret.encode() + b"." * CHUNK_BYTES)
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert Scrubber({"KEY": secret}).clean_file(path)
        assert path.read_bytes() == b"." * offset + b"[secret:KEY]" + b"." * CHUNK_BYTES
        assert path.stat().st_mtime == 1_000_000_000
    untouched = tmp_path / "other"
    untouched.write_text("nothing")
    assert Scrubber({"KEY": secret}).clean_tree(tmp_path) == []


SECRET = "0123456789abcdef"


def test_what_an_agent_put_beside_a_file_is_not_written_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    folder = tmp_path / "workspace"
    folder.mkdir()
    for name in ("link", "pipe", "folder", "n" * 250):
        (folder / name).write_text(f"key {SECRET}")
    (folder / ".link.clean").symlink_to(outside)
    os.mkfifo(folder / ".pipe.clean")
    (folder / ".folder.clean").mkdir()
    notes = Scrubber({"KEY": SECRET}).clean_tree(folder)
    assert outside.read_text() == "of somebody else"
    for name in ("link", "pipe", "folder", "n" * 250):
        assert (folder / name).read_text() == "key [secret:KEY]"
        assert not (folder / name).is_symlink()
    assert len(notes) == 4 and len(list(folder.iterdir())) == 7


def test_a_file_of_somebody_else_with_a_second_name_here_stays_as_it_is(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(f"key {SECRET}")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "name").hardlink_to(outside)
    Scrubber({"KEY": SECRET}).clean_tree(tmp_path / "workspace")
    assert outside.read_text() == f"key {SECRET}"
    assert (tmp_path / "workspace" / "name").read_text() == "key [secret:KEY]"


def test_a_hole_stays_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as handle:
        handle.write(b"begin" + SECRET.encode())
        handle.seek(100 * 1024**3)
        handle.write(SECRET.encode() + b"end")
        handle.truncate(101 * 1024**3)
    path.chmod(0o640)
    start = time.monotonic()
    assert Scrubber({"KEY": SECRET}).clean_file(path)
    assert time.monotonic() - start < 5
    status = path.stat()
    assert status.st_blocks * 512 < 1024**2 and status.st_mode & 0o777 == 0o640
    assert b"".join(data_chunks(path)).replace(b"\0", b"") == b"begin[secret:KEY][secret:KEY]end"


def test_a_file_that_cannot_be_rewritten_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "big").write_text(f"key {SECRET}")
    (tmp_path / "other").write_text("nothing")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    scrubber = Scrubber({"KEY": SECRET})
    monkeypatch.setattr(scrubber, "_copy", full)
    assert scrubber.clean_tree(tmp_path) == [
        "big held a secret, could not be rewritten (No space left on device) and was removed"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_names_and_links_hold_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / f"a_{SECRET}"
    folder.mkdir()
    (folder / f"{SECRET}.txt").write_text("one")
    (folder / "[secret:KEY].txt").write_text("two")
    (folder / ("x" * 230 + SECRET)).write_text("three")
    (folder / "link").symlink_to(f"/nowhere/{SECRET}")
    (tmp_path / "to").symlink_to(folder)
    notes = Scrubber({"KEY": SECRET}).clean_tree(tmp_path)
    everything = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert everything == [
        "a_[secret:KEY]",
        "a_[secret:KEY]/[secret:KEY].txt",
        "a_[secret:KEY]/[secret:KEY].txt-2",
        f"a_[secret:KEY]/{'x' * 200}",
    ]
    assert (tmp_path / "a_[secret:KEY]" / "[secret:KEY].txt-2").read_text() == "one"
    assert SECRET not in "".join(notes) and len(notes) == 5


def test_holes_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as handle:
        handle.truncate(5 * 1024**3)
        handle.seek(3 * 1024**3)
        handle.write(b"data")
    start = time.monotonic()
    found = b"".join(data_chunks(path))
    assert found.strip(b"\0") == b"data" and len(found) <= CHUNK_BYTES
    assert time.monotonic() - start < 2
    assert b"".join(data_chunks(tmp_path / "sparse")) == found
    (tmp_path / "empty").touch()
    assert list(data_chunks(tmp_path / "empty")) == []
