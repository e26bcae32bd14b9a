"""Fast path: JPEG tiles of a TIFF read by offset and decoded with libjpeg-turbo, without OpenSlide.

The result is that of OpenSlide to the last bit, or there is none and the caller asks OpenSlide:

* the colour space is the one of the TIFF tag, whatever markers the tile carries (as OpenSlide does);
* decoding is strict. libjpeg goes on over damaged data with a warning and grey pixels; OpenSlide refuses
  them, and so does this module;
* a tile of other dimensions, with no bytes, with bytes beyond the file or with too many of them is refused;
* the first tile read from each level is compared with OpenSlide's before the level is trusted.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from acpbench.slides.tiff_layout import TilePage

CACHE_BYTES = 64 * 1024 * 1024
"""Decoded tiles kept by a reader, for regions that do not fall on tile borders: one row of a large slide."""

_SOI = b"\xff\xd8"
_ADOBE = {
    # APP14 "Adobe", version 100, no flags, transform 0 (RGB) or 1 (YCbCr).
    "RGB": b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00",
    "YCBCR": b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x01",
    "GRAY": b"",
}
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
"""Start-of-frame markers of baseline, extended and progressive Huffman JPEG."""


class NotDecodable(ValueError):
    """These bytes are not a tile this module answers for."""


def complete_jpeg(tile: bytes, tables: bytes, space: str, width: int, height: int) -> bytes:
    """An abbreviated JPEG stream of a TIFF tile as a self-contained one, in the colour space of the TIFF.

    Application segments are dropped: JFIF and Adobe markers would make a decoder guess another colour space
    than the file's tag says.

    Args:
        tile: bytes of the tile. tables: JPEGTables of the TIFF, may be empty.
        space: ``RGB`` or ``YCBCR`` (three components), or ``GRAY`` (one).
        width, height: what the frame must have, px.

    Raises:
        NotDecodable: not such a stream, or not of these dimensions with so many 8-bit components.
    """
    end, head = _complete_head(tile, tables, space, width, height)
    return head + tile[end:]


def _complete_head(tile: bytes, tables: bytes, space: str, width: int, height: int) -> tuple[int, bytes]:
    """Where the header of a tile ends, its scan header included, and what stands for it in the stream.

    Nothing behind that place is looked at.
    """
    if tile[:2] != _SOI:
        raise NotDecodable("no start of image")
    parts = [_SOI, _ADOBE[space], *_segments(tables)]
    at, size, seen_frame = 2, len(tile), False
    while True:
        # The marker may be padded with 0xFF; a stream with anything else here is left to OpenSlide.
        if at + 4 > size or tile[at] != 0xFF:
            raise NotDecodable("no marker where one must be")
        marker, length = tile[at + 1], (tile[at + 2] << 8) | tile[at + 3]
        end = at + 2 + length
        if length < 2 or end > size:
            raise NotDecodable("a segment is cut off")
        if marker in _FRAMES:
            if length < 8 or seen_frame:
                raise NotDecodable("frame header")
            frame = tile[at + 4 : at + 10]
            components = 1 if space == "GRAY" else 3
            wanted = bytes((8, height >> 8, height & 255, width >> 8, width & 255, components))
            if frame != wanted:
                raise NotDecodable("the frame has other dimensions")
            seen_frame = True
        elif marker == 0xDA:
            if not seen_frame:
                raise NotDecodable("scan without a frame")
            parts.append(tile[at:end])
            return end, b"".join(parts)
        if not 0xE0 <= marker <= 0xEF:
            parts.append(tile[at:end])
        at = end


def _segments(tables: bytes) -> list[bytes]:
    """What JPEGTables hold between start and end of image, without application segments."""
    found: list[bytes] = []
    if not tables:
        return found
    if tables[:2] != _SOI:
        raise NotDecodable("tables without start of image")
    at = 2
    while tables[at : at + 2] != b"\xff\xd9":
        if at + 4 > len(tables) or tables[at] != 0xFF:
            raise NotDecodable("tables are cut off")
        end = at + 2 + ((tables[at + 2] << 8) | tables[at + 3])
        if tables[at + 1] in (0xDB, 0xC4, 0xDD):  # quantisation, Huffman, restart interval
            found.append(tables[at:end])
        if end < at + 4:
            raise NotDecodable("tables are cut off")
        at = end
    return found


class StrictDecoder:
    """Decodes tiles of one page; see :func:`complete_jpeg` for the arguments.

    Nearly all tiles of a page begin with the same header, so the last one is remembered.
    """

    def __init__(self, tables: bytes, space: str, width: int, height: int) -> None:
        self._page = (tables, space, width, height)
        self._colorspace = "GRAY" if space == "GRAY" else "RGB"
        self._known, self._head = b"", b""

    def stream(self, tile: bytes) -> bytes:
        """What :func:`complete_jpeg` gives for ``tile``."""
        if not self._known or not tile.startswith(self._known):
            end, self._head = _complete_head(tile, *self._page)
            self._known = tile[:end]
        return self._head + tile[len(self._known) :]

    def __call__(self, tile: bytes) -> np.ndarray:
        """uint8 (height, width, 3), or (height, width, 1) for ``GRAY``.

        Raises:
            NotDecodable: not a tile of this page, or data that libjpeg would decode with a warning.
        """
        import simplejpeg

        stream = self.stream(tile)
        try:
            return simplejpeg.decode_jpeg(stream, colorspace=self._colorspace)
        except (ValueError, RuntimeError) as error:
            raise NotDecodable(str(error)) from None


class JpegTiles:
    """Reads regions of the JPEG levels of one TIFF. Belongs to one process and thread.

    Args:
        path: the file.
        levels: the page of each level or ``None``, see :func:`acpbench.slides.tiff_layout.match_levels`.
        oracle: ``oracle(level, column, row)`` gives OpenSlide's pixels of a whole tile, uint8 (h, w, 3), or
            ``None`` when it cannot read it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        levels: list[TilePage | None],
        oracle: Callable[[int, int, int], np.ndarray | None],
    ) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed in close()
        self._levels = [page if page is not None and page.jpeg_space else None for page in levels]
        self._decoders = [
            None
            if page is None
            else StrictDecoder(page.tables, page.jpeg_space or "", page.tile_width, page.tile_height)
            for page in self._levels
        ]
        self._oracle = oracle
        self._trusted: set[int] = set()
        self._cache: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._cached_bytes = 0

    def serves(self, level: int) -> bool:
        """Whether regions of this level may be read here."""
        return self._levels[level] is not None

    def read(self, level: int, x: int, y: int, width: int, height: int) -> np.ndarray | None:
        """A region in pixels of ``level``, uint8 (height, width, 3), white beyond the level.

        ``None`` when any tile it touches has to be left to OpenSlide.
        """
        page = self._levels[level]
        if page is None or x < 0 or y < 0:
            return None
        right, bottom = min(x + width, page.width), min(y + height, page.height)
        tile_w, tile_h = page.tile_width, page.tile_height
        if x >= right or y >= bottom:
            return np.full((height, width, 3), 255, dtype=np.uint8)
        columns = range(x // tile_w, (right - 1) // tile_w + 1)
        rows = range(y // tile_h, (bottom - 1) // tile_h + 1)
        try:
            if level not in self._trusted and not self._verify(level, page, columns[0], rows[0]):
                return None
            whole = x == columns[0] * tile_w and y == rows[0] * tile_h
            if whole and (width, height) == (tile_w, tile_h) and right == x + width and bottom == y + height:
                return self._decode(level, page, rows[0] * page.across + columns[0])
            out = np.empty((height, width, 3), dtype=np.uint8)
            out[bottom - y :] = 255
            out[: bottom - y, right - x :] = 255
            for row in rows:
                top, end = max(row * tile_h, y), min((row + 1) * tile_h, bottom)
                for column in columns:
                    left, stop = max(column * tile_w, x), min((column + 1) * tile_w, right)
                    partial = stop - left < tile_w or end - top < tile_h
                    tile = self._tile(level, page, row * page.across + column, keep=partial)
                    out[top - y : end - y, left - x : stop - x] = tile[
                        top - row * tile_h : end - row * tile_h,
                        left - column * tile_w : stop - column * tile_w,
                    ]
            return out
        except (NotDecodable, OSError):
            return None

    def _tile(self, level: int, page: TilePage, index: int, *, keep: bool) -> np.ndarray:
        key = (level, index)
        tile = self._cache.get(key)
        if tile is not None:
            self._cache.move_to_end(key)
            return tile
        tile = self._decode(level, page, index)
        if keep:
            self._cache[key] = tile
            self._cached_bytes += tile.nbytes
            while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return tile

    def _decode(self, level: int, page: TilePage, index: int) -> np.ndarray:
        count, width, height = int(page.counts[index]), page.tile_width, page.tile_height
        # Even an incompressible tile stays below twice its raw size.
        if count == 0 or page.outside[index] or count > 6 * width * height + 65536:
            raise NotDecodable("no bytes, or bytes that cannot be right")
        data = os.pread(self._file.fileno(), count, int(page.offsets[index]))
        if len(data) != count:
            raise NotDecodable("the file ended")
        return self._decoders[level](data)

    def _verify(self, level: int, page: TilePage, column: int, row: int) -> bool:
        """Compare one tile with OpenSlide; a level that differs is never read here again.

        The tile asked for where OpenSlide can read exactly it, else the first of the level.
        """
        for at_column, at_row in ((column, row), (0, 0)):
            mine = self._decode(level, page, at_row * page.across + at_column)
            theirs = self._oracle(level, at_column, at_row)
            if theirs is not None:
                # OpenSlide has nothing beyond the edge of the level.
                height = min(page.tile_height, page.height - at_row * page.tile_height)
                width = min(page.tile_width, page.width - at_column * page.tile_width)
                if np.array_equal(mine[:height, :width], theirs[:height, :width]):
                    self._trusted.add(level)
                    return True
                break
        self._levels[level] = None
        return False

    def close(self) -> None:
        """Give back the file and the decoded tiles."""
        self._file.close()
        self._cache.clear()
        self._cached_bytes = 0
