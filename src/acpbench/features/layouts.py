"""Checkpoints as they are published → the names that the network of the encoder's row has.

Every function takes a state dict and gives another; nothing is dropped silently: a name that a function does
not know is passed on, and :func:`acpbench.features.networks.load_strictly` refuses it. Names and shapes are
those of the published files (transformers ``ViTModel``, ``Dinov2Model`` and ``Dinov2WithRegistersModel``;
DINOv2; CONCH; TransPath on timm 0.5; KEEP; torchscale's BEiT-3 for MUSK).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from acpbench.core.errors import InputError

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]


def to_network(layout: str, state: State, trunk: Any) -> State:
    """Rename a checkpoint's weights, fit its position embedding to ``trunk``'s grid.

    Args:
        layout: ``layout`` of the encoder's row.
        state: the checkpoint.
        trunk: the timm network within the encoder (itself, where there is nothing around it).
    """
    rename = _LAYOUTS.get(layout)
    state = state if rename is None else rename(state)
    prefix = "trunk." if layout in ("conch", "conch_v1_5", "keep") else ""
    return _fit_positions(layout, state, trunk, f"{prefix}pos_embed")


def _without(state: State, *beginnings: str) -> State:
    return {name: value for name, value in state.items() if not name.startswith(beginnings)}


def _renamed(state: State, rules: list[tuple[str, str]]) -> State:
    renamed = {}
    for name, value in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


def _join_qkv(state: State, parts: tuple[str, str, str]) -> State:
    """``…attn.<q>``, ``…attn.<k>``, ``…attn.<v>`` → one ``…attn.qkv``, in that order."""
    import torch

    joined: State = {}
    query = re.compile(rf"^(.*\.attn)\.{re.escape(parts[0])}\.(weight|bias)$")
    others = re.compile(rf"\.attn\.({re.escape(parts[1])}|{re.escape(parts[2])})\.(weight|bias)$")
    for name, value in state.items():
        found = query.match(name)
        if found is None:
            if not others.search(name):
                joined[name] = value
            continue
        names = [f"{found[1]}.{part}.{found[2]}" for part in parts]
        if not all(one in state for one in names):
            raise InputError(f"the weights lack a partner of {name}")
        joined[f"{found[1]}.qkv.{found[2]}"] = torch.cat([state[one] for one in names])
    return joined


_HF_COMMON = [
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^layernorm\.", "norm."),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.attention\.", ".attn."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
]


def _hf_vit(state: State) -> State:
    state = _without(_renamed(state, [(r"^vit\.", "")]), "pooler.")
    rules = [
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.intermediate\.dense\.", ".mlp.fc1."),
        (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    ]
    return _join_qkv(_renamed(state, _HF_COMMON + rules), ("query", "key", "value"))


def _hf_dinov2(state: State) -> State:
    state = _renamed(state, [(r"^dinov2(_with_registers)?\.", "")])
    state = _without(state, "embeddings.mask_token", "pooler.")
    rules = [
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        # Gate first, value second in both; transformers splits the joint layer in the same order.
        (r"\.mlp\.weights_in\.", ".mlp.fc1."),
        (r"\.mlp\.weights_out\.", ".mlp.fc2."),
    ]
    return _fold_class_position(_join_qkv(_renamed(state, _HF_COMMON + rules), ("query", "key", "value")))


def _dinov2(state: State) -> State:
    rules = [
        (r"^register_tokens$", "reg_token"),
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
    ]
    return _fold_class_position(_renamed(_without(state, "mask_token"), rules))


def _fold_class_position(state: State) -> State:
    """With registers, timm has a position for patches only; the class token's own is added to it here."""
    if "reg_token" not in state:
        return state
    positions = state["pos_embed"]
    folded = {"cls_token": state["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return {**state, **folded}


def _ctranspath(state: State) -> State:
    kept = {
        name: value
        for name, value in state.items()
        if not name.endswith((".attn_mask", ".relative_position_index"))
    }
    # Since timm 0.9 a stage begins with the merging of patches that the stage before it used to end with.
    return {
        re.sub(r"^layers\.(\d)\.downsample\.", lambda m: f"layers.{int(m[1]) + 1}.downsample.", name): value
        for name, value in kept.items()
    }


def _conch(state: State) -> State:
    others = ("text.", "text_decoder.", "logit_scale", "visual.attn_pool_caption.", "visual.ln_caption.")
    state = _without(state, *others, "visual.proj_contrast")
    return _renamed(state, [(r"^visual\.", "")])


def _keep(state: State) -> State:
    rules = [
        (r"^visual_head\.", "head."),
        (r"^visual\.", "trunk."),
        (r"\.ls([12])\.weight$", r".ls\1.gamma"),
    ]
    return _renamed(_without(state, "text.", "logit_scale"), rules)


def _musk(state: State) -> State:
    state = _without(state, "vision_head.", "language_head.", "logit_scale")
    state = _without(_renamed(state, [(r"^beit3\.", "")]), "text_embed.", "vision_embed.mask_token")
    # Each layer exists twice: A for images, B for text.
    state = {name: value for name, value in state.items() if ".B." not in name}
    rules = [
        (r"\.A\.", "."),
        (r"^vision_embed\.cls_token$", "cls_token"),
        (r"^vision_embed\.proj\.", "patch_embed.proj."),
        (r"^encoder\.embed_positions\.weight$", "pos_embed"),
        (r"^encoder\.layer_norm\.", "norm."),
        (r"^encoder\.layers\.", "blocks."),
        (r"\.self_attn_layer_norm\.", ".norm1."),
        (r"\.final_layer_norm\.", ".norm2."),
        (r"\.self_attn\.inner_attn_ln\.", ".attn.norm."),
        (r"\.self_attn\.out_proj\.", ".attn.proj."),
        (r"\.self_attn\.", ".attn."),
        (r"\.ffn\.ffn_layernorm\.", ".mlp.norm."),
        (r"\.ffn\.", ".mlp."),
    ]
    state = _join_qkv(_renamed(state, rules), ("q_proj", "k_proj", "v_proj"))
    if "pos_embed" in state:  # the first two rows are never used: positions are counted from 2
        state["pos_embed"] = state["pos_embed"][2:].unsqueeze(0)
    return state


_LAYOUTS: dict[str, Callable[[State], State]] = {
    "hf_vit": _hf_vit,
    "hf_dinov2": _hf_dinov2,
    "dinov2": _dinov2,
    "ctranspath": _ctranspath,
    "conch": _conch,
    "keep": _keep,
    "musk": _musk,
}


def _fit_positions(layout: str, state: State, trunk: Any, name: str) -> State:
    """Resample a square position embedding to the trunk's grid, as the encoder's own code does it."""
    wanted = getattr(trunk, "pos_embed", None)
    held = state.get(name)
    if wanted is None or held is None or held.ndim != 3 or held.shape == wanted.shape:
        return state
    prefix = 0 if trunk.no_embed_class else trunk.num_prefix_tokens
    side = round((held.shape[1] - prefix) ** 0.5)
    rows, columns = trunk.patch_embed.grid_size
    if side * side + prefix != held.shape[1] or held.shape[2] != wanted.shape[2]:
        return state
    if layout == "timm":
        from timm.layers import resample_abs_pos_embed

        fitted = resample_abs_pos_embed(held, new_size=[rows, columns], num_prefix_tokens=prefix)
        return {**state, name: fitted}
    import torch

    grid = held[:, prefix:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if layout == "conch_v1_5":
        # DINO's way: a tenth of a patch more than the grid, and the scale itself decides where samples lie.
        scale = ((rows + 0.1) / side, (columns + 0.1) / side)
        grid = torch.nn.functional.interpolate(grid, scale_factor=scale, mode="bicubic")
    else:
        grid = torch.nn.functional.interpolate(
            grid, size=(rows, columns), mode="bicubic", align_corners=False
        )
    grid = grid.permute(0, 2, 3, 1).flatten(1, 2).to(held.dtype)
    return {**state, name: torch.cat([held[:, :prefix], grid], dim=1)}
