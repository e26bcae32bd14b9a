"""Lines of a harness's raw output: split on ``\\n`` only, bounded in memory, nothing lost silently.

A line may be 100 MB long, carry NUL bytes, terminal escapes, invalid UTF-8, lone surrogates or a ``\\r``, or
stop in the middle where the writer was killed. Other separators (U+2028, ``\\x0b``, ``\\x85``) may stand
inside JSON strings and never end a line. A longer line than the cap keeps its JSON structure: long strings
inside it are shortened while it is read, and the shortening is reported.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from acpbench.core.errors import InputError

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Longest line kept as it is; of a longer one, strings beyond ``KEEP_STRING_BYTES`` are shortened."""
KEEP_STRING_BYTES = 64 * 1024
KEEP_HEAD_BYTES = 64 * 1024
CHUNK_BYTES = 1024 * 1024
MAX_OBJECTS_PER_LINE = 100_000

UNTERMINATED = "the last line has no newline"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OPENS_OBJECT = re.compile(r"\[?\s*\{")
_CUT_ESCAPE = re.compile(rb"\\u[0-9a-fA-F]{0,3}$")


class Line(NamedTuple):
    """One line without its newline. ``problem`` says what was done to it (None: nothing)."""

    number: int
    data: bytes
    problem: str | None


class Rows(NamedTuple):
    """What one line holds.

    ``objects``: its JSON objects (usually one). ``text``: the line when it is no JSON at all (a message that
    a program printed between events). ``malformed``: why it is neither. ``notes``: repairs that were needed.
    """

    objects: list[dict[str, Any]]
    text: str | None
    malformed: str | None
    notes: list[str]


class _Shrinker:
    """Copies one over-long JSON line, leaving out the middle of long strings, in bounded memory."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.out = bytearray()
        self.size = 0
        self.overflow = False
        self._in_string = False
        self._escaped = False
        self._start = 0
        self._kept = 0
        self._cut = 0

    def _put(self, data: bytes) -> None:
        if self.overflow:
            return
        if len(self.out) + len(data) > self.max_bytes:
            self.overflow = True
            self.out += data[:KEEP_HEAD_BYTES]
            del self.out[KEEP_HEAD_BYTES:]
            return
        self.out += data

    def _string_part(self, data: bytes) -> None:
        if self._cut:
            self._cut += len(data)
            return
        room = KEEP_STRING_BYTES - self._kept
        self._put(data[:room])
        self._kept += len(data)
        if len(data) > room and not self.overflow:
            # The cut may fall inside an escape or a character, also one begun in an earlier chunk.
            whole = _whole_escapes(bytes(self.out[self._start :]))
            self._cut = self._kept - len(whole)
            self.out[self._start :] = whole

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the line."""
        self.size += len(chunk)
        # Escaped quotes are masked, so that the next quote found is one that opens or closes a string.
        masked = (b"_" + chunk[1:] if self._escaped else chunk).replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escaped = masked.endswith(b"\\")
        position = 0
        while position < len(chunk) and not self.overflow:
            quote = masked.find(b'"', position)
            stop = len(chunk) if quote < 0 else quote
            if self._in_string:
                self._string_part(chunk[position:stop])
                if quote >= 0:
                    self._put((f"...[{self._cut} bytes cut]" if self._cut else "").encode() + b'"')
            else:
                self._put(chunk[position : stop + 1])
                self._start, self._kept, self._cut = len(self.out), 0, 0
            self._in_string ^= quote >= 0
            position = stop + 1

    def problem(self) -> str:
        """What was done to the line."""
        if self.overflow:
            return f"a line of {self.size} bytes: only its first {len(self.out)} are kept"
        return f"a line of {self.size} bytes: strings over {KEEP_STRING_BYTES} bytes are shortened"


def _whole_escapes(head: bytes) -> bytes:
    """A cut string without a half escape or a half character at its end."""
    half = _CUT_ESCAPE.search(head)
    if half and (half.start() - len(head[: half.start()].rstrip(b"\\"))) % 2 == 0:
        head = head[: half.start()]
    if (len(head) - len(head.rstrip(b"\\"))) % 2:
        head = head[:-1]
    for back in range(1, min(4, len(head)) + 1):
        lead = head[-back]
        if lead < 0x80:
            break
        if lead >= 0xC0:
            length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return head if back >= length else head[:-back]
    return head


def shorten(data: bytes, max_bytes: int = MAX_LINE_BYTES) -> tuple[bytes, str | None]:
    """A line as it is, or shortened with what was done, when it is longer than ``max_bytes``."""
    if len(data) <= max_bytes:
        return data, None
    shrinker = _Shrinker(max_bytes)
    for start in range(0, len(data), CHUNK_BYTES):
        shrinker.feed(data[start : start + CHUNK_BYTES])
    return bytes(shrinker.out), shrinker.problem()


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a pipe put in its place does not block.

    Raises:
        InputError: it is missing, a folder, a device or unreadable.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError("file does not exist", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path) from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise InputError("is a folder" if stat.S_ISDIR(mode) else "is not a regular file", file=path)
    return os.fdopen(descriptor, "rb")


