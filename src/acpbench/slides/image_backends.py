"""Readers for what OpenSlide refuses: 8-bit TIFFs of any layout, and plain images."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.slides.backends import BaseReader, composite_on_white
from acpbench.slides.errors import SlideError
from acpbench.slides.jpeg_tiles import StrictDecoder
from acpbench.slides.ome import read_ome
from acpbench.slides.tiff_layout import open_tiff

MAX_PLAIN_PIXELS = 178_956_970
"""Largest plain image or TIFF segment decoded whole; the size at which Pillow refuses too."""

SEGMENT_CACHE_BYTES = 64 * 1024 * 1024
"""Decoded strips or tiles kept by a reader; at least the last one is."""


class TiffReader(BaseReader):
    """8-bit TIFFs that OpenSlide refuses (strips, newer codecs, separate planes), segment by segment.

    The spacing is the one declared, or the PhysicalSize of an OME-TIFF. Resolution tags are not believed:
    in such files they are print resolutions more often than not.
    """

    backend = "tifffile"

    def __init__(self, path: Path, declared_mpp: float | None) -> None:
        super().__init__(path, declared_mpp)
        self._cache: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._cached_bytes = 0
        try:
            self._tiff = open_tiff(path)
            levels = list(self._tiff.series[0].levels)
            self._pages = [level.keyframe for level in levels]
            planes = len(levels[0].pages)
            ome = read_ome(self._tiff.pages[0].description)
        except Exception as error:
            raise self._failed(error, "the TIFF cannot be opened", "open_failed") from None
        if ome is not None:
            planes = max(planes, ome.planes)
        problem = _unsupported(self._pages, planes)
        if problem is not None:
            self._tiff.close()
            reason = "too_large" if "too large" in problem else "unsupported_format"
            raise SlideError("unreadable", problem, reason=reason, file=path)
        self.level_dimensions = tuple((int(p.imagewidth), int(p.imagelength)) for p in self._pages)
        self.vendor = "tiff" if ome is None else "ome-tiff"
        try:  # an unknown codec shows only when something is decoded
            self._segment(0, 0)
        except Exception as error:
            self._tiff.close()
            raise self._failed(error, "the TIFF does not decode", "read_failed") from None
        if ome is not None and ome.mpp_x and ome.mpp_y:
            self._settle(ome.mpp_x, ome.mpp_y, "ome.PhysicalSize")
        else:
            self._settle(None, None, None)

    def _read(self, x: float, y: float, level: int, width: int, height: int) -> np.ndarray:
        out = np.full((height, width, 3), 255, dtype=np.uint8)
        try:
            self._fill(level, round(x), round(y), out)
        except Exception as error:
            raise self._failed(error, "region cannot be read", "read_failed") from None
        return out

    def _fill(self, level: int, x0: int, y0: int, out: np.ndarray) -> None:
        page = self._pages[level]
        height, width = out.shape[:2]
        seg_w, seg_h = _segment_size(page)
        across = -(-page.imagewidth // seg_w)
        left, top = max(x0, 0), max(y0, 0)
        right, bottom = min(x0 + width, page.imagewidth), min(y0 + height, page.imagelength)
        if left >= right or top >= bottom:
            return
        for row in range(top // seg_h, (bottom - 1) // seg_h + 1):
            for column in range(left // seg_w, (right - 1) // seg_w + 1):
                rgb = self._cached(level, row * across + column)
                sx, sy = column * seg_w, row * seg_h
                ax, ay = max(left, sx), max(top, sy)
                bx, by = min(right, sx + rgb.shape[1]), min(bottom, sy + rgb.shape[0])
                if bx < min(right, sx + seg_w) or by < min(bottom, sy + seg_h):
                    raise ValueError("a segment is smaller than the layout says")
                out[ay - y0 : by - y0, ax - x0 : bx - x0] = rgb[ay - sy : by - sy, ax - sx : bx - sx]

    def _cached(self, level: int, index: int) -> np.ndarray:
        key = (level, index)
        rgb = self._cache.get(key)
        if rgb is None:
            rgb = self._cache[key] = self._segment(level, index)
            self._cached_bytes += rgb.nbytes
            while self._cached_bytes > SEGMENT_CACHE_BYTES and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        self._cache.move_to_end(key)
        return rgb

    def _segment(self, level: int, index: int) -> np.ndarray:
        """One strip or tile as uint8 RGB; separate colour planes are put together."""
        page = self._pages[level]
        if page.planarconfig == 2 and page.samplesperpixel > 1:
            per_plane = len(page.dataoffsets) // page.samplesperpixel
            planes = [self._decode(page, index + s * per_plane) for s in range(page.samplesperpixel)]
            array = np.concatenate(planes, axis=-1)
        else:
            array = self._decode(page, index)
        if int(page.photometric) == 0:
            array = 255 - array
        elif int(page.photometric) not in (1, 2, 6):
            raise ValueError(f"photometric interpretation {page.photometric} is not supported")
        if array.shape[-1] == 4:
            return _without_fourth(array, page.extrasamples)
        return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array

    def _decode(self, page: Any, index: int) -> np.ndarray:
        handle, count = self._tiff.filehandle, page.databytecounts[index]
        width, height = _segment_size(page)
        # No codec makes a segment twice its size; a longer claim is one to run out of memory with.
        if count == 0 or count > min(handle.size, 65536 + 2 * width * height * page.samplesperpixel):
            raise ValueError(f"segment {index} claims {count} bytes")
        handle.seek(page.dataoffsets[index])
        data = handle.read(count)
        space = _jpeg_space(page)
        if space is not None:  # tifffile's decoder goes on over damaged data
            if not page.is_tiled:
                height = min(height, page.imagelength - index % -(-page.imagelength // height) * height)
            return StrictDecoder(page.jpegtables or b"", space, width, height)(data)
        segment = page.decode(data, index, jpegtables=page.jpegtables)[0]
        if segment is None:
            raise ValueError(f"segment {index} does not decode")
        return np.asarray(segment)[0]

    def close(self) -> None:
        self._tiff.close()
        self._cache.clear()


def _without_fourth(array: np.ndarray, extrasamples: tuple[int, ...]) -> np.ndarray:
    """RGB of four samples, by what the TIFF says of the fourth (TIFF 6.0, ExtraSamples)."""
    meaning = int(extrasamples[0]) if extrasamples else 0
    if meaning == 2:  # alpha that the colours do not contain yet
        return composite_on_white(array)
    if meaning == 1:  # alpha that they are multiplied by
        return np.minimum(array[..., :3].astype(np.uint16) + (255 - array[..., 3:]), 255).astype(np.uint8)
    return np.ascontiguousarray(array[..., :3])


def _segment_size(page: Any) -> tuple[int, int]:
    """``(width, height)`` of a tile or strip, px."""
    if page.is_tiled:
        return int(page.tilewidth), int(page.tilelength)
    return int(page.imagewidth), min(int(page.rowsperstrip), int(page.imagelength))


def _jpeg_space(page: Any) -> str | None:
    """What the components of JPEG segments are; ``None`` for other compressions and layouts."""
    if int(page.compression) != 7 or int(page.fillorder) != 1:
        return None
    if page.samplesperpixel == 1 or page.planarconfig == 2:
        return "GRAY"
    return {2: "RGB", 6: "YCBCR"}.get(int(page.photometric)) if page.samplesperpixel == 3 else None


def _unsupported(pages: list[Any], planes: int) -> str | None:
    """Why a TIFF cannot be read as an 8-bit picture, or ``None``."""
    if planes > 1:
        return f"the TIFF holds {planes} planes (channels, depths or times), not one RGB picture"
    for page in pages:
        if page.dtype != np.uint8 or page.samplesperpixel not in (1, 3, 4) or page.imagedepth != 1:
            return f"the TIFF holds {page.dtype} with {page.samplesperpixel} samples, not 8-bit grey or RGB"
        if int(page.photometric) == 6 and int(page.compression) != 7:
            return "the TIFF holds YCbCr samples outside JPEG; convert the file to RGB"
        width, height = _segment_size(page)
        if width * height > MAX_PLAIN_PIXELS:
            return (
                f"a segment of {width} x {height} px is too large to decode at once; convert the file to a "
                "tiled pyramid"
            )
    return None


class PlainImageReader(BaseReader):
    """PNG, JPEG, BMP and the like, decoded whole on first use. Spacing has to be declared."""

    backend = "pillow"

    def __init__(self, path: Path, declared_mpp: float | None) -> None:
        super().__init__(path, declared_mpp)
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                self._image = Image.open(path)
        except Exception as error:
            raise self._failed(
                error, "not a slide or an image in a known format", "unsupported_format"
            ) from None
        width, height = self._image.size
        if width * height > MAX_PLAIN_PIXELS:
            raise SlideError(
                "unreadable",
                f"a plain image of {width} x {height} px is too large; convert it to a pyramidal TIFF",
                reason="too_large",
                file=path,
            )
        if self._image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"):
            raise SlideError(
                "unreadable",
                f"image mode {self._image.mode} is not 8-bit colour",
                reason="unsupported_format",
                file=path,
            )
        self.level_dimensions = ((width, height),)
        self.vendor = (self._image.format or "image").lower()
        self._pixels: np.ndarray | None = None
        self._settle(None, None, None)

    def _read(self, x: float, y: float, level: int, width: int, height: int) -> np.ndarray:
        if self._pixels is None:
            try:
                self._pixels = composite_on_white(np.asarray(self._image.convert("RGBA")))
            except Exception as error:
                raise self._failed(error, "the image does not decode", "read_failed") from None
        out = np.full((height, width, 3), 255, dtype=np.uint8)
        image_w, image_h = self.dimensions
        x0, y0 = int(x), int(y)
        left, top = max(x0, 0), max(y0, 0)
        right, bottom = min(x0 + width, image_w), min(y0 + height, image_h)
        if left < right and top < bottom:
            out[top - y0 : bottom - y0, left - x0 : right - x0] = self._pixels[top:bottom, left:right]
        return out

    def close(self) -> None:
        self._image.close()
        self._pixels = None
