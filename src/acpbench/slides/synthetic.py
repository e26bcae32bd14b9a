"""Generated H&E-like slides whose classes differ in shape and not in mean colour.

A slide is a pure function of one manifest row (seed and labels). Stain densities are painted as fields and
turned into colour by the Beer-Lambert law; each slide is then matched to a mean tissue colour that is drawn
from the seed alone, so that neither nuclear grade nor gland grade can be read off the average colour:

* ``pleomorphism`` (low, high): size, spread, outline and chromatin of tumour nuclei, patchy within a tumour;
* ``gland_grade`` (well, moderate, poor): round glands with lumen, fused and cribriform glands, solid sheets,
  with some of a neighbouring grade in every tumour. The white area that lumens take is made up with fat cells
  where there are fewer lumens.

The pictures are for exercising software. They are no model of any disease.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from acpbench.core.errors import InputError
from acpbench.core.ids import check_id
from acpbench.slides import synthetic_fields as sf
from acpbench.slides.synthetic_architecture import (
    GLAND_GRADES,
    PLEOMORPHISM,
    build_architecture,
    place_nuclei,
)
from acpbench.slides.synthetic_fields import FIELD_PX, SLIDE_PX
from acpbench.slides.synthetic_nuclei import paint_nuclei

DEFECTS = ("none", "pen", "fold", "broken", "empty")

MEAN_TISSUE_RGB = (205.0, 152.0, 190.0)
"""Mean colour of tissue (lumens and fat included) that slides are matched to, before their own jitter."""
_HAEMATOXYLIN = (0.62, 0.74, 0.29)
_EOSIN = (0.13, 0.88, 0.36)
_WHITE_SHARE = 0.130


def slide_colour(seed: int) -> dict[str, np.ndarray]:
    """Colour of a slide, drawn from its seed alone so that no class can lean on it.

    Returns:
        ``mean_rgb`` (3,) target mean of tissue, ``glass_rgb`` (3,) colour of empty glass, ``stains`` (2, 3)
        optical density of haematoxylin and eosin by channel, ``white_share`` () share of tissue that is lumen
        or fat.
    """
    rng = np.random.default_rng([seed, 1])
    glass = 244 + rng.normal(0, 1.2) + rng.normal(0, 0.6, 3)
    strength, hue = rng.normal(0, 5.0), rng.normal(0, 3.5)
    mean = np.array(MEAN_TISSUE_RGB) + strength * np.array([0.8, 1.2, 0.8]) + hue * np.array([1.0, 0.0, -0.8])
    stains = np.array([_HAEMATOXYLIN, _EOSIN]) * np.exp(rng.normal(0, 0.05, (2, 3)))
    return {
        "mean_rgb": mean + rng.normal(0, 1.0, 3),
        "glass_rgb": glass,
        "stains": stains,
        "white_share": np.float64(_WHITE_SHARE + rng.normal(0, 0.008)),
    }


def render_slide_rgb(row: Mapping[str, Any]) -> np.ndarray:
    """Paint the base level of a slide: uint8 ``(2048, 2048, 3)`` at 0.5 um/px.

    Args:
        row: manifest row with ``seed``, ``pleomorphism``, ``gland_grade`` and ``defect``.

    Raises:
        InputError: a field is missing or has an unknown value, or the row's slide is a broken file.
    """
    seed, pleomorphism, grade, defect = _checked(row)
    if defect == "broken":
        raise InputError("a broken slide has no picture", field="defect")
    colour = slide_colour(seed)
    grain = np.random.default_rng([seed, 2]).standard_normal((SLIDE_PX, SLIDE_PX), dtype=np.float32)
    if defect == "empty":
        rgb = np.broadcast_to(colour["glass_rgb"].astype(np.float32), (SLIDE_PX, SLIDE_PX, 3))
        return _to_bytes(rgb + 0.8 * grain[:, :, None])
    haematoxylin, eosin, tissue = _paint_stains(seed, pleomorphism, grade, float(colour["white_share"]))
    density = haematoxylin[:, :, None] * colour["stains"][0].astype(np.float32)
    density += eosin[:, :, None] * colour["stains"][1].astype(np.float32)
    density *= _channel_gains(density, tissue, colour["mean_rgb"], colour["glass_rgb"])
    if defect == "fold":
        density = _fold(np.random.default_rng([seed, 7]), density)
    rgb = np.exp(np.negative(density, out=density), out=density)
    rgb *= colour["glass_rgb"].astype(np.float32)
    if defect == "pen":
        rgb = _pen(np.random.default_rng([seed, 8]), rgb, tissue)
    rgb += 1.4 * grain[:, :, None]
    return _to_bytes(rgb)


def draw_slide(row: Mapping[str, Any], output: str | os.PathLike[str]) -> None:
    """Write the slide of one manifest row, atomically; the same row gives the same bytes.

    Args:
        row: manifest row (``slide_id``, ``seed``, ``pleomorphism``, ``gland_grade``, ``defect``).
        output: ``.svs`` file to write.

    Raises:
        InputError: a field is missing or has an unknown value.
    """
    from acpbench.slides.synthetic_write import write_aperio, write_broken

    seed, _, _, defect = _checked(row)
    slide_id = check_id(row.get("slide_id", ""), "slide_id")
    if defect == "broken":
        write_broken(output, seed)
        return
    write_aperio(output, render_slide_rgb(row), slide_id)


def _checked(row: Mapping[str, Any]) -> tuple[int, str, str, str]:
    try:
        seed = int(row["seed"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"expected a whole number, got {row.get('seed')!r}", field="seed") from None
    if seed < 0:
        raise InputError(f"expected a number of at least 0, got {seed}", field="seed")
    for field, allowed in (
        ("pleomorphism", PLEOMORPHISM),
        ("gland_grade", GLAND_GRADES),
        ("defect", DEFECTS),
    ):
        if row.get(field) not in allowed:
            raise InputError(f"expected one of {', '.join(allowed)}, got {row.get(field)!r}", field=field)
    return seed, str(row["pleomorphism"]), str(row["gland_grade"]), str(row["defect"])


def _to_bytes(rgb: np.ndarray) -> np.ndarray:
    """Round to uint8, clipped to 0..255; overwrites ``rgb``."""
    rgb += 0.5
    return np.clip(rgb, 0, 255, out=rgb).astype(np.uint8)


# ------------------------------------------------------------------------------------------------ painting


def _fat_cells(rng: np.random.Generator, stroma: np.ndarray, missing_px: float) -> list[sf.Blob]:
    """Fat cells in clusters within stroma, covering about ``missing_px`` slide pixels of white."""
    if missing_px <= 0:
        return []
    cluster = sf.smooth_noise(rng, 130, 2)
    allowed = stroma & (cluster > np.quantile(cluster[stroma], 0.35)) if stroma.any() else stroma
    radii = rng.normal(31, 7, 4000).clip(17, 48)
    discs = sf.throw_darts(rng, allowed, radii, spacing=1.0, area_px=missing_px)
    return [sf.random_blob(rng, *disc, 0.08) for disc in discs]


def _paint_stains(
    seed: int, pleomorphism: str, grade: str, white_share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Haematoxylin and eosin density, and the tissue mask (bool), each ``(SLIDE_PX, SLIDE_PX)``."""
    rng = np.random.default_rng([seed, 3])
    outline = sf.tissue_distance(rng)
    inside = outline < 0
    tumour = build_architecture(rng, grade, outline)
    epithelium_px, lumen_px = tumour.epithelium_px, tumour.lumen_px
    fibre = sf.fibres(rng)

    white_px = white_share * inside.sum() * 4
    lumen_area_px = float((lumen_px < 0).sum() * 4)
    stroma = (outline < -50) & (epithelium_px > 26)
    fat_px = sf.union_distance(_fat_cells(rng, stroma, white_px - lumen_area_px))
    fat_px = np.maximum(fat_px, 3 - epithelium_px)  # never over a gland

    tissue = sf.soft_step(outline, 5)
    epithelium = sf.soft_step(epithelium_px, 2.5) * tissue
    lumen = sf.soft_step(lumen_px, 2.5)
    fat = sf.soft_step(fat_px + 2, 2.0)
    wall = np.exp(-np.square(fat_px / 2.6))
    # Collagen: dense bundles with pale gaps; cytoplasm: even, slightly basophilic, paler towards the lumen.
    patchy = sf.smooth_noise(rng, 120, 2)
    granular = sf.smooth_noise(rng, 7, 2)
    apical = np.exp(-np.square(np.clip(lumen_px, 0, None) / 18))
    collagen = tissue * np.clip(0.12 + 0.78 * fibre.density + 0.05 * patchy, 0.03, 1.4)
    cytoplasm = np.clip(0.50 + 0.05 * granular + 0.03 * patchy - 0.16 * apical, 0.1, 1)
    brush = 0.25 * np.exp(-np.square((lumen_px - 2) / 3.0)) * (lumen_px < 60)
    eosin = collagen * (1 - epithelium) + epithelium * (cytoplasm + brush)
    blue = 0.05 * tissue * (1 - epithelium) + epithelium * (0.17 + 0.025 * granular - 0.06 * apical)
    secretion = np.clip(0.05 + 0.05 * patchy + 0.02 * granular, 0.01, 0.25)
    eosin = eosin * (1 - lumen) + lumen * secretion
    eosin = (eosin * (1 - fat) + 0.012 * fat) * (1 - wall * tissue) + 0.42 * wall * tissue
    blue = blue * (1 - lumen) * (1 - fat)

    nuclei = place_nuclei(rng, pleomorphism, tumour, outline, fat_px, fibre.angle)
    pigment, cover = paint_nuclei(rng, nuclei)
    eosin_full = sf.resize_field(eosin, SLIDE_PX) * (1 - 0.75 * cover)
    blue_full = np.maximum(sf.resize_field(blue, SLIDE_PX), 0) * (1 - cover) + pigment
    return blue_full, np.maximum(eosin_full, 0), sf.resize_field(outline, SLIDE_PX) < 0


