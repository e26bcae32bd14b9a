"""Air bubbles under the cover slip: thin, dark, colourless rings.

Where air meets mounting medium the light is bent out of the objective's cone, so that a bubble shows as a
dark line without the colour of a stain, closed to a circle. The detector looks for just that: pixels darker
than what lies on either side of them within 40 um and nearly grey, joined to pieces, of which each is kept
when a circle runs through it, most of the way round, with little inside it.

The thresholds were set on drawn bubbles, alone and over 74 real sections (72 lung composites, CMU-1-Small-
Region, TCGA-CR-7395). On these sections as they are nothing is found. Of one ring drawn over each, 24 um
wide, 38 were found where it takes 30 % of the light and 73 at 45 % and at 60 %. No labelled set of real
bubbles was at hand, so how many of those are missed is not known. Foam, bubbles cut by the edge of the scan
and flat pockets of irregular outline are missed by construction, and a rim as black as ink counts as ink.
"""

from __future__ import annotations

import numpy as np

RIM_HALF_WIDTH_UM = 40.0
RIM_MIN_DEPTH = 0.10
"""How much darker the rim is than its surroundings, on the HSV value scale of 0 to 1."""
RIM_MAX_CHROMA = 0.16
"""Largest difference of colour channels in the rim, 0 to 1. Stained tissue as dark has 0.2 and more."""
SMOOTHING_UM = 4.0
MIN_RADIUS_UM = 60.0
MAX_RADIUS_UM = 5000.0
MAX_DEVIATION = 0.12
"""Root mean square distance of the rim from the fitted circle, in radii."""
MIN_COVERAGE = 0.75
"""Share of the circle's 36 sectors in which there is rim."""
MAX_INNER_SHARE = 0.15
"""Share of a piece's pixels that may lie within 0.7 radii of the centre."""
_SECTORS = 36


def bubble_mask(rgb: np.ndarray, spacing_um: float, ignore: np.ndarray | None = None) -> np.ndarray:
    """Discs of the air bubbles on an overview, bool (H, W).

    Args:
        rgb: uint8 (H, W, 3).
        spacing_um: um per pixel.
        ignore: bool (H, W), pixels that are no rim (ink).
    """
    from skimage.measure import label, regionprops

    out = np.zeros(rgb.shape[:2], dtype=bool)
    rim = rim_mask(rgb, spacing_um)
    if ignore is not None:
        rim &= ~ignore
    height, width = out.shape
    for region in regionprops(label(rim, connectivity=2)):
        rows, columns = region.coords[:, 0], region.coords[:, 1]
        # A ring of the smallest radius has this many pixels at least; most pieces are single nuclei.
        if len(rows) < MIN_COVERAGE * 2 * np.pi * MIN_RADIUS_UM / spacing_um:
            continue
        circle = fit_circle(columns.astype(float), rows.astype(float))
        if circle is None or not _is_ring(columns, rows, circle, spacing_um):
            continue
        x, y, radius = circle
        grid_y, grid_x = np.ogrid[:height, :width]
        out |= (grid_x - x) ** 2 + (grid_y - y) ** 2 <= radius**2
    return out


def rim_mask(rgb: np.ndarray, spacing_um: float) -> np.ndarray:
    """Thin, dark, nearly grey lines, bool (H, W): a black top-hat of the HSV value (Serra 1982)."""
    from scipy import ndimage

    smooth = ndimage.gaussian_filter(rgb.astype(np.float32) / 255.0, (SMOOTHING_UM / spacing_um,) * 2 + (0,))
    value = smooth.max(axis=-1)
    chroma = value - smooth.min(axis=-1)
    side = 2 * max(round(RIM_HALF_WIDTH_UM / spacing_um), 1) + 1
    closed = ndimage.grey_closing(value, size=(side, side), mode="nearest")
    return (closed - value > RIM_MIN_DEPTH) & (chroma < RIM_MAX_CHROMA)


def fit_circle(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float] | None:
    """Centre and radius of the circle through points, by linear least squares (Kasa, IEEE TIM 1976).

    ``None`` when the points lie on a line.
    """
    mean_x, mean_y = x.mean(), y.mean()
    u, v = x - mean_x, y - mean_y
    matrix = np.stack([u, v, np.ones_like(u)], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(matrix, u**2 + v**2, rcond=None)
    if rank < 3:
        return None
    a, b = solution[0] / 2, solution[1] / 2
    squared = solution[2] + a**2 + b**2
    return (float(a + mean_x), float(b + mean_y), float(np.sqrt(squared))) if squared > 0 else None


def _is_ring(
    columns: np.ndarray, rows: np.ndarray, circle: tuple[float, float, float], spacing_um: float
) -> bool:
    x, y, radius = circle
    if not MIN_RADIUS_UM <= radius * spacing_um <= MAX_RADIUS_UM:
        return False
    dx, dy = columns - x, rows - y
    distance = np.hypot(dx, dy)
    if np.sqrt(np.mean((distance / radius - 1) ** 2)) > MAX_DEVIATION:
        return False
    if np.mean(distance < 0.7 * radius) > MAX_INNER_SHARE:
        return False
    sectors = ((np.arctan2(dy, dx) + np.pi) / (2 * np.pi) * _SECTORS).astype(int) % _SECTORS
    return len(np.unique(sectors)) >= MIN_COVERAGE * _SECTORS
