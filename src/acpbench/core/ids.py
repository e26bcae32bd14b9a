"""Identifiers. They become path components, so they are checked before they are used."""

from __future__ import annotations

import re

from acpbench.core.errors import InputError

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_id(value: object, what: str = "id", *, file: object = None) -> str:
    """Return ``value`` when it is a safe identifier (``[A-Za-z0-9._-]+``, no leading dot).

    Raises:
        InputError: for anything else.
    """
    text = value if isinstance(value, str) else str(value)
    if not _ID.fullmatch(text):
        raise InputError(
            f"{text[:60]!r} is not a valid {what}; expected letters, digits, '.', '_' or '-', "
            "no leading dot, at most 128 characters",
            file=file,
            field=what,
        )
    return text


def trajectory_id(group: str, task: str, replicate: int | str) -> str:
    """``group/task/replicate``, the identity of one trajectory everywhere."""
    return f"{check_id(group, 'group')}/{check_id(task, 'task')}/{check_id(str(replicate), 'replicate')}"
