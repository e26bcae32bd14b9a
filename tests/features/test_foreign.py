"""Feature files of other tools, written here exactly as those tools write them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from acpbench.core.errors import InputError
from acpbench.features.foreign import read_any_features
from acpbench.features.foreign_arrays import read_array
from acpbench.features.store import FeatureBag, write_features

N, D = 5, 4
FEATURES = np.arange(N * D, dtype=np.float32).reshape(N, D) / 8
COORDS = np.array([[0, 0], [512, 0], [1024, 0], [0, 512], [512, 512]], dtype=np.int64)


def trident(path: Path, n: int = N, attrs: bool = True) -> Path:
    """``features_<enc>/<slide>.h5``: chunks of one tile, attributes on both datasets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as handle:
        features = handle.create_dataset("features", data=FEATURES[:n], chunks=(1, D), maxshape=(None, D))
        features.attrs.update({"name": path.stem, "savetodir": "/out", "encoder": "uni_v1"})
        coords = handle.create_dataset("coords", data=COORDS[:n], chunks=(1, 2), maxshape=(None, 2))
        if attrs:
            coords.attrs.update({
                "patch_size": 256, "patch_size_level0": 512, "level0_magnification": 40,
                "target_magnification": 20, "overlap": 0, "name": path.stem, "savetodir": "/out",
                "level0_width": 4000, "level0_height": 3000,
            })  # fmt: skip
    return path


def clam(folder: Path, name: str = "A.B", geometry: bool = True) -> dict[str, Path]:
    """``h5_files``, ``pt_files`` and ``patches`` of CLAM."""
    paths = {kind: folder / kind for kind in ("h5_files", "pt_files", "patches")}
    for path in paths.values():
        path.mkdir(parents=True)
    with h5py.File(paths["h5_files"] / f"{name}.h5", "w") as handle:
        handle.create_dataset("features", data=FEATURES, chunks=(32, D), maxshape=(None, D))
        handle.create_dataset("coords", data=COORDS.astype(np.int32), chunks=(32, 2), maxshape=(None, 2))
    torch.save(torch.from_numpy(FEATURES), paths["pt_files"] / f"{name}.pt")
    with h5py.File(paths["patches"] / f"{name}.h5", "w") as handle:
        coords = handle.create_dataset("coords", data=COORDS)
        if geometry:
            coords.attrs.update({
                "patch_size": 256, "patch_level": 1, "downsample": (2.0003, 2.0003),
                "downsampled_level_dim": (2000, 1500), "level_dim": (2000, 1500), "name": name,
                "save_path": "/out",
            })  # fmt: skip
    return {"h5": paths["h5_files"] / f"{name}.h5", "pt": paths["pt_files"] / f"{name}.pt",
            "patches": paths["patches"] / f"{name}.h5"}  # fmt: skip


def stamp(path: Path) -> Path:
    """``feats`` float16, ``coords`` float32 in micrometres, attributes on the file."""
    with h5py.File(path, "w") as handle:
        handle["feats"] = FEATURES.astype(np.float16)
        handle["coords"] = (COORDS * 0.5).astype(np.float32)  # 0.5 um/px
        handle.attrs.update({
            "stamp_version": "2.4.0", "extractor": "ctranspath", "unit": "um", "tile_size_um": 256.0,
            "tile_size_px": 224, "code_hash": "abcd1234", "feat_type": "tile",
        })  # fmt: skip
    return path


def atlaspatch(path: Path, names: tuple[str, ...] = ("uni_v2",)) -> Path:
    """One file a slide: coords (N, 5), passports, a group with every encoder's features."""
    with h5py.File(path, "w") as handle:
        sizes = np.full((N, 2), 256)
        rows = np.concatenate([COORDS, sizes, np.ones((N, 1))], axis=1)
        handle["coords"] = rows.astype(np.int32)
        handle["passports"] = np.array([b"x"] * N, dtype="S160")
        for index, name in enumerate(names):
            handle[f"features/{name}"] = FEATURES + index
        handle.attrs.update({
            "patch_size": 256, "patch_size_level0": 512, "level0_magnification": 40,
            "target_magnification": 20, "overlap": 0, "level0_width": 4000, "level0_height": 3000,
            "num_patches": N, "wsi_path": "/slides/a.svs", "creation_date": "2026-01-01",
        })  # fmt: skip
    return path


