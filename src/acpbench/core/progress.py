"""A progress bar on a terminal, silence elsewhere (log files stay readable)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def track(items: Iterable[Item], *, label: str, total: int | None = None) -> Iterator[Item]:
    """Yield ``items`` and draw a bar named ``label`` on standard error when it is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    yield from rich_track(items, description=label, total=total, console=Console(stderr=True), transient=True)
