"""Why a slide cannot be used: one typed error with a status and a reason code."""

from __future__ import annotations

from acpbench.core.errors import InputError

STATUSES = (
    "ok",
    "unreadable",
    "no_mpp",
    "too_coarse",
    "empty_tissue",
    "emptied_by_filter",
    "too_few_tiles",
)
"""Outcome of a slide. Only ``ok`` goes on; every other one is an exclusion with its reason.

``too_coarse``: no level is as fine as the requested spacing, and pixels are never invented by upsampling.
``empty_tissue``: no tissue was found. ``emptied_by_filter``: tissue was found, but artefact or tile filters
left nothing. ``too_few_tiles``: some tiles passed, fewer than the minimum.
"""


class SlideError(InputError):
    """A slide that cannot be used.

    Args:
        status: one of :data:`STATUSES` (never ``ok``).
        message: one line for the user.
        reason: machine-readable cause, finer than the status (``missing_file``, ``lfs_pointer``,
            ``unsupported_format``, ``open_failed``, ``read_failed``, ``mpp_missing``,
            ``mpp_implausible``, ...).
        file: the slide.
    """

    def __init__(self, status: str, message: str, *, reason: str, file: object = None) -> None:
        super().__init__(message, file=file)
        self.status = status
        self.reason = reason
