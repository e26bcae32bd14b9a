"""Progress of long loops: a bar on a terminal, a listener where somebody asked, silence elsewhere.

A listener (see :func:`listening`) hears every step of the outermost loop and may raise to stop the work:
this is how a tool call reports its progress and is cancelled. Log files stay readable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Step = Callable[[str, int, int | None], None]
"""Called with the loop's label, items done and items in all (``None``: unknown)."""


class _Listener:
    """One listener and how many loops are open inside it."""

    def __init__(self, step: Step, check: Callable[[], None]) -> None:
        self.step, self.check = step, check
        self.depth = 0


_LISTENER: ContextVar[_Listener | None] = ContextVar("acpbench_progress", default=None)


def _nothing() -> None:
    pass


@contextmanager
def listening(step: Step, check: Callable[[], None] = _nothing) -> Iterator[None]:
    """Send the progress of loops run inside the block (in this thread) to ``step``.

    Args:
        step: hears the outermost loop only, so that what it is told does not jump between nested loops.
        check: called at every step of every loop; it may raise to stop the work.
    """
    token = _LISTENER.set(_Listener(step, check))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def track(items: Iterable[Item], *, label: str, total: int | None = None) -> Iterator[Item]:
    """Yield ``items``; tell the listener, or draw a bar named ``label`` on standard error of a terminal."""
    listener = _LISTENER.get()
    if listener is not None:
        yield from _told(listener, items, label, total)
        return
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    yield from rich_track(items, description=label, total=total, console=Console(stderr=True), transient=True)


def _told(listener: _Listener, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
    if total is None and isinstance(items, Sized):
        total = len(items)
    listener.depth += 1
    outermost = listener.depth == 1
    done = 0
    try:
        for item in items:
            listener.check()
            if outermost:
                listener.step(label, done, total)
            yield item
            done += 1
        listener.check()
        if outermost:
            listener.step(label, done, total)
    finally:
        listener.depth -= 1
