"""Artefacts on a slide: pen, folds, blur, bubbles. Fixed, documented thresholds; a screen, not a classifier.

Colours are HSV in 0..1. Haematoxylin and eosin lie at hues of about 0.65 to 1.0 (blue-violet to pink-red).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acpbench.slides.bubbles import bubble_mask
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import plan_tiles
from acpbench.slides.overview import Overview, overview, overview_size
from acpbench.slides.reader import SlideReader
from acpbench.slides.tissue import TissueMask, TissueSettings, find_tissue, hsv

SCREEN_SPACING_UM = 8.0
SCREEN_MIN_SIDE_PX = 512
SCREEN_MAX_SIDE_PX = 4096

PEN_COLOURS = ("green", "blue", "black")
PEN_MIN_MM2 = 0.002
"""Smaller spots of such colours are pigment or dust, not ink."""
PEN_SEED_MM2 = 0.0005
PEN_SMOOTHING_UM = 3.0
PEN_MARGIN_UM = 24.0
BLUE_INK_HUES = (0.50, 0.64)
"""Haematoxylin of bluish stains reaches down to a hue of about 0.645."""
BLUE_INK_OVER_TISSUE_HUE = 0.67
"""Ink over tissue takes on its hue; such pixels are ink only where they touch undoubted ink."""

FOLD_MIN_EXCESS = 0.2
FOLD_MIN_DEVIATIONS = 2.5
"""Folded tissue is thicker: more saturated and darker than the rest of its slide.

A fold is where saturation minus value exceeds the slide's tissue median by 0.2 and by 2.5 robust standard
deviations (1.4826 times the median absolute deviation). The measure is that of Kothari et al., J Pathol
Inform 2013; the slide's own tissue is the reference since stains differ more than folds do.
Dense lymphocytes and keratin can pass for folds, so folds are reported and, unless asked for, not taken out
of the tissue.
"""
FOLD_MIN_MM2 = 0.003
FOLD_SMOOTHING_UM = 12.0

BLUR_SPACING_UM = 1.0
BLUR_TILE_PX = 224
BLUR_MAX_TILES = 64
BLUR_MAX_RATIO = 0.02
"""Variance of the Laplacian over variance of the grey values at 1 um/px, which cancels stain strength.

