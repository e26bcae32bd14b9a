"""What was typed in a shell line: files whose text stands in the command itself."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

_OPENER = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<mark>[A-Za-z_]\w*)(?P=quote)")
_HERE = "\x01"
"""Stands for a here-document whose text has been taken out."""
_TOKEN = re.compile(
    r"(?P<redirect>(?:\d+|&)?>{1,2}[|&]?|<+)"
    r"|(?P<word>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s'\"\\;|&<>()])+)"
    r"|(?P<end>[;|&()\n]+)"
    r"|(?P<unclosed>['\"\\])",
    re.DOTALL,
)
_SHELLS = {"sh", "bash", "dash", "zsh"}
_MAX_NESTED = 3
MAX_COMMAND_CHARS = 1_000_000
"""Of a longer command, without the text of its here-documents, only the beginning is looked at."""


def typed_files(command: str) -> list[str]:
    """Files whose text stands in the command itself.

    ``cat > FILE <<MARK``, ``tee FILE <<MARK``, ``echo TEXT > FILE``, ``printf TEXT > FILE`` and the last two
    piped into ``cat > FILE`` or ``tee FILE``. What another program makes of a text (``python - <<MARK``) is
    not typed, nor is a text with something that the shell fills in (``echo "$AUROC" > FILE``).
    """
    return _typed(_collapsed(command, f" {_HERE} ")[:MAX_COMMAND_CHARS])


def _typed(command: str, depth: int = 0) -> list[str]:
    found: list[str] = []
    piped = False  # whether typed text comes in from the command before
    for words, targets, document, end in _simple_commands(command):
        program = _plain(words[0]).rsplit("/", 1)[-1] if words else ""
        options = [_plain(word) for word in words[1:]]
        if program in _SHELLS and depth < _MAX_NESTED:
            # `sh -lc 'COMMAND'`: how harnesses write down what they run.
            for option, text in pairwise(options):
                if re.fullmatch(r"-[a-z]*c", option):
                    found += _typed(text, depth + 1)
                    break
        typed = program in ("echo", "printf") and not any(_filled_in(word) for word in words[1:])
        passed_on = (piped or document) and program in ("cat", "tee", "")
        if typed or passed_on:
            found += targets
        if passed_on and program == "tee":
            found += [word for word in options if not word.startswith("-")]
        piped = (typed or passed_on) and end == "|"
    return [name for name in found if name != "/dev/null"]


def _simple_commands(command: str) -> Iterator[tuple[list[str], list[str], bool, str]]:
    """Every command of a line: its words as written, the files that standard output goes to, whether it
    reads a here-document, and what ends it."""
    words: list[str] = []
    targets: list[str] = []
    redirect, document = "", False
    for token in _TOKEN.finditer(command):
        if token["unclosed"]:  # a quote that no shell would run
            return
        if token["end"]:
            yield words, targets, document, token["end"].strip()
            words, targets, redirect, document = [], [], "", False
        elif token["redirect"]:
            redirect = token["redirect"]
        elif token["word"] == _HERE:
            document = True
        elif redirect:
            if redirect.rstrip("|") in (">", ">>", "1>", "1>>", "&>", "&>>"):
                targets.append(_plain(token["word"]))
            redirect = ""
        elif words or not re.match(r"\w+=|(?:then|do|else|time|command)$|[!{]$", token["word"]):
            words.append(token["word"])
    yield words, targets, document, ""


def _plain(word: str) -> str:
    """A word without its quotes."""

    def bare(part: re.Match[str]) -> str:
        text = part[0]
        if text[0] == "'":
            return text[1:-1]
        return re.sub(r"\\(.)", r"\1", text[1:-1] if text[0] == '"' else text, flags=re.DOTALL)

    return re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", bare, word, flags=re.DOTALL)


def _filled_in(word: str) -> bool:
    """Whether the shell puts a value into the word: a variable, or what another command prints."""
    open_text = re.sub(r"'[^']*'|\\.", "", word, flags=re.DOTALL)
    return "$" in open_text or "`" in open_text


def without_documents(command: str) -> str:
    """The command without the text of its here-documents."""
    return _collapsed(command, "")


def _collapsed(command: str, sign: str) -> str:
    """The command with ``sign`` in place of every here-document that has an end.

    Line ends are looked up, never searched for: a command is hostile text of any length.
    """
    starts = [0, *(found.end() for found in re.finditer("\n", command))]
    ends_of: dict[str, list[int]] = {}  # places of the lines that hold one word alone
    for found in re.finditer(r"^[ \t]*+([A-Za-z_]\w*+)[ \t]*+$", command, re.MULTILINE):
        ends_of.setdefault(found[1], []).append(found.start())
    parts, place = [], 0
    for opener in _OPENER.finditer(command):
        if opener.start() < place:
            continue
        line = bisect_right(starts, opener.start())
        closing = ends_of.get(opener["mark"], [])
        at = bisect_right(closing, opener.end())
        if at == len(closing):
            continue
        after_line = starts[line]
        parts += [command[place : opener.start()], sign, command[opener.end() : after_line]]
        last = bisect_right(starts, closing[at])
        place = starts[last] if last < len(starts) else len(command)
    return "".join([*parts, command[place:]])
