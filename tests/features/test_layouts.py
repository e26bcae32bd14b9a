"""Published checkpoint layouts: the same loader on small weights gives the published arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from acpbench.core.errors import InputError
from acpbench.features.encoders import load_encoder
from acpbench.features.networks import build_network, load_strictly
from acpbench.features.registry import EncoderSpec, load_registry
from tests.features.published import (
    GRID,
    HEADS,
    PATCH,
    SIDE,
    WIDTH,
    Beit3,
    HuggingFaceViT,
    Plain,
    apply,
    attention,
    filled,
    linear,
    norm,
    normed,
)

TILES = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
IMAGES = (torch.from_numpy(TILES).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def spec(layout: str, kwargs: dict, dim: int, variant: str = "cls", **timm) -> EncoderSpec:
    return EncoderSpec(
        id="small", source={"kind": "local", "ref": "small"}, licence="none", gated=False, variant=variant,
        dim=dim, input_size_px=SIDE, spacing_um=[], mean=[0.5] * 3, std=[0.25] * 3, interpolation="bicubic",
        compute_dtype="float32", stored_dtype="float32", verified=False, layout=layout,
        timm={"architecture": "vit_tiny_patch16_224", "kwargs": kwargs} | timm,
    )  # fmt: skip


def encoded(row: EncoderSpec, state: dict, folder) -> np.ndarray:
    torch.save(state, folder / "pytorch_model.bin")
    return load_encoder(row, weights=folder, device="cpu").encode(TILES)


@pytest.mark.parametrize(
    "published",
    [
        HuggingFaceViT(dinov2=False),
        HuggingFaceViT(dinov2=True),
        HuggingFaceViT(dinov2=True, swiglu=True),
        HuggingFaceViT(dinov2=True, swiglu=True, registers=4),
        HuggingFaceViT(dinov2=True, grid=7),
    ],
    ids=["phikon", "phikon_v2", "midnight", "hibou", "positions_of_a_larger_image"],
)
@pytest.mark.parametrize("variant", ["cls", "cls_mean"])
def test_transformers_layouts(published: HuggingFaceViT, variant: str, tmp_path) -> None:
    layout = "hf_dinov2" if published.dinov2 else "hf_vit"
    row = spec(layout, published.timm_kwargs(), WIDTH * (2 if variant == "cls_mean" else 1), variant)
    tokens = published.tokens(IMAGES)
    expected = tokens[:, 0]
    if variant == "cls_mean":
        expected = torch.cat([expected, tokens[:, 1 + published.registers :].mean(dim=1)], dim=1)
    assert np.allclose(encoded(row, published.state, tmp_path), expected.numpy(), atol=2e-6)


def test_dinov2_layout_as_gpfm_has_it(tmp_path) -> None:
    published = Plain("", scale_name="gamma")
    state = {**published.state, "mask_token": filled("mask", (1, WIDTH))}
    row = spec("dinov2", published.timm_kwargs(), WIDTH)
    assert np.allclose(encoded(row, state, tmp_path), published.tokens(IMAGES)[:, 0].numpy(), atol=2e-6)


def test_dinov2_layout_with_registers_and_gated_layers(tmp_path) -> None:
    """The names of Meta's own files: the same network as the transformers one, and the same result."""
    published = HuggingFaceViT(dinov2=True, swiglu=True, registers=2)
    state, renamed = published.state, {}
    for name, value in state.items():
        for old, new in {
            "embeddings.cls_token": "cls_token", "embeddings.mask_token": "mask_token",
            "embeddings.position_embeddings": "pos_embed", "embeddings.register_tokens": "register_tokens",
            "embeddings.patch_embeddings.projection": "patch_embed.proj", "encoder.layer.": "blocks.",
            "layernorm.": "norm.", ".attention.output.dense": ".attn.proj", ".mlp.weights_in": ".mlp.w12",
            ".mlp.weights_out": ".mlp.w3", ".layer_scale1.lambda1": ".ls1.gamma",
            ".layer_scale2.lambda1": ".ls2.gamma",
        }.items():  # fmt: skip
            name = name.replace(old, new)
        renamed[name] = value
    for i in range(2):
        for kind in ("weight", "bias"):
            parts = [renamed.pop(f"blocks.{i}.attention.attention.{part}.{kind}")
                     for part in ("query", "key", "value")]  # fmt: skip
            renamed[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
    row = spec("dinov2", published.timm_kwargs(), WIDTH)
    expected = published.tokens(IMAGES)[:, 0].numpy()
    assert np.allclose(encoded(row, {"state_dict": renamed}, tmp_path), expected, atol=2e-6)


def test_conch_pools_with_one_learned_query(tmp_path) -> None:
    dim = 16
    trunk = Plain("visual.trunk.")
    state = {**trunk.state, "logit_scale": torch.ones(()), "visual.proj_contrast": filled("p", (dim, dim))}
    for name in ("text.token_embedding.weight", "text_decoder.x", "visual.ln_caption.weight",
                 "visual.attn_pool_caption.query"):  # fmt: skip
        state[name] = filled(name, (4,))
    pool = "visual.attn_pool_contrast"
    state[f"{pool}.query"] = filled("query", (1, dim))
    for part, given in (("q", dim), ("k", WIDTH), ("v", WIDTH)):
        state[f"{pool}.attn.{part}_proj_weight"] = filled(part, (dim, given))
    state[f"{pool}.attn.in_proj_bias"] = filled("in bias", (3 * dim,))
    linear(state, f"{pool}.attn.out_proj", dim, dim)
    for name, width in ((f"{pool}.ln_q", dim), (f"{pool}.ln_k", WIDTH), ("visual.ln_contrast", dim)):
        norm(state, name, width)

    context = normed(state, f"{pool}.ln_k", trunk.tokens(IMAGES), 1e-5)
    biases = state[f"{pool}.attn.in_proj_bias"].chunk(3)
    given = {"q": normed(state, f"{pool}.ln_q", state[f"{pool}.query"], 1e-5).expand(3, 1, dim),
             "k": context, "v": context}  # fmt: skip
    parts = [
        F.linear(given[part], state[f"{pool}.attn.{part}_proj_weight"], bias)
        for part, bias in zip("qkv", biases, strict=True)
    ]
    pooled = apply(state, f"{pool}.attn.out_proj", attention(*parts, 8))[:, 0]
    expected = normed(state, "visual.ln_contrast", pooled, 1e-5)
    row = spec("conch", trunk.timm_kwargs(), dim, "pooled")
    assert np.allclose(encoded(row, state, tmp_path), expected.numpy(), atol=2e-6)


def test_conch_v1_5_pools_and_stretches_positions_as_dino_does(tmp_path) -> None:
    dim, grid = 16, 2
    trunk = Plain("trunk.", scale_name="gamma", grid=grid)
    state, pool = dict(trunk.state), "attn_pool_contrast"
    state[f"{pool}.query"] = filled("query", (1, dim))
    linear(state, f"{pool}.to_q", dim, dim, bias=False)
    linear(state, f"{pool}.to_kv", WIDTH, 2 * dim, bias=False)
    linear(state, f"{pool}.to_out", dim, dim, bias=False)
    for name, width in ((f"{pool}.ln_q", dim), (f"{pool}.ln_k", WIDTH), ("ln_contrast", dim)):
        norm(state, name, width)

    held = trunk.own["pos_embed"]
    square = held[:, 1:].reshape(1, grid, grid, WIDTH).permute(0, 3, 1, 2)
    scale = (GRID + 0.1) / grid
    square = F.interpolate(square, scale_factor=(scale, scale), mode="bicubic")
    positions = torch.cat([held[:, :1], square.permute(0, 2, 3, 1).reshape(1, -1, WIDTH)], dim=1)
    context = normed(state, f"{pool}.ln_k", trunk.tokens(IMAGES, positions), 1e-5)
    query = normed(state, f"{pool}.ln_q", state[f"{pool}.query"], 1e-5).expand(3, 1, dim)
    key, value = apply(state, f"{pool}.to_kv", context).chunk(2, dim=-1)
    mixed = attention(apply(state, f"{pool}.to_q", query), key, value, 8)
    expected = normed(state, "ln_contrast", apply(state, f"{pool}.to_out", mixed)[:, 0], 1e-5)
    row = spec("conch_v1_5", trunk.timm_kwargs(), dim, "pooled")
    assert np.allclose(encoded(row, state, tmp_path), expected.numpy(), atol=2e-6)


def test_keep_projects_to_length_one(tmp_path) -> None:
    dim = 16
    trunk = Plain("visual.", scale_name="weight")
    state = {**trunk.state, "logit_scale": torch.ones(()), "text.embeddings.x": filled("t", (4,))}
    linear(state, "visual_head.0", WIDTH, dim)
    linear(state, "visual_head.2", dim, dim)
    hidden = F.gelu(apply(state, "visual_head.0", trunk.tokens(IMAGES)[:, 0]))
    expected = F.normalize(apply(state, "visual_head.2", hidden), dim=-1).numpy()
    found = encoded(spec("keep", trunk.timm_kwargs(), dim, "pooled"), state, tmp_path)
    assert np.allclose(found, expected, atol=2e-6)
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_musk_is_the_image_half_of_beit3(prefix: str, tmp_path) -> None:
    published = Beit3()
    state = {prefix + name: value for name, value in published.state.items()}
    kwargs = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS,
              "global_pool": "token"}  # fmt: skip
    row = spec("musk", kwargs, WIDTH, architecture="beit3_large_patch16_224")
    found = encoded(row, {"model": state}, tmp_path)
    assert np.allclose(found, published.tokens(IMAGES)[:, 0].numpy(), atol=2e-6)


