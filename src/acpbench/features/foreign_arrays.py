"""Arrays from files that others wrote: bounded, without code, without a way out of the file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError

HDF5_ERRORS = (OSError, ValueError, TypeError, KeyError, RuntimeError)
"""What h5py and a look at attributes of unexpected kinds raise; there is no common error."""
MAX_BYTES = 8 * 1024**3
"""Largest array that is read from a foreign file: 800,000 tiles of 2560 numbers in float32."""


def check_link(group: Any, name: str, path: Path) -> None:
    """Refuse a name that is a link: it may lead to another file, to nothing or in a circle.

    Raises:
        InputError: no such name, or a link.
    """
    import h5py

    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        what = "is not in the file" if link is None else "is a link, not a part of this file"
        raise InputError(what, file=path, field=name)


def check_dataset(group: Any, name: str, path: Path, max_bytes: int) -> Any:
    """A dataset of an HDF5 group that lies in this very file and is not too large.

    Raises:
        InputError: it is a group, a link, stored in another file, or too large.
    """
    import h5py

    check_link(group, name, path)
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise InputError("is not an array", file=path, field=name)
    if dataset.external or dataset.is_virtual:
        raise InputError("has its values in another file", file=path, field=name)
    if dataset.shape is None or dataset.dtype.kind not in "fiu":
        raise InputError(f"holds {dataset.dtype}, not numbers", file=path, field=name)
    if dataset.size * dataset.dtype.itemsize > max_bytes:
        raise InputError(
            f"claims {dataset.size * dataset.dtype.itemsize} bytes, more than the {max_bytes} that are read",
            file=path,
            field=name,
        )
    return dataset


def item(value: Any) -> Any:
    """An HDF5 attribute as a plain value: numbers and text; an array of one element is that element."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, np.generic):
        value = value.item()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def read_npz(path: Path, max_bytes: int) -> dict[str, np.ndarray]:
    """All arrays of an npz file. Pickled objects are never loaded, and no more is unpacked than allowed.

    Raises:
        InputError: not an npz file, too large, or with an array of objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max_bytes:
            raise InputError(f"unpacks to {size} bytes, more than the {max_bytes} that are read", file=path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, TypeError, KeyError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"is not a readable npz file ({type(error).__name__})", file=path) from None


def read_array(path: Path, max_bytes: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Features of a ``.pt`` (one tensor) or ``.npz`` (``features``) file, and its ``tile_index`` if any.

    Raises:
        InputError: not such a file, or too large.
    """
    if path.suffix == ".npz":
        arrays = read_npz(path, max_bytes)
        if "features" not in arrays:
            raise InputError(f"holds {', '.join(arrays) or 'nothing'}; expected features", file=path)
        return arrays["features"], arrays.get("tile_index")
    import torch

    if path.stat().st_size > max_bytes:
        raise InputError(f"is larger than the {max_bytes} bytes that are read", file=path)
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch errors share no base class
        raise InputError(f"is not a readable tensor file ({type(error).__name__})", file=path) from None
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        raise InputError("holds no tensor of floating-point numbers", file=path)
    if tensor.numel() * tensor.element_size() > max_bytes:  # a stretched view can be larger than its file
        raise InputError(f"is larger than the {max_bytes} bytes that are read", file=path)
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise InputError("holds a sparse tensor or one without values", file=path)
    plain = tensor.detach()
    known = plain.dtype in (torch.float16, torch.float32, torch.float64)
    return (plain if known else plain.float()).numpy(), None
