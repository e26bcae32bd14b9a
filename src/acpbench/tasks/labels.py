"""Label canonicalisation: from a label as somebody wrote it to the task's class name, or to nothing.

Conservative on purpose: what does not map onto exactly one class stays unmapped and is counted by the caller.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_MISSING = frozenset({"", "na", "nan", "none", "null", "unknown", "missing"})

SYNONYMS: dict[str, tuple[str, ...]] = {
    "wildtype": ("wt", "wild"),
    "mutant": ("mut", "mutated", "mutation"),
    "negative": ("neg",),
    "positive": ("pos",),
    "tumor": ("tumour",),
    "mss": ("microsatellite stable",),
    "msih": ("msi high", "microsatellite instability high"),
    "mmrproficient": ("pmmr", "proficient"),
    "mmrloss": ("dmmr", "mmr deficient", "deficient"),
    "nofusion": ("fusion negative",),
    "ergfusion": ("fusion positive",),
    "basal": ("basal like",),
    "her2e": ("her2 enriched",),
    "luma": ("luminal a",),
    "lumb": ("luminal b",),
    "luad": ("lung adenocarcinoma",),
    "lusc": ("lung squamous cell carcinoma",),
    "ccrcc": ("kirc", "clear cell rcc"),
    "prcc": ("kirp", "papillary rcc"),
    "chrcc": ("kich", "chromophobe rcc"),
    "nonneoplastic": ("non neoplastic lesion",),
    "lowgrade": ("low grade dysplasia",),
    "highgrade": ("high grade dysplasia",),
}
"""Normalised class name → further spellings. A spelling counts only where one class of the task claims it."""


def normalise(value: object) -> str:
    """Reduce a label to lower-case letters and digits (Unicode NFKC); ``1.0`` becomes ``1``.

    A number that is not a whole number of zero or more, and every usual mark of a missing value, becomes the
    empty text: ``-1`` and ``0.7`` are not class codes.
    """
    if value is None or isinstance(value, bool):
        return ""
    text = unicodedata.normalize("NFKC", str(value)).strip()
    if _NUMBER.fullmatch(text):
        number = float(text)
        whole = math.isfinite(number) and number >= 0 and number == int(number)
        return str(int(number)) if whole else ""
    key = "".join(character for character in text.casefold() if character.isalnum())
    return "" if key in _MISSING else key


@dataclass(frozen=True)
class LabelIndex:
    """Spelling → class name for one task, without the spellings that two classes share."""

    names: dict[str, str]

    @staticmethod
    @lru_cache(maxsize=256)
    def of(classes: tuple[str, ...], codes: tuple[str, ...] | None) -> LabelIndex:
        """Index the class names, their codes (their positions when ``codes`` is None) and their synonyms.

        A class name wins over a code, and a code over a synonym.
        """
        code_of = list(codes) if codes is not None else [str(position) for position in range(len(classes))]
        layers = [
            [(normalise(name), name) for name in classes],
            [(normalise(code), name) for code, name in zip(code_of, classes, strict=True)],
            [
                (normalise(spelling), name)
                for name in classes
                for spelling in (*SYNONYMS.get(normalise(name), ()), *_grade_spellings(name))
            ],
        ]
        found: dict[str, str] = {}
        for layer in layers:
            claims: dict[str, set[str]] = {}
            for key, name in layer:
                claims.setdefault(key, set()).add(name)
            for key, names in claims.items():
                if key and key not in found and len(names) == 1:
                    found[key] = next(iter(names))
        return LabelIndex(found)

    @staticmethod
    def clash(classes: Sequence[str], codes: Sequence[str] | None) -> str | None:
        """Say which labels could not be told apart after normalisation, or ``None`` when all can."""
        owner: dict[str, str] = {}
        for name in classes:
            key = normalise(name)
            if not key:
                return f"{name!r} reads as a missing value"
            if key in owner:
                return f"{name!r} and {owner[key]!r} differ only in case, spacing or punctuation"
            owner[key] = name
        seen: set[str] = set()
        for code, name in zip(codes or (), classes, strict=False):
            key = normalise(code) or code
            if key in seen:
                return f"the code {code!r} is used twice"
            if owner.get(key, name) != name:
                return f"the code {code!r} of {name!r} is also the name of another class"
            seen.add(key)
        return None

    def find(self, value: object) -> str | None:
        """Return the class name for ``value``, or ``None``."""
        return self.names.get(normalise(value))


def _grade_spellings(name: str) -> tuple[str, ...]:
    """Usual prefixes of a class that is a bare grade number: ``ISUP 3``, ``grade group 3``."""
    if not name.isdigit():
        return ()
    return tuple(
        f"{prefix}{name}" for prefix in ("isup", "grade", "grade group", "isup grade", "isup grade group")
    )
