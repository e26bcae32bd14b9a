"""No pattern takes quadratic time: agents write the texts that patterns read, of any length."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import acpbench

N_CHARS = 12_000
LIMIT_S = 0.1
"""A pattern of linear time takes about 5 ms for so many characters, one of quadratic time over 200 ms."""
PIECES = [
    *"aA0 \n\t.,;:-_/\\'\"`()[]{}<>|&$#*=%é",
    *("a ", "a\n", " \n", "1.", "1,", "a=", "a: ", "- ", "<a", "</", "a.b", "a/", "[a](", "**a", "a'", '"a'),
]
"""What is repeated; also each word that stands in the pattern, with a space behind it."""
ANCHORED = {
    "acpbench.adjudication.view._ITEM",
    "acpbench.report.markdown._RULE",
    "acpbench.report.render._PAGE",
    "acpbench.trajectory.events._SHELL",
    "acpbench.trajectory.events._SHELL_WORD",
    "acpbench.trajectory.jsonl._OPENS_OBJECT",
}
"""Patterns that are only ever tried at the start of a text; a test below says that this is so."""
SOURCE = Path(acpbench.__file__).parent


def named_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every compiled pattern that a module holds by name, alone or in a list, tuple, set or dictionary."""
    for module in pkgutil.walk_packages(acpbench.__path__, "acpbench."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                for pattern in _inside(value, 3):
                    if isinstance(pattern.pattern, str):
                        yield f"{module.name}.{name}", pattern


def _inside(value: object, depth: int) -> Iterator[re.Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        yield from _inside([*value.keys(), *value.values()], depth)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _inside(part, depth - 1)


def written_patterns() -> Iterator[tuple[str, str, re.Pattern[str]]]:
    """Every pattern that stands in a call such as ``re.search(r"...", text)``."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr not in ("compile", "escape")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                flags = 0
                for word in [*node.args[2:], *(keyword.value for keyword in node.keywords)]:
                    for part in ast.walk(word):
                        if isinstance(part, ast.Attribute) and part.attr.isupper():
                            flags |= getattr(re, part.attr)
                where = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield where, node.func.attr, re.compile(node.args[0].value, flags)


def seconds(apply: Callable[[str], object], text: str) -> float:
    """CPU seconds on a text, at most one second."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        apply(text)
    except TimeoutError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return time.process_time() - start


def slow_on(pattern: re.Pattern[str], *, anchored: bool) -> str | None:
    """The piece whose repetition is slow, or None."""

    def everywhere(text: str) -> None:
        for _ in pattern.finditer(text):
            pass

    words = re.findall(r"[A-Za-z]{2,}", pattern.pattern)[:12]
    for piece in [*PIECES, *(f"{word} " for word in words)]:
        text = piece * (N_CHARS // len(piece))
        # Three times, so that another program on the machine is not taken for the pattern.
        if all(seconds(pattern.fullmatch if anchored else everywhere, text) > LIMIT_S for _ in range(3)):
            return piece
    return None


def test_the_measure_knows_quadratic_from_linear_time() -> None:
    assert slow_on(re.compile(r"\s*;"), anchored=False) in (" ", "\n", "\t")
    assert slow_on(re.compile(r"\s*;"), anchored=True) is None
    assert slow_on(re.compile(r"(a*)*b"), anchored=True) == "a"
    assert slow_on(re.compile(r"\w+"), anchored=False) is None


def test_the_time_of_every_named_pattern_grows_with_the_text() -> None:
    found = {pattern: name for name, pattern in named_patterns()}
    assert len(found) > 100
    slow = {name: slow_on(pattern, anchored=name in ANCHORED) for pattern, name in found.items()}
    assert {name: piece for name, piece in slow.items() if piece} == {}


def test_the_time_of_every_written_pattern_grows_with_the_text() -> None:
    found = list(written_patterns())
    assert len(found) > 20
    slow = {where: slow_on(pattern, anchored=how in ("match", "fullmatch")) for where, how, pattern in found}
    assert {where: piece for where, piece in slow.items() if piece} == {}


@pytest.mark.parametrize("name", sorted(ANCHORED))
def test_anchored_patterns_are_only_tried_at_the_start(name: str) -> None:
    module, _, pattern = name.rpartition(".")
    text = (SOURCE.parent / (module.replace(".", "/") + ".py")).read_text()
    uses = re.findall(rf"\b{pattern}\b(?! = )(\.\w+)?", text)
    assert uses
    assert set(uses) <= {".match", ".fullmatch"}