Sharp H&E sections give 0.4 to 4, the same sections behind a Gaussian of 2 um give less than 0.02.
"""


@dataclass(frozen=True)
class BlurReport:
    """Sharpness of sampled tissue tiles.

    Attributes:
        n_tiles, n_blurred, n_unreadable: tiles sampled, found blurred, and not readable.
        median_ratio: median Laplacian ratio, ``None`` without a readable tile.
        note: why there is none.
    """

    n_tiles: int
    n_blurred: int
    n_unreadable: int
    median_ratio: float | None
    note: str | None = None

    @property
    def fraction(self) -> float | None:
        readable = self.n_tiles - self.n_unreadable
        return self.n_blurred / readable if readable else None


def pen_masks(rgb: np.ndarray, spacing_um: float) -> dict[str, np.ndarray]:
    """Ink by colour, bool (H, W) each, on an overview.

    Red ink is not looked for: it cannot be told from eosin and blood by colour alone.
    """
    from scipy.ndimage import gaussian_filter
    from skimage.measure import label
    from skimage.morphology import isotropic_dilation

    from acpbench.slides.tissue import drop_small

    sigma = (PEN_SMOOTHING_UM / spacing_um,) * 2 + (0,)
    colour = hsv(np.clip(gaussian_filter(rgb.astype(np.float32), sigma), 0, 255) / 255.0)
    hue, saturation, value = colour[..., 0], colour[..., 1], colour[..., 2]
    raw = {
        "green": (hue > 0.22) & (hue < 0.50) & (saturation > 0.25) & (value > 0.1),
        "blue": (hue >= BLUE_INK_HUES[0]) & (hue < BLUE_INK_HUES[1]) & (saturation > 0.35) & (value > 0.1),
        "black": (value < 0.25) & (saturation < 0.4) & (value > 0.02),
    }
    over_tissue = (hue >= BLUE_INK_HUES[1]) & (hue < BLUE_INK_OVER_TISSUE_HUE) & (saturation > 0.35)
    grown = label(raw["blue"] | over_tissue, connectivity=2)
    undoubted = drop_small(raw["blue"], PEN_SEED_MM2 / (spacing_um / 1000.0) ** 2)
    raw["blue"] = np.isin(grown, np.unique(grown[undoubted]))
    min_px = PEN_MIN_MM2 / (spacing_um / 1000.0) ** 2
    masks = {}
    for name in PEN_COLOURS:
        kept = drop_small(raw[name], max(min_px, 4))
        # The rim of a stroke mixes with what is below it and would pass for tissue.
        masks[name] = isotropic_dilation(kept, PEN_MARGIN_UM / spacing_um) if kept.any() else kept
    return masks


def fold_mask(rgb: np.ndarray, tissue: np.ndarray, spacing_um: float) -> np.ndarray:
    """Folds inside the tissue, bool (H, W)."""
    from scipy.ndimage import gaussian_filter

    from acpbench.slides.tissue import drop_small

    if not tissue.any():
        return np.zeros_like(tissue)
    # Single nuclei are as dark; a fold is wider than several of them.
    sigma = (FOLD_SMOOTHING_UM / spacing_um,) * 2 + (0,)
    colour = hsv(np.clip(gaussian_filter(rgb.astype(np.float32), sigma), 0, 255) / 255.0)
    excess = colour[..., 1] - colour[..., 2]
    median = float(np.median(excess[tissue]))
    deviation = 1.4826 * float(np.median(np.abs(excess[tissue] - median)))
    folded = tissue & (excess > median + max(FOLD_MIN_EXCESS, FOLD_MIN_DEVIATIONS * deviation))
    return drop_small(folded, max(FOLD_MIN_MM2 / (spacing_um / 1000.0) ** 2, 4))


def laplacian_ratio(grey: np.ndarray) -> float | None:
    """Variance of the 4-neighbour Laplacian over the variance of the picture; ``None`` when it is flat.

    A measure of focus (Pech-Pacheco et al., ICPR 2000), divided by contrast.
    """
    from scipy.ndimage import laplace

    grey = grey.astype(np.float64)
    variance = float(grey.var())
    if variance < 1.0:
        return None
    return float(laplace(grey, mode="nearest")[1:-1, 1:-1].var() / variance)


def blur_report(
    reader: SlideReader, tissue: np.ndarray, scale: tuple[float, float], *, max_tiles: int = BLUR_MAX_TILES
) -> BlurReport:
    """Sharpness of up to ``max_tiles`` tissue tiles spread evenly over the slide, at 1 um/px."""
    from PIL import Image

    from acpbench.slides.geometry import box_fractions, tile_grid

    mpp_x, mpp_y = reader.require_spacing()
    if max(mpp_x, mpp_y) > BLUR_SPACING_UM * 1.02:
        return BlurReport(0, 0, 0, None, f"level 0 is coarser than {BLUR_SPACING_UM:g} um/px")
    plan = plan_tiles(reader.level_dimensions, mpp_x, mpp_y, BLUR_SPACING_UM, BLUR_TILE_PX)
    grid = tile_grid(*reader.dimensions, plan)
    if len(grid) == 0:
        return BlurReport(0, 0, 0, None, "the slide is smaller than one sampled tile")
    inside = box_fractions(tissue, grid, plan.tile_width_level0, plan.tile_height_level0, scale) >= 0.8
    candidates = grid[inside]
    if len(candidates) == 0:
        return BlurReport(0, 0, 0, None, "no tile is mostly tissue")
    pick = np.unique(np.linspace(0, len(candidates) - 1, min(max_tiles, len(candidates))).round().astype(int))
    ratios, bad, blurred = [], 0, 0
    for x, y in candidates[pick]:
        try:
            region = reader.read_region(int(x), int(y), plan.level, plan.read_width_px, plan.read_height_px)
        except SlideError:
            bad += 1
            continue
        image = (
            Image.fromarray(region).convert("L").resize((BLUR_TILE_PX, BLUR_TILE_PX), Image.Resampling.BOX)
        )
        ratio = laplacian_ratio(np.asarray(image))
        if ratio is None:  # a flat tile inside tissue has no detail at all
            ratio = 0.0
        ratios.append(ratio)
        blurred += ratio < BLUR_MAX_RATIO
    median = float(np.median(ratios)) if ratios else None
    return BlurReport(len(pick), int(blurred), bad, median)


@dataclass(frozen=True)
class Screen:
    """Tissue and artefacts of one slide on its overview. Masks are bool (H, W).

    Attributes:
        overview: the picture they were found on. spacing_um: um per overview pixel.
        tissue: tissue without the artefacts that the settings remove, or the mask that was given.
        found_before_removal: whether there was any before artefacts were taken out.
        pens: ink by colour. folds: folds inside the tissue. bubbles: air bubbles.
    """

    overview: Overview
    spacing_um: float
    tissue: TissueMask
    found_before_removal: bool
    pens: dict[str, np.ndarray]
    folds: np.ndarray
    bubbles: np.ndarray

    @property
    def pen(self) -> np.ndarray:
        return np.any(list(self.pens.values()), axis=0)


def screen_size(reader: SlideReader) -> tuple[int, int]:
    """``(width, height)`` of the overview that masks are made on."""
    mpp = None if reader.mpp_x is None or reader.mpp_y is None else (reader.mpp_x, reader.mpp_y)
    return overview_size(
        reader.dimensions,
        mpp,
        spacing_um=SCREEN_SPACING_UM,
        min_side=SCREEN_MIN_SIDE_PX,
        max_side=SCREEN_MAX_SIDE_PX,
    )


def screen_slide(
    reader: SlideReader, settings: TissueSettings | None = None, given: TissueMask | None = None
) -> Screen:
    """Reduce the slide to about 8 um/px and find tissue, pen, folds and air bubbles.

    Args:
        reader: open slide.
        settings: how tissue is cleaned up.
        given: a mask of :func:`screen_size` to take as it is instead of finding tissue; artefacts are then
            measured and nothing is removed.

    Raises:
        SlideError: ``no_mpp`` or ``unreadable``.
    """
    mpp_x, mpp_y = reader.require_spacing()
    settings = settings or TissueSettings()
    view = overview(reader, *screen_size(reader))
    # The two axes differ by rounding only: the overview is square in micrometres by construction.
    spacing_um = float(np.sqrt(mpp_x * view.scale[0] * mpp_y * view.scale[1]))
    pens = pen_masks(view.rgb, spacing_um)
    pen = np.any(list(pens.values()), axis=0)
    bubbles = bubble_mask(view.rgb, spacing_um, pen)
    if given is not None:
        folds = fold_mask(view.rgb, given.mask, spacing_um)
        return Screen(view, spacing_um, given, bool(given.mask.any()), pens, folds, bubbles)
    ignore = ~view.readable | pen if "pen" in settings.remove else ~view.readable
    tissue = find_tissue(view.rgb, view.scale, spacing_um, ignore=ignore, settings=settings)
    before = bool(tissue.mask.any()) or (
        bool(ignore.any())
        and bool(find_tissue(view.rgb, view.scale, spacing_um, settings=settings).mask.any())
    )
    folds = fold_mask(view.rgb, tissue.mask, spacing_um)
    for name, mask in (("fold", folds), ("bubble", bubbles)):
        if name in settings.remove and mask.any():
            tissue = tissue.without(mask, settings.min_area_um2 / spacing_um**2)
    return Screen(view, spacing_um, tissue, before, pens, folds, bubbles)
