"""Attention pictures as small data URIs. Every picture is decoded and encoded again, never passed through."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import walk_files
from acpbench.report.untrusted import read_raw, short

MAX_PICTURE_BYTES = 200 * 1024
_MAX_FILE_BYTES = 20 * 1024 * 1024
_MAX_PIXELS = 40_000_000
_ROUND = re.compile(r"outputs/round_(\d{1,3})/attention/[^/]+\.(?:jpe?g|png)", re.IGNORECASE)


def encode(data: bytes) -> str:
    """A JPEG or PNG as ``data:image/jpeg;base64,…`` of at most ``MAX_PICTURE_BYTES`` encoded bytes.

    Raises:
        InputError: not a JPEG or PNG, too many pixels, or broken.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                raise InputError(f"has {picture.width} x {picture.height} pixels, more than are decoded")
            picture.draft("RGB", (1280, 1280))
            image = picture.convert("RGB")
    except InputError:
        raise
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError("is not a readable JPEG or PNG") from None
    for side, quality in ((900, 82), (640, 78), (480, 70), (320, 60)):
        small = image.copy()
        small.thumbnail((side, side))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality)
        text = base64.b64encode(buffer.getvalue()).decode("ascii")
        if len(text) <= MAX_PICTURE_BYTES:
            return "data:image/jpeg;base64," + text
    raise InputError("stays too large after shrinking")


def attention_pictures(
    workspace: Path, reference: list[Path], limit: int = 4
) -> tuple[list[dict[str, Any]], int]:
    """Attention pictures of the agent's latest round, else of the reference pipeline.

    Args:
        workspace: the agent's workspace.
        reference: attention folders of the reference pipeline for this task.
        limit: most pictures shown.

    Returns:
        Rows of ``{name, own, source, uri, problem}`` and the number of pictures found. ``own`` is whether the
        agent left it; ``uri`` is ``None`` for a picture that could not be shown.
    """
    found = [
        (int(match.group(1)), relative)
        for relative, _ in walk_files(workspace / "outputs")
        if (match := _ROUND.fullmatch(f"outputs/{relative}"))
    ]
    latest = max((round_id for round_id, _ in found), default=None)
    chosen = [
        (workspace, f"outputs/{relative}", "the agent") for round_id, relative in found if round_id == latest
    ]
    if not chosen:
        chosen = [
            (folder, path.name, f"the reference pipeline ({folder.parent.name})")
            for folder in reference
            if folder.is_dir()
            for path in sorted(folder.glob("*.jp*g"))
        ]
    rows: list[dict[str, Any]] = []
    for root, relative, source in chosen[:limit]:
        row: dict[str, Any] = {
            "name": short(relative, 120),
            "own": source == "the agent",
            "source": source,
            "uri": None,
            "problem": None,
        }
        try:
            data, size = read_raw(root, relative, _MAX_FILE_BYTES)
            if size > len(data):
                raise InputError("is larger than 20 MB")
            row["uri"] = encode(data)
        except InputError as error:
            row["problem"] = short(error.message, 120)
        rows.append(row)
    return rows, len(chosen)
