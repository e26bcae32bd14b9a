"""The state of a training run after an epoch, so that a killed run goes on where it was.

A checkpoint is only ever a shortcut: one of other inputs, or one that cannot be read, is left aside and
training starts from the beginning, to the same result.
"""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from acpbench.core.errors import InputError
from acpbench.core.files import canonical_json, read_bytes, write_bytes

CHECKPOINT_SCHEMA = "acp-mil-checkpoint/0.1"
MAX_CHECKPOINT_BYTES = 4 * 1024**3


class Checkpoint:
    """One file, written at most every ``every_s`` seconds.

    Args:
        path: the file, or ``None`` to keep none.
        key: hash of everything the run depends on.
        every_s: seconds between two writes.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str, every_s: float) -> None:
        self._path, self._key, self._every_s = None if path is None else Path(path), key, every_s
        self._last = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """State that :meth:`save` wrote for the same key; ``None`` when there is none."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            data = read_bytes(self._path, max_bytes=MAX_CHECKPOINT_BYTES)
            held = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            header = json.loads(held.pop("header"))
            if header["schema"] == CHECKPOINT_SCHEMA and header["key"] == self._key:
                return held | header["state"]
        except InputError:
            raise
        except Exception:  # zip, unpickling and key errors share no base class; see the module's first lines
            return None
        return None

    def save(self, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Write the state if the last one is old enough.

        Args:
            tensors: what torch saves. state: the rest, as JSON.
        """
        if self._path is None or time.monotonic() - self._last < self._every_s:
            return
        header = {"schema": CHECKPOINT_SCHEMA, "key": self._key, "state": state}
        buffer = io.BytesIO()
        torch.save(tensors | {"header": canonical_json(header)}, buffer)
        write_bytes(self._path, buffer.getvalue())
        self._last = time.monotonic()

    def remove(self) -> None:
        """Delete the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
