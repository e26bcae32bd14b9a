"""Readers behind :class:`acpbench.slides.reader.SlideReader`: OpenSlide, plain TIFF, plain images.

A reader belongs to the process and thread that opened it; open one per worker.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import level_downsamples
from acpbench.slides.spacing import Spacing, resolve_spacing

MAX_PLAIN_PIXELS = 178_956_970
"""Largest plain image (PNG, JPEG, ...) decoded whole; the size at which Pillow refuses too."""


def composite_on_white(rgba: np.ndarray) -> np.ndarray:
    """uint8 (H, W, 4) → uint8 (H, W, 3): straight alpha over white, the colour of empty glass."""
    alpha = rgba[..., 3:4].astype(np.uint16)
    if int(alpha.min(initial=255)) == 255:
        return np.ascontiguousarray(rgba[..., :3])
    mixed = (rgba[..., :3].astype(np.uint16) * alpha + 255 * (255 - alpha) + 127) // 255
    return mixed.astype(np.uint8)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


class BaseReader:
    """What every reader shares. See :class:`acpbench.slides.reader.SlideReader` for the contract."""

    backend = "none"

    def __init__(self, path: Path, declared_mpp: float | None) -> None:
        self.path = path
        self.declared_mpp = declared_mpp
        self.level_dimensions: tuple[tuple[int, int], ...] = ()
        self.objective_power: float | None = None
        self.vendor: str | None = None
        self.extra_warnings: list[str] = []
        self.spacing = Spacing(None, None, None, "mpp_missing", "not resolved")

    def _settle(self, file_x: float | None, file_y: float | None, source: str | None) -> None:
        self.spacing = resolve_spacing(file_x, file_y, source, self.declared_mpp, self.objective_power)

    @property
    def dimensions(self) -> tuple[int, int]:
        return self.level_dimensions[0]

    @property
    def level_downsamples(self) -> tuple[float, ...]:
        return tuple((x + y) / 2 for x, y in level_downsamples(self.level_dimensions))

    @property
    def mpp_x(self) -> float | None:
        return self.spacing.mpp_x

    @property
    def mpp_y(self) -> float | None:
        return self.spacing.mpp_y

    @property
    def mpp_source(self) -> str | None:
        return self.spacing.source

    @property
    def warnings(self) -> list[str]:
        return [*self.spacing.warnings, *self.extra_warnings]

    @property
    def associated_image_names(self) -> tuple[str, ...]:
        return ()

    def require_spacing(self) -> tuple[float, float]:
        """``(mpp_x, mpp_y)``, or :class:`SlideError` ``no_mpp``."""
        if self.mpp_x is None or self.mpp_y is None:
            raise SlideError(
                "no_mpp",
                self.spacing.detail or "no spacing",
                reason=self.spacing.problem or "mpp_missing",
                file=self.path,
            )
        return self.mpp_x, self.mpp_y

    def read_region(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> np.ndarray:
        raise NotImplementedError

    def thumbnail(self, width: int, height: int) -> np.ndarray:
        """The whole slide as uint8 (height, width, 3). See :func:`acpbench.slides.overview.overview`."""
        from acpbench.slides.overview import overview

        return overview(self, width, height).rgb

    def close(self) -> None:
        pass

    def __enter__(self) -> BaseReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _failed(self, error: Exception, what: str, reason: str) -> SlideError:
        text = f"{type(error).__name__}: {error}".replace(str(self.path), self.path.name)
        return SlideError("unreadable", f"{what} ({text})", reason=reason, file=self.path)


class OpenSlideReader(BaseReader):
    """Any format that OpenSlide supports."""

    backend = "openslide"

    def __init__(self, path: Path, declared_mpp: float | None) -> None:
        super().__init__(path, declared_mpp)
        self._slide = self._open()
        properties = self._slide.properties
        self.level_dimensions = tuple((int(w), int(h)) for w, h in self._slide.level_dimensions)
        self.vendor = properties.get("openslide.vendor")
        self.objective_power = _number(properties.get("openslide.objective-power"))
        x, y = _number(properties.get("openslide.mpp-x")), _number(properties.get("openslide.mpp-y"))
        source = "tiff.resolution" if self.vendor == "generic-tiff" else "openslide.mpp"
        if x is None and y is None:
            x = y = _number(properties.get("aperio.MPP"))
            source = "aperio.MPP"
        # One axis alone is taken for both: no format known to record one means anything else by it.
        x, y = (x if x is not None else y), (y if y is not None else x)
        self._settle(x, y, source)

    def _open(self) -> Any:
        import openslide

        try:
            return openslide.OpenSlide(str(self.path))
        except (openslide.OpenSlideError, OSError) as error:
            raise self._failed(error, "OpenSlide cannot open the file", "open_failed") from None

    @property
    def associated_image_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._slide.associated_images))

    def read_region(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> np.ndarray:
        import openslide

        try:
            image = self._slide.read_region((int(x_level0), int(y_level0)), level, (width, height))
        except (openslide.OpenSlideError, OSError) as error:
            # After an error the handle refuses everything, so a single bad tile would condemn the rest.
            self._slide.close()
            self._slide = self._open()
            raise self._failed(error, "region cannot be read", "read_failed") from None
        return composite_on_white(np.asarray(image))

    def close(self) -> None:
        self._slide.close()


class TiffReader(BaseReader):
    """8-bit TIFFs that OpenSlide refuses (strips, newer codecs), segment by segment.

    Spacing has to be declared: resolution tags of such files are print resolutions more often than not.
    """

    backend = "tifffile"

    def __init__(self, path: Path, declared_mpp: float | None) -> None:
        super().__init__(path, declared_mpp)
        import logging

        import tifffile

        # What is wrong with the file is raised; tifffile would print it on standard error besides.
        logging.getLogger("tifffile").addHandler(logging.NullHandler())
        try:
            self._tiff = tifffile.TiffFile(path)
            levels = list(self._tiff.series[0].levels)
            self._pages = [level.keyframe for level in levels]
        except Exception as error:
            raise self._failed(error, "the TIFF cannot be opened", "open_failed") from None
        for page in self._pages:
            if page.dtype != np.uint8 or page.samplesperpixel not in (1, 3, 4) or page.imagedepth != 1:
                self._tiff.close()
                raise SlideError(
                    "unreadable",
                    f"the TIFF holds {page.dtype} with {page.samplesperpixel} samples, not 8-bit grey or RGB",
                    reason="unsupported_format",
                    file=path,
                )
        self.level_dimensions = tuple((int(p.imagewidth), int(p.imagelength)) for p in self._pages)
        self.vendor = "tiff"
        try:  # an unknown codec shows only when something is decoded
            self._segment(self._pages[0], 0)
        except Exception as error:
            self._tiff.close()
            raise self._failed(error, "the TIFF does not decode", "read_failed") from None
        self._settle(None, None, None)

    def read_region(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> np.ndarray:
        ds_x, ds_y = level_downsamples(self.level_dimensions)[level]
        x0, y0 = round(x_level0 / ds_x), round(y_level0 / ds_y)
        out = np.full((height, width, 3), 255, dtype=np.uint8)
        try:
            self._fill(self._pages[level], x0, y0, out)
        except Exception as error:
            raise self._failed(error, "region cannot be read", "read_failed") from None
        return out

    def _fill(self, page: Any, x0: int, y0: int, out: np.ndarray) -> None:
        height, width = out.shape[:2]
        if page.planarconfig == 2 and page.samplesperpixel > 1:
            raise ValueError("separate colour planes are not supported")
        seg_h, seg_w = (
            (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
        )
        seg_h = min(seg_h, page.imagelength) if not page.is_tiled else seg_h
        across = -(-page.imagewidth // seg_w)
        left, top = max(x0, 0), max(y0, 0)
        right, bottom = min(x0 + width, page.imagewidth), min(y0 + height, page.imagelength)
        if left >= right or top >= bottom:
            return
        for row in range(top // seg_h, (bottom - 1) // seg_h + 1):
            for column in range(left // seg_w, (right - 1) // seg_w + 1):
                rgb = self._segment(page, row * across + column)
                sx, sy = column * seg_w, row * seg_h
                ax, ay = max(left, sx), max(top, sy)
                bx, by = min(right, sx + rgb.shape[1]), min(bottom, sy + rgb.shape[0])
                if ax < bx and ay < by:
                    out[ay - y0 : by - y0, ax - x0 : bx - x0] = rgb[ay - sy : by - sy, ax - sx : bx - sx]

    def _segment(self, page: Any, index: int) -> np.ndarray:
        handle = self._tiff.filehandle
        if page.databytecounts[index] == 0:
            raise ValueError(f"segment {index} is empty")
        handle.seek(page.dataoffsets[index])
        data = handle.read(page.databytecounts[index])
        segment = page.decode(data, index, jpegtables=page.jpegtables)[0]
        if segment is None:
            raise ValueError(f"segment {index} does not decode")
        array = np.asarray(segment)[0]
        if int(page.photometric) == 0:
            array = 255 - array
        elif int(page.photometric) not in (1, 2, 6):
            raise ValueError(f"photometric interpretation {page.photometric} is not supported")
        if array.shape[-1] == 4:
            return composite_on_white(array)
        return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array

    def close(self) -> None:
        self._tiff.close()


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

    def read_region(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> np.ndarray:
        if level != 0:
            raise ValueError("a plain image has one level")
        if self._pixels is None:
            try:
                self._pixels = composite_on_white(np.asarray(self._image.convert("RGBA")))
            except Exception as error:
                raise self._failed(error, "the image does not decode", "read_failed") from None
        out = np.full((height, width, 3), 255, dtype=np.uint8)
        image_w, image_h = self.dimensions
        left, top = max(int(x_level0), 0), max(int(y_level0), 0)
        right, bottom = min(int(x_level0) + width, image_w), min(int(y_level0) + height, image_h)
        if left < right and top < bottom:
            out[top - y_level0 : bottom - y_level0, left - x_level0 : right - x_level0] = self._pixels[
                top:bottom, left:right
            ]
        return out

    def close(self) -> None:
        self._image.close()
        self._pixels = None
