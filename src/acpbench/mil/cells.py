"""Reading the cells of prediction and label tables: a value, or ``None`` when there is none."""

from __future__ import annotations

import math
from typing import Any

_MISSING = {"", "nan", "na", "none", "null"}


def parse_number(value: Any) -> float | None:
    """Return a finite float, or ``None`` for an empty, non-numeric or non-finite cell.

    ``1_0`` is a number to Python and a name to everybody else.
    """
    if isinstance(value, str) and "_" in value:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def parse_event(value: Any) -> bool | None:
    """Return the event indicator of a cell (1/0, 1.0/0.0, true/false), ``None`` when it is neither."""
    text = str(value).strip().lower()
    if text in ("true", "yes"):
        return True
    if text in ("false", "no"):
        return False
    number = parse_number(value)
    return bool(number) if number in (0.0, 1.0) else None


def is_missing(value: Any) -> bool:
    """Whether a cell holds no value (``None``, NaN, blank, ``NA``)."""
    return value is None or str(value).strip().lower() in _MISSING
