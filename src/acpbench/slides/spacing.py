"""Pixel spacing: which number is believed, where it came from, and what contradicts it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MIN_PLAUSIBLE_MPP = 0.05
MAX_PLAUSIBLE_MPP = 20.0
"""Spacings (um/px) outside this range are not those of a scanned slide: a 72 dpi tag reads as 352.8."""

_RANGE = f"{MIN_PLAUSIBLE_MPP:g}..{MAX_PLAUSIBLE_MPP:g}"

CONFLICT_TOLERANCE = 0.02
"""Relative difference between declared and recorded spacing above which they contradict each other."""

POWER_CONFLICT_TOLERANCE = 0.2
"""Relative difference between spacing and 10 / objective power above which a warning is given."""


@dataclass(frozen=True)
class Spacing:
    """Spacing of level 0 as resolved, um/px.

    Attributes:
        mpp_x, mpp_y: horizontal and vertical spacing; ``None`` when there is none to believe.
        source: ``declared``, or the property of the file it was read from; ``None`` when missing.
        problem: ``mpp_missing`` or ``mpp_implausible`` when ``mpp_x`` is ``None``.
        detail: one line that says why it is missing.
        warnings: contradictions, each holding both numbers.
    """

    mpp_x: float | None
    mpp_y: float | None
    source: str | None
    problem: str | None = None
    detail: str | None = None
    warnings: tuple[str, ...] = field(default=())


def plausible(mpp: float) -> bool:
    """Whether a spacing in um/px can be that of a scanned slide."""
    return math.isfinite(mpp) and MIN_PLAUSIBLE_MPP <= mpp <= MAX_PLAUSIBLE_MPP


def resolve_spacing(
    file_x: float | None,
    file_y: float | None,
    file_source: str | None,
    declared_mpp: float | None,
    objective_power: float | None,
) -> Spacing:
    """Choose the spacing of level 0. The declared one wins; nothing is ever guessed.

    Args:
        file_x, file_y: spacing recorded in the file, um/px; ``None`` when absent.
        file_source: the property they were read from.
        declared_mpp: spacing given by the user (manifest or option), um/px, for both axes.
        objective_power: nominal magnification recorded in the file. It only ever raises a warning: a
            spacing is not derived from it, since "20x" spans about 0.23 to 0.55 um/px.
    """
    warnings: list[str] = []
    if declared_mpp is not None and not plausible(declared_mpp):
        return Spacing(
            None,
            None,
            None,
            "mpp_implausible",
            f"declared spacing {declared_mpp:g} um/px is outside {_RANGE}",
        )
    file_ok = file_x is not None and file_y is not None and plausible(file_x) and plausible(file_y)
    implausible = None
    if file_x is not None and file_y is not None and not file_ok:
        implausible = (
            f"spacing {file_x:g} x {file_y:g} um/px recorded in the file ({file_source}) is outside {_RANGE}"
        )
    if declared_mpp is not None:
        x = y = float(declared_mpp)
        source = "declared"
        if implausible:
            warnings.append(f"{implausible}; the declared {declared_mpp:g} um/px is used")
        elif file_ok:
            assert file_x is not None and file_y is not None
            if max(abs(file_x / x - 1), abs(file_y / y - 1)) > CONFLICT_TOLERANCE:
                warnings.append(
                    f"declared spacing {x:g} um/px contradicts {file_x:g} x {file_y:g} um/px in the file "
                    f"({file_source}); the declared one is used"
                )
    elif file_ok:
        assert file_x is not None and file_y is not None
        x, y, source = float(file_x), float(file_y), file_source or "file"
    elif implausible:
        return Spacing(None, None, None, "mpp_implausible", f"{implausible}; declare the slide's mpp")
    else:
        return Spacing(
            None, None, None, "mpp_missing", "the file records no spacing; declare the slide's mpp (um/px)"
        )
    if objective_power and objective_power > 0:
        nominal = 10.0 / objective_power
        if abs(math.sqrt(x * y) / nominal - 1) > POWER_CONFLICT_TOLERANCE:
            warnings.append(
                f"spacing {x:g} um/px is far from the {nominal:g} um/px usual for the recorded objective "
                f"power {objective_power:g}"
            )
    if abs(x / y - 1) > CONFLICT_TOLERANCE:
        warnings.append(f"pixels are not square: {x:g} x {y:g} um/px")
    return Spacing(x, y, source, warnings=tuple(warnings))
