"""Features that stay in their files: rows are read when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.features.store import FeatureBag


@dataclass(frozen=True)
class _Part:
    """One file's array: where it starts, and what the file was when its hash was checked."""

    path: Path
    offset: int
    n_rows: int
    stamp: tuple[int, int, int]


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


class StoredFeatures:
    """(N, D) features of one patient, lying in one or more files.

    Behaves like an array where only its shape and type are needed; :meth:`read` gives rows.
    """

    def __init__(self, parts: Sequence[_Part], width: int, dtype: np.dtype[Any]) -> None:
        self._parts = tuple(parts)
        self.dtype = np.dtype(dtype)
        self.shape = (sum(part.n_rows for part in parts), width)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = self.read()
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def read(self, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """Rows as stored, (n, D).

        Args:
            rows: ascending row numbers, a slice without a step, or all rows.

        Raises:
            InputError: a file was replaced or cut since its hash was checked.
        """
        if rows is None or isinstance(rows, slice):
            first, last, _ = (rows or slice(None)).indices(len(self))
            out = np.empty((max(last - first, 0), self.shape[1]), self.dtype)
            wanted = None
        else:
            out = np.empty((len(rows), self.shape[1]), self.dtype)
            wanted = np.asarray(rows)
        start = 0
        for part in self._parts:
            end = start + part.n_rows
            if wanted is None:
                low, high = max(first, start), min(last, end)
                if low < high:
                    self._fill(part, low - start, out[low - first : high - first])
            else:
                low, high = np.searchsorted(wanted, [start, end])
                if low < high:
                    self._pick(part, wanted[low:high] - start, out[low:high])
            start = end
        return out

    def _open(self, part: _Part) -> int:
        try:
            descriptor = os.open(part.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", file=part.path) from None
        if _stamp(os.fstat(descriptor)) != part.stamp:
            os.close(descriptor)
            raise InputError("changed while it was in use", file=part.path)
        return descriptor

    def _fill(self, part: _Part, first_row: int, out: np.ndarray) -> None:
        """Consecutive rows, in one read."""
        descriptor = self._open(part)
        try:
            view, done = memoryview(out).cast("B"), 0
            start = part.offset + first_row * out.strides[0]
            while done < len(view):
                count = os.preadv(descriptor, [view[done:]], start + done)
                if not count:
                    raise InputError("ends before its features do", file=part.path)
                done += count
        finally:
            os.close(descriptor)

    def _pick(self, part: _Part, rows: np.ndarray, out: np.ndarray) -> None:
        """Scattered rows: one short read each, or all at once when that is most of the file anyway."""
        if len(rows) * 4 > part.n_rows:
            whole = np.empty((part.n_rows, self.shape[1]), self.dtype)
            self._fill(part, 0, whole)
            np.take(whole, rows, axis=0, out=out)
            return
        descriptor = self._open(part)
        try:
            stride = out.strides[0]
            for line, row in zip(out, rows.tolist(), strict=True):
                if os.preadv(descriptor, [memoryview(line)], part.offset + row * stride) != stride:
                    raise InputError("ends before its features do", file=part.path)
        finally:
            os.close(descriptor)


def locate(path: str | os.PathLike[str], bag: FeatureBag) -> _Part | None:
    """Where the array of a feature file lies, if it lies there in one uncompressed piece.

    Args:
        path: the file that ``bag`` was read from.
        bag: its content, whose hash has been checked.

    Returns:
        The place, or ``None`` for any other layout.
    """
    import h5py

    path = Path(path)
    before = _stamp(path.stat())
    with h5py.File(path, "r", locking=False) as handle:
        dataset = handle.get("features")
        if not isinstance(dataset, h5py.Dataset) or dataset.chunks is not None or dataset.external:
            return None
        offset = dataset.id.get_offset()
        if offset is None or dataset.shape != bag.features.shape or dataset.dtype != bag.features.dtype:
            return None
    return _Part(path, int(offset), len(bag.features), before)


def joined(parts: Sequence[np.ndarray | StoredFeatures]) -> np.ndarray | StoredFeatures:
    """Features of several slides as those of one patient; in memory when one of them has to be."""
    if len(parts) == 1:
        return parts[0]
    stored = [part for part in parts if isinstance(part, StoredFeatures)]
    if len(stored) == len(parts) and len({part.dtype for part in stored}) == 1:
        places = [place for part in stored for place in part._parts]
        return StoredFeatures(places, stored[0].shape[1], stored[0].dtype)
    return np.concatenate([np.asarray(part) for part in parts])
