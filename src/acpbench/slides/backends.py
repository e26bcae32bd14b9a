"""What readers share, and the one for every format OpenSlide supports.

A reader belongs to the process and thread that opened it; open one per worker.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import MAX_REGION_PIXELS, level_downsamples, level_position
from acpbench.slides.jpeg_tiles import JpegTiles
from acpbench.slides.ome import read_ome
from acpbench.slides.spacing import Spacing, resolve_spacing
from acpbench.slides.tiff_layout import TiffLayout, TilePage, match_levels

OPENSLIDE_CACHE_BYTES = 32 * 1024 * 1024
"""Decoded tiles OpenSlide keeps per open slide: bounded, whatever its default becomes."""


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
        self._owner = (os.getpid(), threading.get_ident())

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
        if self._owner != (os.getpid(), threading.get_ident()):
            # Shared handles give other tiles' pixels now and then, which nobody would notice.
            raise RuntimeError(
                f"{self.path.name} was opened by another process or thread; open the slide once per worker"
            )
        if not 0 <= level < len(self.level_dimensions):
            raise ValueError(f"level {level} of {len(self.level_dimensions)}")
        if width < 1 or height < 1 or width * height > MAX_REGION_PIXELS:
            raise ValueError(f"cannot read a region of {width} x {height} px at once")
        ds_x, ds_y = level_downsamples(self.level_dimensions)[level]
        x, y = level_position(int(x_level0), ds_x), level_position(int(y_level0), ds_y)
        return self._read(x, y, level, width, height)

    def opaque_share(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> float:
        """Share of a region for which the file holds pixels; the rest is read as white."""
        return 1.0

    def _read(self, x: float, y: float, level: int, width: int, height: int) -> np.ndarray:
        """uint8 (height, width, 3); the corner is in pixels of ``level``, maybe between two of them."""
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
    """Any format that OpenSlide supports; JPEG tiles of plain TIFFs are decoded without it.

    Args:
        layout: where a TIFF keeps its tiles, ``None`` for other formats.
    """

    backend = "openslide"

    def __init__(self, path: Path, declared_mpp: float | None, layout: TiffLayout | None = None) -> None:
        super().__init__(path, declared_mpp)
        self._slide: Any = None
        self._slide = self._open()
        properties = self._slide.properties
        self.level_dimensions = tuple((int(w), int(h)) for w, h in self._slide.level_dimensions)
        self._mean_downsamples = tuple(self._slide.level_downsamples)
        self.vendor = properties.get("openslide.vendor")
        self.objective_power = _number(properties.get("openslide.objective-power"))
        self._pages: list[TilePage | None] = [None] * len(self.level_dimensions)
        if layout is not None:
            self._pages = match_levels(layout, self.level_dimensions, self.vendor)
        self._tiles: JpegTiles | None = None
        if any(page is not None and page.jpeg_space for page in self._pages):
            try:
                self._tiles = JpegTiles(path, self._pages, self._whole_tile)
            except OSError as error:
                raise self._failed(error, "the file cannot be opened", "open_failed") from None
        self._settle(*self._recorded_spacing(properties))

    def _recorded_spacing(self, properties: Any) -> tuple[float | None, float | None, str | None]:
        if self.vendor == "generic-tiff":
            ome = read_ome(properties.get("tiff.ImageDescription"))
            if ome is not None and ome.planes > 1:
                self.close()
                raise SlideError(
                    "unreadable",
                    f"an OME-TIFF of {ome.planes} planes (channels, depths or times), not one RGB picture",
                    reason="unsupported_format",
                    file=self.path,
                )
            if ome is not None and ome.mpp_x and ome.mpp_y:
                return ome.mpp_x, ome.mpp_y, "ome.PhysicalSize"
        x, y = _number(properties.get("openslide.mpp-x")), _number(properties.get("openslide.mpp-y"))
        source = "tiff.resolution" if self.vendor == "generic-tiff" else "openslide.mpp"
        if x is None and y is None:
            x = y = _number(properties.get("aperio.MPP"))
            source = "aperio.MPP"
        # One axis alone is taken for both: no format known to record one means anything else by it.
        if (x is None) != (y is None):
            self.extra_warnings.append(f"the file records the spacing of one axis only ({x or y:g} um/px)")
        return (x if x is not None else y), (y if y is not None else x), source

    def _open(self) -> Any:
        import openslide

        try:
            slide = openslide.OpenSlide(str(self.path))
            slide.set_cache(openslide.OpenSlideCache(OPENSLIDE_CACHE_BYTES))
            return slide
        except (openslide.OpenSlideError, OSError) as error:
            raise self._failed(error, "OpenSlide cannot open the file", "open_failed") from None

    @property
    def associated_image_names(self) -> tuple[str, ...]:
        return () if self._slide is None else tuple(sorted(self._slide.associated_images))

    def _read(self, x: float, y: float, level: int, width: int, height: int) -> np.ndarray:
        if self._tiles is not None and self._tiles.serves(level) and x == int(x) and y == int(y):
            pixels = self._tiles.read(level, int(x), int(y), width, height)
            if pixels is not None:
                return pixels
        # OpenSlide divides by the mean of both axes' ratios; undo that, or flat slides drift.
        mean = self._mean_downsamples[level]
        return self._openslide_region(round(x * mean), round(y * mean), level, width, height)

    def opaque_share(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> float:
        """See :meth:`BaseReader.opaque_share`."""
        mean = self._mean_downsamples[level]
        ds_x, ds_y = level_downsamples(self.level_dimensions)[level]
        x, y = level_position(x_level0, ds_x), level_position(y_level0, ds_y)
        image = self._openslide_image(round(x * mean), round(y * mean), level, width, height)
        return float(np.asarray(image.getchannel("A")).mean()) / 255

    def _openslide_region(self, x: int, y: int, level: int, width: int, height: int) -> np.ndarray:
        image = self._openslide_image(x, y, level, width, height)
        if image.getchannel("A").getextrema() == (255, 255):
            return np.array(image.convert("RGB"))
        return composite_on_white(np.asarray(image))

    def _openslide_image(self, x: int, y: int, level: int, width: int, height: int) -> Any:
        """RGBA as OpenSlide gives it."""
        import openslide

        try:
            if self._slide is None:
                self._slide = self._open()
            return self._slide.read_region((x, y), level, (width, height))
        except (openslide.OpenSlideError, OSError) as error:
            # After an error the handle refuses everything, so a single bad tile would condemn the rest. It
            # is opened again by the next read.
            self._slide.close()
            self._slide = None
            raise self._failed(error, "region cannot be read", "read_failed") from None

    def _whole_tile(self, level: int, column: int, row: int) -> np.ndarray | None:
        """OpenSlide's pixels of one tile, to check the fast path against."""
        page = self._pages[level]
        assert page is not None
        corner = (column * page.tile_width, row * page.tile_height)
        mean = self._mean_downsamples[level]
        x, y = (round(at * mean) for at in corner)
        if (x / mean, y / mean) != corner:
            return None  # OpenSlide would interpolate: no level-0 pixel lies exactly there
        try:
            return self._openslide_region(x, y, level, page.tile_width, page.tile_height)
        except SlideError:
            return None

    def close(self) -> None:
        if self._slide is not None:
            self._slide.close()
        if self._tiles is not None:
            self._tiles.close()
