"""The files a slide consists of, their size and hash, and copies of them on a faster disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_file, sha256_json, write_json

_COPY_BLOCK = 4 * 1024 * 1024
_DONE = "copy.json"


def _has_parts_elsewhere(path: Path) -> bool:
    """Whether a slide may have files that only its format can name (VMS, a DICOM series)."""
    ending = path.suffix.lower()
    return ending in (".vms", ".vmu") or (ending == ".dcm" and len(list(path.parent.glob("*.dcm"))) > 1)


def slide_files(path: str | os.PathLike[str]) -> list[Path]:
    """Every file of a slide, the named one first: of MIRAX also those of the folder of the same name, sorted.

    Every other format is taken as a single file, though the further levels of a DICOM slide and the parts
    of a VMS slide are files of their own; such slides are never copied.
    """
    path = Path(path)
    folder = path.with_suffix("")
    if path.suffix.lower() != ".mrxs" or not folder.is_dir():
        return [path]
    return [path, *(part for part in sorted(folder.rglob("*")) if part.is_file())]


def slide_size(path: str | os.PathLike[str]) -> int:
    """Bytes of all files of a slide. Raises ``OSError`` when one cannot be looked at."""
    return sum(part.stat().st_size for part in slide_files(path))


def slide_sha256(path: str | os.PathLike[str]) -> str:
    """Hash of a slide: of its file, or of the names and hashes of its files when there are several."""
    parts = slide_files(path)
    if len(parts) == 1:
        return sha256_file(parts[0])
    root = Path(path).parent
    return sha256_json({part.relative_to(root).as_posix(): sha256_file(part) for part in parts})


def local_copy(path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None) -> Path:
    """A slide's copy on a fast disk, made on first use.

    Each file is hashed while it is copied and the copy is read back and hashed again; the folder gets its
    name only when all are equal, so an interrupted copy is never used. A source whose size or time has
    changed is copied anew. Nothing is ever removed but a copy that was cut short: deleting ``cache_dir`` is
    always safe, and is left to the user. Two jobs that want one slide copy it once.

    Args:
        path: the slide.
        cache_dir: folder on the fast disk, in which variables such as ``$TMPDIR`` are filled in; ``None``
            returns ``path``.

    Returns:
        The copy, or ``path`` itself when it cannot be copied (no room, no right, a format that is read in
        place), which is said on standard error: a cache never costs a slide.
    """
    path = Path(path)
    if cache_dir is None or not path.is_file():
        return path
    try:
        if _has_parts_elsewhere(path):
            raise InputError("its format may have parts in other files")
        cache_dir = os.path.expanduser(os.path.expandvars(cache_dir))
        root = Path(path).parent
        stamps = {
            part.relative_to(root).as_posix(): [part.stat().st_size, part.stat().st_mtime_ns]
            for part in slide_files(path)
        }
        key = sha256_json({"folder": str(root.resolve()), "slide": path.name, "files": stamps})[:32]
        folder = Path(cache_dir) / key[:2] / key
        if _is_whole(folder, stamps):
            return folder / path.name
        with _only_one(folder):
            if not _is_whole(folder, stamps):
                _copy(root, stamps, folder)
        return folder / path.name
    except (OSError, InputError) as error:
        print(f"{path.name}: read in place, no copy in {cache_dir} ({error})", file=sys.stderr)
        return path


def _is_whole(folder: Path, stamps: dict[str, list[int]]) -> bool:
    """Whether a finished copy is there and still has the sizes it was made with."""
    try:
        recorded: Any = read_json(folder / _DONE)
        return set(recorded["files"]) == set(stamps) and all(
            (folder / name).stat().st_size == stamps[name][0] for name in stamps
        )
    except (OSError, InputError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold a lock beside the folder; a process that dies lets it go."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _copy(root: Path, stamps: dict[str, list[int]], folder: Path) -> None:
    # Under the lock: whatever lies here was cut short, or was changed by hand.
    for old in [folder, *folder.parent.glob(f".{folder.name}.*")]:
        shutil.rmtree(old, ignore_errors=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        hashes = {}
        for name, (size, _) in stamps.items():
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            hashes[name] = _copy_file(root / name, target)
            if target.stat().st_size != size or sha256_file(target) != hashes[name]:
                raise OSError(f"the copy of {name} differs from its source")
        write_json(temporary / _DONE, {"source": str(root), "files": hashes})
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_file(source: Path, target: Path) -> str:
    """Copy and hash in one pass over the slow disk; returns the hash of what was read."""
    digest = hashlib.sha256()
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while block := reading.read(_COPY_BLOCK):
            digest.update(block)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()
