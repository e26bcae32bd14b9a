"""Sub-signals and components of R6: a mean of what has evidence, with a three-step flag."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

YES_AT_MOST, NO_AT_LEAST = 0.25, 0.75
NO_EVIDENCE = 0.5
_MAX_REFS = 20


class Signal(NamedTuple):
    """A named sub-signal: value in [0, 1] or ``None`` (nothing speaks to it), citations, one line."""

    name: str
    value: float | None
    evidence: list[str]
    detail: str


def flag(value: float) -> str:
    """``yes`` at 0.25 and below, ``possible`` below 0.75, else ``no``."""
    return "yes" if value <= YES_AT_MOST else "possible" if value < NO_AT_LEAST else "no"


def component(signals: Sequence[Signal]) -> dict[str, Any]:
    """Mean of the sub-signals that have a value, with its flag; 0.5 when none has."""
    known = [Fraction(signal.value) for signal in signals if signal.value is not None]
    value = float(sum(known, Fraction(0)) / len(known)) if known else NO_EVIDENCE
    return {
        "value": value,
        "flag": flag(value),
        "n_signals": len(known),
        "signals": [
            {
                "name": signal.name,
                "value": signal.value,
                "evidence": list(dict.fromkeys(ref for ref in signal.evidence if ref))[:_MAX_REFS],
                "detail": signal.detail,
            }
            for signal in signals
        ],
    }
