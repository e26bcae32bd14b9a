"""Where a tiled TIFF keeps its tiles: offsets, byte counts and how they are compressed. No pixels here.

Numbers of a TIFF are claims of whoever wrote it. They are checked against the size of the file before
anything is allocated for them: OpenSlide allocates what a tile claims to have, and a claim of 2^45 bytes ends
the whole process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAX_PAGES = 256
"""Directories looked at. Scanners write a dozen."""

MAX_TILE_PIXELS = 64 * 1024 * 1024
"""Largest tile (8192 x 8192) that is ever decoded."""

_JPEG, _RGB, _YCBCR = 7, 2, 6


@dataclass(frozen=True)
class TilePage:
    """One tiled image of a TIFF.

    Attributes:
        width, height: image size, px. tile_width, tile_height: tile size, px.
        across: tiles in a row.
        offsets, counts: int64 (N,), where each tile lies in the file and how many bytes it has; row-major.
        outside: bool (N,), tiles that claim bytes beyond the end of the file.
        jpeg_space: ``RGB`` or ``YCBCR`` for three interleaved 8-bit samples in JPEG, else ``None``.
        tables: shared JPEG tables, ``b""`` when each tile brings its own.
    """

    width: int
    height: int
    tile_width: int
    tile_height: int
    across: int
    offsets: np.ndarray
    counts: np.ndarray
    outside: np.ndarray
    jpeg_space: str | None
    tables: bytes

    @property
    def has_missing(self) -> bool:
        """Whether some tile has no bytes at all."""
        return bool((self.counts == 0).any())


@dataclass(frozen=True)
class TiffLayout:
    """The tiled images of a TIFF in file order.

    Attributes:
        pages: the tiled ones that make sense.
        orientation: tag of the first image, 1 when absent.
        problem: why the file must not be read at all, or ``None``.
    """

    pages: tuple[TilePage, ...]
    orientation: int
    problem: str | None


def open_tiff(path: str | os.PathLike[str]) -> Any:
    """A ``tifffile.TiffFile`` that raises what is wrong with the file and prints nothing besides."""
    import logging

    import tifffile

    logging.getLogger("tifffile").addHandler(logging.NullHandler())
    return tifffile.TiffFile(path)


def read_layout(path: str | os.PathLike[str]) -> TiffLayout | None:
    """The layout of a TIFF, or ``None`` when it cannot be worked out."""
    pages: list[TilePage] = []
    orientation, problem = 1, None
    try:
        size = Path(path).stat().st_size
        with open_tiff(path) as tiff:
            for index in range(MAX_PAGES):
                try:
                    page = tiff.pages[index]
                except IndexError:
                    break
                except Exception:  # one directory that is broken; what is in it will not be read
                    continue
                if index == 0:
                    tag = page.tags.get("Orientation")
                    orientation = 1 if tag is None else int(tag.value)
                if page.is_tiled:
                    problem = problem or _too_large(page, size)
                    described = _describe(page, size)
                    if described is not None:
                        pages.append(described)
    except Exception:  # whatever is odd about the file, its pixels may still be readable by others
        return None
    return TiffLayout(tuple(pages), orientation, problem)


def _too_large(page: Any, file_size: int) -> str | None:
    if page.tilewidth * page.tilelength > MAX_TILE_PIXELS:
        return f"a tile of {page.tilewidth} x {page.tilelength} px is too large to decode"
    largest = int(max(page.databytecounts, default=0))
    if largest > min(file_size, 16 * 1024 * 1024 + 8 * page.tilewidth * page.tilelength):
        return f"a tile claims {largest} bytes, more than it can have"
    return None


def _describe(page: Any, file_size: int) -> TilePage | None:
    width, height = int(page.imagewidth), int(page.imagelength)
    tile_w, tile_h = int(page.tilewidth), int(page.tilelength)
    if min(width, height, tile_w, tile_h) < 1 or page.imagedepth != 1 or page.tiledepth != 1:
        return None
    across, down = -(-width // tile_w), -(-height // tile_h)
    planes = page.samplesperpixel if page.planarconfig == 2 else 1
    if not len(page.dataoffsets) == len(page.databytecounts) == across * down * planes:
        return None
    # uint64 first: a claim of 2^63 bytes or more is kept a claim beyond the file.
    limit = np.uint64(2**62)
    offsets = np.minimum(np.asarray(page.dataoffsets, dtype=np.uint64), limit).astype(np.int64)
    counts = np.minimum(np.asarray(page.databytecounts, dtype=np.uint64), limit).astype(np.int64)
    interleaved = page.samplesperpixel == 3 and page.bitspersample == 8 and page.planarconfig == 1
    space = {_RGB: "RGB", _YCBCR: "YCBCR"}.get(int(page.photometric))
    is_jpeg = int(page.compression) == _JPEG and interleaved and int(page.fillorder) == 1
    tables = page.jpegtables or b""
    return TilePage(
        width=width,
        height=height,
        tile_width=tile_w,
        tile_height=tile_h,
        across=across,
        offsets=offsets,
        counts=counts,
        outside=(counts > 0) & (offsets > file_size - counts),
        jpeg_space=space if is_jpeg else None,
        tables=bytes(tables),
    )


_PLAIN_GRID_VENDORS = ("aperio", "generic-tiff")
"""Formats whose tiles OpenSlide places on a plain grid. Others overlap or shift them."""


def match_levels(
    layout: TiffLayout, level_dimensions: Sequence[tuple[int, int]], vendor: str | None
) -> list[TilePage | None]:
    """The page behind each level, ``None`` where that is not beyond doubt.

    An Aperio level below one with missing tiles is left out: OpenSlide then repaints some of its tiles from
    the finer level although they have bytes of their own.
    """
    matched: list[TilePage | None] = []
    repainted = False
    for dimensions in level_dimensions:
        found = [page for page in layout.pages if (page.width, page.height) == tuple(dimensions)]
        unique = found[0] if len(found) == 1 and vendor in _PLAIN_GRID_VENDORS else None
        matched.append(None if repainted else unique)
        if vendor == "aperio" and (unique is None or unique.has_missing):
            repainted = True
    return matched
