"""Small networks in plain torch, with the names and the arithmetic of the published encoders.

Each is written from the publisher's definition, independently of timm, and gives a checkpoint and what its
encoder makes of an image: the loader's mapping is right when both agree.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH, HEADS, DEPTH, PATCH, SIDE = 32, 4, 2, 8, 32
GRID = SIDE // PATCH
State = dict[str, Tensor]


def filled(name: str, shape: tuple[int, ...]) -> Tensor:
    """Weights that anybody can make again: a sine of the position, shifted by the name."""
    shift = zlib.crc32(name.encode()) % 97
    wave = torch.sin(1.7 * torch.arange(math.prod(shape), dtype=torch.float64) + shift).reshape(shape)
    return (0.5 + 0.3 * wave * wave if name.endswith("running_var") else 0.3 * wave).float()


def linear(state: State, name: str, given: int, out: int, bias: bool = True) -> None:
    state[f"{name}.weight"] = filled(f"{name}.weight", (out, given))
    if bias:
        state[f"{name}.bias"] = filled(f"{name}.bias", (out,))


def norm(state: State, name: str, width: int) -> None:
    state[f"{name}.weight"] = filled(f"{name}.weight", (width,))
    state[f"{name}.bias"] = filled(f"{name}.bias", (width,))


def apply(state: State, name: str, x: Tensor) -> Tensor:
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def normed(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """Scaled dot products, head by head; (N, T, C) each."""
    n, t, width = query.shape
    split = [x.reshape(n, x.shape[1], heads, -1).transpose(1, 2) for x in (query, key, value)]
    weights = (split[0] @ split[1].transpose(-1, -2) / (width // heads) ** 0.5).softmax(-1)
    return (weights @ split[2]).transpose(1, 2).reshape(n, t, width)


def patches(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(images, weight, bias, stride=PATCH).flatten(2).transpose(1, 2)


class HuggingFaceViT:
    """transformers' ``ViTModel`` (Phikon) and ``Dinov2Model`` (Phikon-v2, Midnight; Hibou with registers)."""

    def __init__(
        self, *, dinov2: bool, swiglu: bool = False, registers: int = 0, grid: int = GRID, eps: float = 1e-6
    ) -> None:
        self.dinov2, self.swiglu, self.registers, self.eps = dinov2, swiglu, registers, eps
        state: State = {"embeddings.cls_token": filled("cls", (1, 1, WIDTH))}
        state["embeddings.position_embeddings"] = filled("positions", (1, 1 + grid * grid, WIDTH))
        projection = "embeddings.patch_embeddings.projection"
        state[f"{projection}.weight"] = filled("projection", (WIDTH, 3, PATCH, PATCH))
        state[f"{projection}.bias"] = filled("projection.bias", (WIDTH,))
        if dinov2:
            state["embeddings.mask_token"] = filled("mask", (1, WIDTH))
        else:
            linear(state, "pooler.dense", WIDTH, WIDTH)
        if registers:
            state["embeddings.register_tokens"] = filled("registers", (1, registers, WIDTH))
        hidden = (int(WIDTH * 4 * 2 / 3) + 7) // 8 * 8 if swiglu else WIDTH * 4
        for i in range(DEPTH):
            layer = f"encoder.layer.{i}"
            for part in ("query", "key", "value"):
                linear(state, f"{layer}.attention.attention.{part}", WIDTH, WIDTH)
            linear(state, f"{layer}.attention.output.dense", WIDTH, WIDTH)
            for name in ("norm1", "norm2") if dinov2 else ("layernorm_before", "layernorm_after"):
                norm(state, f"{layer}.{name}", WIDTH)
            if dinov2:
                for scale in ("layer_scale1", "layer_scale2"):
                    state[f"{layer}.{scale}.lambda1"] = filled(f"{layer}.{scale}", (WIDTH,))
            if swiglu:
                linear(state, f"{layer}.mlp.weights_in", WIDTH, 2 * hidden)
                linear(state, f"{layer}.mlp.weights_out", hidden, WIDTH)
            else:
                into, out = ("mlp.fc1", "mlp.fc2") if dinov2 else ("intermediate.dense", "output.dense")
                linear(state, f"{layer}.{into}", WIDTH, hidden)
                linear(state, f"{layer}.{out}", hidden, WIDTH)
        norm(state, "layernorm", WIDTH)
        self.state, self.grid, self.hidden = state, grid, hidden

    def timm_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH,
                                  "num_heads": HEADS}  # fmt: skip
        if self.dinov2:
            kwargs["init_values"] = 1e-5
        if self.swiglu:
            kwargs |= {"mlp_ratio": 2 * self.hidden / WIDTH, "mlp_layer": "SwiGLUPacked", "act_layer": "silu"}
        if self.registers:
            kwargs |= {"reg_tokens": self.registers, "no_embed_class": True}
        return kwargs

    def tokens(self, images: Tensor) -> Tensor:
        """The last hidden state: class token, registers, patches."""
        state = self.state
        projection = "embeddings.patch_embeddings.projection"
        x = patches(images, state[f"{projection}.weight"], state[f"{projection}.bias"])
        positions = state["embeddings.position_embeddings"]
        if self.grid != GRID:
            square = positions[:, 1:].reshape(1, self.grid, self.grid, WIDTH).permute(0, 3, 1, 2)
            square = F.interpolate(square, size=(GRID, GRID), mode="bicubic", align_corners=False)
            positions = torch.cat([positions[:, :1], square.permute(0, 2, 3, 1).reshape(1, -1, WIDTH)], dim=1)
        first = state["embeddings.cls_token"].expand(len(images), -1, -1)
        x = torch.cat([first, x], dim=1) + positions
        if self.registers:
            held = state["embeddings.register_tokens"].expand(len(images), -1, -1)
            x = torch.cat([x[:, :1], held, x[:, 1:]], dim=1)
        for i in range(DEPTH):
            x = self._layer(f"encoder.layer.{i}", x)
        return normed(state, "layernorm", x, self.eps)

    def _layer(self, layer: str, x: Tensor) -> Tensor:
        state = self.state
        one, two = ("norm1", "norm2") if self.dinov2 else ("layernorm_before", "layernorm_after")
        y = normed(state, f"{layer}.{one}", x, self.eps)
        parts = [apply(state, f"{layer}.attention.attention.{p}", y) for p in ("query", "key", "value")]
        y = apply(state, f"{layer}.attention.output.dense", attention(*parts, HEADS))
        x = x + y * state.get(f"{layer}.layer_scale1.lambda1", torch.ones(()))
        y = normed(state, f"{layer}.{two}", x, self.eps)
        if self.swiglu:
            gate, value = apply(state, f"{layer}.mlp.weights_in", y).chunk(2, dim=-1)
            y = apply(state, f"{layer}.mlp.weights_out", F.silu(gate) * value)
        else:
            into, out = ("mlp.fc1", "mlp.fc2") if self.dinov2 else ("intermediate.dense", "output.dense")
            y = apply(state, f"{layer}.{out}", F.gelu(apply(state, f"{layer}.{into}", y)))
        return x + y * state.get(f"{layer}.layer_scale2.lambda1", torch.ones(()))