# ---------------------------------------------------------------------------------------- colour, defects


def _channel_gains(
    density: np.ndarray, tissue: np.ndarray, mean_rgb: np.ndarray, glass_rgb: np.ndarray
) -> np.ndarray:
    """Factors (3,) on optical density that bring mean tissue colour to ``mean_rgb`` (by bisection)."""
    step = np.s_[1::3, 1::3]
    inside = density[step][tissue[step]].astype(np.float64)
    low, high = np.full(3, 0.2), np.full(3, 5.0)
    for _ in range(22):
        middle = (low + high) / 2
        too_light = (glass_rgb * np.exp(-inside * middle)).mean(axis=0) > mean_rgb
        low, high = np.where(too_light, middle, low), np.where(too_light, high, middle)
    return ((low + high) / 2).astype(np.float32)


def _mask_of_line(points: list[tuple[float, float]], width_px: int, blur_px: float) -> np.ndarray:
    """Cover (0..1) of a stroke through ``(x, y)`` slide-pixel points, ``(SLIDE_PX, SLIDE_PX)`` float32."""
    image = Image.new("L", (FIELD_PX, FIELD_PX), 0)
    pen = ImageDraw.Draw(image)
    halves = [(x / 2, y / 2) for x, y in points]
    pen.line(halves, fill=255, width=width_px // 2, joint="curve")
    cap = width_px / 4
    for x, y in (halves[0], halves[-1]):
        pen.ellipse((x - cap, y - cap, x + cap, y + cap), fill=255)
    image = image.filter(ImageFilter.GaussianBlur(blur_px / 2))
    return np.asarray(image.resize((SLIDE_PX, SLIDE_PX), Image.Resampling.BICUBIC), np.float32) / 255


def _fold(rng: np.random.Generator, density: np.ndarray) -> np.ndarray:
    """Lay a strip of tissue double: its density is added to a shifted copy, darker along the crease."""
    turn = rng.uniform(0, np.pi)
    middle = SLIDE_PX / 2 + rng.uniform(-220, 220, 2)
    steps = np.linspace(-560, 560, 40)
    bow = rng.uniform(-90, 90) * (steps / 560) ** 2 + rng.uniform(15, 35) * np.sin(
        steps / 130 + rng.uniform(0, 6)
    )
    xs = middle[0] + steps * np.cos(turn) - bow * np.sin(turn)
    ys = middle[1] + steps * np.sin(turn) + bow * np.cos(turn)
    strip = _mask_of_line(list(zip(xs, ys)), int(rng.integers(58, 84)), 4.0)[:, :, None]
    crease = _mask_of_line(list(zip(xs, ys)), 10, 5.0)[:, :, None]
    shifted = np.roll(density, (37, 53), axis=(0, 1))
    return density + strip * (0.85 * shifted + 0.12 * (density > 0.1)) + 0.5 * crease * density


def _pen(rng: np.random.Generator, rgb: np.ndarray, tissue: np.ndarray) -> np.ndarray:
    """Draw a marker line on the glass along one side of the tissue, partly over its edge."""
    inks = np.array([(36, 88, 170), (28, 128, 84), (40, 42, 52)], np.float32)
    ink = inks[int(rng.integers(0, 3))]
    ys, xs = np.nonzero(tissue[::16, ::16])
    centre_y, centre_x = ys.mean() * 16, xs.mean() * 16
    turn = rng.uniform(0, 2 * np.pi)
    angles = turn + np.linspace(-0.45, 0.45, 30)
    reach = []
    for angle in angles:
        along = (ys * 16 - centre_y) * np.sin(angle) + (xs * 16 - centre_x) * np.cos(angle)
        reach.append(float(np.quantile(along, 0.995)))
    radius = np.mean(reach) * np.linspace(0.93, 1.04, 30) + rng.normal(0, 3, 30)
    points = list(zip(centre_x + radius * np.cos(angles), centre_y + radius * np.sin(angles)))
    cover = _mask_of_line(points, int(rng.integers(34, 46)), 2.5)
    streak = 0.80 + 0.06 * sf.resize_field(sf.smooth_noise(rng, 60, 3), SLIDE_PX)
    strength = np.clip(cover * streak, 0, 1)[:, :, None]
    return rgb * (1 - strength) + strength * ink * (0.35 + 0.65 * rgb / 255)
