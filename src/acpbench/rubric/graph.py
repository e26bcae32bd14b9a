"""The file graph of a workflow specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acpbench.rubric.formats import items, words
from acpbench.trajectory.documents import GIVEN_FILES, GIVEN_FOLDERS

PLAN_FILES = ("plan/workflow_spec.json", "plan/plan.md")
"""The plan itself, which no step has to make either."""


def clean(path: Any) -> str:
    """A path without a leading ``./`` and a trailing ``/``."""
    text = words(path)
    while text.startswith("./"):
        text = text[2:]
    return text.rstrip("/")


def is_source(path: str) -> bool:
    """Whether an input is given rather than made."""
    return path in GIVEN_FILES + PLAN_FILES or f"{path}/".startswith(GIVEN_FOLDERS)


def graph_problems(steps: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """What is wrong with the graph, and how many links between steps it has.

    Args:
        steps: step objects with ``id``, ``inputs`` and ``outputs``. A step that makes a folder makes what is
            in it.

    Returns:
        Problems (repeated ids, malformed lists, inputs that no other step makes, cycles) and the link count.
    """
    ids = [words(step.get("id")) for step in steps]
    problems = ["step ids repeat"] if len(set(ids)) != len(ids) else []
    makers: dict[str, set[str]] = {}
    for name, step in zip(ids, steps, strict=True):
        if not isinstance(step.get("inputs"), list) or not isinstance(step.get("outputs"), list):
            problems.append(f"step {name[:40]} lists no inputs or outputs")
        for output in map(clean, items(step.get("outputs"))):
            if output:
                makers.setdefault(output, set()).add(name)

    needs: dict[str, set[str]] = {name: set() for name in ids}
    for name, step in zip(ids, steps, strict=True):
        for path in map(clean, items(step.get("inputs"))):
            if not path:
                problems.append(f"step {name[:40]} has an input that is no path")
                continue
            parents = [path] + [path[:cut] for cut in range(len(path)) if path[cut] == "/"]
            made_by = set().union(*(makers.get(parent, set()) for parent in parents)) - {name}
            if made_by:
                needs[name] |= made_by
            elif not is_source(path):
                problems.append(f"input {path[:80]} of step {name[:40]} is made by no other step")

    n_links = sum(map(len, needs.values()))
    waiting = dict(needs)
    while ready := [name for name, before in waiting.items() if not before & waiting.keys()]:
        for name in ready:
            del waiting[name]
    if waiting:
        problems.append(f"steps {', '.join(sorted(waiting))[:120]} form a cycle")
    return problems, n_links
