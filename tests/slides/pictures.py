"""Tiny pictures and pyramids written by the tests themselves."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image
from scipy.ndimage import gaussian_filter

PINK = (205, 130, 180)
GLASS = (245, 244, 246)


def tissue_picture(
    width: int, height: int, boxes: list[tuple[int, int, int, int]], seed: int = 0
) -> np.ndarray:
    """uint8 (height, width, 3): glass with textured pink boxes ``(x, y, w, h)``."""
    rng = np.random.default_rng(seed)
    picture = np.empty((height, width, 3), np.float64)
    picture[:] = GLASS
    for x, y, w, h in boxes:
        patch = np.asarray(PINK) + rng.normal(0, 18, (min(h, height - y), min(w, width - x), 1))
        picture[y : y + h, x : x + w] = patch
    return np.clip(picture, 0, 255).astype(np.uint8)


def textured_picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """uint8 (height, width, 3): smooth pink and violet noise all over, so that every tile differs."""
    noise = np.random.default_rng(seed).normal(0, 60, (height, width, 3))
    return np.clip(gaussian_filter(noise, (2, 2, 0)) * 4 + (190, 120, 170), 0, 255).astype(np.uint8)


def write_pyramid(
    path: Path,
    picture: np.ndarray,
    *,
    sizes: list[tuple[int, int]] = (),
    mpp: tuple[float, float] | None = (0.5, 0.5),
    compression: str | None = None,
    tile: int = 64,
) -> Path:
    """A tiled TIFF (generic-tiff to OpenSlide); ``sizes`` are (width, height) of the further levels."""
    options: dict[str, object] = {"tile": (tile, tile), "compression": compression}
    options["photometric"] = "ycbcr" if compression == "jpeg" else "rgb"
    if mpp is not None:
        options |= {"resolution": (10000 / mpp[0], 10000 / mpp[1]), "resolutionunit": "CENTIMETER"}

    def stored(rgb: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(rgb).convert("YCbCr")) if compression == "jpeg" else rgb

    with tifffile.TiffWriter(path) as tiff:
        tiff.write(stored(picture), **options)
        for size in sizes:
            small = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
            tiff.write(stored(small), subfiletype=1, **options)
    return path


def encode_tile(
    rgb: np.ndarray, *, space: str = "ycbcr", subsampling: str = "4:2:0", quality: int = 90
) -> bytes:
    """One JPEG with a JFIF marker. With ``space="rgb"`` the components are R, G and B all the same: what the
    marker makes a decoder believe is wrong, as on slides whose TIFF tag alone says RGB."""
    if space == "rgb":
        picture = Image.merge("YCbCr", Image.fromarray(rgb).split())
    else:
        picture = Image.fromarray(rgb).convert("YCbCr")
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def jpeg_segments(jpeg: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """``(marker, segment)`` up to the scan, and everything from the scan on."""
    at, found = 2, []
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        found.append((jpeg[at + 1], jpeg[at:end]))
        at = end
    return found, jpeg[at:]


def abbreviate(jpeg: bytes, *, keep_markers: bool = True) -> tuple[bytes, bytes]:
    """``(tables, tile)`` as TIFF stores them: quantisation and Huffman tables apart from the rest."""
    segments, scan = jpeg_segments(jpeg)
    tables = b"".join(part for marker, part in segments if marker in (0xDB, 0xC4))
    rest = b"".join(
        part
        for marker, part in segments
        if marker not in (0xDB, 0xC4) and (keep_markers or not 0xE0 <= marker <= 0xEF)
    )
    return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + rest + scan


def with_adobe_marker(jpeg: bytes, transform: int) -> bytes:
    """The JPEG with an Adobe marker in front; transform 0 claims RGB, 1 claims YCbCr."""
    return jpeg[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + bytes([transform]) + jpeg[2:]


def write_jpeg_tiff(
    path: Path,
    picture: np.ndarray,
    *,
    sizes: list[tuple[int, int]] = (),
    tile: tuple[int, int] = (64, 64),
    space: str = "ycbcr",
    subsampling: str = "4:2:0",
    shared_tables: bool = False,
    change: dict[tuple[int, int], bytes] | None = None,
    edit: Callable[[bytes], bytes] = bytes,
    mpp: float | None = 0.5,
    description: str | None = None,
    **options: object,
) -> Path:
    """A TIFF of JPEG tiles made by hand: ``tile`` is (width, height), ``change`` replaces the bytes of
    ``(level, index)`` (``b""``: no bytes at all), ``edit`` is applied to every other one."""
    change = change or {}
    if mpp is not None:
        options |= {"resolution": (10000 / mpp, 10000 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path, bigtiff=bool(options.pop("bigtiff", False))) as tiff:
        for level, size in enumerate([(picture.shape[1], picture.shape[0]), *sizes]):
            rgb = picture
            if level:
                rgb = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
            tiles, tables = [], None
            for y in range(0, rgb.shape[0], tile[1]):
                for x in range(0, rgb.shape[1], tile[0]):
                    block = rgb[y : y + tile[1], x : x + tile[0]]
                    grow = ((0, tile[1] - block.shape[0]), (0, tile[0] - block.shape[1]), (0, 0))
                    jpeg = encode_tile(np.pad(block, grow, "edge"), space=space, subsampling=subsampling)
                    if shared_tables:
                        tables, jpeg = abbreviate(jpeg)
                    tiles.append(change.get((level, len(tiles)), edit(jpeg)))
            tiff.write(
                iter(tiles),
                shape=rgb.shape,
                dtype=np.uint8,
                tile=(tile[1], tile[0]),
                compression="jpeg",
                photometric="ycbcr",
                jpegtables=tables,
                subfiletype=int(level > 0),
                description=description if level == 0 else None,
                metadata=None,
                **options,
            )
    if space == "rgb":  # tifffile itself writes JPEG as YCbCr only
        overwrite_tag(path, "PhotometricInterpretation", 2)
    return path


def overwrite_tag(path: Path, name: str, value: object, *, dtype: str | None = None) -> None:
    """Change a tag of every page in place."""
    with tifffile.TiffFile(path, mode="r+") as tiff:
        for page in tiff.pages:
            page.tags[name].overwrite(value, dtype=dtype)


def write_repeated_tile_tiff(
    path: Path, columns: int, rows: int, tile: bytes, *, side: int = 256, mpp: float = 0.25
) -> Path:
    """A JPEG TIFF of ``columns`` x ``rows`` tiles that are all the same bytes, so that it stays small.

    Written by hand (TIFF 6.0, little-endian): header, the tile, the two arrays, one directory.
    """
    total = columns * rows
    body = bytearray(struct.pack("<2sHI", b"II", 42, 0)) + tile + b"\0" * (len(tile) % 2)
    offsets_at = len(body)
    body += struct.pack("<I", 8) * total
    counts_at = len(body)
    body += struct.pack("<I", len(tile)) * total
    resolution_at = len(body)
    body += struct.pack("<II", round(10000 / mpp), 1)
    bits_at = len(body)
    body += struct.pack("<HHH", 8, 8, 8)
    short, long, rational = 3, 4, 5
    tags = [
        (256, long, 1, columns * side), (257, long, 1, rows * side), (258, short, 3, bits_at),
        (259, short, 1, 7), (262, short, 1, 6), (277, short, 1, 3),
        (282, rational, 1, resolution_at), (283, rational, 1, resolution_at), (284, short, 1, 1),
        (296, short, 1, 3), (322, long, 1, side), (323, long, 1, side),
        (324, long, total, offsets_at if total > 1 else 8),
        (325, long, total, counts_at if total > 1 else len(tile)),
    ]  # fmt: skip
    body += b"\0" * (len(body) % 2)
    struct.pack_into("<I", body, 4, len(body))
    body += struct.pack("<H", len(tags))
    for code, kind, count, value in tags:
        body += struct.pack("<HHI", code, kind, count)
        body += struct.pack("<Hxx" if kind == short and count == 1 else "<I", value)
    path.write_bytes(body + b"\0\0\0\0")
    return path
