"""Import into this project's layout, export to TRIDENT's and CLAM's, and back."""

from __future__ import annotations

import dataclasses
import json
import math

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from acpbench.cli.features import features as command
from acpbench.core.errors import InputError
from acpbench.features.exchange import export_clam, export_trident, import_file, import_slide
from acpbench.features.foreign import read_any_features
from acpbench.features.registry import parse_encoder
from acpbench.features.store import FeatureBag, read_features, write_features
from acpbench.slides.coords import TileSet, write_coords
from acpbench.slides.geometry import plan_tiles
from tests.features.test_foreign import COORDS, FEATURES, atlaspatch, clam, slide2vec, stamp, trident

OWN = {
    "slide_id": "A.B", "status": "ok", "encoder": "uni", "cache_key": "k", "encoder_sha256": "w",
    "spacing_um": 0.5057, "tile_size_px": 256, "tile_size_level0": 512.2, "level": 1,
    "level_downsample": 2.0003, "read_size_px": 256, "mpp": 0.2528, "slide_width_px": 4001,
    "slide_height_px": 3001, "level_width_px": 2000, "level_height_px": 1500,
}  # fmt: skip


def own(dtype=np.float16, n: int = 5, **attrs) -> FeatureBag:
    return FeatureBag(FEATURES[:n].astype(dtype), COORDS[:n], OWN | attrs)


def test_trident_gets_its_own_layout(tmp_path) -> None:
    patches, features = export_trident(own(), tmp_path)
    job = tmp_path / "20x_256px_0px_overlap"
    assert (patches, features) == (job / "patches" / "A.B_patches.h5", job / "features_uni" / "A.B.h5")
    with h5py.File(features) as handle:
        assert handle["features"].dtype == np.float16 and handle["features"].chunks == (1, 4)
        assert np.array_equal(handle["features"], FEATURES) and np.array_equal(handle["coords"], COORDS)
        assert dict(handle["features"].attrs) == {
            "name": "A.B", "savetodir": str(job / "features_uni"), "encoder": "uni",
        }  # fmt: skip
        place = dict(handle["coords"].attrs)
    with h5py.File(patches) as handle:
        assert set(handle) == {"coords"} and handle["coords"].dtype == np.int64
        assert handle["coords"].chunks == (1, 2)
        assert dict(handle["coords"].attrs) == place
    assert place == {
        "patch_size": 256, "patch_size_level0": 512, "level0_magnification": 40, "target_magnification": 20,
        "overlap": 0, "name": "A.B", "savetodir": str(job), "level0_width": 4001, "level0_height": 3001,
    }  # fmt: skip


def test_clam_gets_its_own_layout(tmp_path) -> None:
    patches, features, tensor = export_clam(own(), tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in (patches, features, tensor)] == [
        "patches/A.B.h5", "h5_files/A.B.h5", "pt_files/A.B.pt",
    ]  # fmt: skip
    with h5py.File(features) as handle:
        assert handle["features"].dtype == np.float32 and handle["features"].chunks == (32, 4)
        assert handle["coords"].dtype == np.int32 and handle["coords"].chunks == (32, 2)
        assert np.array_equal(handle["features"], FEATURES) and np.array_equal(handle["coords"], COORDS)
    with h5py.File(patches) as handle:
        place = {name: np.asarray(value).tolist() for name, value in handle["coords"].attrs.items()}
        assert np.array_equal(handle["coords"], COORDS)
    assert place == {
        "patch_size": 256, "patch_level": 1, "downsample": [2.0003, 2.0003],
        "downsampled_level_dim": [2000, 1500], "level_dim": [2000, 1500], "name": "A.B",
        "save_path": str(tmp_path / "patches"),
    }  # fmt: skip
    held = torch.load(tensor, weights_only=True)
    assert held.dtype == torch.float32 and np.array_equal(held.numpy(), FEATURES)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_there_and_back(tmp_path, n) -> None:
    bag = own(n=n, status="ok" if n else "empty_tissue")
    _, there = export_trident(bag, tmp_path / "t")
    back = read_any_features(there, mpp=0.2528)
    assert np.array_equal(back.features, bag.features) and np.array_equal(back.coords, bag.coords)
    assert (back.slide_id, back.attrs["encoder"], back.status) == ("A.B", "uni", bag.status)
    if n:
        assert back.attrs["tile_size_level0"] == 512
        assert back.attrs["spacing_um"] == pytest.approx(0.5056)
    patches, file, tensor = export_clam(bag, tmp_path / "c")
    for path in (file, tensor):
        back = read_any_features(path, coords_path=patches)
        assert np.array_equal(back.features, bag.features.astype(np.float32))
        assert np.array_equal(back.coords, bag.coords) and back.slide_id == "A.B"
        assert back.attrs["tile_size_level0"] == pytest.approx(256 * 2.0003)


