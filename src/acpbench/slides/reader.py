"""Opening slides: one protocol, OpenSlide first, plain TIFFs and images as a fallback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np

from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import odd_levels
from acpbench.slides.spacing import Spacing

MAX_SIDE_PX = 10_000_000
MAX_SLIDE_PIXELS = 2**38
"""More than any scanner makes; a file that claims it would keep a reader busy for days."""
_LFS = b"version https://git-lfs.github.com/spec/"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


class SlideReader(Protocol):
    """An open slide. Pixels are uint8 RGB; transparent ones are composited on white.

    Attributes:
        path: the file. backend: what reads it. vendor: format family.
        level_dimensions: ``(width, height)`` of every level, level 0 first.
        level_downsamples: true ratios, mean of both axes.
        mpp_x, mpp_y: um/px of level 0 or ``None``. mpp_source: where they come from.
        objective_power: as recorded. warnings: contradictions found on opening.
        associated_image_names: label, macro and the like.
    """

    path: Path
    backend: str
    vendor: str | None
    level_dimensions: tuple[tuple[int, int], ...]
    objective_power: float | None
    spacing: Spacing

    @property
    def dimensions(self) -> tuple[int, int]: ...
    @property
    def level_downsamples(self) -> tuple[float, ...]: ...
    @property
    def mpp_x(self) -> float | None: ...
    @property
    def mpp_y(self) -> float | None: ...
    @property
    def mpp_source(self) -> str | None: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def associated_image_names(self) -> tuple[str, ...]: ...

    def require_spacing(self) -> tuple[float, float]:
        """``(mpp_x, mpp_y)``; raises :class:`SlideError` ``no_mpp`` when there is none to believe."""
        ...

    def opaque_share(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> float:
        """Share of a region for which the file holds pixels; the rest is read as white."""
        ...

    def read_region(self, x_level0: int, y_level0: int, level: int, width: int, height: int) -> np.ndarray:
        """uint8 (height, width, 3). The corner is in level-0 pixels, the size in pixels of ``level``.

        On a level whose downsample is fractional the corner finds the level's own pixel again (see
        :func:`acpbench.slides.geometry.level_position`): pixels are those stored, not shifted by less than
        one.

        Raises:
            SlideError: ``unreadable`` / ``read_failed``; the reader stays usable afterwards.
            RuntimeError: the reader was opened by another process or thread.
        """
        ...

    def thumbnail(self, width: int, height: int) -> np.ndarray: ...
    def close(self) -> None: ...
    def __enter__(self) -> SlideReader: ...
    def __exit__(self, *exc: object) -> None: ...


def open_slide(path: str | os.PathLike[str], declared_mpp: float | None = None) -> SlideReader:
    """Open a slide.

    A missing or implausible spacing does not fail here, so that such a slide can still be looked at: it
    fails on :meth:`SlideReader.require_spacing`.

    Args:
        path: slide file.
        declared_mpp: spacing given by the user, um/px. It overrides the file's.

    Raises:
        SlideError: ``unreadable`` with a reason code.
    """
    from acpbench.slides.backends import OpenSlideReader
    from acpbench.slides.image_backends import PlainImageReader, TiffReader
    from acpbench.slides.tiff_layout import read_layout

    path = Path(path)
    head = _head(path)
    if head.startswith(_LFS):
        raise SlideError(
            "unreadable",
            "is a Git-LFS pointer, not the slide itself; fetch it with `git lfs pull`",
            reason="lfs_pointer",
            file=path,
        )
    import openslide

    is_tiff = head[:4] in _TIFF
    layout = read_layout(path) if is_tiff else None
    if layout is not None and layout.problem is not None:
        raise SlideError("unreadable", layout.problem, reason="corrupt_file", file=path)
    refused: SlideError | None = None
    reader: SlideReader | None = None
    if openslide.OpenSlide.detect_format(str(path)) is not None:
        try:
            reader = OpenSlideReader(path, declared_mpp, layout)
        except SlideError as error:
            refused = error
    if reader is None:
        try:
            reader = TiffReader(path, declared_mpp) if is_tiff else PlainImageReader(path, declared_mpp)
        except SlideError:
            # A slide format that OpenSlide recognised: its own message is the useful one.
            if refused is not None:
                raise refused from None
            raise
    _check_size(reader)
    odd = odd_levels(reader.level_dimensions)
    if odd:
        sizes = ", ".join("{} x {}".format(*reader.level_dimensions[level]) for level in odd)
        reader.extra_warnings.append(  # type: ignore[attr-defined]
            f"not levels of the slide, as their shape is another one, and not used: {sizes} px"
        )
    if layout is not None and layout.orientation != 1:
        # Readers return pixels as stored; say so when the file asks for a rotated or mirrored view.
        reader.extra_warnings.append(  # type: ignore[attr-defined]
            f"TIFF orientation {layout.orientation} is not applied; coordinates refer to pixels as stored"
        )
    return reader


def _check_size(reader: SlideReader) -> None:
    width, height = reader.dimensions
    if any(side < 1 for level in reader.level_dimensions for side in level):
        reader.close()
        raise SlideError("unreadable", "has a level without pixels", reason="corrupt_file", file=reader.path)
    if max(width, height) > MAX_SIDE_PX or width * height > MAX_SLIDE_PIXELS:
        reader.close()
        raise SlideError(
            "unreadable", f"claims {width} x {height} px, more than any slide", reason="too_large",
            file=reader.path,
        )  # fmt: skip


def _head(path: Path) -> bytes:
    try:
        if not path.is_file():
            state = "is not a regular file" if path.exists() else "file does not exist"
            raise SlideError("unreadable", state, reason="missing_file", file=path)
        with open(path, "rb") as handle:
            head = handle.read(64)
    except OSError as error:
        raise SlideError(
            "unreadable", f"cannot be read ({error.strerror})", reason="open_failed", file=path
        ) from None
    if not head:
        raise SlideError("unreadable", "is empty", reason="empty_file", file=path)
    return head
