"""Choosing a slide's tiles: the slide-wide grid, filtered by tissue."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import SPACING_TOLERANCE, grid_axes, grid_fractions, plan_tiles, tile_grid
from acpbench.slides.reader import SlideReader, open_slide
from acpbench.slides.slide_files import slide_sha256 as hash_slide
from acpbench.slides.tissue import TissueMask, TissueSettings

MIN_TISSUE = 0.5
MIN_TILES = 4


@dataclass(frozen=True)
class TilingSettings:
    """What to tile.

    Attributes:
        spacing_um: requested spacing, um/px. tile_size_px: side of a tile.
        min_tissue: least share of tissue in a kept tile.
        min_tiles: a slide with fewer kept tiles is excluded.
        tolerance: relative spacing difference that counts as equal.
    """

    spacing_um: float
    tile_size_px: int
    min_tissue: float = MIN_TISSUE
    min_tiles: int = MIN_TILES
    tolerance: float = SPACING_TOLERANCE

    def __post_init__(self) -> None:
        if not 0 <= self.min_tissue <= 1:
            raise ValueError(f"min_tissue must be in 0..1, got {self.min_tissue}")
        if self.min_tiles < 1:
            raise ValueError(f"min_tiles must be at least 1, got {self.min_tiles}")
        if not (self.spacing_um > 0 and self.tile_size_px >= 1):
            raise ValueError(f"cannot tile at {self.spacing_um} um/px in {self.tile_size_px} px")


def _excluded(
    slide_id: str, sha256: str, settings: TilingSettings, error: SlideError, **more: Any
) -> TileSet:
    return TileSet(
        slide_id=slide_id,
        slide_sha256=sha256,
        status=error.status,
        reason=error.reason,
        detail=error.message,
        coords=np.zeros((0, 2), dtype=np.int64),
        tissue_fractions=np.zeros(0),
        requested_spacing_um=settings.spacing_um,
        tile_size_px=settings.tile_size_px,
        plan=more.get("plan"),
        mpp_x=more.get("mpp_x"),
        mpp_y=more.get("mpp_y"),
        counts=more.get("counts") or {"n_grid": 0, "n_any_tissue": 0, "n_passed": 0, "n_tiles": 0},
        settings=_recorded(settings),
    )


def _recorded(settings: TilingSettings) -> dict[str, float]:
    return {
        "min_tissue": settings.min_tissue,
        "min_tiles": settings.min_tiles,
        "tolerance": settings.tolerance,
    }


def tile_slide(
    reader: SlideReader,
    tissue: TissueMask,
    settings: TilingSettings,
    *,
    slide_id: str,
    slide_sha256: str = "",
    found_before_filter: bool = False,
) -> TileSet:
    """Keep the grid tiles of which at least ``min_tissue`` is tissue.

    Args:
        reader: open slide.
        tissue: tissue mask over the whole slide.
        settings: what to tile.
        slide_id, slide_sha256: recorded with the tiles.
        found_before_filter: whether tissue had been found before artefacts were taken out of the mask; it
            tells ``emptied_by_filter`` from ``empty_tissue``.

    Returns:
        Tiles with status ``ok``, or none with ``too_coarse``, ``empty_tissue``, ``emptied_by_filter`` or
        ``too_few_tiles``.

    Raises:
        SlideError: ``no_mpp``.
    """
    mpp_x, mpp_y = reader.require_spacing()
    known: dict[str, Any] = {"mpp_x": mpp_x, "mpp_y": mpp_y}
    try:
        plan = plan_tiles(
            reader.level_dimensions,
            mpp_x,
            mpp_y,
            settings.spacing_um,
            settings.tile_size_px,
            tolerance=settings.tolerance,
        )
    except SlideError as error:
        return _excluded(slide_id, slide_sha256, settings, error, **known)
    grid = tile_grid(*reader.dimensions, plan)
    fractions = grid_fractions(
        tissue.mask,
        *grid_axes(*reader.dimensions, plan),
        plan.tile_width_level0,
        plan.tile_height_level0,
        tissue.scale,
    ).ravel()
    # A tile that is tissue to exactly the limit is kept whatever the rounding of the sums.
    kept = fractions >= settings.min_tissue - 1e-9 if settings.min_tissue > 0 else np.ones(len(grid), bool)
    counts = {
        "n_grid": len(grid),
        "n_any_tissue": int((fractions > 0).sum()),
        "n_passed": int(kept.sum()),
        "n_tiles": int(kept.sum()),
    }
    problem = _problem(tissue, found_before_filter, counts, settings, reader.dimensions)
    if problem is not None:
        return _excluded(
            slide_id, slide_sha256, settings, problem, plan=plan, counts=counts | {"n_tiles": 0}, **known
        )
    return TileSet(
        slide_id=slide_id,
        slide_sha256=slide_sha256,
        status="ok",
        reason="",
        detail="",
        coords=grid[kept],
        tissue_fractions=fractions[kept],
        requested_spacing_um=settings.spacing_um,
        tile_size_px=settings.tile_size_px,
        plan=plan,
        counts=counts,
        settings=_recorded(settings),
        **known,
    )


def _problem(
    tissue: TissueMask,
    found_before_filter: bool,
    counts: dict[str, int],
    settings: TilingSettings,
    dimensions: tuple[int, int],
) -> SlideError | None:
    if not tissue.mask.any():
        if found_before_filter:
            return SlideError(
                "emptied_by_filter", "all tissue lies under artefacts or cannot be read", reason="artefact"
            )
        return SlideError("empty_tissue", "no tissue was found", reason="no_tissue")
    if counts["n_grid"] == 0:
        return SlideError(
            "too_few_tiles",
            f"the slide ({dimensions[0]} x {dimensions[1]} px) is smaller than one tile",
            reason="slide_smaller_than_tile",
        )
    if counts["n_passed"] == 0:
        return SlideError(
            "emptied_by_filter",
            f"none of {counts['n_any_tissue']} tiles that touch tissue has {settings.min_tissue:.0%} of it",
            reason="min_tissue",
        )
    if counts["n_passed"] < settings.min_tiles:
        return SlideError(
            "too_few_tiles",
            f"{counts['n_passed']} tiles passed, fewer than {settings.min_tiles}",
            reason="min_tiles",
        )
    return None


def tile_file(
    slide_path: str | os.PathLike[str],
    settings: TilingSettings,
    *,
    slide_id: str,
    declared_mpp: float | None = None,
    tissue_geojson: str | os.PathLike[str] | None = None,
    tissue_settings: TissueSettings | None = None,
    found_before_filter: bool = False,
) -> TileSet:
    """Open a slide, find its tissue and tile it; an unusable slide gives an empty set with its status.

    Args:
        slide_path: the slide.
        settings: what to tile.
        slide_id: recorded with the tiles.
        declared_mpp: spacing given by the user, um/px.
        tissue_geojson: tissue to use instead of finding it: the ``tissue.geojson`` of an inspection, which
            may have been edited by hand, or any mask (see :func:`acpbench.slides.masks.read_mask`). Of a
            GeoJSON, polygons of the class ``Tissue`` and of none are taken.
        tissue_settings: how tissue is cleaned up when it is looked for.
        found_before_filter: with ``tissue_geojson``, whether tissue had been found before artefacts were
            taken out.
    """
    from acpbench.slides.annotations import TISSUE
    from acpbench.slides.masks import read_mask
    from acpbench.slides.quality import screen_size, screen_slide

    sha256 = ""
    known: dict[str, Any] = {}
    try:
        with open_slide(slide_path, declared_mpp) as reader:
            sha256 = hash_slide(slide_path)
            known = {"mpp_x": reader.mpp_x, "mpp_y": reader.mpp_y}
            reader.require_spacing()
            if tissue_geojson is None:
                screen = screen_slide(reader, tissue_settings)
                tissue, found_before_filter = screen.tissue, screen.found_before_removal
            else:
                tissue = read_mask(tissue_geojson, reader.dimensions, screen_size(reader), (TISSUE,))
            return tile_slide(
                reader,
                tissue,
                settings,
                slide_id=slide_id,
                slide_sha256=sha256,
                found_before_filter=found_before_filter,
            )
    except SlideError as error:
        return _excluded(slide_id, sha256, settings, error, **known)


def tile_slide_to_files(
    slide_path: str | os.PathLike[str],
    coords_path: str | os.PathLike[str],
    settings: TilingSettings,
    **options: Any,
) -> TileSet:
    """:func:`tile_file`, written to ``coords.h5``. The file is always written, also for a broken slide."""
    tiles = tile_file(slide_path, settings, **options)
    write_coords(coords_path, tiles)
    return tiles
