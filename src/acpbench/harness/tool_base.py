"""What a tool is: typed arguments in, a typed result out, and the entry that names both.

A plug-in package adds tools through the entry-point group ``acpbench.tools``: each entry point is a
:class:`Tool`, or a function that returns a list of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from acpbench.trajectory.documents import Role

PLUGIN_GROUP = "acpbench.tools"


class ToolArgs(BaseModel):
    """Base of all tool arguments. ``input_fields`` name those that are workspace files the call reads."""

    model_config = ConfigDict(extra="forbid")
    input_fields: ClassVar[tuple[str, ...]] = ()


class ToolResult(BaseModel):
    """Base of all tool results. Missing is ``null``; units stand in the names."""

    model_config = ConfigDict(extra="forbid")


class ToolOutcome(NamedTuple):
    """What a tool did.

    Attributes:
        outputs: workspace paths of the files it wrote.
        result: its typed answer.
        cache: whether what it needed was there already.
        stored: artifacts outside the workspace, each with ``path`` (a ``store:`` key), ``sha256``, ``size``.
    """

    outputs: list[str]
    result: ToolResult
    cache: Literal["hit", "miss"] | None = None
    stored: tuple[dict[str, Any], ...] = ()


class Tool(NamedTuple):
    """One registry entry. References are ``module:name`` and are imported on use.

    Attributes:
        id: name of the tool. role: its part in a workflow.
        read_only: whether it leaves the workspace as it is.
        target: function ``(RunContext, ToolArgs) -> ToolOutcome``.
        args, result: the pydantic models of what goes in and comes out.
        description: what an agent reads. reads: evaluator's files behind the call, logged with their hashes.
    """

    id: str
    role: Role
    read_only: bool
    target: str
    args: str
    result: str
    description: str
    reads: tuple[str, ...] = ()

    def args_model(self) -> type[ToolArgs]:
        """The typed arguments."""
        return load_reference(self.args)

    def result_model(self) -> type[ToolResult]:
        """The typed result."""
        return load_reference(self.result)

    def function(self) -> Callable[[Any, Any], ToolOutcome]:
        """The library function behind the tool."""
        return load_reference(self.target)


def load_reference(reference: str) -> Any:
    """Import ``module:name``."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
