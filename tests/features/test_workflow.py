"""The workflow's own jobs: fetch once, extract from what was fetched, take over what another tool made."""

from __future__ import annotations

import pytest
import torch
import yaml

from acpbench.core.files import read_json, sha256_file
from acpbench.features.exchange import export_trident
from acpbench.features.store import read_features
from tests.features.published import Plain
from tests.workflow.study import REPOSITORY, changed, snakemake, write_study

SLIDE = "DEMO-01-1"


@pytest.mark.slow
def test_two_variants_of_one_source_and_features_made_elsewhere(tmp_path, monkeypatch) -> None:
    published = Plain("")
    weights = tmp_path / "weights" / "nobody--small"
    weights.mkdir(parents=True)
    torch.save(published.state, weights / "pytorch_model.bin")
    row = {
        "source": {"kind": "hub", "ref": "nobody/small"}, "licence": "none", "gated": True, "variant": "cls",
        "dim": 32, "input_size_px": 32, "spacing_um": [0.5], "mean": [0.5] * 3, "std": [0.25] * 3,
        "interpolation": "bicubic", "accepts_resize": True, "compute_dtype": "float16",
        "stored_dtype": "float16", "verified": False,
        "timm": {"architecture": "vit_tiny_patch16_224", "kwargs": published.timm_kwargs()},
    }  # fmt: skip
    theirs = tmp_path / "20x_224px_0px_overlap" / "features_small_cls"
    files = row | {"source": {"kind": "files", "ref": str(theirs)}, "timm": None, "input_size_px": None,
                   "mean": None, "std": None, "interpolation": None}  # fmt: skip
    rows = {"small_cls": row, "small_cls_mean": row | {"variant": "cls_mean", "dim": 64}, "theirs": files}
    builtin = yaml.safe_load((REPOSITORY / "config" / "encoders.yaml").read_text())["color_stats"]
    (tmp_path / "encoders.yaml").write_text(yaml.safe_dump({"color_stats": builtin} | rows))
    write_study(tmp_path, changed(encoders=["color_stats", *rows], encoders_config="encoders.yaml"))
    folder = tmp_path / "results" / "features" / "demo"
    targets = [f"results/features/demo/{name}/{SLIDE}.h5" for name in ("small_cls", "small_cls_mean")]

    monkeypatch.delenv("ACPBENCH_WEIGHTS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    refused = snakemake(REPOSITORY, tmp_path, *targets)
    assert refused.returncode != 0 and "offline is set" in refused.stdout
    monkeypatch.setenv("ACPBENCH_WEIGHTS", str(tmp_path / "weights"))
    done = snakemake(REPOSITORY, tmp_path, *targets)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count("rule prefetch_weights:") == 1
    record = read_json(tmp_path / "results" / "weights" / "nobody--small.json")
    assert record["sha256"] == sha256_file(weights / "pytorch_model.bin")
    one, two = (read_features(folder / name / f"{SLIDE}.h5") for name in ("small_cls", "small_cls_mean"))
    assert one.features.shape[1] == 32 and two.features.shape[1] == 64
    assert (one.features == two.features[:, :32]).all()  # the class token is the first half of both
    assert one.attrs["encoder_sha256"] == record["sha256"] == two.attrs["encoder_sha256"]

    export_trident(one, tmp_path)
    done = snakemake(REPOSITORY, tmp_path, f"results/features/demo/theirs/{SLIDE}.h5")
    assert done.returncode == 0, done.stdout[-3000:]
    bag = read_features(folder / "theirs" / f"{SLIDE}.h5")
    assert (bag.features == one.features).all() and (bag.coords == one.coords).all()
    assert bag.attrs["source_format"] == "trident" and bag.attrs["spacing_um"] == pytest.approx(0.5)