@pytest.mark.parametrize("export", [export_trident, export_clam])
def test_an_id_never_leads_out_of_the_folder(tmp_path, export) -> None:
    for attrs in ({"slide_id": "../../evil"}, {"slide_id": "/tmp/evil"}, {"encoder": "../evil"}):
        if "encoder" in attrs and export is export_clam:
            continue  # its layout has no encoder in a path
        with pytest.raises(InputError, match="evil"):
            export(own(**attrs), tmp_path / "a" / "b")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("export", [export_trident, export_clam])
def test_tiles_that_are_no_squares_of_level_0_are_not_said_to_be(tmp_path, export) -> None:
    with pytest.raises(InputError, match=r"512\.2 x 256 px of level 0"):
        export(own(tile_size_level0_y=256.0), tmp_path)
    assert export(own(tile_size_level0_y=512.2), tmp_path)


def test_one_file_that_cannot_be_exported_stops_no_other(tmp_path) -> None:
    write_features(tmp_path / "good.h5", own())
    write_features(tmp_path / "bad.h5", own(mpp=-1.0))
    files = [str(tmp_path / f"{name}.h5") for name in ("bad", "none", "good")]
    done = CliRunner().invoke(
        command, ["export", *files, "--to", "trident", "--output-dir", str(tmp_path / "o")]
    )
    assert done.exit_code != 0
    assert done.output.count("not exported: ") == 2
    assert len(list((tmp_path / "o").rglob("A.B*.h5"))) == 2


def test_export_without_geometry_is_refused(tmp_path) -> None:
    bag = own(mpp=-1.0, slide_width_px=-1)
    with pytest.raises(InputError, match=r"A\.B: its feature file does not state mpp, slide_width_px"):
        export_trident(bag, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["trident", "clam", "stamp", "atlaspatch", "slide2vec"])
def test_import_writes_a_file_that_training_reads(tmp_path, kind) -> None:
    source = tmp_path / "source"
    source.mkdir()
    options: dict = {"mpp": 0.5}
    if kind == "clam":
        paths = clam(source)
        path, options = paths["h5"], {"coords_path": paths["patches"], "encoder": "resnet50_layer3"}
    elif kind == "slide2vec":
        path = slide2vec(source)
    else:
        make = {"trident": trident, "stamp": stamp, "atlaspatch": atlaspatch}[kind]
        path = make(source / "s.h5")
    target = import_file(path, tmp_path / "out", **options)
    bag = read_features(target)
    assert np.array_equal(bag.features, FEATURES) and np.array_equal(bag.coords, COORDS)
    assert bag.attrs["source_format"] == kind and bag.attrs["tile_size_level0"] >= 512
    with h5py.File(target) as handle:
        assert handle["features"].chunks is None
    with pytest.raises(InputError, match="is there already"):
        import_file(path, tmp_path / "out", **options)


def test_import_refuses_what_could_not_be_drawn_or_named(tmp_path) -> None:
    path = trident(tmp_path / "a.h5", attrs=False)
    with pytest.raises(InputError, match="how large a tile is at level 0"):
        import_file(path, tmp_path / "out")
    with pytest.raises(InputError, match="which encoder made it"):
        import_file(clam(tmp_path / "clam")["h5"], tmp_path / "out", tile_size_level0=512)
    with pytest.raises(InputError, match="slide_id"):
        import_file(path, tmp_path / "out", tile_size_level0=512, slide_id="../a")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def tiled(tmp_path):
    """The coordinates of a slide at 0.25 um/px whose tiles are 256 px of 0.5 um."""
    tiles = TileSet(
        slide_id="s1", slide_sha256="0" * 64, status="ok", reason="", detail="", coords=COORDS,
        tissue_fractions=np.ones(5), requested_spacing_um=0.5, tile_size_px=256,
        plan=plan_tiles(((4000, 3000), (2000, 1500)), 0.25, 0.25, 0.5, 256), mpp_x=0.25, mpp_y=0.25,
    )  # fmt: skip
    write_coords(tmp_path / "coords.h5", tiles)
    return tiles


