"""Overclaims in prose: phrases that promise more than a research prediction, outside negation and hedging.

The unit is the clause. A phrase counts unless its own clause negates it before ("does not confirm"), denies
it after ("is not claimed"), conditions it ("until", "whether", "would"), or it stands under a lead-in or
heading that negates what follows ("May not claim:"). A negation in one clause does not excuse the next: "does
not confirm the status but is ready for clinical deployment" is one overclaim.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from typing import NamedTuple

from acpbench.rubric.overclaim_phrases import BENIGN, PHRASES

MAX_CHARS = 2 * 1024 * 1024
MAX_CLAUSE_CHARS = 1_000


class Overclaim(NamedTuple):
    """One phrase of overclaim. ``line`` is 1-based; ``start`` and ``end`` are offsets in the text given."""

    kind: str
    phrase: str
    line: int
    start: int
    end: int
    clause: str


_EMPHASIS = {ord(mark): " " for mark in "*`~"}
_QUOTES = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2011": "-", "\u2010": "-"}
)

_SUBJECT = (
    r"(?:it|they|we|he|she|this|that|these|those|which|"
    r"(?:the|our|this|its|these)\s+[\w-]+(?:\s+[\w-]+){0,3}?)"
)
_VERB = (
    r"(?:is|are|was|were|can|could|will|would|may|might|must|should|has|have|had|does|do|did|remains?|shows?|"
    r"diagnos\w+|confirms?|detects?|proves?|achieves?|outperforms?|replaces?|provides?|establish\w*|"
    r"demonstrates?|determines?|identif\w+|measures?|eliminates?|guarantees?|rules?|stages?|generali[sz]es?|"
    r"surpass\w*|exceeds?|supports?|enables?)"
)
_ADVERB = r"(?:\w+ly\s+|thus\s+|now\s+|also\s+|still\s+|already\s+|therefore\s+)?"
_BREAK = re.compile(
    rf"(?:;|\s[–—-]{{1,2}}\s|\b(?:but|however|yet|although|though|whereas|while|nevertheless|"
    rf"nonetheless)\b,?"
    rf"|,\s*(?:so|thus|therefore|hence|which|making|meaning)\b"
    rf"|,\s+(?=(?:and\s+)?{_SUBJECT}\s+{_ADVERB}{_VERB}\b)"
    rf"|\band\s+(?=(?:{_SUBJECT}\s+)?{_ADVERB}{_VERB}\b))",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9#|>-])|\n")
_STRONG_AFFIRMATION = re.compile(
    r"\b(?:not\s+(?:only|just|merely|simply)|no\s+doubt|without\s+(?:a\s+|any\s+)?(?:doubt|question|"
    r"exception)"
    r"|no\s+longer|nothing\s+(?:prevents|stops)|cannot\s+be\s+(?:denied|doubted))\b",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|cannot|can't|neither|nor|none|nothing|without|n't|isn't|aren't|wasn't|weren't|"
    r"don't|doesn't|"
    r"didn't|won't|wouldn't|shouldn't|couldn't|mustn't|hasn't|haven't|unable|unfit|unsuitable|inappropriate|"
    r"insufficient|incapable|refrains?|avoids?|avoided|forbids?|forbidden|prohibits?|prohibited|disclaims?|"
    r"denies|"
    r"rather\s+than|instead\s+of|far\s+from|falls?\s+short|fails?\s+to|failed\s+to|lacks?|outside|"
    r"beyond\s+the\s+scope|"
    r"out\s+of\s+scope|short\s+of|absence\s+of)\b|n't\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|whether|unless|until|before|prior\s+to|would|might|hypothetical\w*|in\s+the\s+future|"
    r"future\s+(?:work|stud\w+)|"
    r"eventual\w*|potential(?:ly)?|one\s+day|hope|aims?\s+to|required\s+(?:for|before|to)|needed\s+(?:for|"
    r"before|to)|"
    r"necessary\s+(?:for|before|to)|remains?\s+to\s+be|yet\s+to\s+be|to\s+be\s+(?:confirmed|validated|"
    r"proven|shown|tested)|"
    r"pending|subject\s+to|toward|towards|could\s+(?:in|after|with|one)|research\s+use\s+only|could\s+not)\b",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"^(?:\s*:\s*(?:no|none|not|false|never)\b|[^.;]{0,80}?\b(?:rests?|remains?|belongs?|lies|"
    r"stays?)\s+(?:with|for|to)\b)"
    r"|^[^.;]{0,80}?\b(?:(?:is|are|was|were|be|been|has|have)\s+(?:neither|never|not|no(?!\s+longer)|"
    r"out\s+of\s+scope|outside|"
    r"prohibited|forbidden|excluded|avoided|unsupported|unproven|unknown|premature|inappropriate|"
    r"unwarranted|beyond)\b"
    r"|(?:cannot|can't|must\s+not|should\s+not|may\s+not|isn't|aren't|wasn't|weren't|shouldn't|mustn't)\b"
    r"|(?:requires?|needs?|awaits?|would\s+(?:need|require))\s+(?:\w+\s+){0,3}?(?:validation|confirmation|"
    r"review|testing|assay|stud\w+|"
    r"evidence|data|approval|sequencing)\b"
    r"|remains?\s+(?:un\w+|to\s+be|open|out)\b)",
    re.IGNORECASE,
)
_DENIED_CELL = re.compile(r"^[^|\n]{0,80}\|\s*(?:no|not\b|none|false|n/?a|0|never)", re.IGNORECASE)
_LEAD_IN = re.compile(
    r"\b(?:may\s+not|must\s+not|cannot|can\s+not|do(?:es)?\s+not|did\s+not|should\s+not|is\s+not|are\s+not|"
    r"not\s+(?:claimed?|"
    r"shown|supported|intended|permitted|allowed|established|for)|no\s+claims?|never|out\s+of\s+scope|"
    r"outside\s+the|prohibited|"
    r"forbidden|disallowed|avoid(?:ed|s)?|non[- ]claims?|boundar(?:y|ies)\s+exclu\w+|not\s+to\s+be)\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,2}[.)]|\|)\s*")
_HEADING = re.compile(r"^\s*#{1,6}\s+")


def _normal(text: str) -> str:
    """Same length and line breaks, with compatibility forms, quotes and emphasis marks unified.

    Characters that show nothing (zero width, soft hyphen) cannot be dropped without moving offsets, so the
    caller drops them beforehand.
    """
    out = []
    for character in text.translate(_QUOTES).translate(_EMPHASIS):
        folded = unicodedata.normalize("NFKC", character)
        out.append(folded if len(folded) == 1 else character)
    return "".join(out)


def _visible(text: str) -> tuple[str, list[int]]:
    """The text without invisible characters, and the original offset of each kept one."""
    kept = [index for index, character in enumerate(text) if unicodedata.category(character) != "Cf"]
    return "".join(text[index] for index in kept), kept


def _blocks(text: str) -> list[tuple[int, int, bool]]:
    """(start, end, negated by its lead-in) of paragraphs and list items.

    A heading or a line ending in a colon that negates ("May not claim:") holds for the list items under it,
    a heading for everything up to the next one.
    """
    blocks: list[tuple[int, int, bool]] = []
    under_heading = under_lead = False
    start: int | None = None
    position = 0

    def close(end: int) -> None:
        nonlocal start
        if start is not None and end > start:
            blocks.append((start, end, under_heading or (under_lead and bool(_ITEM.match(text[start:end])))))
        start = None

    for line in text.splitlines(keepends=True):
        end = position + len(line)
        if not line.strip():
            close(position)
        elif _HEADING.match(line):
            close(position)
            under_lead, under_heading = False, bool(_LEAD_IN.search(line))
            blocks.append((position, end, under_heading))
        else:
            if _ITEM.match(line):
                close(position)
            elif start is None and not line.startswith(("  ", "\t")):
                under_lead = False
            if start is None:
                start = position
            if line.rstrip().endswith(":"):
                close(end)
                under_lead = bool(_LEAD_IN.search(line))
        position = end
    close(len(text))
    return blocks


def _pieces(text: str, start: int, end: int, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Spans of ``text[start:end]`` between matches of ``pattern``."""
    spans, last = [], start
    for match in pattern.finditer(text, start, end):
        if match.start() > last:
            spans.append((last, match.start()))
        last = match.end()
    if end > last:
        spans.append((last, end))
    return spans


