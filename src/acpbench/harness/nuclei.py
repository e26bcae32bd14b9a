"""Nuclei by classical image analysis: colour deconvolution, Otsu's threshold, distance-transform watershed.

Stains are unmixed with the matrix of Ruifrok and Johnston (Anal Quant Cytol Histol 2001) as scikit-image has
it; the threshold is Otsu's (1979) over all regions of a slide together; touching nuclei are parted by a
watershed on the distance transform. Counting follows the unbiased frame (Gundersen 1977): a nucleus that
touches the top or the left border is not counted. Pure functions on arrays; a screen, not a trained model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHING_UM = 0.75
OPENING_RADIUS_UM = 0.75
MARKER_DISTANCE_UM = 2.5
MIN_STAIN_GAP = 0.01
"""Least difference, in units of scikit-image's haematoxylin channel, between the two classes of pixels.

Below it there are no nuclei and Otsu would part noise from noise."""
MIN_TISSUE_SATURATION = 0.05
_POOL_PIXELS = 2_000_000


@dataclass(frozen=True)
class Nuclei:
    """Nuclei of one region.

    Attributes:
        labels: int32 (H, W), 0 is background, 1..n are the nuclei.
        counted: bool (n,), inside the unbiased frame.
        whole: bool (n,), touching no border.
        area_um2, eccentricity, haematoxylin: float (n,).
        centroid_px: float (n, 2), x and y in pixels of the region.
    """

    labels: np.ndarray
    counted: np.ndarray
    whole: np.ndarray
    area_um2: np.ndarray
    eccentricity: np.ndarray
    haematoxylin: np.ndarray
    centroid_px: np.ndarray


def haematoxylin(rgb: np.ndarray, spacing_um: float) -> np.ndarray:
    """Smoothed haematoxylin channel, float32 (H, W); higher is more stain.

    Args:
        rgb: uint8 (H, W, 3).
        spacing_um: um per pixel.
    """
    from scipy.ndimage import gaussian_filter
    from skimage.color import rgb2hed

    return gaussian_filter(rgb2hed(rgb)[..., 0].astype(np.float32), SMOOTHING_UM / spacing_um)


def tissue_pixels(rgb: np.ndarray) -> np.ndarray:
    """Bool (H, W): pixels with more colour than empty glass."""
    from acpbench.slides.tissue import hsv

    colour = hsv(rgb)
    return (colour[..., 1] > MIN_TISSUE_SATURATION) & (colour[..., 2] > 0.1)


def stain_threshold(stains: Sequence[np.ndarray], tissues: Sequence[np.ndarray]) -> float | None:
    """Threshold common to all regions of a slide, ``None`` when nothing stands out from the rest.

    Args:
        stains: :func:`haematoxylin` of each region.
        tissues: :func:`tissue_pixels` of each region.
    """
    from skimage.filters import threshold_otsu

    values = [stain[tissue] for stain, tissue in zip(stains, tissues, strict=True)]
    step = max(1, sum(map(len, values)) // _POOL_PIXELS)
    pool = np.concatenate([part[::step] for part in values]) if values else np.empty(0, np.float32)
    if pool.size < 2 or float(np.ptp(pool)) < MIN_STAIN_GAP:
        return None
    threshold = float(threshold_otsu(pool))
    above = pool > threshold
    if not above.any() or above.all():
        return None
    gap = float(pool[above].mean() - pool[~above].mean())
    return threshold if gap >= MIN_STAIN_GAP else None


def segment(
    stain: np.ndarray,
    tissue: np.ndarray,
    threshold: float | None,
    spacing_um: float,
    *,
    min_area_um2: float,
    max_area_um2: float,
) -> Nuclei:
    """Nuclei of one region.

    Args:
        stain: :func:`haematoxylin` of the region. tissue: :func:`tissue_pixels` of it.
        threshold: :func:`stain_threshold` of its slide; ``None`` gives no nucleus.
        spacing_um: um per pixel.
        min_area_um2, max_area_um2: objects outside are left out.
    """
    from scipy.ndimage import binary_fill_holes, distance_transform_edt, gaussian_filter
    from skimage.feature import peak_local_max
    from skimage.measure import label, regionprops_table
    from skimage.morphology import isotropic_opening
    from skimage.segmentation import relabel_sequential, watershed

    pixel_um2 = spacing_um**2
    labels = np.zeros(stain.shape, dtype=np.int32)
    mask = np.zeros(stain.shape, bool) if threshold is None else (stain > threshold) & tissue
    if mask.any():
        mask = binary_fill_holes(isotropic_opening(mask, OPENING_RADIUS_UM / spacing_um))
    if mask.any():
        distance = gaussian_filter(distance_transform_edt(mask), SMOOTHING_UM / spacing_um)
        pieces = label(mask, connectivity=1)
        peaks = peak_local_max(
            distance,
            min_distance=max(1, round(MARKER_DISTANCE_UM / spacing_um)),
            labels=pieces,
            exclude_border=False,
        )
        markers = np.zeros_like(labels)
        markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
        labels = watershed(-distance, markers, mask=mask).astype(np.int32)
        area = np.bincount(labels.ravel()) * pixel_um2
        keep = (area >= min_area_um2) & (area <= max_area_um2)
        keep[0] = False
        labels = relabel_sequential(np.where(keep[labels], labels, 0))[0].astype(np.int32)
    table = regionprops_table(
        labels,
        intensity_image=stain,
        properties=("bbox", "area", "centroid", "eccentricity", "mean_intensity"),
    )
    height, width = labels.shape
    top, left = table["bbox-0"] == 0, table["bbox-1"] == 0
    bottom, right = table["bbox-2"] == height, table["bbox-3"] == width
    return Nuclei(
        labels,
        ~(top | left),
        ~(top | left | bottom | right),
        table["area"] * pixel_um2,
        table["eccentricity"],
        table["mean_intensity"],
        np.stack([table["centroid-1"], table["centroid-0"]], axis=1),
    )


def outlined(rgb: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The region with the border of every nucleus drawn, uint8 (H, W, 3)."""
    from skimage.segmentation import find_boundaries

    picture = rgb.copy()
    picture[find_boundaries(labels, mode="inner")] = (255, 230, 0)
    return picture
