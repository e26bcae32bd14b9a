"""Fields that a generated slide is painted from: smooth noise, tissue outline, fibres and glands.

Fields are float32 arrays of ``FIELD_PX`` x ``FIELD_PX`` (half the slide's side, 1.0 um/px), which keeps a
slide under a few seconds on one core; distances are given in slide pixels (0.5 um/px) all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

SLIDE_PX = 2048
"""Side of the base level in pixels."""
FIELD_PX = SLIDE_PX // 2
"""Side of a field in pixels."""
FAR_PX = 400.0
"""Distance that stands for 'no gland anywhere near'."""


def resize_field(field: np.ndarray, side_px: int) -> np.ndarray:
    """Resize a square float32 field bicubically to ``(side_px, side_px)``."""
    image = Image.fromarray(np.ascontiguousarray(field, dtype=np.float32))
    return np.asarray(image.resize((side_px, side_px), Image.Resampling.BICUBIC))


def smooth_noise(
    rng: np.random.Generator, cell_px: float, octaves: int = 1, side_px: int = FIELD_PX
) -> np.ndarray:
    """Zero-mean unit-variance noise ``(side_px, side_px)``; ``cell_px``: widest feature in field pixels."""
    total = np.zeros((side_px, side_px), np.float32)
    for octave in range(octaves):
        cell = max(cell_px / 2**octave, 1.0)
        nodes = int(np.ceil(side_px / cell)) + 3
        grid = rng.standard_normal((nodes, nodes), dtype=np.float32)
        # Enlarge first and crop, so that cells have one size whatever the number of nodes.
        enlarged = resize_field(grid, int(np.ceil(nodes * cell)))
        margin = int(cell)
        total += enlarged[margin : margin + side_px, margin : margin + side_px] / 1.8**octave
    total -= total.mean()
    return total / max(float(total.std()), 1e-6)


@lru_cache(maxsize=1)
def field_grid() -> tuple[np.ndarray, np.ndarray]:
    """``(y, x)`` of every field pixel's centre, in slide pixels; each ``(FIELD_PX, FIELD_PX)`` float32."""
    axis = (np.arange(FIELD_PX, dtype=np.float32) + 0.5) * 2
    y, x = np.meshgrid(axis, axis, indexing="ij")
    y.setflags(write=False)
    x.setflags(write=False)
    return y, x


def soft_step(distance_px: np.ndarray, softness_px: float) -> np.ndarray:
    """1 where a signed distance is negative (inside), 0 outside, linear over ``2 * softness_px``."""
    return np.clip(0.5 - distance_px / (2 * softness_px), 0.0, 1.0)


def tissue_distance(rng: np.random.Generator) -> np.ndarray:
    """Approximate signed distance (slide px, negative inside) to the outline of one or two pieces."""
    side = FIELD_PX // 4
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side * 2 - 1
    y, x = np.meshgrid(axis, axis, indexing="ij")
    rough = smooth_noise(rng, side / 5, 4, side) * 0.035
    pieces = [(rng.uniform(-0.06, 0.06), rng.uniform(-0.06, 0.06), rng.uniform(0.72, 0.8))]
    if rng.random() < 0.35:  # a detached fragment in one corner, as on many biopsies
        corner = rng.choice([-0.78, 0.78], 2)
        pieces.append((corner[0], corner[1], rng.uniform(0.13, 0.18)))
    nearest = np.full((side, side), 2.0, np.float32)
    for centre_y, centre_x, radius in pieces:
        stretch = rng.uniform(0.92, 1.1)
        dy, dx = (y - centre_y) * stretch, (x - centre_x) / stretch
        angle = np.arctan2(dy, dx)
        outline = np.full_like(angle, radius)
        for order in range(2, 8):
            wave = rng.normal(0, 0.07 / order**0.8)
            outline += np.float32(radius * wave) * np.cos(order * angle + rng.uniform(0, 2 * np.pi))
        nearest = np.minimum(nearest, np.hypot(dy, dx) - outline)
    return resize_field((nearest + rough) * (SLIDE_PX / 2), FIELD_PX)


@dataclass(frozen=True)
class Fibres:
    """Collagen: ``density`` in about 0..1 and ``angle`` (radians from +x, the way the fibres run)."""

    density: np.ndarray
    angle: np.ndarray


def fibres(rng: np.random.Generator) -> Fibres:
    """Wavy fibre bundles: noise long in one direction, read through a smooth displacement."""
    from scipy.ndimage import map_coordinates

    side = 512
    frequency_y = np.fft.fftfreq(side).astype(np.float32)[:, None]
    frequency_x = np.fft.rfftfreq(side).astype(np.float32)[None, :]
    across_px, along_px = 1.6, 22.0  # standard deviations in field pixels
    kernel = np.exp(-2 * np.pi**2 * ((frequency_y * across_px) ** 2 + (frequency_x * along_px) ** 2))
    white = rng.standard_normal((side, side), dtype=np.float32)
    strand = np.fft.irfft2(np.fft.rfft2(white) * kernel, s=(side, side)).astype(np.float32)
    strand /= strand.std()
    turn = rng.uniform(0, np.pi)
    y, x = (axis / 2 for axis in field_grid())
    wave = smooth_noise(rng, 190, 3) * 46
    shift = smooth_noise(rng, 260, 1) * 30
    across = -np.float32(np.sin(turn)) * x + np.float32(np.cos(turn)) * y + wave
    along = np.float32(np.cos(turn)) * x + np.float32(np.sin(turn)) * y + shift
    # Linear interpolation: nearest samples leave comb-like steps where a bundle bends.
    density = map_coordinates(strand, np.stack([across, along]), order=1, mode="grid-wrap")
    slope_y, slope_x = np.gradient(across)
    angle = np.arctan2(slope_x, -slope_y)  # at right angles to the steepest change across the bundle
    bundle = smooth_noise(rng, 40, 3) * 0.12
    return Fibres(np.clip(0.5 + 0.22 * density + bundle, 0.0, 1.1), angle.astype(np.float32))


