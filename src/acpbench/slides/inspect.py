"""Looking at one slide: what it is, what is wrong with it, where its tissue is. Bad slides do not raise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.files import write_json
from acpbench.core.ids import check_id
from acpbench.core.provenance import provenance
from acpbench.slides.coords import TileSet
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import level_downsamples
from acpbench.slides.quality import BlurReport, Screen, blur_report, screen_size, screen_slide
from acpbench.slides.reader import SlideReader, open_slide
from acpbench.slides.thumbnail import draw_thumbnail, placeholder, write_jpeg
from acpbench.slides.tiling import TilingSettings, tile_slide
from acpbench.slides.tissue import mask_polygons, tissue_geojson

SCHEMA = "acp-slide-quality/0.1"
_MEASURED = (
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
) -> Inspection:
    """Inspect a slide. A slide that cannot be used is a result with its status, not an exception.

    Args:
        path: slide file.
        slide_id: identifier recorded in the outputs.
        declared_mpp: spacing given by the user, um/px.
        tiling: when given, the tiles that these settings keep are drawn on the thumbnail.

    Returns:
        Status ``ok``, ``unreadable``, ``no_mpp``, ``empty_tissue`` or ``emptied_by_filter``. Whatever could
        not be measured is ``None``.
    """
    check_id(slide_id, "slide_id")
    quality = _blank(slide_id, declared_mpp)
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
            screen = screen_slide(reader)
            blur = blur_report(reader, screen.tissue.mask, screen.tissue.scale)
            _measure(quality, screen, blur)
            tiles = None
            if tiling is not None:
                tiles = tile_slide(reader, screen.tissue, tiling, slide_id=slide_id)
            picture = draw_thumbnail(
                screen.overview.rgb, reader.dimensions, mask_polygons(screen.tissue), tiles
            )
            _thumbnail_scale(quality, reader, picture)
            return Inspection(quality, tissue_geojson(screen.tissue, slide_id), picture, tiles)
    except SlideError as error:
        _fail(quality, error)
        return Inspection(quality, empty, placeholder(f"{slide_id}: {error.status}: {error.message}"))


def inspect_slide_to_files(
    path: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    slide_id: str,
    declared_mpp: float | None = None,
    tiling: TilingSettings | None = None,
) -> dict[str, Any]:
    """Write ``tissue.geojson``, ``thumbnail.jpg`` and, last, ``quality.json``; always all three.

    Returns:
        The content of ``quality.json``.
    """
    result = inspect_slide(path, slide_id=slide_id, declared_mpp=declared_mpp, tiling=tiling)
    folder = Path(output_dir)
    write_json(folder / "tissue.geojson", result.geojson)
    write_jpeg(folder / "thumbnail.jpg", result.thumbnail)
    write_json(folder / "quality.json", result.quality)
    return result.quality


def _blank(slide_id: str, declared_mpp: float | None) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "slide_id": slide_id,
        "status": "ok",
        "reason": None,
        "detail": None,
        "warnings": [],
        "declared_mpp": declared_mpp,
        **dict.fromkeys(_MEASURED),
        "provenance": provenance(config={"declared_mpp": declared_mpp}),
    }


def _fail(quality: dict[str, Any], error: SlideError) -> None:
    quality.update(status=error.status, reason=error.reason, detail=error.message)


def _describe(quality: dict[str, Any], reader: SlideReader) -> None:
    downsamples = level_downsamples(reader.level_dimensions)
    quality.update(
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


def _measure(quality: dict[str, Any], screen: Screen, blur: BlurReport) -> None:
    from skimage.measure import label

    mask, total = screen.tissue.mask, float(screen.tissue.mask.size)
    tissue_px = float(mask.sum())
    quality.update(
        mask_spacing_um=screen.spacing_um,
        saturation_threshold=screen.tissue.threshold,
        glass_found=screen.tissue.glass_found,
        tissue_fraction=screen.tissue.fraction,
        tissue_area_mm2=tissue_px * (screen.spacing_um / 1000.0) ** 2,
        n_tissue_objects=screen.tissue.n_objects,
        classes={
            "tissue": {"fraction": screen.tissue.fraction, "of": "slide"},
            "pen": {"fraction": _share(screen.pen, total), "of": "slide"},
            **{f"pen_{n}": {"fraction": _share(m, total), "of": "slide"} for n, m in screen.pens.items()},
            "unreadable": {"fraction": _share(~screen.overview.readable, total), "of": "slide"},
            "fold": {"fraction": _share(screen.folds, tissue_px), "of": "tissue"},
            "blur": {"fraction": blur.fraction, "of": "sampled tiles", "note": blur.note},
        },
        counts={
            "n_pen_regions": int(label(screen.pen).max(initial=0)),
            "n_fold_regions": int(label(screen.folds).max(initial=0)),
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
    if not mask.any():
        if screen.found_before_pen:
            detail, status, reason = (
                "all tissue lies under pen or cannot be read",
                "emptied_by_filter",
                "artefact",
            )
        else:
            detail, status, reason = "no tissue was found", "empty_tissue", "no_tissue"
        quality.update(status=status, reason=reason, detail=detail)
