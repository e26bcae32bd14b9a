"""Reading ahead in a thread: order, errors, and that the thread ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from acpbench.features.background import read_ahead


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_order_and_thread() -> None:
    threads = set()

    def items() -> Iterator[int]:
        for number in range(20):
            threads.add(threading.current_thread().name)
            yield number

    assert list(read_ahead(items(), prepare=lambda number: number * number)) == [n * n for n in range(20)]
    assert threads == {"read-ahead"} and readers() == []


def test_it_stays_a_few_items_ahead() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    ahead = read_ahead(items(), depth=2)
    next(ahead)
    time.sleep(0.3)
    assert len(made) == 4  # one taken, two waiting, one in the hand of the thread
    ahead.close()
    assert readers() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        for number in read_ahead(items()):
            found.append(number)
    assert found == [1] and readers() == []


def test_leaving_early_closes_what_the_thread_opened_in_that_thread() -> None:
    closed_in = []

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            closed_in.append(threading.current_thread().name)

    for number in read_ahead(items()):
        if number == 3:
            break
    for _ in range(100):
        if closed_in:
            break
        time.sleep(0.02)
    assert closed_in == ["read-ahead"]