def files_row(folder, **changes):
    row = {
        "source": {"kind": "files", "ref": str(folder)}, "licence": "none", "gated": False, "variant": "cls",
        "dim": 4, "input_size_px": None, "spacing_um": [0.5], "mean": None, "std": None,
        "interpolation": None, "compute_dtype": "float16", "stored_dtype": "float16", "verified": False,
    }  # fmt: skip
    return parse_encoder("theirs", row | changes)


def test_a_study_takes_features_that_were_made_elsewhere(tmp_path, tiled) -> None:
    (tmp_path / "theirs").mkdir()
    trident(tmp_path / "theirs" / "s1.h5")
    bag = import_slide(files_row(tmp_path / "theirs"), tmp_path / "coords.h5", tmp_path / "s1.h5")
    held = read_features(tmp_path / "s1.h5")
    assert np.array_equal(held.features, FEATURES)
    assert held.attrs["encoder"] == "theirs" == bag.attrs["encoder"]
    assert held.attrs["spacing_um"] == pytest.approx(0.5) and held.attrs["tile_size_level0"] == 512
    first = (tmp_path / "s1.h5").read_bytes()
    import_slide(files_row(tmp_path / "theirs"), tmp_path / "coords.h5", tmp_path / "s1.h5")
    assert (tmp_path / "s1.h5").read_bytes() == first
    with pytest.raises(InputError, match="has 4 numbers a tile, encoder theirs 1024"):
        import_slide(files_row(tmp_path / "theirs", dim=1024), tmp_path / "coords.h5", tmp_path / "x.h5")
    with pytest.raises(InputError, match=r"takes 1\.0 um/px, the tiles have 0\.5"):
        row = files_row(tmp_path / "theirs", spacing_um=[1.0])
        import_slide(row, tmp_path / "coords.h5", tmp_path / "x.h5")


def test_a_slide_without_a_foreign_file_is_excluded_and_an_excluded_one_stays_so(tmp_path, tiled) -> None:
    bag = import_slide(files_row(tmp_path / "none"), tmp_path / "coords.h5", tmp_path / "s1.h5")
    assert (bag.status, bag.attrs["reason"]) == ("unreadable", "no_feature_file")
    assert read_features(tmp_path / "s1.h5").features.shape == (0, 4)
    gone = dataclasses.replace(
        tiled, status="no_mpp", reason="mpp_missing", coords=COORDS[:0], tissue_fractions=np.ones(0),
        plan=None, mpp_x=None, mpp_y=None,
    )  # fmt: skip
    write_coords(tmp_path / "coords.h5", gone)
    (tmp_path / "theirs").mkdir()
    trident(tmp_path / "theirs" / "s1.h5")
    bag = import_slide(files_row(tmp_path / "theirs"), tmp_path / "coords.h5", tmp_path / "s1.h5")
    assert bag.status == "no_mpp" and len(bag.features) == 0


def test_command_line(tmp_path) -> None:
    run = CliRunner()
    path = trident(tmp_path / "A.B.h5")
    shown = run.invoke(command, ["info", str(path), "--mpp", "0.25", "--format", "json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output) == {
        "format": "trident", "slide_id": "A.B", "status": "ok", "encoder": "uni_v1", "variant": None,
        "n_tiles": 5, "dim": 4, "dtype": "float32", "tile_size_px": 256.0, "tile_size_level0": 512.0,
        "spacing_um": 0.5, "mpp": 0.25,
    }  # fmt: skip
    out = tmp_path / "out"
    done = run.invoke(command, ["import", str(path), "--encoder", "uni", "--output-dir", str(out)])
    assert done.exit_code == 0 and done.output.strip() == str(out / "A.B.h5")
    table = run.invoke(command, ["info", str(out / "A.B.h5")])
    assert "tile_size_level0   512.0" in table.output and "spacing_um         -" in table.output
    write_features(tmp_path / "mine.h5", own())
    mine = str(tmp_path / "mine.h5")
    done = run.invoke(command, ["export", mine, "--to", "clam", "--output-dir", str(out)])
    assert done.exit_code == 0 and len(done.output.splitlines()) == 3


def test_import_goes_on_after_a_bad_file_and_says_so(tmp_path) -> None:
    (tmp_path / "a.h5").write_text("not HDF5")
    good = trident(tmp_path / "b.h5")
    done = CliRunner().invoke(
        command, ["import", str(tmp_path / "a.h5"), str(good), "--output-dir", str(tmp_path / "out")]
    )
    assert isinstance(done.exception, InputError) and "1 of 2 files" in str(done.exception)
    assert (tmp_path / "out" / "b.h5.json").is_file()
    assert math.isclose(read_features(tmp_path / "out" / "b.h5").features.sum(), FEATURES.sum())
