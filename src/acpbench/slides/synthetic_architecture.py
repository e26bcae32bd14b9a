"""Where glands, sheets and nuclei of a generated slide lie: where its labels become shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acpbench.slides import synthetic_fields as sf
from acpbench.slides import synthetic_nuclei as sn
from acpbench.slides.synthetic_fields import FIELD_PX

GLAND_GRADES = ("well", "moderate", "poor")
PLEOMORPHISM = ("low", "high")

_NEIGHBOURS = {"well": ("moderate",), "moderate": ("well", "poor"), "poor": ("moderate",)}
_MAIN_SHARE = (0.62, 0.95)
_SEVERITY = {"low": (0.0, 0.40), "high": (0.32, 0.85)}


@dataclass(frozen=True)
class Architecture:
    """Tumour of one slide: glands, and signed distance fields (slide px, negative inside).

    ``solid_px`` is the distance to solid sheets, ``epithelium_px`` to all epithelium (lumens included),
    ``lumen_px`` to lumens; each ``(FIELD_PX, FIELD_PX)`` float32.
    """

    round_glands: list[sf.Blob]
    fused_glands: list[sf.Blob]
    solid_px: np.ndarray
    epithelium_px: np.ndarray
    lumen_px: np.ndarray


def build_architecture(rng: np.random.Generator, grade: str, outline: np.ndarray) -> Architecture:
    """Lay out a tumour within a tissue outline.

    The grade's own pattern takes 62 to 95% of the tumour and a neighbouring grade's the rest, as in real
    tumours, so single tiles can mislead.
    """
    tumour = sf.smooth_noise(rng, 260, 2)
    edge = np.quantile(tumour[outline < -45], 0.2)
    region_px = np.maximum((edge - tumour) * 150, outline + 45)
    mix = sf.smooth_noise(rng, 240, 2)
    cut = np.quantile(mix[region_px < 0], rng.uniform(*_MAIN_SHARE))
    other = _NEIGHBOURS[grade][int(rng.integers(0, len(_NEIGHBOURS[grade])))]
    border_px = (mix - cut) * 150
    regions = {grade: np.maximum(region_px, border_px), other: np.maximum(region_px, -border_px)}
    round_glands: list[sf.Blob] = []
    fused_glands: list[sf.Blob] = []
    lumens: list[sf.Blob] = []
    solid_px = np.full((FIELD_PX, FIELD_PX), sf.FAR_PX, np.float32)
    for name in GLAND_GRADES:
        if name not in regions:
            continue
        if name == "well":
            round_glands, holes = _round_glands(rng, regions[name] < 0)
            lumens += holes
        elif name == "moderate":
            fused_glands, holes = _fused_glands(rng, regions[name] < 0)
            lumens += holes
        else:
            solid_px = _solid_sheets(rng, regions[name])
    epithelium_px = np.minimum(sf.union_distance(round_glands + fused_glands), solid_px)
    epithelium_px = np.maximum(epithelium_px, outline + 10)
    return Architecture(round_glands, fused_glands, solid_px, epithelium_px, sf.union_distance(lumens))


def _round_glands(rng: np.random.Generator, region: np.ndarray) -> tuple[list[sf.Blob], list[sf.Blob]]:
    """Separate round glands, each with one open lumen of its own shape (well formed)."""
    radii = np.sort(rng.normal(70, 15, 6000).clip(38, 110))[::-1]
    glands = [sf.random_blob(rng, *disc, 0.07) for disc in sf.throw_darts(rng, region, radii, spacing=1.0)]
    lumens = [
        sf.Blob(g.y, g.x, g.radius_px * rng.uniform(0.42, 0.51), g.amplitudes, g.phases) for g in glands
    ]
    return glands, lumens


def _fused_glands(rng: np.random.Generator, region: np.ndarray) -> tuple[list[sf.Blob], list[sf.Blob]]:
    """Overlapping irregular glands with an off-centre lumen, several small ones or none (moderate)."""
    discs = sf.throw_darts(rng, region, rng.normal(64, 18, 1500).clip(34, 110), spacing=0.80)
    glands = [sf.random_blob(rng, *disc, 0.20) for disc in discs]
    lumens: list[sf.Blob] = []
    for gland in glands:
        pick = rng.random()
        if pick < 0.35:
            y, x = np.array([gland.y, gland.x]) + rng.normal(0, 0.1, 2) * gland.radius_px
            lumens.append(sf.random_blob(rng, y, x, gland.radius_px * rng.uniform(0.28, 0.45), 0.25))
        elif pick < 0.75:  # cribriform: several punched-out holes
            holes = int(rng.integers(2, 5))
            for angle in rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(holes) / holes:
                y = gland.y + 0.45 * gland.radius_px * np.sin(angle)
                x = gland.x + 0.45 * gland.radius_px * np.cos(angle)
                lumens.append(sf.random_blob(rng, y, x, gland.radius_px * rng.uniform(0.12, 0.2), 0.1))
    return glands, lumens


def _solid_sheets(rng: np.random.Generator, region_px: np.ndarray) -> np.ndarray:
    """Signed distance (slide px) to sheets without lumens, over 78% of their region (poor)."""
    field = sf.smooth_noise(rng, 95, 3)
    region = region_px < 0
    threshold = np.quantile(field[region], 0.22) if region.any() else np.inf
    return np.maximum((threshold - field) * 60, region_px).astype(np.float32)


def place_nuclei(
    rng: np.random.Generator,
    pleomorphism: str,
    tumour: Architecture,
    outline: np.ndarray,
    fat_px: np.ndarray,
    fibre_angle: np.ndarray,
) -> sn.Nuclei:
    """All nuclei of a slide: tumour nuclei by architecture, then spindle cells and lymphocytes in stroma.

    Severity of atypia is uniform over 0 to 0.40 (low) or 0.32 to 0.85 (high): the classes overlap a little.
    """
    severity = rng.uniform(*_SEVERITY[pleomorphism])
    focus = sf.smooth_noise(rng, 200, 2)
    # Atypia is patchy: a fifth of the tumour looks milder, so a slide is more than any one of its tiles.
    local = severity * (0.25 + 0.75 / (1 + np.exp(-(focus + 0.85) * 5)))
    spread_out = 1 + 0.30 * severity  # larger cells lie further apart
    rings = _ring_positions(rng, tumour.round_glands, 12.5 * spread_out, rows=1, jitter_px=1.5)
    double = _ring_positions(rng, tumour.fused_glands, 12.5 * spread_out, rows=2, jitter_px=3.5)
    solid = _filled(rng, 17.0 * spread_out, tumour.solid_px, -5.0)
    fused_px = sf.union_distance(tumour.fused_glands)
    inner = _filled(
        rng, 19.0 * spread_out, fused_px, -34.0
    )  # stratified: space between rows and lumens fills up
    groups = []
    for (y, x, angle), stretch in ((rings, 1.4), (double, 1.25), (inner, 1.25), (solid, 1.12)):
        allowed = (sf.sample(tumour.epithelium_px, y, x) < -5) & (sf.sample(tumour.lumen_px, y, x) > 8)
        y, x, angle = y[allowed], x[allowed], angle[allowed]
        groups.append(sn.epithelial_nuclei(rng, y, x, angle, sf.sample(local, y, x), stretch))
    epithelial = sn.join(groups)
    epithelial = epithelial.keep(_uncrowded(epithelial))
    y, x = sf.jittered_lattice(rng, 31.0, 0.33)
    free = (sf.sample(tumour.epithelium_px, y, x) > 7) & (sf.sample(fat_px, y, x) > 4)
    free &= sf.sample(outline, y, x) < -9
    stromal = sn.stromal_nuclei(rng, y[free], x[free], sf.sample(fibre_angle, y[free], x[free]))
    return sn.join([epithelial, stromal])


def _filled(
    rng: np.random.Generator, spacing_px: float, distance_px: np.ndarray, below_px: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(y, x, angle)`` of a jittered lattice where a distance field is under ``below_px``; any direction."""
    y, x = sf.jittered_lattice(rng, spacing_px, 0.18)
    inside = sf.sample(distance_px, y, x) < below_px
    return y[inside], x[inside], rng.uniform(0, np.pi, int(inside.sum()))


