"""Agent text that speaks to its grader: found, recorded, never obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_GRADER = (
    r"(?:judge|grader|evaluator|assessor|reviewer|auditor|scorer|rater|llm|language model|ai model|assistant)"
)
_STATUS = r"(?:pass|passed|passing|full (?:marks|score|credit)|top (?:marks|score))"
_PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instruction|prompt|rubric|guideline|rule)s?\b",
        rf"\b(?:dear|attention|note to|message to|to the|hello|hi|hey)\s+(?:the\s+)?{_GRADER}\b",
        rf"\b(?:mark|grade|score|rate|judge|label|treat|consider|count|award|give)\b.{{0,60}}\b(?:as|a|with)\s+[\"'`*]*{_STATUS}\b",
        r"\byou are (?:now )?(?:a|an|the)\s+(?:judge|grader|evaluator|assessor|helpful|lenient|generous)\b",
        r"<\|?(?:im_start|system|/?inst)\|?>|\[/?INST\]|^\s*(?:system|assistant)\s*:",
        rf"[\"']?status[\"']?\s*[:=]\s*[\"']{_STATUS}[\"'].{{0,200}}evidence_refs",
        r"\bevidence_refs\b.{0,80}\brationale\b",
    )
]


class Finding(NamedTuple):
    """A line that addresses the judge. ``excerpt`` is at most 160 characters, on one line."""

    path: str
    line: int
    excerpt: str

    def as_row(self) -> dict[str, str]:
        """The finding as stored in a judgement row."""
        return {"kind": "addresses_judge", "ref": f"{self.path}#L{self.line}", "excerpt": self.excerpt}


def find_addresses(path: str, lines: Sequence[str]) -> list[Finding]:
    """Lines of a file that try to instruct or flatter a grader (also when the sentence wraps once)."""
    found = []
    for number, line in enumerate(lines, start=1):
        following = lines[number] if number < len(lines) else ""
        wrapped = f"{line.strip()} {following.strip()}"
        hit = any(pattern.search(line) for pattern in _PATTERNS)
        # A wrapped sentence counts for both of its lines, unless the second line alone says it.
        across = not hit and any(
            pattern.search(wrapped) and not pattern.search(following) for pattern in _PATTERNS
        )
        if hit or across:
            excerpt = " ".join((wrapped if across else line).split())[:160]
            found.append(Finding(path, number, excerpt))
            if across:
                found.append(Finding(path, number + 1, excerpt))
    return list(dict.fromkeys(found))


def blank_lines(lines: Iterable[str], findings: Iterable[Finding]) -> list[str]:
    """The lines with each found one emptied, so that it is no cue; numbers of the others stay."""
    hit = {finding.line for finding in findings}
    return ["" if number in hit else line for number, line in enumerate(lines, start=1)]
