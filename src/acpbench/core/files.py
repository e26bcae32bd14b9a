"""Atomic writes, bounded reads and paths that cannot leave their folder.

Every file is written to a temporary name beside its target, flushed, fsynced and renamed, so a reader
sees the old file or the new one and never a part of it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError

MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Largest text file any reader loads whole unless it says otherwise."""


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; on success fsync it and rename it onto ``target``.

    For writers that need a real path (h5py, PIL, torch). On an exception the temporary file is removed.

    Raises:
        InputError: ``target`` is a folder.
    """
    target = Path(target)
    if target.is_dir():
        raise InputError("is a folder, where a file is to be written", file=target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # No longer than a name may be, however long the target's is; writers tell the format by the suffix.
    suffix = target.suffix if len(target.suffix) <= 16 else ""
    temporary = target.with_name(f".{target.name[:40]}.{os.getpid()}.{secrets.token_hex(4)}.tmp{suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, target)
        _fsync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(target: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``target`` atomically."""
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)


def write_text(target: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 ``text`` atomically; lone surrogates are kept as backslash escapes."""
    write_bytes(target, text.encode("utf-8", errors="backslashreplace"))


def canonical_json(value: Any) -> str:
    """One byte-stable JSON text for a value: sorted keys, no spaces, NaN and infinities refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by ``None``: JSON has no such numbers, and missing is ``null``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """Indented JSON in the key order given; non-finite numbers become ``null``."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(target: str | os.PathLike[str], value: Any) -> None:
    """Write :func:`json_text` atomically."""
    write_text(target, json_text(value))


def write_jsonl(target: str | os.PathLike[str], rows: Iterable[Any]) -> None:
    """Write one JSON value a line, atomically."""
    write_text(
        target, "".join(json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    )


def write_csv(
    target: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write a CSV atomically (``\\n`` line ends; ``None`` is an empty cell; cells are not formula-escaped).

    Tables meant for a spreadsheet go through :func:`spreadsheet_safe` first.
    """
    buffer = io.StringIO(newline="")
    plain = csv.writer(buffer, lineterminator="\n")
    # The module quotes no carriage return that is not part of its own line end, and refuses to read one.
    quoted = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(columns)
    for row in rows:
        cells = ["" if row.get(key) is None else row.get(key) for key in columns]
        odd = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoted if odd else plain).writerow(cells)
    write_text(target, buffer.getvalue())


def spreadsheet_safe(value: Any) -> Any:
    """Prefix a text cell that a spreadsheet would run as a formula with an apostrophe."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(value)
        except ValueError:
            return "'" + value
    return value


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a regular file of at most ``max_bytes``.

    Raises:
        InputError: the file is missing, not a regular file, or too large.
    """
    path = Path(path)
    try:
        # Non-blocking: opening a FIFO for reading would wait for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as handle:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError("is not a regular file", file=path)
            data = handle.read(max_bytes + 1)
    except FileNotFoundError:
        raise InputError("file does not exist", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path) from None
    if len(data) > max_bytes:
        raise InputError(f"is larger than the {max_bytes} bytes read whole", file=path)
    return data


def read_text(path: str | os.PathLike[str], *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read bounded UTF-8 text (a BOM is dropped, undecodable bytes are kept as backslash escapes)."""
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig", errors="backslashreplace")


def read_json(path: str | os.PathLike[str], *, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Read bounded JSON. Raises :class:`InputError` naming the line when it does not parse."""
    try:
        return json.loads(read_text(path, max_bytes=max_bytes))
    except json.JSONDecodeError as error:
        raise InputError(f"is not valid JSON (line {error.lineno}: {error.msg})", file=path) from None
    except RecursionError:
        raise InputError("JSON is nested too deeply", file=path) from None


def read_jsonl(path: str | os.PathLike[str], *, max_bytes: int = 256 * 1024 * 1024) -> list[Any]:
    """Read JSON lines (split on ``\\n`` only; blank lines skipped). A bad line is an :class:`InputError`."""
    rows = []
    for number, line in enumerate(read_text(path, max_bytes=max_bytes).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (json.JSONDecodeError, RecursionError) as error:
                raise InputError(f"line {number} is not valid JSON ({error})", file=path) from None
    return rows


def read_csv(path: str | os.PathLike[str], *, max_bytes: int = MAX_TEXT_BYTES) -> list[dict[str, str]]:
    """Read a bounded CSV or TSV (by its first line) into row dictionaries of strings.

    Raises:
        InputError: no header, a repeated column, or a row that is longer than the header.
    """
    text = read_text(path, max_bytes=max_bytes)
    header_line = text.split("\n", 1)[0]
    delimiter = "\t" if header_line.count("\t") > header_line.count(",") else ","
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise InputError(f"is not a readable table ({error})", file=path) from None
    table = [row for row in table if row]
    if not table:
        raise InputError("is empty; expected a header row", file=path)
    header = [name.strip() for name in table[0]]
    if len(set(header)) != len(header):
        raise InputError("has a repeated column name", file=path)
    rows = []
    for number, row in enumerate(table[1:], start=2):
        if len(row) > len(header):
            raise InputError(f"row {number} has {len(row)} cells for {len(header)} columns", file=path)
        rows.append(dict(zip(header, row + [""] * (len(header) - len(row)), strict=True)))
    return rows


def read_yaml(path: str | os.PathLike[str], *, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Read bounded YAML with the safe loader."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(read_text(path, max_bytes=max_bytes), Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError(
            f"is not valid YAML ({where}{getattr(error, 'problem', error)})", file=path
        ) from None


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file, streamed."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON."""
    return sha256_bytes(canonical_json(_finite(value)).encode("utf-8", "surrogatepass"))


MAX_RELATIVE_BYTES = 3_000


def inside(root: str | os.PathLike[str], relative: str) -> Path:
    """Resolve ``relative`` under ``root`` and refuse whatever leaves it or passes through a symlink.

    The path need not exist. Raises :class:`InputError` for absolute paths, ``..``, NUL, symlinks, a path that
    names nothing (``.``), text that is no Unicode, and names or paths longer than a file system has.
    """
    try:
        encoded = relative.encode()
    except UnicodeEncodeError:
        raise InputError(f"{relative[:80]!r} is no Unicode text") from None
    if len(encoded) > MAX_RELATIVE_BYTES or any(len(name) > 255 for name in encoded.split(b"/")):
        raise InputError(f"{relative[:80]!r}... is longer than a path may be")
    if "\0" in relative or not relative or relative.startswith(("/", "~")) or "\\" in relative:
        raise InputError(f"{relative[:80]!r} is not a relative path inside the folder")
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InputError(f"{relative[:80]!r} leaves its folder")
    if not parts:
        raise InputError(f"{relative[:80]!r} names no file")
    current = Path(root)
    for part in parts:
        current = current / part
        if current.is_symlink():
            raise InputError(f"{relative[:80]!r} passes through a symbolic link")
    return current


def walk_files(root: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Yield ``(relative posix path, path)`` of every regular file under ``root``: a folder's files, then
    its folders, both sorted. Links, and what cannot be looked into, are skipped; no depth is too deep."""
    root = Path(root)
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except OSError:
            continue
        for name in files:
            relative = f"{folder}{name}"
            yield relative, root / relative
        folders += [f"{folder}{name}/" for name in reversed(inner)]
