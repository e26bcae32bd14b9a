"""Keep known secret values out of everything that is recorded.

Values come from the collector's environment, by name. They are replaced by ``[secret:NAME]`` before bytes
reach a file of the record, and looked for once more in what the agent itself wrote.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from acpbench.core.errors import InputError
from acpbench.core.files import walk_files

MIN_SECRET_CHARS = 8
"""Shorter values are ordinary words and numbers: replacing them would destroy the record."""
CHUNK_BYTES = 1024 * 1024


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
    """A value as it may appear in output: as it is, escaped in JSON, in a URL, and in base64."""
    raw = value.encode()
    written = {raw, json.dumps(value)[1:-1].encode(), json.dumps(value, ensure_ascii=False)[1:-1].encode()}
    written |= {form.replace(b"/", b"\\/") for form in set(written)}
    written |= {quote(value, safe="").encode(), base64.b64encode(raw).rstrip(b"=")}
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
        """Rewrite a file without secrets. Returns whether it held one; holes are not read.

        The new file takes the old one's times: when the agent wrote it is a fact of the record.
        """
        if self._pattern is None or not self._holds(path):
            return False
        status = path.stat()
        fresh = path.with_name(f".{path.name}.clean")
        with open(path, "rb") as source, open(fresh, "wb") as target:
            rest = b""
            while chunk := source.read(CHUNK_BYTES):
                block = self.clean(rest + chunk)
                cut = max(0, len(block) - self.hold_bytes)
                target.write(block[:cut])
                rest = block[cut:]
            target.write(rest)
        os.utime(fresh, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(fresh, path)
        return True

    def _holds(self, path: Path) -> bool:
        assert self._pattern is not None
        rest = b""
        for chunk in data_chunks(path):
            if self._pattern.search(rest + chunk):
                return True
            rest = (rest + chunk)[-self.hold_bytes :] if self.hold_bytes else b""
        return False

    def clean_tree(self, folder: Path) -> list[str]:
        """Clean every regular file of a folder. Returns the paths that held a secret."""
        return [relative for relative, path in walk_files(folder) if self.clean_file(path)]


def data_chunks(path: Path) -> Iterator[bytes]:
    """The data of a file in chunks, its holes left out where the file system tells them."""
    with open(path, "rb") as handle:
        position, size = 0, os.fstat(handle.fileno()).st_size
        while position < size:
            try:
                start = os.lseek(handle.fileno(), position, os.SEEK_DATA)
                end = os.lseek(handle.fileno(), start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                start, end = position, size
            handle.seek(start)
            while start < end:
                chunk = handle.read(min(CHUNK_BYTES, end - start))
                if not chunk:
                    return
                yield chunk
                start += len(chunk)
            position = end
