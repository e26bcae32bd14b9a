"""Finding an encoder's weights on disk, and fetching them only when that is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpbench.core.errors import InputError
from acpbench.features.registry import EncoderSpec

if TYPE_CHECKING:
    import torch

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")


def find_weights(spec: EncoderSpec, *, weights: Path | None = None, offline: bool = True) -> Path:
    """Return the weights file of a ``package`` or ``timm`` encoder.

    A given file or folder wins; otherwise the installed package, or the local Hugging Face cache, and only
    with ``offline=False`` the hub itself.

    Raises:
        InputError: nothing there; the message says what would provide it.
    """
    if weights is not None:
        return _in_folder(Path(weights), spec)
    if spec.source.kind == "package":
        return _in_package(spec)
    if spec.source.kind == "builtin":
        raise InputError(f"encoder {spec.id} has no weights")
    return _from_hub(spec, offline=offline)


def _in_folder(path: Path, spec: EncoderSpec) -> Path:
    if path.is_file():
        return path
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    raise InputError(
        f"no weights for encoder {spec.id}; expected one of {', '.join(WEIGHT_FILES)}", file=path
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

    for name in WEIGHT_FILES:
        cached = try_to_load_from_cache(spec.source.ref, name)
        if isinstance(cached, str):
            return Path(cached)
    if offline:
        raise InputError(
            f"weights of encoder {spec.id} ({spec.source.ref}) are not on this machine and offline is set; "
            "give a local weights folder or fetch them first"
        )
    failure: Exception | None = None
    for name in WEIGHT_FILES:
        try:
            return Path(hf_hub_download(spec.source.ref, name))
        except Exception as error:  # the hub client raises many kinds; the last one is shown
            failure = error
    access = "; the repository is gated: accept its licence and log in" if spec.gated else ""
    raise InputError(f"weights of {spec.source.ref} could not be fetched ({failure}){access}")


def load_state(path: Path) -> dict[str, torch.Tensor]:
    """Read a state dict from safetensors or a torch file; never unpickles code.

    Raises:
        InputError: not such a file, for example a Git LFS pointer.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(str(path))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors, zip and unpickling errors share no base class
        raise InputError(f"is not a readable weights file ({type(error).__name__})", file=path) from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError("holds no plain dictionary of tensors", file=path)
    return state