class Plain:
    """A ViT with timm's own names, as CONCH, KEEP and GPFM carry it under a prefix."""

    def __init__(self, prefix: str, *, scale_name: str | None = None, grid: int = GRID) -> None:
        self.prefix, self.scale_name, self.grid = prefix, scale_name, grid
        state: State = {
            "cls_token": filled("cls", (1, 1, WIDTH)),
            "pos_embed": filled("positions", (1, 1 + grid * grid, WIDTH)),
            "patch_embed.proj.weight": filled("projection", (WIDTH, 3, PATCH, PATCH)),
            "patch_embed.proj.bias": filled("projection.bias", (WIDTH,)),
        }
        for i in range(DEPTH):
            for name in ("norm1", "norm2"):
                norm(state, f"blocks.{i}.{name}", WIDTH)
            linear(state, f"blocks.{i}.attn.qkv", WIDTH, 3 * WIDTH)
            linear(state, f"blocks.{i}.attn.proj", WIDTH, WIDTH)
            linear(state, f"blocks.{i}.mlp.fc1", WIDTH, 4 * WIDTH)
            linear(state, f"blocks.{i}.mlp.fc2", 4 * WIDTH, WIDTH)
            if scale_name:
                for scale in ("ls1", "ls2"):
                    state[f"blocks.{i}.{scale}.{scale_name}"] = filled(f"{i}.{scale}", (WIDTH,))
        norm(state, "norm", WIDTH)
        self.own = state
        self.state = {prefix + name: value for name, value in state.items()}

    def timm_kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH,
                                  "num_heads": HEADS}  # fmt: skip
        return kwargs | ({"init_values": 1.0} if self.scale_name else {})

    def tokens(self, images: Tensor, positions: Tensor | None = None) -> Tensor:
        state = self.own
        x = patches(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"])
        x = torch.cat([state["cls_token"].expand(len(images), -1, -1), x], dim=1)
        x = x + (state["pos_embed"] if positions is None else positions)
        for i in range(DEPTH):
            block = f"blocks.{i}"
            parts = apply(state, f"{block}.attn.qkv", normed(state, f"{block}.norm1", x, 1e-6)).chunk(3, -1)
            y = apply(state, f"{block}.attn.proj", attention(*parts, HEADS))
            x = x + y * state.get(f"{block}.ls1.{self.scale_name}", torch.ones(()))
            y = F.gelu(apply(state, f"{block}.mlp.fc1", normed(state, f"{block}.norm2", x, 1e-6)))
            y = apply(state, f"{block}.mlp.fc2", y)
            x = x + y * state.get(f"{block}.ls2.{self.scale_name}", torch.ones(()))
        return normed(state, "norm", x, 1e-6)


class Beit3:
    """torchscale's BEiT-3 (MUSK), its image half: norms within attention and feed-forward, two unused rows of
    positions, every layer twice (A for images, B for text)."""

    def __init__(self) -> None:
        state: State = {
            "logit_scale": torch.ones(()),
            "beit3.text_embed.weight": filled("text", (50, WIDTH)),
            "beit3.vision_embed.mask_token": filled("mask", (1, 1, WIDTH)),
            "beit3.vision_embed.cls_token": filled("cls", (1, 1, WIDTH)),
            "beit3.vision_embed.proj.weight": filled("projection", (WIDTH, 3, PATCH, PATCH)),
            "beit3.vision_embed.proj.bias": filled("projection.bias", (WIDTH,)),
            "beit3.encoder.embed_positions.A.weight": filled("positions", (GRID * GRID + 1 + 2, WIDTH)),
            "beit3.encoder.embed_positions.B.weight": filled("text positions", (16, WIDTH)),
        }
        for half in ("A", "B"):
            for i in range(DEPTH):
                layer = f"beit3.encoder.layers.{i}"
                for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                    linear(state, f"{layer}.self_attn.{part}.{half}", WIDTH, WIDTH)
                norm(state, f"{layer}.self_attn.inner_attn_ln.{half}", WIDTH)
                norm(state, f"{layer}.self_attn_layer_norm.{half}", WIDTH)
                linear(state, f"{layer}.ffn.{half}.fc1", WIDTH, 4 * WIDTH)
                linear(state, f"{layer}.ffn.{half}.fc2", 4 * WIDTH, WIDTH)
                norm(state, f"{layer}.ffn.{half}.ffn_layernorm", 4 * WIDTH)
                norm(state, f"{layer}.final_layer_norm.{half}", WIDTH)
            norm(state, f"beit3.encoder.layer_norm.{half}", WIDTH)
        for name in ("language_head", "vision_head"):
            linear(state, name, WIDTH, WIDTH, bias=False)
        self.state = state

    def tokens(self, images: Tensor) -> Tensor:
        state, eps = self.state, 1e-5
        x = patches(images, state["beit3.vision_embed.proj.weight"], state["beit3.vision_embed.proj.bias"])
        x = torch.cat([state["beit3.vision_embed.cls_token"].expand(len(images), -1, -1), x], dim=1)
        x = x + state["beit3.encoder.embed_positions.A.weight"][2:]
        for i in range(DEPTH):
            layer = f"beit3.encoder.layers.{i}"
            y = normed(state, f"{layer}.self_attn_layer_norm.A", x, eps)
            parts = [apply(state, f"{layer}.self_attn.{p}.A", y) for p in ("q_proj", "k_proj", "v_proj")]
            y = normed(state, f"{layer}.self_attn.inner_attn_ln.A", attention(*parts, HEADS), eps)
            x = x + apply(state, f"{layer}.self_attn.out_proj.A", y)
            y = normed(state, f"{layer}.final_layer_norm.A", x, eps)
            y = F.gelu(apply(state, f"{layer}.ffn.A.fc1", y))
            y = normed(state, f"{layer}.ffn.A.ffn_layernorm", y, eps)
            x = x + apply(state, f"{layer}.ffn.A.fc2", y)
        return normed(state, "beit3.encoder.layer_norm.A", x, eps)
