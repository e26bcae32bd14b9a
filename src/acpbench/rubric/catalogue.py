"""Read the rubric and expand it to the items of one trajectory."""

from __future__ import annotations

from pathlib import Path

from acpbench.rubric.models import ROUND_MARK, RUBRIC_SCHEMA, Checkpoint, Item, Rubric
from acpbench.tasks.catalogue import read_versioned
from acpbench.tasks.models import Task


def load_rubric(path: str | Path) -> Rubric:
    """Read a rubric file.

    Raises:
        InputError: names the file, the field and what was expected.
    """
    return read_versioned(path, Rubric, RUBRIC_SCHEMA)


def expand(rubric: Rubric, task: Task, rounds: int = 5) -> list[Item]:
    """List the items that a trajectory of ``task`` is scored on.

    Checkpoints whose condition the task does not meet are left out. Per-round checkpoints make one item for
    each of ``rounds`` rounds whether or not the agent attempted it: what an unattempted round is worth is the
    scorer's matter (``rounds_policy``).

    Args:
        rubric: the rubric.
        task: the trajectory's task.
        rounds: number of reflection rounds, 0 or more.

    Returns:
        Items in catalogue order; the rounds of one checkpoint follow each other.

    Raises:
        ValueError: ``rounds`` is negative.
    """
    if rounds < 0:
        raise ValueError(f"rounds must be 0 or more, got {rounds}")
    items: list[Item] = []
    for checkpoint in rubric.checkpoints:
        if not task.matches(checkpoint.condition):
            continue
        if checkpoint.per_round:
            items += [_item(checkpoint, number) for number in range(1, rounds + 1)]
        else:
            items.append(_item(checkpoint, None))
    return items


def _item(checkpoint: Checkpoint, number: int | None) -> Item:
    if number is None:
        return Item(checkpoint.id, checkpoint, None, tuple(checkpoint.evidence))
    filled = tuple(reference.replace(ROUND_MARK, str(number)) for reference in checkpoint.evidence)
    return Item(f"{checkpoint.id}@r{number}", checkpoint, number, filled)
