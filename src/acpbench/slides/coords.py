"""``coords.h5``: where a slide's tiles are, and the tiles themselves as a stream.

Layout: dataset ``coords`` int64 (N, 2), level-0 x, y of top-left corners. The attributes stand on the file
root and on the dataset alike, so that readers of either habit find them. A slide that is excluded has N = 0
and its ``status``; numbers that were never determined are NaN (``level`` −1).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path
from acpbench.slides.errors import STATUSES, SlideError
from acpbench.slides.geometry import TilePlan
from acpbench.slides.reader import SlideReader, open_slide

TILER_VERSION = "2"
"""Raised whenever the same slide and settings would give other tiles or other pixels."""

MAX_BAD_FRACTION = 0.1
"""Share of unreadable tiles above which the slide fails."""
_MASK_ERROR = 0.1
"""How far the tissue share of a tile, found on a coarse picture, may be from the truth."""


@dataclass(frozen=True)
class TileSet:
    """The tiles of one slide.

    Attributes:
        slide_id, slide_sha256: the slide; the hash is ``""`` when the file could not be read.
        status, reason, detail: outcome, see :data:`acpbench.slides.errors.STATUSES`.
        coords: int64 (N, 2) level-0 x, y; N = 0 unless ``status`` is ``ok``.
        tissue_fractions: float64 (N,) share of tissue in each tile.
        requested_spacing_um, tile_size_px: as asked.
        plan: how tiles are read; ``None`` when that could not be worked out.
        mpp_x, mpp_y: level-0 spacing in force, um/px.
        counts: ``n_grid``, ``n_any_tissue``, ``n_passed``, ``n_tiles``.
    """

    slide_id: str
    slide_sha256: str
    status: str
    reason: str
    detail: str
    coords: np.ndarray
    tissue_fractions: np.ndarray
    requested_spacing_um: float
    tile_size_px: int
    plan: TilePlan | None
    mpp_x: float | None = None
    mpp_y: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)


_PLAN_ATTRIBUTES = {
    "read_spacing_um": "read_spacing_x_um",
    "read_spacing_y_um": "read_spacing_y_um",
    "effective_spacing_um": "effective_spacing_x_um",
    "effective_spacing_y_um": "effective_spacing_y_um",
    "tile_size_level0": "tile_width_level0",
    "tile_size_level0_y": "tile_height_level0",
    "level_downsample": "downsample_x",
    "level_downsample_y": "downsample_y",
}


def _attributes(tiles: TileSet) -> dict[str, Any]:
    plan = tiles.plan
    values: dict[str, Any] = {
        "requested_spacing_um": float(tiles.requested_spacing_um),
        "tile_size_px": int(tiles.tile_size_px),
        "level": -1 if plan is None else int(plan.level),
        "read_width_px": -1 if plan is None else int(plan.read_width_px),
        "read_height_px": -1 if plan is None else int(plan.read_height_px),
        "mpp_x": math.nan if tiles.mpp_x is None else float(tiles.mpp_x),
        "mpp_y": math.nan if tiles.mpp_y is None else float(tiles.mpp_y),
        "tiler_version": TILER_VERSION,
        "slide_id": tiles.slide_id,
        "slide_sha256": tiles.slide_sha256,
        "status": tiles.status,
        "reason": tiles.reason,
        "detail": tiles.detail,
    }
    for name, attribute in _PLAN_ATTRIBUTES.items():
        values[name] = math.nan if plan is None else float(getattr(plan, attribute))
    values |= {name: int(count) for name, count in tiles.counts.items()}
    values |= {f"setting_{name}": float(value) for name, value in tiles.settings.items()}
    return dict(sorted(values.items()))


def write_coords(path: str | os.PathLike[str], tiles: TileSet) -> None:
    """Write ``coords.h5`` atomically; the same tiles give the same bytes."""
    import h5py

    if tiles.status not in STATUSES:
        raise ValueError(f"unknown slide status {tiles.status!r}")
    coords = np.ascontiguousarray(tiles.coords, dtype=np.int64).reshape(-1, 2)
    if tiles.status != "ok" and len(coords):
        raise ValueError(f"a slide that is {tiles.status} has no tiles, got {len(coords)}")
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as handle:
        dataset = handle.create_dataset("coords", data=coords, track_times=False)
        handle.create_dataset(
            "tissue_fractions", data=np.asarray(tiles.tissue_fractions, dtype=np.float64), track_times=False
        )
        for name, value in _attributes(tiles).items():
            handle.attrs[name] = value
            dataset.attrs[name] = value


def read_coords(path: str | os.PathLike[str]) -> TileSet:
    """Read ``coords.h5``.

    Raises:
        InputError: not a readable file of this layout.
    """
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as handle:
            attributes = {name: _plain(value) for name, value in handle.attrs.items()}
            coords = np.asarray(handle["coords"][()], dtype=np.int64).reshape(-1, 2)
            fractions = np.asarray(handle["tissue_fractions"][()], dtype=np.float64)
    except FileNotFoundError:
        raise InputError("file does not exist", file=path) from None
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"is not a readable coords.h5 ({error})", file=path) from None
    try:
        plan = None
        if attributes["level"] >= 0:
            named = {attribute: attributes[name] for name, attribute in _PLAN_ATTRIBUTES.items()}
            same = ("requested_spacing_um", "tile_size_px", "level", "read_width_px", "read_height_px")
            plan = TilePlan(**named, **{name: attributes[name] for name in same})
        mpp = [None if math.isnan(attributes[name]) else attributes[name] for name in ("mpp_x", "mpp_y")]
        return TileSet(
            slide_id=attributes["slide_id"],
            slide_sha256=attributes["slide_sha256"],
            status=attributes["status"],
            reason=attributes["reason"],
            detail=attributes["detail"],
            coords=coords,
            tissue_fractions=fractions,
            requested_spacing_um=attributes["requested_spacing_um"],
            tile_size_px=attributes["tile_size_px"],
            plan=plan,
            mpp_x=mpp[0],
            mpp_y=mpp[1],
            counts={name: value for name, value in attributes.items() if name.startswith("n_")},
            settings={
                name.removeprefix("setting_"): value
                for name, value in attributes.items()
                if name.startswith("setting_")
            },
        )
    except KeyError as error:
        raise InputError(f"lacks the attribute {error}", file=path) from None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class TileBatch:
    """Consecutive readable tiles: ``indices`` int64 (B,) into the coordinates, ``coords`` int64 (B, 2),
    ``pixels`` uint8 (B, T, T, 3)."""

    indices: np.ndarray
    coords: np.ndarray
    pixels: np.ndarray


@dataclass(frozen=True)
class BadTile:
    """A tile that could not be read."""

    index: int
    x_level0: int
    y_level0: int
    message: str


class TileStream:
    """Iterate over a slide's tiles in order, in batches. Made by :func:`read_tiles`.

    Unreadable tiles are left out and counted (:attr:`bad`), never replaced by blanks: an embedded blank is a
    measurement of nothing. :attr:`n_read` and :attr:`bad` are complete once the iteration has ended.
    """

    def __init__(
        self,
        slide_path: str | os.PathLike[str],
        tiles: TileSet,
        *,
        batch_size: int = 64,
        max_bad_fraction: float = MAX_BAD_FRACTION,
    ) -> None:
        if tiles.plan is None and len(tiles.coords):
            raise ValueError("tiles without a reading plan")
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.slide_path, self.tiles, self.batch_size = slide_path, tiles, batch_size
        self.max_bad_fraction = max_bad_fraction
        self.n_read = 0
        self.bad: list[BadTile] = []

    @property
    def n_bad(self) -> int:
        return len(self.bad)

    def __iter__(self) -> Iterator[TileBatch]:
        self.n_read, self.bad = 0, []
        if len(self.tiles.coords) == 0:
            return
        plan, total = self.tiles.plan, len(self.tiles.coords)
        assert plan is not None
        side, fractions = plan.tile_size_px, self.tiles.tissue_fractions
        with open_slide(self.slide_path, self.tiles.mpp_x) as reader:
            indices: list[int] = []
            pixels = np.empty((0, side, side, 3), dtype=np.uint8)
            for index, (x, y) in enumerate(self.tiles.coords.tolist()):
                if not indices:  # a batch is the consumer's own once it has been given out
                    room = min(self.batch_size, total - index)
                    pixels = np.empty((room, side, side, 3), dtype=np.uint8)
                try:
                    tile = read_tile(reader, x, y, plan)
                    _check_pixels(reader, x, y, plan, tile, float(fractions[index]))
                    pixels[len(indices)] = tile
                except SlideError as error:
                    self.bad.append(BadTile(index, x, y, error.message))
                    self._give_up_if_too_many()
                    continue
                indices.append(index)
                if len(indices) == self.batch_size:
                    yield self._batch(indices, pixels)
                    indices = []
            if indices:
                yield self._batch(indices, pixels[: len(indices)])

    def _batch(self, indices: list[int], pixels: np.ndarray) -> TileBatch:
        self.n_read += len(indices)
        order = np.asarray(indices, dtype=np.int64)
        return TileBatch(order, self.tiles.coords[order], pixels)

    def _give_up_if_too_many(self) -> None:
        total = len(self.tiles.coords)
        if self.n_bad > self.max_bad_fraction * total:
            first = self.bad[0]
            raise SlideError(
                "unreadable",
                f"{self.n_bad} of {total} tiles cannot be read, more than {self.max_bad_fraction:.0%}; "
                f"the first at ({first.x_level0}, {first.y_level0}): {first.message}",
                reason="bad_tiles",
                file=self.slide_path,
            )


def read_tile(reader: SlideReader, x_level0: int, y_level0: int, plan: TilePlan) -> np.ndarray:
    """One tile, uint8 (tile_size_px, tile_size_px, 3); shrunk by area averaging where the plan says so."""
    region = reader.read_region(x_level0, y_level0, plan.level, plan.read_width_px, plan.read_height_px)
    if not plan.resized:
        return region
    from PIL import Image

    size = (plan.tile_size_px, plan.tile_size_px)
    return np.asarray(Image.fromarray(region).resize(size, Image.Resampling.BOX))


def _check_pixels(
    reader: SlideReader, x_level0: int, y_level0: int, plan: TilePlan, tile: np.ndarray, tissue: float
) -> None:
    """Refuse a tile for which the file holds fewer pixels than the tile has tissue.

    What a file leaves out is read as white. That is right for background, but tissue found on a coarser level
    cannot be there.

    Raises:
        SlideError: so it is.
    """
    white = (tile[::16, ::16] == 255).all(axis=-1).mean()
    if white <= 1 - tissue + _MASK_ERROR:
        return
    held = reader.opaque_share(x_level0, y_level0, plan.level, plan.read_width_px, plan.read_height_px)
    if held < tissue - _MASK_ERROR:
        raise SlideError(
            "unreadable", f"the file holds {held:.0%} of a tile that is {tissue:.0%} tissue",
            reason="missing_tile_data",
        )  # fmt: skip


def read_tiles(
    slide_path: str | os.PathLike[str],
    tiles: TileSet | str | os.PathLike[str],
    *,
    batch_size: int = 64,
    max_bad_fraction: float = MAX_BAD_FRACTION,
) -> TileStream:
    """Stream a slide's tiles. The slide is opened by the process that iterates, and closed afterwards.

    Args:
        slide_path: the slide.
        tiles: a :class:`TileSet` or the path of a ``coords.h5``.
        batch_size: tiles a batch.
        max_bad_fraction: share of unreadable tiles above which :class:`SlideError` ``bad_tiles`` is raised.
    """
    tile_set = tiles if isinstance(tiles, TileSet) else read_coords(tiles)
    return TileStream(slide_path, tile_set, batch_size=batch_size, max_bad_fraction=max_bad_fraction)
