"""Read ahead: an iterator that runs in a thread of its own, a few items before its consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
_END: Any = object()


def read_ahead(
    items: Iterable[Item], *, depth: int = 2, prepare: Callable[[Item], Any] | None = None
) -> Iterator[Any]:
    """Iterate over ``items`` in a background thread that stays at most ``depth`` items ahead.

    The whole iteration happens in that thread, so that whatever it opens (a slide) belongs to it alone.
    ``prepare`` runs there too. An exception of the thread is raised here, in the place of the item it hit.
    Closing the iterator, or leaving it early, ends the thread.
    """
    waiting: queue.Queue[Any] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: Any) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                if not put((item if prepare is None else prepare(item), None)):
                    return
            put((_END, None))
        except BaseException as error:  # handed over to the consumer, whatever it is
            put((_END, error))
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:  # a generator holds the slide open; close it in the thread that opened it
                close()

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        thread.join()