def slide2vec(folder: Path, kind: str = "npz", name: str = "s1") -> Path:
    """``tile_embeddings/<id>.pt|npz`` with ``.meta.json``, hs2p's ``tiles/<id>.coordinates.npz``."""
    (folder / "tile_embeddings").mkdir(parents=True, exist_ok=True)
    (folder / "tiles").mkdir(exist_ok=True)
    path = folder / "tile_embeddings" / f"{name}.{kind}"
    if kind == "pt":
        torch.save(torch.from_numpy(FEATURES.astype(np.float16)), path)
    else:
        np.savez_compressed(path, features=FEATURES.astype(np.float16), tile_index=np.arange(N))
    path.with_name(f"{name}.meta.json").write_text(json.dumps({
        "sample_id": name, "artifact_type": "tile_embeddings", "format": kind, "feature_dim": D,
        "num_tiles": N, "encoder_name": "virchow2", "feature_dtype": "fp16", "tile_size_lv0": 512,
        "requested_spacing_um": 0.5, "requested_tile_size_px": 256,
        "coordinates_npz_path": "/elsewhere/never/followed.npz",
    }))  # fmt: skip
    np.savez(folder / "tiles" / f"{name}.coordinates.npz", tile_index=np.arange(N, dtype=np.int32),
             x=COORDS[:, 0], y=COORDS[:, 1], tissue_fractions=np.ones(N, np.float32))  # fmt: skip
    return path


def check(bag: FeatureBag, form: str, *, side: float, px: float, spacing: float, name: str, dtype) -> None:
    assert bag.attrs["source_format"] == form and bag.status == "ok" and bag.slide_id == name
    assert bag.features.dtype == dtype and np.array_equal(bag.features, FEATURES.astype(dtype))
    assert bag.coords.dtype == np.int64 and np.array_equal(bag.coords, COORDS)
    found = [bag.attrs[key] for key in ("tile_size_level0", "tile_size_px", "spacing_um")]
    assert found == pytest.approx([side, px, spacing])


def test_trident(tmp_path) -> None:
    path = trident(tmp_path / "A.B.h5")
    bag = read_any_features(path)
    # 20x is not taken for 0.5 um/px: without the slide's spacing there is none.
    check(bag, "trident", side=512, px=256, spacing=-1, name="A.B", dtype=np.float32)
    assert bag.attrs["encoder"] == "uni_v1"
    # 512 px of 0.2528 um in 256 px.
    assert read_any_features(path, mpp=0.2528).attrs["spacing_um"] == pytest.approx(0.5056)


def test_clam_files_with_the_patches_beside(tmp_path) -> None:
    paths = clam(tmp_path)
    bag = read_any_features(paths["h5"], coords_path=paths["patches"], mpp=0.25)
    check(bag, "clam", side=512.0768, px=256, spacing=0.500075, name="A.B", dtype=np.float32)
    alone = read_any_features(paths["h5"])  # coordinates are in it, tile sizes are not
    assert np.array_equal(alone.coords, COORDS) and alone.attrs["tile_size_level0"] == -1
    assert alone.attrs["encoder"] == "unknown"
    tensor = read_any_features(paths["pt"], coords_path=paths["patches"])
    check(tensor, "clam", side=512.0768, px=256, spacing=-1, name="A.B", dtype=np.float32)
    assert np.array_equal(read_any_features(paths["pt"]).coords, COORDS)  # found in h5_files


def test_stamp_micrometres_need_a_spacing(tmp_path) -> None:
    path = stamp(tmp_path / "s.h5")
    bag = read_any_features(path, mpp=0.5)
    check(bag, "stamp", side=512, px=224, spacing=256 / 224, name="s", dtype=np.float16)
    assert bag.attrs["encoder"] == "ctranspath"
    assert np.array_equal(read_any_features(path, mpp=0.25).coords, 2 * COORDS)
    with pytest.raises(InputError, match=r"in micrometres; give the spacing of level 0"):
        read_any_features(path)


def test_stamp_far_corner_is_right_to_the_pixel(tmp_path) -> None:
    """Single precision holds 100,000 px at 0.2528 um/px well enough to round to the right pixel."""
    path = stamp(tmp_path / "s.h5")
    corners = np.array([[99_840, 80_128], [1, 3], [12_345, 67_890], [0, 0], [224, 448]], dtype=np.int64)
    with h5py.File(path, "a") as handle:
        handle["coords"][...] = (corners * 0.2528).astype(np.float32)
    assert np.array_equal(read_any_features(path, mpp=0.2528).coords, corners)


def test_atlaspatch_names_its_features(tmp_path) -> None:
    bag = read_any_features(atlaspatch(tmp_path / "a.h5"))
    check(bag, "atlaspatch", side=512, px=256, spacing=-1, name="a", dtype=np.float32)
    assert bag.attrs["encoder"] == "uni_v2"
    two = atlaspatch(tmp_path / "b.h5", ("resnet50", "uni_v2"))
    with pytest.raises(InputError, match="holds the features resnet50, uni_v2; name one"):
        read_any_features(two)
    assert np.array_equal(read_any_features(two, feature="uni_v2").features, FEATURES + 1)