def _excused(before: str, after: str) -> bool:
    """Whether a phrase is negated, denied or conditioned by the rest of its clause."""
    before = _STRONG_AFFIRMATION.sub(" ", before)
    if _NEGATION.search(before) or _CONDITION.search(before):
        return True
    return bool(_DENIED_AFTER.search(after) or _DENIED_CELL.search(after))


def find_overclaims(text: str) -> list[Overclaim]:
    """Overclaims in a text, in order of place; at most one of a kind per clause.

    Args:
        text: report text (Markdown or plain); only the first 2 Mi characters are read.
    """
    visible, offsets = _visible(text[:MAX_CHARS])
    normal = _normal(visible)
    line_starts = [0, *(match.end() for match in re.finditer("\n", visible))]
    found: list[Overclaim] = []
    for start, end, negated in _blocks(normal):
        if negated:
            continue
        # Inside a block a line break is a space: sentences wrap. List items are blocks of their own.
        block = normal[start:end].replace("\n", " ")
        for sentence in _pieces(block, 0, len(block), _SENTENCE_END):
            if block[slice(*sentence)].rstrip().endswith("?"):
                continue
            for first, last in _pieces(block, *sentence, _BREAK):
                for cut in range(first, last, MAX_CLAUSE_CHARS):
                    clause = block[cut : min(cut + MAX_CLAUSE_CHARS, last)]
                    found += [
                        Overclaim(
                            kind,
                            " ".join(clause[low:high].split()),
                            bisect_right(line_starts, start + cut + low),
                            offsets[start + cut + low],
                            offsets[start + cut + high - 1] + 1,
                            " ".join(clause.split()),
                        )
                        for kind, low, high in _in_clause(clause)
                    ]
    return sorted(found, key=lambda claim: (claim.start, claim.kind))


def _in_clause(clause: str) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the first phrase of each kind that nothing in the clause excuses."""
    found = []
    for kind, patterns in PHRASES.items():
        for match in (match for pattern in patterns for match in pattern.finditer(clause)):
            if not BENIGN[kind].search(clause) and not _excused(
                clause[: match.start()], clause[match.end() :]
            ):
                found.append((kind, match.start(), match.end()))
                break
    return found
