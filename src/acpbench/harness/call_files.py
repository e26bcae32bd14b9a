"""The workspace files of one tool call: inputs as they were when it began, outputs before anybody sees them.

The agent may change its workspace while a tool works on it. Inputs are therefore copied out of it once, and
what was hashed is what is read; outputs are made outside it, hashed there, and put in place when the call has
gone well, so that what the log calls a tool's output is what the tool wrote. Folders are entered one by one
without following links: a link put there in the middle of a call leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from acpbench.core.errors import InputError
from acpbench.core.files import inside, sha256_file

MAX_INPUT_BYTES = 1024**3
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CallFiles:
    """Files of one call.

    Args:
        workspace: the agent's folder.
        folder: an empty folder out of the agent's reach, for the time of the call.
    """

    def __init__(self, workspace: Path, folder: Path) -> None:
        self.workspace, self.folder = workspace, folder
        self._taken: dict[str, Path] = {}
        self._made: dict[str, Path] = {}

    def take(self, relative: str) -> Path:
        """A copy of a workspace file, made at its first use.

        Raises:
            InputError: no regular file, a way through a link, or more than 1 GiB.
        """
        if relative not in self._taken:
            inside(self.workspace, relative)
            # The name is kept, so that messages and suffixes are those of the file.
            target = self.folder / "in" / str(len(self._taken)) / Path(relative).name
            target.parent.mkdir(parents=True)
            with self._parent(relative, create=False) as (parent, name):
                self._copy(relative, parent, name, target)
            self._taken[relative] = target
        return self._taken[relative]

    def _copy(self, relative: str, parent: int, name: str, target: Path) -> None:
        # Non-blocking: opening a FIFO would wait for a writer that may never come.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _told(relative):
            descriptor = os.open(name, flags, dir_fd=parent)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_INPUT_BYTES:
                os.close(descriptor)
                regular = stat.S_ISREG(status.st_mode)
                too_large = f"is larger than the {MAX_INPUT_BYTES} bytes a tool reads"
                raise InputError(too_large if regular else "is not a regular file", file=relative)
            with open(descriptor, "rb") as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy, 1024 * 1024)

    def make(self, relative: str) -> Path:
        """Where to write an output of the call; it comes into the workspace with :meth:`publish`."""
        inside(self.workspace, relative)
        target = self._made.setdefault(relative, self.folder / "out" / relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def made(self, relative: str) -> dict[str, str | int | None] | None:
        """Path, hash and size of an output as it was made; ``None`` for one that was not made here."""
        path = self._made.get(relative)
        if path is None or not path.is_file():
            return None
        return {"path": relative, "sha256": sha256_file(path), "size": path.stat().st_size}

    def in_words(self, message: str) -> str:
        """A message in the workspace's terms: no path of the call's own folder."""
        for places in (self._taken, self._made):
            for relative, path in places.items():
                message = message.replace(str(path), relative)
        return message.replace(str(self.folder), "workspace")

    def publish(self) -> None:
        """Put every output in its place in the workspace, each whole or not at all.

        Raises:
            InputError: a folder of the way is a link or a file, or the place is a folder.
        """
        for relative, made in self._made.items():
            if not made.is_file():
                continue
            with _told(relative), self._parent(relative, create=True) as (parent, name):
                temporary = f".{name[:100]}.{secrets.token_hex(4)}.tmp"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    with (
                        open(made, "rb") as source,
                        open(os.open(temporary, flags, 0o644, dir_fd=parent), "wb") as target,
                    ):
                        shutil.copyfileobj(source, target, 1024 * 1024)
                        target.flush()
                        os.fsync(target.fileno())
                    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
                    os.fsync(parent)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=parent)

    @contextlib.contextmanager
    def _parent(self, relative: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """Descriptor of a path's folder, entered step by step from the workspace, and the last name."""
        *folders, name = [part for part in relative.split("/") if part not in ("", ".")]
        descriptor = os.open(self.workspace, _FOLDER)
        try:
            for folder in folders:
                with _told(relative):
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(folder, 0o755, dir_fd=descriptor)
                    inner = os.open(folder, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _told(relative: str) -> Iterator[None]:
    """Failures of the file system in the workspace's terms."""
    try:
        yield
    except FileNotFoundError:
        raise InputError("file does not exist", file=relative) from None
    except OSError as error:
        raise InputError(f"cannot be used ({error.strerror})", file=relative) from None
