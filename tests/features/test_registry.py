"""The encoder registry: every row is complete, and timm can build every network it names."""

from __future__ import annotations

import pytest

from acpbench.core.errors import InputError
from acpbench.features.registry import find_encoder, load_registry

EXPECTED_DIMS = {
    "color_stats": 6, "efficientnet_lite0": 1280, "resnet50": 2048, "resnet50_layer3": 1024,
    "uni": 1024, "uni2_h": 1536, "conch_v1": 512, "conch_v1_5": 768,
    "virchow_cls_mean": 2560, "virchow_cls": 1280, "virchow2_cls_mean": 2560, "virchow2_cls": 1280,
    "prov_gigapath": 1536, "h_optimus_0": 1536, "h_optimus_1": 1536,
    "h0_mini_cls": 768, "h0_mini_cls_mean": 1536, "phikon": 768, "phikon_v2": 1024,
    "hibou_b": 768, "hibou_l": 1024, "midnight_12k_cls": 1536, "midnight_12k_cls_mean": 3072,
    "kaiko_vits8": 384, "kaiko_vits16": 384, "kaiko_vitb8": 768, "kaiko_vitb16": 768, "kaiko_vitl14": 1024,
    "lunit_vits8": 384, "gpfm": 1024, "musk": 1024, "keep": 768, "ctranspath": 768,
}  # fmt: skip


@pytest.fixture(scope="module")
def registry(repository):
    return load_registry(repository / "config" / "encoders.yaml")


def test_rows(registry):
    assert {name: spec.dim for name, spec in registry.items()} == EXPECTED_DIMS
    for spec in registry.values():
        assert spec.verified != spec.needs_weights  # hub weights cannot be run in the tests
        assert spec.licence and spec.source.ref


def test_a_model_with_two_outputs_has_no_bare_name(registry):
    """``virchow2`` is 1280 numbers in one tool and 2560 in another; here the variant is part of the id."""
    with pytest.raises(InputError, match="virchow2_cls_mean, virchow2_cls; name the one"):
        find_encoder(registry, "virchow2")
    one, two = registry["virchow2_cls"], registry["virchow2_cls_mean"]
    assert (one.variant, one.dim, two.variant, two.dim) == ("cls", 1280, "cls_mean", 2560)
    assert one.source == two.source and one.settings_sha256() != two.settings_sha256()


def test_what_the_models_want(registry):
    """Values that differ between models and are easily mixed up."""
    assert registry["h_optimus_0"].mean == registry["h0_mini_cls"].mean == [0.707223, 0.578729, 0.703617]
    assert registry["hibou_l"].std == [0.195, 0.2316, 0.1816]
    assert registry["uni2_h"].compute_dtype == "bfloat16" and registry["uni"].compute_dtype == "float16"
    assert registry["musk"].input_size_px == 384 and registry["conch_v1"].input_size_px == 448
    assert registry["ctranspath"].spacing_um == [1.0]
    assert registry["virchow2_cls"].spacing_um == [0.25, 0.5, 1.0, 2.0]
    assert registry["virchow_cls"].interpolation == "bicubic" and registry["uni"].interpolation == "bilinear"


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
    elsewhere = spec.source.model_copy(update={"folder": "/weights", "file": "w.bin", "revision": "abc"})
    assert spec.settings_sha256() == spec.model_copy(update={"source": elsewhere}).settings_sha256()
    other = spec.source.model_copy(update={"ref": "somebody/else"})
    assert spec.settings_sha256() != spec.model_copy(update={"source": other}).settings_sha256()


def test_bad_rows_name_their_field(tmp_path, registry):
    path = tmp_path / "encoders.yaml"
    path.write_text("a: {source: {kind: ftp, ref: x}}\n")
    with pytest.raises(InputError, match=r"a\.source\.kind"):
        load_registry(path)
    path.write_text("a: {source: {kind: hub, ref: x, file: ../../secret}}\n")
    with pytest.raises(InputError, match=r"a\.source\.file"):
        load_registry(path)
    path.write_text("[]\n")
    with pytest.raises(InputError, match="mapping"):
        load_registry(path)
    with pytest.raises(InputError, match="known: color_stats"):
        find_encoder(registry, "nope")
