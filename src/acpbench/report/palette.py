"""Colours. Colour-blind safe (Okabe-Ito based), and never the only carrier of a meaning."""

from __future__ import annotations

INK, MUTED, LINE, PAPER = "#1c2326", "#5b666b", "#d3d8d6", "#fefefe"
SERIES = ("#0a5a7a", "#c25a00", "#1b7f63", "#a13d75", "#6a6a9f", "#8a6d00", "#2f8fc4", "#7b3f20", "#4a5a2a")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">")
"""Line and marker colours with contrast of at least 3:1 on paper; each comes with its own marker shape."""

_DARK_SERIES = (
    "#6fb9d6",
    "#f0a05a",
    "#5fc7a6",
    "#e08fbc",
    "#a9a9dd",
    "#d9b94a",
    "#8cc8ef",
    "#d09a78",
    "#a9bd7c",
)
HEAT_STEPS = 11
_HEAT_LIGHT = ("#f1f4f2", "#0d5069")
_HEAT_DARK = ("#22292d", "#8fd0e4")


def _rgb(colour: str) -> tuple[float, float, float]:
    return tuple(int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))  # type: ignore[return-value]


def _mix(first: str, last: str, share: float) -> str:
    mixed = (a + (b - a) * share for a, b in zip(_rgb(first), _rgb(last)))
    return "#" + "".join(f"{round(channel * 255):02x}" for channel in mixed)


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1, relative luminance)."""

    def luminance(colour: str) -> float:
        channels = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in _rgb(colour))
        return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), channels))

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def heat_scale(dark: bool = False) -> list[tuple[str, str]]:
    """``HEAT_STEPS`` pairs (background, text), low to high; text is the better of black and white."""
    first, last = _HEAT_DARK if dark else _HEAT_LIGHT
    grounds = [_mix(first, last, step / (HEAT_STEPS - 1)) for step in range(HEAT_STEPS)]
    return [
        (ground, max(("#000000", "#ffffff"), key=lambda ink: contrast(ground, ink))) for ground in grounds
    ]


def heat_step(value: float | None) -> int | None:
    """Step of a value in [0, 1] on the heat scale (clipped), ``None`` for a missing value."""
    return None if value is None else round(min(max(value, 0.0), 1.0) * (HEAT_STEPS - 1))


def css_variables(dark: bool = False) -> str:
    """Heat and series colours as CSS custom properties."""
    pairs = heat_scale(dark)
    series = _DARK_SERIES if dark else SERIES
    return "".join(
        [f"--h{step}:{ground};--t{step}:{ink};" for step, (ground, ink) in enumerate(pairs)]
        + [f"--s{index}:{colour};" for index, colour in enumerate(series)]
    )


def adaptive(svg: str) -> str:
    """Replace the fixed colours of a figure by CSS variables, so that it follows light and dark."""
    named = {INK: "ink", MUTED: "muted", LINE: "line", PAPER: "paper"}
    named |= {colour: f"s{index}" for index, colour in enumerate(SERIES)}
    for colour, name in named.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg
