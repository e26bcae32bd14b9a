"""The encoder registry: every row is complete, and timm can build every network it names."""

from __future__ import annotations

import pytest

from acpbench.core.errors import InputError
from acpbench.features.registry import find_encoder, load_registry

EXPECTED_DIMS = {
    "color_stats": 6, "efficientnet_lite0": 1280, "resnet50": 2048, "uni": 1024, "uni2_h": 1536,
    "virchow": 2560, "virchow2": 2560, "prov_gigapath": 1536, "h_optimus_0": 1536, "h_optimus_1": 1536,
    "phikon": 768, "kaiko_vits8": 384, "lunit_vits8": 384,
}  # fmt: skip


@pytest.fixture(scope="module")
def registry(repository):
    return load_registry(repository / "config" / "encoders.yaml")


def test_rows(registry):
    assert {name: spec.dim for name, spec in registry.items()} == EXPECTED_DIMS
    for spec in registry.values():
        assert spec.verified == (spec.source.kind != "timm")  # hub weights cannot be run in the tests


@pytest.mark.parametrize("name", [n for n in EXPECTED_DIMS if n not in ("color_stats", "efficientnet_lite0")])
def test_timm_builds_the_network_of_each_row(registry, name):
    import torch

    from acpbench.features.encoders import _timm_model

    spec = registry[name]
    with torch.device("meta"):  # shapes only; the largest has more than 10^9 weights
        model = _timm_model(spec)
    assert model.num_features * (2 if spec.variant == "cls_mean" else 1) == spec.dim
    registers = {"uni2_h": 8, "virchow2": 4, "h_optimus_0": 4, "h_optimus_1": 4}.get(name, 0)
    assert getattr(model, "num_prefix_tokens", 1) == 1 + registers


def test_spacing_and_size_are_enforced(registry):
    uni = registry["uni"]
    uni.check_tiles(spacing_um=0.51, tile_size_px=224)
    with pytest.raises(InputError, match=r"0\.5 um/px, the tiles have 1"):
        uni.check_tiles(spacing_um=1.0, tile_size_px=224)
    uni.check_tiles(spacing_um=1.0, tile_size_px=224, allow_any_spacing=True)
    with pytest.raises(InputError, match="takes 224 px, the tiles have 256"):
        uni.check_tiles(spacing_um=0.5, tile_size_px=256)
    uni.check_tiles(spacing_um=0.5, tile_size_px=256, allow_resize=True)
    registry["efficientnet_lite0"].check_tiles(spacing_um=3.0, tile_size_px=512)
    registry["color_stats"].check_tiles(spacing_um=9.0, tile_size_px=17)


def test_settings_hash_ignores_what_does_not_change_a_feature(registry):
    spec = registry["uni"]
    assert spec.settings_sha256() == spec.model_copy(update={"note": "x", "licence": "y"}).settings_sha256()
    assert spec.settings_sha256() != spec.model_copy(update={"interpolation": "bicubic"}).settings_sha256()


def test_bad_rows_name_their_field(tmp_path, registry):
    path = tmp_path / "encoders.yaml"
    path.write_text("a: {source: {kind: ftp, ref: x}}\n")
    with pytest.raises(InputError, match=r"a\.source\.kind"):
        load_registry(path)
    path.write_text("[]\n")
    with pytest.raises(InputError, match="mapping"):
        load_registry(path)
    with pytest.raises(InputError, match="known: color_stats"):
        find_encoder(registry, "nope")
