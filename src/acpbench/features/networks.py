"""The networks of the registry's rows: timm models, and the few parts that timm does not have."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpbench.core.errors import InputError
from acpbench.features.layouts import to_network
from acpbench.features.registry import EncoderSpec

if TYPE_CHECKING:
    import torch

_ALWAYS_UNUSED = ("head.", "fc.", "classifier.")
"""A classifier that was trained on top and is not part of the encoder."""


def build_network(spec: EncoderSpec) -> Any:
    """The network of a ``hub`` or ``local`` row, with random weights.

    Raises:
        InputError: timm has no such architecture or argument.
    """
    trunk = _timm_model(spec)
    if spec.layout in ("conch", "conch_v1_5"):
        return _parts().Pooled(trunk, spec.dim, separate=spec.layout == "conch")
    if spec.layout == "keep":
        return _parts().Projected(trunk, spec.dim)
    return trunk


def load_strictly(spec: EncoderSpec, network: Any, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load every weight of the network; only what the row says is unused may be left over.

    Raises:
        InputError: missing, unknown or differently shaped weights, with their number and the first name.
    """
    trunk = getattr(network, "trunk", network)
    state = to_network(spec.layout, state, trunk)
    unused = (*_ALWAYS_UNUSED, *(spec.timm.unused if spec.timm else ()))
    wanted = network.state_dict()
    missing = sorted(set(wanted) - set(state))
    surplus = sorted(name for name in set(state) - set(wanted) if not name.startswith(unused))
    shapes = [name for name in wanted if name in state and state[name].shape != wanted[name].shape]
    if missing or surplus or shapes:
        first = (missing or surplus or shapes)[0]
        raise InputError(
            f"weights do not fit the network: {len(missing)} missing, {len(surplus)} unknown, "
            f"{len(shapes)} of another shape (first: {first})",
            file=path,
        )
    network.load_state_dict({name: state[name] for name in wanted})


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
    if spec.layout == "ctranspath":
        arguments["embed_layer"] = _parts().ConvStem
    if not arguments.get("features_only"):
        arguments.setdefault("num_classes", 0)
    try:
        return timm.create_model(spec.timm.architecture, pretrained=False, **arguments)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"timm cannot build it ({error})", field=f"{spec.id}.timm") from None


@cache
def _parts() -> Any:
    """Module classes, made on first use: torch is imported only where an encoder runs."""
    from types import SimpleNamespace

    import torch
    from torch import nn

    class ConvStem(nn.Module):
        """CTransPath's patch embedding: two 3 × 3 convolutions of stride 2, then 1 × 1 to the width.

        Wang et al., Transformer-based unsupervised contrastive learning for histopathological image
        classification, Medical Image Analysis 2022.
        """

        def __init__(
            self,
            img_size: Any = 224,
            patch_size: Any = 4,
            in_chans: int = 3,
            embed_dim: int = 96,
            norm_layer: Any = None,
            **_: Any,
        ) -> None:
            super().__init__()
            height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
            step = patch_size if isinstance(patch_size, int) else patch_size[0]
            if step != 4 or embed_dim % 8:
                raise ValueError("the stem reduces by 4, to a width that 8 divides")
            self.img_size, self.patch_size = (height, width), (4, 4)
            self.grid_size = (height // 4, width // 4)
            self.num_patches = self.grid_size[0] * self.grid_size[1]
            layers: list[nn.Module] = []
            channels = in_chans
            for wider in (embed_dim // 8, embed_dim // 4):
                layers += [
                    nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False),
                    nn.BatchNorm2d(wider),
                    nn.ReLU(),
                ]
                channels = wider
            self.proj = nn.Sequential(*layers, nn.Conv2d(channels, embed_dim, 1))
            self.norm = nn.Identity() if norm_layer is None else norm_layer(embed_dim)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            """(N, 3, H, W) → (N, H/4, W/4, C), the order that timm's Swin works in."""
            return self.norm(self.proj(images).permute(0, 2, 3, 1))

    class SeparatePool(nn.Module):
        """CONCH: one learned query attends to all tokens; torch's own multi-head attention."""

        def __init__(self, dim: int, context_dim: int, heads: int = 8) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.zeros(1, dim))
            self.attn = nn.MultiheadAttention(dim, heads, kdim=context_dim, vdim=context_dim)
            self.ln_q, self.ln_k = nn.LayerNorm(dim), nn.LayerNorm(context_dim)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """(N, T, context) → (N, dim)."""
            context = self.ln_k(tokens).transpose(0, 1)
            query = self.ln_q(self.query).unsqueeze(1).expand(-1, tokens.shape[0], -1)
            return self.attn(query, context, context, need_weights=False)[0][0]

    class JointPool(nn.Module):
        """CONCH v1.5: the same with key and value from one layer and no biases."""

        def __init__(self, dim: int, context_dim: int, heads: int = 8) -> None:
            super().__init__()
            self.heads = heads
            self.query = nn.Parameter(torch.zeros(1, dim))
            self.to_q = nn.Linear(dim, dim, bias=False)
            self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
            self.to_out = nn.Linear(dim, dim, bias=False)
            self.ln_q, self.ln_k = nn.LayerNorm(dim), nn.LayerNorm(context_dim)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """(N, T, context) → (N, dim)."""
            n, t, _ = tokens.shape
            query = self.to_q(self.ln_q(self.query)).view(1, 1, self.heads, -1).transpose(1, 2)
            key, value = self.to_kv(self.ln_k(tokens)).view(n, t, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(query.expand(n, -1, -1, -1), key, value)
            return self.to_out(mixed.flatten(1))

    class Pooled(nn.Module):
        """A ViT whose tokens, class token included, are pooled by attention, then normalised."""

        def __init__(self, trunk: Any, dim: int, *, separate: bool) -> None:
            super().__init__()
            self.trunk = trunk
            pool = SeparatePool if separate else JointPool
            self.attn_pool_contrast = pool(dim, trunk.num_features)
            self.ln_contrast = nn.LayerNorm(dim)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.ln_contrast(self.attn_pool_contrast(self.trunk.forward_features(images)))

    class Projected(nn.Module):
        """KEEP: two layers after the trunk, the result scaled to length one."""

        def __init__(self, trunk: Any, dim: int) -> None:
            super().__init__()
            self.trunk = trunk
            self.head = nn.Sequential(nn.Linear(trunk.num_features, dim), nn.GELU(), nn.Linear(dim, dim))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return nn.functional.normalize(self.head(self.trunk(images)), dim=-1)

    return SimpleNamespace(ConvStem=ConvStem, Pooled=Pooled, Projected=Projected)
