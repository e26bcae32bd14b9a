"""Known secrets are taken out, in every form, and nothing else is touched."""

from __future__ import annotations

import base64
import os
import random
import time
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
