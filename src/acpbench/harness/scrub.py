"""Keep known secret values out of everything that is recorded.

Values come from the collector's environment, by name. They are replaced by ``[secret:NAME]`` before bytes
reach a file of the record, and looked for once more in what the agent itself wrote, names included, and in
the trajectory decoded from the stream. Found are the value itself and its usual encodings (``_forms``). An
agent that hides a value on purpose (reversed, in pieces, encrypted) is not found out: give runs keys that
can be revoked.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from acpbench.core.errors import InputError
from acpbench.core.files import walk_files

MIN_SECRET_CHARS = 8
"""Shorter values are ordinary words and numbers: replacing them would destroy the record."""
CHUNK_BYTES = 1024 * 1024
MAX_NAME_CHARS = 200


def secret_values(names: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name → value of variables that must be set.

    Raises:
        InputError: one is not set, naming it.
    """
    given = os.environ if environment is None else environment
    found = {}
    for name in names:
        value = given.get(name)
        if not value:
            raise InputError(f"environment variable {name} is not set", field=name)
        if "\n" in value or "\0" in value:
            raise InputError(f"the value of {name} has more than one line", field=name)
        found[name] = value
    return found


def _forms(value: str) -> set[bytes]:
    """A value as it may appear in output: as it is, escaped in JSON, in a URL, in hexadecimal, and in base64,
    also as a part of what is encoded (``user:VALUE``)."""
    raw = value.encode()
    written = {raw, json.dumps(value)[1:-1].encode(), json.dumps(value, ensure_ascii=False)[1:-1].encode()}
    written |= {form.replace(b"/", b"\\/") for form in set(written)}
    written |= {quote(value, safe="").encode(), raw.hex().encode(), raw.hex().upper().encode()}
    written.add(base64.b64encode(raw).rstrip(b"="))
    for before in range(3):  # bytes of something else in the first group of three
        # Characters that hold bits of the value alone.
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            written.add(encode(b"\0" * before + raw)[first:last])
    return {form for form in written if len(form) >= MIN_SECRET_CHARS}


class Scrubber:
    """Replaces secrets in bytes. ``count`` says how often it had to."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self.count = 0
        self._names = {
            form: name
            for name, value in (secrets or {}).items()
            if len(value) >= MIN_SECRET_CHARS
            for form in _forms(value)
        }
        forms = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self.hold_bytes = max((len(form) for form in forms), default=1) - 1
        """Bytes at the end of an unfinished line that may be the start of a secret."""

    def clean(self, data: bytes) -> bytes:
        """The data without secrets."""
        if self._pattern is None:
            return data
        cleaned, found = self._pattern.subn(lambda match: self._mark(match.group()), data)
        self.count += found
        return cleaned

    def text(self, value: str) -> str:
        """Text without secrets."""
        return self.clean(value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _mark(self, form: bytes) -> bytes:
        return f"[secret:{self._names[form]}]".encode()

    def clean_file(self, path: Path) -> bool:
        """Rewrite a file without secrets. Returns whether it held one; holes are neither read nor filled.

        The new file takes the old one's times: when the agent wrote it is a fact of the record. It is written
        beside the old one under a name that nobody can have taken, and is never the old one itself: that may
        be another name of a file outside the workspace.

        Raises:
            OSError: there is no room for the new file, or it cannot be written; the old one is unchanged.
        """
        if self._pattern is None or not self._holds(path):
            return False
        status = path.stat()
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".clean")
        try:
            with open(path, "rb") as source, open(descriptor, "wb") as target:
                position = 0
                for start, end in _data_ranges(source):
                    target.seek(start - position, os.SEEK_CUR)
                    self._copy(source, start, end, target)
                    position = end
                target.seek(status.st_size - position, os.SEEK_CUR)
                target.truncate()
                os.fchmod(target.fileno(), stat.S_IMODE(status.st_mode))
            os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
        return True

    def _copy(self, source: BinaryIO, start: int, end: int, target: BinaryIO) -> None:
        rest = b""
        for chunk in _chunks(source, start, end):
            block = self.clean(rest + chunk)
            cut = max(0, len(block) - self.hold_bytes)
            target.write(block[:cut])
            rest = block[cut:]
        target.write(rest)

    def _holds(self, path: Path) -> bool:
        assert self._pattern is not None
        rest = b""
        for chunk in data_chunks(path):
            if self._pattern.search(rest + chunk):
                return True
            rest = (rest + chunk)[-self.hold_bytes :] if self.hold_bytes else b""
        return False

    def clean_tree(self, folder: Path) -> list[str]:
        """Take secrets out of every name, link and regular file of a folder.

        A file that cannot be rewritten (no room on the disk) is removed: no record may hold a secret.

        Returns:
            A note for each thing that held one, without it.
        """
        if self._pattern is None:
            return []
        notes = self._clean_names(folder)
        for relative, path in walk_files(folder):
            try:
                if self.clean_file(path):
                    notes.append(f"a secret was taken out of {relative}")
            except OSError as error:
                path.unlink()
                reason = os.strerror(error.errno or 0)
                notes.append(f"{relative} held a secret, could not be rewritten ({reason}) and was removed")
        return notes

    def _clean_names(self, folder: Path) -> list[str]:
        notes = []
        for directory, names, files in os.walk(folder, topdown=False):
            for name in sorted([*names, *files]):
                path = Path(directory, name)
                if path.is_symlink() and self._is_secret(os.readlink(path)):
                    path.unlink()
                    notes.append("a link that names a secret was removed")
                elif self._is_secret(name):
                    path.rename(_free_name(path.with_name(self.text(name)[:MAX_NAME_CHARS])))
                    notes.append("a secret was taken out of a file's name")
        return notes

    def _is_secret(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.search(os.fsencode(name)) is not None


def _free_name(path: Path) -> Path:
    """The path, or with a number behind it where that name is taken."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _data_ranges(handle: BinaryIO) -> Iterator[tuple[int, int]]:
    """Where a file has data, from and to; what lies between is holes, where the file system tells them."""
    position, size = 0, os.fstat(handle.fileno()).st_size
    while position < size:
        try:
            start = os.lseek(handle.fileno(), position, os.SEEK_DATA)
            end = os.lseek(handle.fileno(), start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            start, end = position, size
        yield start, end
        position = end


def _chunks(handle: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    handle.seek(start)
    while start < end:
        chunk = handle.read(min(CHUNK_BYTES, end - start))
        if not chunk:
            return
        yield chunk
        start += len(chunk)


def data_chunks(path: Path) -> Iterator[bytes]:
    """The data of a file in chunks, its holes left out where the file system tells them."""
    with open(path, "rb") as handle:
        for start, end in _data_ranges(handle):
            yield from _chunks(handle, start, end)
