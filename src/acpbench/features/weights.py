"""Finding an encoder's weights on this machine, and fetching them only when that is allowed.

Places, first found wins: a file or folder given by the caller; ``source.folder`` of the encoder's row; a
folder named after the repository under ``$ACPBENCH_WEIGHTS``; the installed package; the local Hugging Face
cache; with ``offline=False`` the hub itself. The hub's client reads a token from ``HF_TOKEN``; nothing here
looks at it, and none is ever written.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_file, write_json
from acpbench.features.registry import EncoderSpec

if TYPE_CHECKING:
    import torch

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")
WEIGHTS_VARIABLE = "ACPBENCH_WEIGHTS"
"""Environment variable: folder with one folder ``owner/model``, ``owner--model`` or ``model`` per source."""


@dataclass(frozen=True)
class Weights:
    """A weights file and the SHA-256 of its bytes."""

    path: Path
    sha256: str


def find_weights(spec: EncoderSpec, *, weights: Path | None = None, offline: bool = True) -> Path:
    """Return the weights file of an encoder that has one.

    Raises:
        InputError: nothing there; the message says what would provide it.
    """
    given = weights or (None if spec.source.folder is None else Path(spec.source.folder))
    if given is not None:
        return _in_folder(given, spec)
    if spec.source.kind == "package":
        return _in_package(spec)
    if not spec.needs_weights:
        raise InputError(f"encoder {spec.id} has no weights")
    root = os.environ.get(WEIGHTS_VARIABLE)
    for name in (spec.source.ref, spec.source.name, spec.source.ref.rpartition("/")[2]) if root else ():
        folder = Path(root or "") / name
        if folder.is_dir():
            return _in_folder(folder, spec)
    if spec.source.kind == "hub":
        return _from_hub(spec, offline=offline)
    raise InputError(
        f"weights of encoder {spec.id} are not on a hub: put them into a folder {spec.source.ref!r} under "
        f"${WEIGHTS_VARIABLE}, or name their place in source.folder"
    )


def load_weights(
    spec: EncoderSpec,
    *,
    weights: Path | None = None,
    record: str | os.PathLike[str] | None = None,
    offline: bool = True,
) -> Weights:
    """Find an encoder's weights and their hash: in a record of :func:`prefetch_weights`, or by reading them.

    Raises:
        InputError: nothing there, a file that changed since it was recorded, or not the hash of the row.
    """
    if record is not None:
        found = _recorded(record)
    else:
        path = find_weights(spec, weights=weights, offline=offline)
        found = Weights(path, sha256_file(path))
    if spec.source.sha256 not in (None, found.sha256):
        raise InputError(
            f"has the hash {found.sha256[:12]}..., encoder {spec.id} wants {spec.source.sha256[:12]}...",  # type: ignore[index]
            file=found.path,
        )
    return found


def prefetch_weights(spec: EncoderSpec, record: str | os.PathLike[str], *, offline: bool = True) -> Weights:
    """Make sure that an encoder's weights are here, fetching them when allowed, and record where and what.

    One call for one source, before any extraction: jobs that run side by side read the record and never
    download. The record names file, size, time of change and SHA-256; it vouches for the file as long as
    size and time stay, so that a large file is hashed once and not once a slide.

    Raises:
        InputError: not here and not allowed to fetch, no access to a gated repository, or no connection.
    """
    found = load_weights(spec, offline=offline)
    state = found.path.stat()
    write_json(
        record,
        {
            "source": spec.source.ref,
            "path": str(found.path.resolve()),
            "size": state.st_size,
            "mtime_ns": state.st_mtime_ns,
            "sha256": found.sha256,
        },
    )
    return found


def _recorded(record: str | os.PathLike[str]) -> Weights:
    held = read_json(record)
    try:
        path, size, changed, digest = (held[name] for name in ("path", "size", "mtime_ns", "sha256"))
        state = Path(path).stat()
    except (KeyError, TypeError):
        raise InputError("is not a record of fetched weights", file=record) from None
    except OSError:
        raise InputError(f"the weights {path} are gone; fetch them again", file=record) from None
    if (state.st_size, state.st_mtime_ns) != (size, changed):
        raise InputError(f"the weights {path} changed since; fetch them again", file=record)
    return Weights(Path(path), str(digest))


def _names(spec: EncoderSpec) -> tuple[str, ...]:
    return (spec.source.file,) if spec.source.file else WEIGHT_FILES


def _in_folder(path: Path, spec: EncoderSpec) -> Path:
    if path.is_file():
        return path
    for name in _names(spec):
        if (path / name).is_file():
            return path / name
    raise InputError(
        f"no weights for encoder {spec.id}; expected one of {', '.join(_names(spec))}", file=path
    )


def _in_package(spec: EncoderSpec) -> Path:
    import importlib.util

    found = importlib.util.find_spec(spec.source.ref)
    if found is None or found.origin is None:
        raise InputError(f"encoder {spec.id} needs the Python package {spec.source.ref!r}")
    candidates = sorted(Path(found.origin).parent.glob("models/*.pth"))
    if len(candidates) != 1:
        raise InputError(f"{len(candidates)} weight files in package {spec.source.ref!r}; expected 1")
    return candidates[0]


def _from_hub(spec: EncoderSpec, *, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository, revision = spec.source.ref, spec.source.revision
    for name in _names(spec):
        cached = try_to_load_from_cache(repository, name, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
    if offline:
        raise InputError(
            f"weights of encoder {spec.id} ({repository}) are not on this machine and offline is set; put "
            f"them into a folder {repository!r} under ${WEIGHTS_VARIABLE}, or fetch them with offline: false"
        )
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for name in _names(spec):
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except LocalEntryNotFoundError as error:  # a subclass of the next: no connection, not no such file
            failure: Exception = error
            break
        except EntryNotFoundError as error:
            failure = error
        except Exception as error:  # the client raises many kinds: no access, no repository, disk full
            failure = error
            break
    access = (
        "; the repository is gated: accept its licence there and set HF_TOKEN to a token with access"
        if spec.gated
        else ""
    )
    told = str(failure).strip().splitlines() or [type(failure).__name__]
    raise InputError(f"weights of {repository} could not be fetched ({told[0][:200]}){access}")


def load_state(path: Path) -> dict[str, torch.Tensor]:
    """Read a state dict from safetensors or a torch file; never unpickles code.

    Wrappers that checkpoints are saved in (``state_dict``, ``model``; ``module.`` before every name) are
    taken off.

    Raises:
        InputError: not such a file, for example a Git LFS pointer.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(str(path))
        else:
            # Mapped, a checkpoint costs no memory beside the network's own; only the zip format can be.
            mapped = zipfile.is_zipfile(path)
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except MemoryError:
        raise InputError("does not fit into memory", file=path) from None
    except Exception as error:  # safetensors, zip and unpickling errors share no base class
        raise InputError(f"is not a readable weights file ({type(error).__name__})", file=path) from None
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError("holds no plain dictionary of tensors", file=path)
    if state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    return dict(state)