def _ring_positions(
    rng: np.random.Generator, glands: list[sf.Blob], spacing_px: float, rows: int, jitter_px: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Basal nuclei: ``(y, x, angle)`` along each gland's outline, the long axis towards the lumen."""
    ys, xs, angles = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    for gland in glands:
        for layer in range(rows):
            inset = 12.0 + 15.0 * layer
            count = max(int(2 * np.pi * (gland.radius_px - inset) / spacing_px), 4)
            theta = (np.arange(count) + rng.random()) * 2 * np.pi / count + rng.normal(0, 0.12 / count, count)
            radius = gland.outline_px(theta) - inset + rng.normal(0, jitter_px, count)
            ys.append(gland.y + radius * np.sin(theta))
            xs.append(gland.x + radius * np.cos(theta))
            angles.append(theta)
    return np.concatenate(ys), np.concatenate(xs), np.concatenate(angles)


def _uncrowded(nuclei: sn.Nuclei) -> np.ndarray:
    """Indices of nuclei left after dropping those mostly hidden under an earlier neighbour."""
    from scipy.spatial import cKDTree

    positions = np.column_stack([nuclei.y, nuclei.x])
    dropped = np.zeros(len(nuclei), bool)
    if not len(nuclei):
        return np.flatnonzero(~dropped)
    pairs = cKDTree(positions).query_pairs(24.0, output_type="ndarray")
    first, second = pairs.min(axis=1), pairs.max(axis=1)
    gap = np.hypot(*(positions[first] - positions[second]).T)
    close = gap < 0.72 * (nuclei.minor_px[first] + nuclei.minor_px[second])
    first, second = first[close], second[close]
    # Sorted, so that which of two neighbours goes never depends on the order the tree is walked in.
    order = np.lexsort((second, first))
    for one, other in zip(first[order].tolist(), second[order].tolist()):
        if not dropped[one] and not dropped[other]:
            dropped[other] = True
    return np.flatnonzero(~dropped)
