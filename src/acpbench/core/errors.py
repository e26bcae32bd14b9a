"""Errors a user can act on: one line, naming the file, the field and what was expected."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input. The command line prints it on one line and exits with code 2.

    Args:
        message: what is wrong and what was expected.
        file: the offending file, if there is one.
        field: the offending field inside it, if there is one.
    """

    def __init__(self, message: str, *, file: object = None, field: str | None = None) -> None:
        self.message = " ".join(str(message).split())
        self.file = None if file is None else str(file)
        self.field = field
        where = ": ".join(part for part in (self.file, self.field) if part)
        super().__init__(f"{where}: {self.message}" if where else self.message)


def describe_validation(error: Exception, file: object) -> InputError:
    """Turn the first failure of a pydantic ``ValidationError`` into an :class:`InputError`."""
    first = error.errors()[0]  # type: ignore[attr-defined]
    field = ".".join(str(part) for part in first["loc"]) or "(root)"
    got = first.get("input")
    shown = repr(got)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return InputError(f"{first['msg']} (got {shown})", file=file, field=field)