@dataclass(frozen=True)
class Blob:
    """A roundish outline: ``radius(angle) = radius_px * (1 + sum of harmonics)``, in slide pixels."""

    y: float
    x: float
    radius_px: float
    amplitudes: tuple[float, ...]
    phases: tuple[float, ...]

    def outline_px(self, angle: np.ndarray) -> np.ndarray:
        """Radius of the outline at each angle (radians), in slide pixels."""
        factor = np.ones_like(angle)
        for order, (amplitude, phase) in enumerate(zip(self.amplitudes, self.phases), start=2):
            factor += np.float32(amplitude) * np.cos(order * angle + np.float32(phase))
        return self.radius_px * factor


def random_blob(rng: np.random.Generator, y: float, x: float, radius_px: float, irregularity: float) -> Blob:
    """A :class:`Blob` whose harmonics of order 2 to 5 have standard deviation ``irregularity / order``."""
    orders = np.arange(2, 6)
    amplitudes = rng.normal(0, irregularity, 4) / orders * 1.5
    return Blob(y, x, radius_px, tuple(amplitudes.tolist()), tuple(rng.uniform(0, 2 * np.pi, 4).tolist()))


def union_distance(blobs: list[Blob]) -> np.ndarray:
    """Signed distance (slide px, negative inside) to the union of blobs; ``FAR_PX`` far from all of them."""
    field = np.full((FIELD_PX, FIELD_PX), FAR_PX, np.float32)
    grid_y, grid_x = field_grid()
    for blob in blobs:
        reach = int(blob.radius_px * 0.8) + 24  # 1.6 radii, in field pixels
        top, left = max(int(blob.y / 2) - reach, 0), max(int(blob.x / 2) - reach, 0)
        window = np.s_[top : max(int(blob.y / 2) + reach, 0), left : max(int(blob.x / 2) + reach, 0)]
        dy, dx = grid_y[window] - np.float32(blob.y), grid_x[window] - np.float32(blob.x)
        if dy.size == 0:
            continue
        distance = np.hypot(dy, dx) - blob.outline_px(np.arctan2(dy, dx))
        np.minimum(field[window], distance, out=field[window])
    return field


def sample(field: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of a field at slide-pixel positions (nearest; positions outside are clamped to the edge)."""
    last = FIELD_PX - 1
    rows = np.clip((np.asarray(y) / 2).astype(np.int64), 0, last)
    return field[rows, np.clip((np.asarray(x) / 2).astype(np.int64), 0, last)]


def throw_darts(
    rng: np.random.Generator,
    allowed: np.ndarray,
    radii_px: np.ndarray,
    *,
    spacing: float,
    area_px: float = np.inf,
) -> list[tuple[float, float, float]]:
    """Place discs ``(y, x, radius)`` on allowed field pixels, one try per given radius.

    A disc is kept when its centre is at least ``spacing * (r1 + r2)`` from every disc kept before (below 1
    they overlap). Stops once the discs cover ``area_px`` slide pixels.
    """
    candidates = np.flatnonzero(allowed)
    if candidates.size == 0:
        return []
    chosen = candidates[rng.integers(0, candidates.size, radii_px.size)]
    ys, xs = (chosen // FIELD_PX) * 2.0 + 1, (chosen % FIELD_PX) * 2.0 + 1
    kept = np.empty((radii_px.size, 3))
    count, covered = 0, 0.0
    for y, x, radius in zip(ys, xs, radii_px):
        if covered >= area_px:
            break
        others = kept[:count]
        gap = np.hypot(others[:, 0] - y, others[:, 1] - x) - spacing * (others[:, 2] + radius)
        if count and gap.min() < 0:
            continue
        kept[count] = y, x, radius
        count += 1
        covered += np.pi * radius**2
    return [tuple(row) for row in kept[:count].tolist()]


def jittered_lattice(
    rng: np.random.Generator, spacing_px: float, jitter: float
) -> tuple[np.ndarray, np.ndarray]:
    """``(y, x)`` of a hexagonal lattice over the slide, each point moved by N(0, ``jitter * spacing_px``)."""
    step_y = spacing_px * np.sqrt(3) / 2
    rows = np.arange(0, SLIDE_PX, step_y)
    columns = np.arange(0, SLIDE_PX, spacing_px)
    y = np.repeat(rows, columns.size)
    x = np.tile(columns, rows.size) + np.repeat(np.arange(rows.size) % 2, columns.size) * spacing_px / 2
    return y + rng.normal(0, jitter * spacing_px, y.size), x + rng.normal(0, jitter * spacing_px, x.size)
