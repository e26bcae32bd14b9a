"""Where the tissue is: saturation threshold on an overview, cleaned up.

The threshold is Otsu's (IEEE Trans. Syst. Man Cybern. 1979) on HSV saturation, trusted only when the paler
class looks like empty glass: on a slide that is all tissue, Otsu would otherwise part dark from pale tissue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

MIN_SATURATION = 0.05
MAX_SATURATION = 0.12
"""Bounds of the threshold. Glass has a saturation near 0.02, pale stroma and fat about 0.08 to 0.2."""

GLASS_MAX_SATURATION = 0.07
GLASS_MIN_VALUE = 0.75
GLASS_MIN_GAP = 0.06
"""The paler class is glass when its mean is this unsaturated and bright, and this far from the other's."""

SMOOTHING_UM = 4.0
CLOSE_RADIUS_UM = 16.0
OPEN_RADIUS_UM = 8.0
REMOVABLE = ("pen", "fold", "bubble")
"""Artefacts that can be taken out of the tissue. Blur is measured on sampled tiles and has no mask."""


@dataclass(frozen=True)
class TissueSettings:
    """How tissue is cleaned up.

    Attributes:
        min_area_um2: smaller pieces are dropped. max_hole_um2: smaller holes are filled.
        remove: artefacts taken out of the tissue, of :data:`REMOVABLE`.
    """

    min_area_um2: float = 10_000.0
    max_hole_um2: float = 20_000.0
    remove: tuple[str, ...] = ("pen",)

    def __post_init__(self) -> None:
        if not (self.min_area_um2 >= 0 and self.max_hole_um2 >= 0):
            raise ValueError(f"areas must not be negative, got {self.min_area_um2} and {self.max_hole_um2}")
        unknown = sorted(set(self.remove) - set(REMOVABLE))
        if unknown:
            raise ValueError(f"{unknown[0]!r} cannot be removed; expected {', '.join(REMOVABLE)}")


@dataclass(frozen=True)
class TissueMask:
    """Tissue on an overview.

    Attributes:
        mask: bool (H, W).
        scale: level-0 pixels per mask pixel along x and y.
        threshold: saturation in force. glass_found: whether a class of empty glass was told apart.
        n_objects: connected pieces.
    """

    mask: np.ndarray
    scale: tuple[float, float]
    threshold: float
    glass_found: bool
    n_objects: int

    @property
    def fraction(self) -> float:
        """Share of the slide that is tissue."""
        return float(self.mask.mean()) if self.mask.size else 0.0

    def without(self, taken: np.ndarray, min_px: float) -> TissueMask:
        """The mask without some pixels, and without what is then smaller than ``min_px``."""
        mask = drop_small(self.mask & ~taken, min_px)
        return replace(self, mask=mask, n_objects=count_objects(mask))


def hsv(rgb: np.ndarray) -> np.ndarray:
    """uint8 RGB → float HSV in 0..1, shape (H, W, 3)."""
    from skimage.color import rgb2hsv

    return rgb2hsv(rgb)


def saturation_threshold(saturation: np.ndarray, value: np.ndarray) -> tuple[float, bool]:
    """``(threshold, glass_found)`` for 1-d samples of saturation and value, both in 0..1."""
    from skimage.filters import threshold_otsu

    if saturation.size == 0 or float(np.ptp(saturation)) < 1e-6:
        return MIN_SATURATION, False
    otsu = float(threshold_otsu(saturation))
    pale = saturation <= otsu
    if not pale.any() or pale.all():
        return MIN_SATURATION, False
    mean_pale, mean_rest = float(saturation[pale].mean()), float(saturation[~pale].mean())
    glass = (
        mean_pale <= GLASS_MAX_SATURATION
        and float(value[pale].mean()) >= GLASS_MIN_VALUE
        and mean_rest - mean_pale >= GLASS_MIN_GAP
    )
    return (float(np.clip(otsu, MIN_SATURATION, MAX_SATURATION)), True) if glass else (MIN_SATURATION, False)


def find_tissue(
    rgb: np.ndarray,
    scale: tuple[float, float],
    spacing_um: float,
    *,
    ignore: np.ndarray | None = None,
    settings: TissueSettings | None = None,
) -> TissueMask:
    """Find tissue on an overview.

    Args:
        rgb: uint8 (H, W, 3).
        scale: level-0 pixels per overview pixel.
        spacing_um: um per overview pixel.
        ignore: bool (H, W), pixels that are not tissue whatever their colour (pen, unreadable).
        settings: areas of pieces and holes.

    Returns:
        A mask that may be empty.
    """
    from scipy import ndimage
    from skimage.morphology import isotropic_closing, isotropic_opening

    settings = settings or TissueSettings()
    smooth = ndimage.gaussian_filter(rgb.astype(np.float32), (SMOOTHING_UM / spacing_um,) * 2 + (0,))
    colour = hsv(np.clip(smooth, 0, 255) / 255.0)
    # Saturation is noise where there is hardly any light (black padding of some scanners).
    usable = colour[..., 2] > 0.1
    if ignore is not None:
        usable &= ~ignore
    threshold, glass = saturation_threshold(colour[..., 1][usable], colour[..., 2][usable])
    mask = usable & (colour[..., 1] > threshold)
    if mask.any():
        mask = isotropic_closing(mask, CLOSE_RADIUS_UM / spacing_um)
        mask = isotropic_opening(mask, OPEN_RADIUS_UM / spacing_um)
        mask = drop_small(mask, settings.min_area_um2 / spacing_um**2)
        mask = ~drop_small(~mask, settings.max_hole_um2 / spacing_um**2, keep_border=True)
        if ignore is not None:
            mask = drop_small(mask & ~ignore, settings.min_area_um2 / spacing_um**2)
    return TissueMask(mask, scale, threshold, glass, count_objects(mask))


def count_objects(mask: np.ndarray) -> int:
    """Number of 4-connected pieces."""
    from skimage.measure import label

    return int(label(mask, connectivity=1).max(initial=0))


def drop_small(mask: np.ndarray, min_px: float, *, keep_border: bool = False) -> np.ndarray:
    """Remove 4-connected pieces below ``min_px``; with ``keep_border`` those touching the edge stay."""
    from skimage.measure import label

    labels = label(mask, connectivity=1)
    keep = np.bincount(labels.ravel()) >= min_px
    if keep_border:
        edge = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
        keep[np.unique(edge)] = True
    keep[0] = False
    return keep[labels]