@pytest.mark.parametrize("kind", ["pt", "npz"])
def test_slide2vec(tmp_path, kind) -> None:
    path = slide2vec(tmp_path, kind)
    check(read_any_features(path), "slide2vec", side=512, px=256, spacing=0.5, name="s1", dtype=np.float16)
    beside = tmp_path / "tiles" / "s1.coordinates.npz"
    moved = beside.rename(tmp_path / "c.npz")
    with pytest.raises(InputError, match=r"has no coordinates; give hs2p's s1\.coordinates\.npz"):
        read_any_features(path)
    assert np.array_equal(read_any_features(path, coords_path=moved).coords, COORDS)


def test_slide2vec_tiles_in_another_order_are_refused(tmp_path) -> None:
    path = slide2vec(tmp_path)
    np.savez(tmp_path / "tiles" / "s1.coordinates.npz", tile_index=np.arange(N)[::-1], x=COORDS[:, 0],
             y=COORDS[:, 1])  # fmt: skip
    with pytest.raises(InputError, match="another tile_index"):
        read_any_features(path)


def test_own_files_are_read_by_their_sidecar(tmp_path) -> None:
    path = tmp_path / "s1.h5"
    attrs = {"slide_id": "s1", "status": "ok", "encoder": "e", "cache_key": "k", "encoder_sha256": "w"}
    write_features(path, FeatureBag(FEATURES, COORDS, attrs))
    assert read_any_features(path).slide_id == "s1"
    (tmp_path / "s1.h5.json").unlink()
    with pytest.raises(InputError, match="did not finish"):
        read_any_features(path)


def test_geometry_comes_from_the_file_whatever_the_objective(tmp_path) -> None:
    """A 40x and a 20x slide of the same grid have tiles of 512 and 256 px at level 0; nothing is assumed."""
    path = trident(tmp_path / "a.h5")
    with h5py.File(path, "a") as handle:
        handle["coords"].attrs.update({"patch_size_level0": 256, "level0_magnification": 20})
    assert read_any_features(path).attrs["tile_size_level0"] == 256
    path = trident(tmp_path / "b.h5", attrs=False)
    assert read_any_features(path).attrs["tile_size_level0"] == -1
    assert read_any_features(path, tile_size_level0=448).attrs["tile_size_level0"] == 448


def test_coordinates_are_never_made_up(tmp_path) -> None:
    path = trident(tmp_path / "a.h5")
    with h5py.File(path, "a") as handle:
        del handle["coords"]
    with pytest.raises(InputError, match="has no coordinates"):
        read_any_features(path)
    path = stamp(tmp_path / "s.h5")
    with h5py.File(path, "a") as handle:
        del handle["coords"]
    with pytest.raises(InputError, match="has no coordinates"):
        read_any_features(path, mpp=0.5)
    torch.save(torch.zeros(3, 4), tmp_path / "lonely.pt")
    with pytest.raises(InputError, match="holds features alone"):
        read_any_features(tmp_path / "lonely.pt")


def test_features_and_coordinates_of_different_number(tmp_path) -> None:
    paths = clam(tmp_path)
    with h5py.File(paths["patches"], "a") as handle:
        del handle["coords"]
        handle["coords"] = COORDS[:3]
    with pytest.raises(InputError, match=r"\(5, 4\) and coordinates \(3, 2\) do not belong together"):
        read_any_features(paths["pt"], coords_path=paths["patches"])
    with pytest.raises(InputError, match="other coordinates than"):
        read_any_features(paths["h5"], coords_path=paths["patches"])


@pytest.mark.parametrize("n", [0, 1])
def test_no_tile_and_one_tile(tmp_path, n) -> None:
    bag = read_any_features(trident(tmp_path / "a.h5", n))
    assert bag.features.shape == (n, D) and bag.coords.shape == (n, 2)
    assert bag.status == ("ok" if n else "empty_tissue")


