"""What was typed in a shell line: files whose text stands in the command itself."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise

_OPENER = re.compile(
    r"(?<!<)<<(?P<dash>-?)[ \t]*(?:'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|(?P<escaped>\\?)"
    r"(?P<bare>[^\s;|&<>()'\"`$\\]+))"
)
_HERE = "\x01"
"""Stands for a here-document whose text has been taken out."""
_FILLED = "\x02"
"""Stands for one into which the shell puts something."""
_TOKEN = re.compile(
    r"(?P<comment>(?<![^\s;|&()])\#[^\n]*)"
    r"|(?P<redirect>(?:\d+|&)?>{1,2}[|&]?|<+)"
    r"|(?P<word>(?:\$?'(?:[^'])*'|\"(?:\\.|[^\"\\])*\"|\\.|[^\s'\"\\;|&<>()])+)"
    r"|(?P<end>[;|&()\n]+)"
    r"|(?P<unclosed>['\"\\])",
    re.DOTALL,
)
_QUOTED = re.compile(r"\$?'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_FILLED_LINE = re.compile(r"(?<!\\)(?:\$[\w({]|`)")
"""Of a here-document, in which quotes mean nothing."""
_ADDED = re.compile(r"^\*\*\* (?:Add|Update) File: ([^\n]+)$", re.MULTILINE)
_OUTPUT = (">", ">>", "1>", "1>>", "&>", "&>>", ">&")
_SHELLS = {"sh", "bash", "dash", "zsh"}
_WRAPPERS = {"env", "sudo", "nohup", "nice", "command", "time", "timeout"}
"""Programs that run the command that stands behind them."""
_MAX_NESTED = 3
MAX_COMMAND_CHARS = 1_000_000
"""Of a longer command, without the text of its here-documents, only the beginning is looked at."""


def typed_files(command: str) -> list[str]:
    """Files whose text stands in the command itself.

    ``cat > FILE <<MARK``, ``tee FILE <<MARK``, ``cat > FILE <<< TEXT``, ``echo TEXT > FILE``,
    ``printf TEXT > FILE``, the last two piped into ``cat > FILE`` or ``tee FILE``, and what a patch given to
    ``apply_patch`` adds or updates. What another program makes of a text (``python - <<MARK``) is not typed,
    nor is a text with something that the shell fills in (``echo "$AUROC" > FILE``, an unquoted here-document
    with ``$AUROC``). A group of commands with one target (``{ ...; } > FILE``) is not looked into.
    """
    command = command.replace("\r\n", "\n")
    bare = _collapsed(command, lambda filled: f" {_FILLED if filled else _HERE} ").replace("\\\n", "")
    patched = _ADDED.findall(command) if "apply_patch" in bare else []
    return _typed(bare[:MAX_COMMAND_CHARS]) + [name.strip() for name in patched]


def _typed(command: str, depth: int = 0) -> list[str]:
    found: list[str] = []
    piped = False  # whether typed text comes in from the command before
    for words, targets, document, end in _simple_commands(command):
        words = _unwrapped(words)
        program = _program(words)
        options = [_plain(word) for word in words[1:]]
        if depth < _MAX_NESTED and program in _SHELLS:
            # `sh -lc 'COMMAND'`: how harnesses write down what they run.
            for option, text in pairwise(options):
                if re.fullmatch(r"-[a-z]*c", option):
                    found += _typed(text, depth + 1)
                    break
        elif depth < _MAX_NESTED and program == "eval":
            found += _typed(" ".join(options), depth + 1)
        typed = program in ("echo", "printf") and not any(_filled_in(word) for word in words[1:])
        passed_on = (piped or document) and program in ("cat", "tee", "")
        if typed or passed_on:
            found += targets
        if passed_on and program == "tee":
            found += [word for word in options if not word.startswith("-")]
        piped = (typed or passed_on) and end in ("|", "|&")
    return [name for name in found if name != "/dev/null"]


def _program(words: list[str]) -> str:
    return _plain(words[0]).rsplit("/", 1)[-1] if words else ""


def _unwrapped(words: list[str]) -> list[str]:
    """The words from the program that does the work on: ``timeout 5 env A=1 echo x`` is ``echo x``."""
    while (wrapper := _program(words)) in _WRAPPERS:
        words = words[1:]
        while words and re.match(r"-|\w+=", words[0]):
            words = words[1:]
        if wrapper == "timeout":
            words = words[1:]
    return words


def _simple_commands(command: str) -> Iterator[tuple[list[str], list[str], bool, str]]:
    """Every command of a line: its words as written, the files that standard output goes to, whether it
    reads a text that stands in the command, and what ends it."""
    words: list[str] = []
    targets: list[str] = []
    redirect, document = "", False
    for token in _TOKEN.finditer(command):
        if token["comment"]:
            continue
        if token["unclosed"]:  # a quote that no shell would run
            return
        if token["end"]:
            yield words, targets, document, token["end"].strip()
            words, targets, redirect, document = [], [], "", False
        elif token["redirect"]:
            redirect = token["redirect"]
        elif token["word"] in (_HERE, _FILLED):
            document = token["word"] == _HERE
        elif redirect:
            if redirect == "<<<":
                document = not _filled_in(token["word"])
            elif redirect.rstrip("|") in _OUTPUT and not (
                redirect == ">&" and re.match(r"[\d-]", token["word"])
            ):
                targets.append(_plain(token["word"]))
            redirect = ""
        elif words or not re.match(r"\w+=|(?:then|do|else)$|[!{]$", token["word"]):
            words.append(token["word"])
    yield words, targets, document, ""


def _plain(word: str) -> str:
    """A word without its quotes."""

    def bare(part: re.Match[str]) -> str:
        text = part[0]
        if text[-1] == "'" and text[0] in "$'":
            return text.removeprefix("$")[1:-1]
        return re.sub(r"\\(.)", r"\1", text[1:-1] if text[0] == '"' else text, flags=re.DOTALL)

    return _QUOTED.sub(bare, word)


def _filled_in(word: str) -> bool:
    """Whether the shell puts a value into the word: a variable, or what another command prints."""

    def open_text(part: re.Match[str]) -> str:
        return re.sub(r"\\.", "", part[0], flags=re.DOTALL) if part[0][0] == '"' else ""

    text = _QUOTED.sub(open_text, word)
    return "$" in text or "`" in text


def without_documents(command: str) -> str:
    """The command without the text of its here-documents."""
    return _collapsed(command, lambda filled: "")


def _collapsed(command: str, sign: Callable[[bool], str]) -> str:
    """The command with a sign in place of every here-document that has an end, as a shell reads them.

    Args:
        command: hostile text of any length: line ends are looked up, never searched for.
        sign: what stands for a document, given whether the shell fills something into its text.
    """
    if "<<" not in command:
        return command
    lines = command.split("\n")
    opened = {index: list(_OPENER.finditer(line)) for index, line in enumerate(lines) if "<<" in line}
    marks = {_mark(opener) for openers in opened.values() for opener in openers}
    # Only `<<-` lets its mark be indented, by tabs.
    ends_of: dict[tuple[str, str], list[int]] = {}
    for index, line in enumerate(lines):
        for dash, text in (("", line), ("-", line.lstrip("\t"))):
            if text in marks:
                ends_of.setdefault((dash, text), []).append(index)
    kept: list[str] = []
    index = 0
    while index < len(lines):
        line, after, place = lines[index], index + 1, 0
        parts: list[str] = []
        for opener in opened.get(index, []):
            ends = ends_of.get((opener["dash"], _mark(opener)), [])
            at = bisect_left(ends, after)
            if at == len(ends):
                continue
            end = ends[at]
            quoted = bool(opener["single"] or opener["double"] or opener["escaped"])
            filled = not quoted and any(map(_FILLED_LINE.search, lines[after:end]))
            parts += [line[place : opener.start()], sign(filled)]
            place, after = opener.end(), end + 1
        kept.append("".join([*parts, line[place:]]))
        index = after
    return "\n".join(kept)


def _mark(opener: re.Match[str]) -> str:
    return opener["single"] or opener["double"] or opener["bare"]
