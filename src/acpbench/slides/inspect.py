"""Looking at one slide: what it is, what is wrong with it, where its tissue is. Bad slides do not raise."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_file, write_json
from acpbench.core.ids import check_id
from acpbench.core.provenance import provenance
from acpbench.slides.annotations import mask_polygons, tissue_geojson
from acpbench.slides.coords import TileSet
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import level_downsamples
from acpbench.slides.masks import read_mask
from acpbench.slides.quality import BlurReport, Screen, blur_report, screen_size, screen_slide
from acpbench.slides.reader import SlideReader, open_slide
from acpbench.slides.slide_files import slide_size
from acpbench.slides.thumbnail import draw_thumbnail, placeholder, write_jpeg
from acpbench.slides.tiling import TilingSettings, tile_slide
from acpbench.slides.tissue import TissueMask, TissueSettings

SCHEMA = "acp-slide-quality/0.2"

BLUR_WARNING = 0.5
"""Share of blurred tiles above which a warning is given. Blur alone never excludes a slide."""

_MEASURED = (
    "size_bytes",
    "backend",
    "vendor",
    "mpp_x",
    "mpp_y",
    "mpp_source",
    "objective_power",
    "width_px",
    "height_px",
    "levels",
    "associated_images",
    "thumbnail_downsample",
    "mask_source",
    "mask_spacing_um",
    "saturation_threshold",
    "glass_found",
    "tissue_fraction",
    "tissue_area_mm2",
    "n_tissue_objects",
    "laplacian_ratio_median",
    "classes",
    "counts",
)


@dataclass(frozen=True)
class Inspection:
    """Result of :func:`inspect_slide`.

    Attributes:
        quality: content of ``quality.json``. geojson: tissue polygons (QuPath layout, level-0 pixels).
        thumbnail: uint8 (h, w, 3). tiles: tiles drawn on it, when tiling settings were given.
    """

    quality: dict[str, Any]
    geojson: dict[str, Any]
    thumbnail: np.ndarray
    tiles: TileSet | None = None


def inspect_slide(
    path: str | os.PathLike[str],
    *,
    slide_id: str,
    declared_mpp: float | None = None,
    tiling: TilingSettings | None = None,
    settings: TissueSettings | None = None,
    mask: str | os.PathLike[str] | None = None,
    mask_classes: Iterable[str] | None = None,
) -> Inspection:
    """Inspect a slide. A slide that cannot be used is a result with its status, not an exception.

    Args:
        path: slide file.
        slide_id: identifier recorded in the outputs.
        declared_mpp: spacing given by the user, um/px.
        tiling: when given, the tiles that these settings keep are drawn on the thumbnail.
        settings: how tissue is cleaned up.
        mask: the user's own tissue mask, taken as it is (see :func:`acpbench.slides.masks.read_mask`).
        mask_classes: classifications of that mask that are tissue; ``None`` takes all.

    Returns:
        Status ``ok``, ``unreadable``, ``no_mpp``, ``empty_tissue`` or ``emptied_by_filter``. Whatever could
        not be measured is ``None``. A mask that cannot be used makes the slide ``unreadable`` with the
        reason ``bad_mask``: falling back on found tissue would answer another question.
    """
    check_id(slide_id, "slide_id")
    settings = settings or TissueSettings()
    quality = _blank(slide_id, declared_mpp, settings, mask, mask_classes)
    empty = tissue_geojson(None, slide_id)
    try:
        with open_slide(path, declared_mpp) as reader:
            _describe(quality, reader)
            try:
                reader.require_spacing()
            except SlideError as error:
                # Still shown: a person has to recognise the slide to declare its spacing.
                _fail(quality, error)
                rgb = reader.thumbnail(*screen_size(reader))
                picture = draw_thumbnail(rgb, reader.dimensions)
                _thumbnail_scale(quality, reader, picture)
                return Inspection(quality, empty, picture)
            given = None if mask is None else _given_mask(mask, reader, mask_classes)
            screen = screen_slide(reader, settings, given)
            blur = blur_report(reader, screen.tissue.mask, screen.tissue.scale)
            _measure(quality, screen, blur, "found" if mask is None else "given")
            tiles = None
            if tiling is not None:
                tiles = tile_slide(reader, screen.tissue, tiling, slide_id=slide_id)
            outlines = mask_polygons(screen.tissue.mask, screen.tissue.scale)
            picture = draw_thumbnail(screen.overview.rgb, reader.dimensions, outlines, tiles)
            _thumbnail_scale(quality, reader, picture)
            artefacts = {"Pen": screen.pen, "Fold": screen.folds, "Air bubble": screen.bubbles}
            return Inspection(quality, tissue_geojson(screen.tissue, slide_id, artefacts), picture, tiles)
    except SlideError as error:
        _fail(quality, error)
        return Inspection(quality, empty, placeholder(f"{slide_id}: {error.status}: {error.message}"))


def _given_mask(
    mask: str | os.PathLike[str], reader: SlideReader, classes: Iterable[str] | None
) -> TissueMask:
    try:
        return read_mask(mask, reader.dimensions, screen_size(reader), classes)
    except InputError as error:
        # The name without its folder: results hold no absolute path.
        message = f"mask {Path(mask).name}: {error.message}"
        raise SlideError("unreadable", message, reason="bad_mask") from None


def inspect_slide_to_files(
    path: str | os.PathLike[str], output_dir: str | os.PathLike[str], **options: Any
) -> dict[str, Any]:
    """Write ``tissue.geojson``, ``thumbnail.jpg`` and, last, ``quality.json``; always all three.

    Args:
        path: slide file.
        output_dir: folder of the three.
        **options: as of :func:`inspect_slide`.

    Returns:
        The content of ``quality.json``.
    """
    result = inspect_slide(path, **options)
    folder = Path(output_dir)
    write_json(folder / "tissue.geojson", result.geojson)
    write_jpeg(folder / "thumbnail.jpg", result.thumbnail)
    write_json(folder / "quality.json", result.quality)
    return result.quality


def _blank(
    slide_id: str,
    declared_mpp: float | None,
    settings: TissueSettings,
    mask: str | os.PathLike[str] | None,
    mask_classes: Iterable[str] | None,
) -> dict[str, Any]:
    config = {
        "declared_mpp": declared_mpp,
        "tissue": asdict(settings) if mask is None else None,
        "mask_sha256": sha256_file(mask) if mask is not None and Path(mask).is_file() else None,
        "mask_classes": None if mask_classes is None else sorted(mask_classes),
    }
    return {
        "schema": SCHEMA,
        "slide_id": slide_id,
        "status": "ok",
        "reason": None,
        "detail": None,
        "warnings": [],
        "declared_mpp": declared_mpp,
        **dict.fromkeys(_MEASURED),
        "provenance": provenance(config=config),
    }


def _fail(quality: dict[str, Any], error: SlideError) -> None:
    quality.update(status=error.status, reason=error.reason, detail=error.message)


def _describe(quality: dict[str, Any], reader: SlideReader) -> None:
    downsamples = level_downsamples(reader.level_dimensions)
    quality.update(
        size_bytes=slide_size(reader.path),
        backend=reader.backend,
        vendor=reader.vendor,
        mpp_x=reader.mpp_x,
        mpp_y=reader.mpp_y,
        mpp_source=reader.mpp_source,
        objective_power=reader.objective_power,
        width_px=reader.dimensions[0],
        height_px=reader.dimensions[1],
        levels=[
            {"level": i, "width_px": w, "height_px": h, "downsample_x": ds[0], "downsample_y": ds[1]}
            for i, ((w, h), ds) in enumerate(zip(reader.level_dimensions, downsamples, strict=True))
        ],
        associated_images=list(reader.associated_image_names),
        warnings=reader.warnings,
    )


def _thumbnail_scale(quality: dict[str, Any], reader: SlideReader, picture: np.ndarray) -> None:
    quality["thumbnail_downsample"] = [
        reader.dimensions[0] / picture.shape[1],
        reader.dimensions[1] / picture.shape[0],
    ]


def _share(mask: np.ndarray, whole: float) -> float | None:
    return float(mask.sum()) / whole if whole else None


def _measure(quality: dict[str, Any], screen: Screen, blur: BlurReport, source: str) -> None:
    from skimage.measure import label

    mask, total = screen.tissue.mask, float(screen.tissue.mask.size)
    tissue_px = float(mask.sum())
    quality.update(
        mask_source=source,
        mask_spacing_um=screen.spacing_um,
        saturation_threshold=screen.tissue.threshold if source == "found" else None,
        glass_found=screen.tissue.glass_found if source == "found" else None,
        tissue_fraction=screen.tissue.fraction,
        tissue_area_mm2=tissue_px * (screen.spacing_um / 1000.0) ** 2,
        n_tissue_objects=screen.tissue.n_objects,
        classes={
            "tissue": {"fraction": screen.tissue.fraction, "of": "slide"},
            "pen": {"fraction": _share(screen.pen, total), "of": "slide"},
            **{f"pen_{n}": {"fraction": _share(m, total), "of": "slide"} for n, m in screen.pens.items()},
            "unreadable": {"fraction": _share(~screen.overview.readable, total), "of": "slide"},
            "fold": {"fraction": _share(screen.folds, tissue_px), "of": "tissue"},
            "bubble": {"fraction": _share(screen.bubbles, total), "of": "slide"},
            "blur": {"fraction": blur.fraction, "of": "sampled tiles", "note": blur.note},
        },
        counts={
            "n_pen_regions": int(label(screen.pen).max(initial=0)),
            "n_fold_regions": int(label(screen.folds).max(initial=0)),
            "n_bubble_regions": int(label(screen.bubbles).max(initial=0)),
            "n_blur_tiles": blur.n_tiles,
            "n_blurred_tiles": blur.n_blurred,
            "n_unreadable_blur_tiles": blur.n_unreadable,
            "n_overview_blocks": screen.overview.n_blocks,
            "n_bad_overview_blocks": screen.overview.n_bad_blocks,
        },
    )
    quality["laplacian_ratio_median"] = blur.median_ratio
    if screen.overview.n_bad_blocks:
        quality["warnings"].append(
            f"{screen.overview.n_bad_blocks} of {screen.overview.n_blocks} overview blocks cannot be read"
        )
    if blur.fraction is not None and blur.fraction > BLUR_WARNING:
        quality["warnings"].append(f"{blur.n_blurred} of {blur.n_tiles} sampled tissue tiles are blurred")
    if not mask.any():
        if source == "given":
            why = ("empty_tissue", "empty_mask", "the mask that was given holds no tissue")
        elif screen.found_before_removal:
            why = ("emptied_by_filter", "artefact", "all tissue lies under artefacts or cannot be read")
        else:
            why = ("empty_tissue", "no_tissue", "no tissue was found")
        quality.update(zip(("status", "reason", "detail"), why, strict=True))