def read_lines(
    source: str | os.PathLike[str] | BinaryIO, *, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[Line]:
    """Lines of a file, numbered from 1, blank ones included; at most a chunk and a line are in memory.

    Raises:
        InputError: the file cannot be opened.
    """
    if isinstance(source, (str, Path, os.PathLike)):
        with open_regular(source) as handle:
            yield from read_lines(handle, max_line_bytes=max_line_bytes)
        return
    number = 1
    rest = bytearray()
    shrinker: _Shrinker | None = None
    while chunk := source.read(CHUNK_BYTES):
        pieces = chunk.split(b"\n")
        for index, piece in enumerate(pieces):
            if shrinker is None and len(rest) + len(piece) > max_line_bytes:
                shrinker = _Shrinker(max_line_bytes)
                shrinker.feed(bytes(rest))
                rest.clear()
            if shrinker is not None:
                shrinker.feed(piece)
            else:
                rest += piece
            if index == len(pieces) - 1:
                break
            if shrinker is not None:
                yield Line(number, bytes(shrinker.out), shrinker.problem())
                shrinker = None
            else:
                yield Line(number, bytes(rest), None)
                rest.clear()
            number += 1
    if shrinker is not None:
        yield Line(number, bytes(shrinker.out), shrinker.problem())
    elif rest:
        yield Line(number, bytes(rest), UNTERMINATED)


def _whole_number(digits: str) -> int | str:
    """An integer; one of more digits than Python converts stays text."""
    return int(digits) if len(digits) <= 4_000 else digits


class _Decoder:
    """JSON as agents' tools write it: raw control characters in strings, NaN, repeated keys (last wins)."""

    def __init__(self) -> None:
        self.repeated = 0
        self._decoder = json.JSONDecoder(strict=False, object_pairs_hook=self._object)
        self._careful = json.JSONDecoder(
            strict=False, object_pairs_hook=self._object, parse_int=_whole_number
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        self.repeated += len(pairs) - len(found)
        return found

    def first(self, text: str, start: int) -> tuple[Any, int]:
        try:
            return self._decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer of more digits than Python converts
            return self._careful.raw_decode(text, start)


def decode_line(data: bytes) -> Rows:
    """The JSON objects of one line, or why there are none. Never raises.

    Invalid UTF-8 becomes lone surrogates (no byte is lost); terminal escapes and NUL bytes around the JSON
    are dropped; several objects written on one line are all found.
    """
    notes: list[str] = []
    text = data.decode("utf-8", "surrogateescape")
    bare = text.strip("\x00 \t\r\n\ufeff")
    if "\x00" in text[:1] or "\x00" in text[-1:]:
        notes.append("NUL bytes around the line were dropped")
    if bare.startswith("\x1b") or bare.endswith("\x1b[0m"):
        bare = _ANSI.sub("", bare).strip("\x00 \t\r\n")
        notes.append("terminal escapes were dropped")
    if not bare:
        return Rows([], None, None, notes)
    decoder = _Decoder()
    objects, malformed = _objects(decoder, bare)
    if malformed and ("\x1b" in bare or "\x00" in bare):
        again, still = _objects(decoder, _ANSI.sub("", bare).replace("\x00", ""))
        if not still:
            objects, malformed = again, None
            notes.append("terminal escapes or NUL bytes were dropped")
    if decoder.repeated:
        notes.append("a repeated key: the last value counts")
    if not malformed:
        return Rows(objects, None, None, notes)
    if not objects and not _OPENS_OBJECT.match(bare) and malformed.startswith("does not parse"):
        return Rows([], text, None, notes)
    return Rows(objects, None, malformed, notes)


def _objects(decoder: _Decoder, text: str) -> tuple[list[dict[str, Any]], str | None]:
    found: list[dict[str, Any]] = []
    position = 0
    while position < len(text):
        try:
            value, position = decoder.first(text, position)
        except RecursionError:
            return found, "JSON is nested too deeply"
        except ValueError as error:
            where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            return found, f"does not parse as JSON{where}"
        if not isinstance(value, dict):
            return found, f"is JSON but no object ({type(value).__name__})"
        found.append(value)
        if len(found) >= MAX_OBJECTS_PER_LINE:
            return found, "holds too many JSON objects"
        while position < len(text) and text[position] in " \t\r\n\x00":
            position += 1
    return found, None


def decode_document(data: bytes) -> tuple[Any, str | None]:
    """One JSON document that is the whole of ``data``, or why it is none. Never raises."""
    text = data.decode("utf-8", "surrogateescape").strip("\x00 \t\r\n\ufeff")
    try:
        value, end = _Decoder().first(text, 0)
    except RecursionError:
        return None, "is JSON nested too deeply"
    except ValueError as error:
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        return None, f"is not valid JSON{where}"
    return (value, None) if end == len(text) else (None, "is more than one JSON document")