# First eight of 32 numbers that timm 0.5.4's Swin, with CTransPath's stem in place of its patch embedding,
# gives for these weights and this image.
TIMM_0_5_4 = [-0.22453, 0.37118, 0.24711, -0.42174, -0.02739, -0.00449, -0.1834, -0.34588]


def test_ctranspath_gives_what_timm_0_5_4_gave(tmp_path) -> None:
    """Names and order of that version: merging at a stage's end, masks and indices among the weights."""
    state: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int) -> None:
        state[name] = filled(name, shape)

    for index, given, out in ((0, 3, 2), (3, 2, 4)):
        add(f"patch_embed.proj.{index}.weight", out, given, 3, 3)
        for part in ("weight", "bias", "running_mean", "running_var"):
            add(f"patch_embed.proj.{index + 1}.{part}", out)
        state[f"patch_embed.proj.{index + 1}.num_batches_tracked"] = torch.tensor(0)
    add("patch_embed.proj.6.weight", 16, 4, 1, 1)
    add("patch_embed.proj.6.bias", 16)
    norm(state, "patch_embed.norm", 16)
    for stage, (width, heads) in enumerate(((16, 2), (32, 4))):
        for i in range(2):
            block = f"layers.{stage}.blocks.{i}"
            norm(state, f"{block}.norm1", width)
            norm(state, f"{block}.norm2", width)
            add(f"{block}.attn.relative_position_bias_table", 49, heads)
            state[f"{block}.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
            linear(state, f"{block}.attn.qkv", width, 3 * width)
            linear(state, f"{block}.attn.proj", width, width)
            linear(state, f"{block}.mlp.fc1", width, 4 * width)
            linear(state, f"{block}.mlp.fc2", 4 * width, width)
        state[f"layers.{stage}.blocks.1.attn_mask"] = torch.zeros(16, 16, 16)
    add("layers.0.downsample.reduction.weight", 32, 64)
    norm(state, "layers.0.downsample.norm", 64)
    norm(state, "norm", 32)

    kwargs = {"img_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
    row = spec("ctranspath", kwargs, 32, "pooled", architecture="swin_tiny_patch4_window7_224")
    network = build_network(row)
    load_strictly(row, network, state, tmp_path)
    image = torch.sin(0.01 * torch.arange(3 * 64 * 64, dtype=torch.float64)).reshape(1, 3, 64, 64).float()
    with torch.inference_mode():
        found = network.eval()(image)
    assert found.shape == (1, 32)
    assert found[0, :8].tolist() == pytest.approx(TIMM_0_5_4, abs=2e-5)


def test_timm_layout_takes_positions_of_a_larger_image(tmp_path) -> None:
    """As timm does when it loads such weights (antialiased), which is how these were published."""
    from timm.layers import resample_abs_pos_embed

    published = Plain("", grid=7)
    positions = resample_abs_pos_embed(published.own["pos_embed"], new_size=[GRID, GRID])
    row = spec("timm", published.timm_kwargs(), WIDTH)
    expected = published.tokens(IMAGES, positions)[:, 0].numpy()
    assert np.allclose(encoded(row, published.state, tmp_path), expected, atol=2e-6)


def test_resnet_cut_after_its_third_block(tmp_path) -> None:
    import timm

    torch.manual_seed(0)
    whole = timm.create_model("resnet10t", num_classes=5).eval()
    kwargs = {"features_only": True, "out_indices": [3]}
    row = spec("timm", kwargs, 256, "map_mean", architecture="resnet10t", unused=["layer4."])
    with torch.inference_mode():
        x = whole.maxpool(whole.act1(whole.bn1(whole.conv1(IMAGES))))
        expected = whole.layer3(whole.layer2(whole.layer1(x))).mean(dim=(2, 3))
    assert np.allclose(encoded(row, whole.state_dict(), tmp_path), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("change", ["lost", "extra", "half_of_qkv"])
def test_weights_that_a_layout_does_not_have_are_refused(change: str, tmp_path) -> None:
    published = HuggingFaceViT(dinov2=True)
    state = dict(published.state)
    words = {"lost": "1 missing", "extra": "1 unknown", "half_of_qkv": "lack a partner"}[change]
    if change == "extra":
        state["encoder.layer.0.adapter.weight"] = torch.zeros(2)
    else:
        part = "attention.attention.key.bias" if change == "half_of_qkv" else "norm1.bias"
        del state[f"encoder.layer.0.{part}"]
    with pytest.raises(InputError, match=words):
        encoded(spec("hf_dinov2", published.timm_kwargs(), WIDTH), state, tmp_path)


def test_every_row_has_a_network_of_its_dimension(repository) -> None:
    registry = load_registry(repository / "config" / "encoders.yaml")
    registers = {"uni2_h": 8} | dict.fromkeys(
        ("virchow2_cls", "virchow2_cls_mean", "h_optimus_0", "h_optimus_1", "h0_mini_cls", "h0_mini_cls_mean",
         "hibou_b", "hibou_l", "kaiko_vitl14"), 4,
    )  # fmt: skip
    for name, row in registry.items():
        if not row.needs_weights:
            continue
        assert row.timm is not None
        if row.timm.architecture.startswith(("vit", "beit3")):  # all layers are alike: one tells the widths
            one = row.timm.model_copy(update={"kwargs": {**row.timm.kwargs, "depth": 1}})
            row = row.model_copy(update={"timm": one})
        with torch.device("meta"):  # shapes only
            network = build_network(row)
            if row.variant in ("pooled", "map_mean"):
                batch = torch.zeros(1, 3, row.input_size_px, row.input_size_px)
                found = network.eval()(batch)
                width = found[-1].shape[1] if row.variant == "map_mean" else found.shape[1]
            else:
                width = network.num_features * (2 if row.variant == "cls_mean" else 1)
                assert network.num_prefix_tokens == 1 + registers.get(name, 0), name
        assert width == row.dim, name
