"""Bags as the model takes them: standardised, on the device, held in memory as far as that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from acpbench.mil.bags import PatientBag

CHUNK_TILES = 8192
"""Tiles that are read or embedded at once."""
BLOCK_TILES = 256
"""Tiles that are standardised at once: few enough to stay in the processor's cache between two operations."""


def chunks(bag: PatientBag) -> Iterator[np.ndarray]:
    """A bag's tiles in order, at most :data:`CHUNK_TILES` at a time, as stored."""
    for start in range(0, len(bag.features), CHUNK_TILES):
        yield bag.read(slice(start, start + CHUNK_TILES))


def standardiser(bags: Sequence[PatientBag]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale (D,) float32 over tiles, each patient with equal weight; constant features keep scale 1.

    One pass: a bag's spread about the common mean is its variance plus the square of its mean's distance.
    """
    means, variances = [], []
    ones = np.ones(BLOCK_TILES, np.float32)
    for bag in bags:
        total = np.zeros(bag.features.shape[1])
        squares = np.zeros_like(total)
        pivot = np.zeros(0, np.float32)
        for stored in chunks(bag):
            for start in range(0, len(stored), BLOCK_TILES):
                tiles = stored[start : start + BLOCK_TILES].astype(np.float32, copy=False)
                if not len(pivot):
                    # Sums are of distances from typical tiles, so that large common values do not cancel.
                    pivot = tiles.mean(axis=0, dtype=np.float64).astype(np.float32)
                gap = tiles - pivot
                total += ones[: len(gap)] @ gap
                squares += ones[: len(gap)] @ np.square(gap, out=gap)
        shift = total / len(bag.features)
        means.append(pivot + shift)
        variances.append(np.maximum(squares / len(bag.features) - shift**2, 0))
    mean = np.mean(means, axis=0)
    scale = np.sqrt(np.mean(variances, axis=0) + np.mean((np.array(means) - mean) ** 2, axis=0))
    # A spread of rounding noise is a constant column; dividing by the noise would make a feature of it.
    scale[scale < 1e-6 * np.maximum(1, np.abs(mean))] = 1.0
    return mean.astype(np.float32), scale.astype(np.float32)


class Scaler:
    """Standardises tiles on their way to the device.

    Args:
        mean, scale: (D,) float32.
        device: where tiles go.
        dtype: type they are held in there.
    """

    def __init__(
        self,
        mean: np.ndarray,
        scale: np.ndarray,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.dtype = device, dtype
        self._mean = torch.from_numpy(mean).to(device)
        self._inverse = torch.from_numpy(1 / scale).to(device)

    def __call__(self, tiles: np.ndarray, out: torch.Tensor | None = None) -> torch.Tensor:
        """(n, D) as stored → (n, D) standardised on the device, into ``out`` when one is given."""
        # The stored type travels, half the bytes of float32 where it is float16; the arithmetic is float32.
        raw = torch.from_numpy(np.ascontiguousarray(tiles)).to(self.device)
        if out is None:
            out = torch.empty(raw.shape, dtype=self.dtype, device=self.device)
        step = BLOCK_TILES if self.device.type == "cpu" else max(len(raw), 1)
        for start in range(0, len(raw), step):
            block = raw[start : start + step].to(torch.float32).sub(self._mean)
            torch.mul(block, self._inverse, out=out[start : start + step])
        return out


class Prepared:
    """Bags by number: those that fit into ``cache_bytes`` are standardised once, the others at every use.

    Values do not depend on which bags were held.

    Args:
        bags: the bags.
        scaler: see :class:`Scaler`.
        cache_bytes: memory for held bags.
        max_tiles: of a longer bag only so many evenly spaced tiles are used; ``None`` for all.
    """

    def __init__(
        self,
        bags: Sequence[PatientBag],
        scaler: Scaler,
        cache_bytes: int,
        max_tiles: int | None = None,
    ) -> None:
        self._bags, self._scaler = bags, scaler
        self._chosen = [_evenly(len(bag.features), max_tiles) for bag in bags]
        self.sizes = [
            len(bag.features) if rows is None else len(rows)
            for bag, rows in zip(bags, self._chosen, strict=True)
        ]
        self._held: list[torch.Tensor | None] = []
        self.bytes_held = 0
        for index, bag in enumerate(bags):
            wanted = self.sizes[index] * bag.features.shape[1] * scaler.dtype.itemsize
            held = None
            if self.bytes_held + wanted <= cache_bytes:
                held = self._load(index)
                self.bytes_held += wanted
            self._held.append(held)

    def __len__(self) -> int:
        return len(self._bags)

    def _load(self, index: int, rows: np.ndarray | None = None) -> torch.Tensor:
        bag, chosen = self._bags[index], self._chosen[index]
        if chosen is not None:
            rows = chosen if rows is None else chosen[rows]
        if rows is not None or len(bag.features) <= CHUNK_TILES:
            return self._scaler(bag.read(rows))
        shape = (len(bag.features), bag.features.shape[1])
        out = torch.empty(shape, dtype=self._scaler.dtype, device=self._scaler.device)
        start = 0
        for tiles in chunks(bag):
            self._scaler(tiles, out[start : start + len(tiles)])
            start += len(tiles)
        return out

    def tiles(self, index: int, rows: torch.Tensor | None = None) -> torch.Tensor:
        """(n, D) standardised tiles of a bag; ``rows`` are ascending row numbers, ``None`` for all."""
        held = self._held[index]
        if held is None:
            return self._load(index, None if rows is None else rows.numpy())
        return held if rows is None else held.index_select(0, rows.to(held.device))


def _evenly(n_tiles: int, wanted: int | None) -> np.ndarray | None:
    """``wanted`` evenly spaced row numbers out of ``n_tiles``; ``None`` when all are wanted."""
    if wanted is None or n_tiles <= wanted:
        return None
    return np.arange(wanted) * n_tiles // wanted