def test_values_that_are_no_features(tmp_path) -> None:
    path = trident(tmp_path / "a.h5")
    with h5py.File(path, "a") as handle:
        handle["features"][2, 1] = np.nan
    with pytest.raises(InputError, match="not finite"):
        read_any_features(path)
    (tmp_path / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n cut short")
    with pytest.raises(InputError, match="not a readable HDF5"):
        read_any_features(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w") as handle:
        handle["weights"] = [1.0]
    with pytest.raises(InputError, match="no feature file that is known: it holds weights"):
        read_any_features(tmp_path / "y.h5")
    with pytest.raises(InputError, match="does not exist"):
        read_any_features(tmp_path / "z.h5")


def test_files_that_reach_out_or_claim_too_much(tmp_path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as handle:
        handle["features"] = FEATURES
    with h5py.File(tmp_path / "link.h5", "w") as handle:
        handle["features"] = h5py.ExternalLink(str(secret), "features")
        handle["coords"] = COORDS
    with h5py.File(tmp_path / "hops.h5", "w") as handle:
        handle["e"] = h5py.ExternalLink(str(secret), "features")
        handle["features"] = h5py.SoftLink("/e")
    with h5py.File(tmp_path / "group.h5", "w") as handle:
        handle["features"] = h5py.ExternalLink(str(secret), "/")
    with h5py.File(tmp_path / "loop.h5", "w") as handle:
        handle["features"], handle["coords"] = h5py.SoftLink("/coords"), h5py.SoftLink("/features")
    for name in ("link", "hops", "group", "loop"):
        with pytest.raises(InputError, match="is a link"):
            read_any_features(tmp_path / f"{name}.h5")
    (tmp_path / "raw").write_bytes(b"\0" * N * D * 4)
    with h5py.File(tmp_path / "external.h5", "w") as handle:
        handle.create_dataset("features", (N, D), "f4", external=[(str(tmp_path / "raw"), 0, N * D * 4)])
        handle["coords"] = COORDS
    with pytest.raises(InputError, match="values in another file"):
        read_any_features(tmp_path / "external.h5")
    with h5py.File(tmp_path / "huge.h5", "w") as handle:
        handle.create_dataset("features", (10**9, 1024), "f4", chunks=(1, 1024))  # a few bytes on disk
        handle["coords"] = COORDS
    with pytest.raises(InputError, match=r"claims 4096000000000 bytes"):
        read_any_features(tmp_path / "huge.h5")
    torch.save(torch.zeros(1).expand(10**6, 4), tmp_path / "stretched.pt")
    with pytest.raises(InputError, match="larger than the 1000000 bytes"):
        read_any_features(tmp_path / "stretched.pt", max_bytes=10**6)


@pytest.mark.parametrize("wrong", [[1e300, 5], [-7, 3], [2**31, 0]])
def test_coordinates_that_no_slide_has_are_refused(tmp_path, wrong) -> None:
    coords = COORDS.astype(np.float64)
    coords[1] = wrong
    with h5py.File(tmp_path / "s.h5", "w") as handle:
        handle["features"], handle["coords"] = FEATURES, coords
    with pytest.raises(InputError, match=r"s\.h5: coords: .*no slide has"):
        read_any_features(tmp_path / "s.h5")


def test_attributes_and_arrays_of_unexpected_kinds_are_said_in_one_line(tmp_path) -> None:
    def attempt(name, change):
        with h5py.File(tmp_path / f"{name}.h5", "w") as handle:
            handle["features"], handle["coords"] = FEATURES, COORDS
            change(handle)
        with pytest.raises(InputError) as caught:
            read_any_features(tmp_path / f"{name}.h5", mpp=0.5)
        assert "\n" not in str(caught.value)

    def null(handle):
        del handle["features"]
        handle["features"] = h5py.Empty("f4")

    attempt("null", null)
    attempt("text", lambda handle: handle["coords"].attrs.update(patch_size="abc"))
    attempt("array", lambda handle: handle["coords"].attrs.update(patch_size_level0=[1, 2, 3]))
    with h5py.File(tmp_path / "stamp.h5", "w") as handle:
        handle["feats"], handle["coords"] = FEATURES, COORDS
        handle.attrs["tile_size_px"] = "x"
    with pytest.raises(InputError):
        read_any_features(tmp_path / "stamp.h5", mpp=0.5)
    for mpp in (math.inf, math.nan, 1000.0):
        with pytest.raises(InputError, match="not plausible"):
            read_any_features(tmp_path / "stamp.h5", mpp=mpp)


def test_tensors_that_ask_for_a_gradient_or_hold_no_rows(tmp_path) -> None:
    torch.save(torch.ones(3, 4, requires_grad=True), tmp_path / "g.pt")
    assert read_array(tmp_path / "g.pt", 10**6)[0].shape == (3, 4)
    for name, tensor in (("sparse", torch.eye(3).to_sparse()), ("meta", torch.ones(3, 4, device="meta"))):
        torch.save(tensor, tmp_path / f"{name}.pt")
        with pytest.raises(InputError, match="tensor"):
            read_array(tmp_path / f"{name}.pt", 10**6)


def test_pickled_code_in_a_tensor_file_is_not_run(tmp_path) -> None:
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "s.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(InputError, match="not a readable tensor file"):
        read_any_features(tmp_path / "s.pt")
    np.savez(tmp_path / "s.npz", features=np.array([Evil()], dtype=object))
    (tmp_path / "s.meta.json").write_text("{}")
    with pytest.raises(InputError, match="not a readable npz"):
        read_any_features(tmp_path / "s.npz")
    assert not (tmp_path / "owned").exists()
