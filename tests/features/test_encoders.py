"""Encoders: what they compute, what they refuse, and that they never reach out when offline."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch

from acpbench.core.errors import InputError
from acpbench.features.devices import pick_device
from acpbench.features.encoders import TorchEncoder, load_encoder
from acpbench.features.registry import EncoderSpec, load_registry

TILES = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def registry(repository):
    return load_registry(repository / "config" / "encoders.yaml")


def tiny_spec(**changes) -> EncoderSpec:
    row = {
        "id": "tiny",
        "source": {"kind": "hub", "ref": "nobody/tiny"},
        "licence": "none",
        "gated": False,
        "variant": "cls",
        "dim": 16,
        "input_size_px": 32,
        "spacing_um": [0.5],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "interpolation": "bilinear",
        "compute_dtype": "float16",
        "stored_dtype": "float16",
        "timm": {
            "architecture": "vit_tiny_patch16_224",
            "kwargs": {
                "img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "reg_tokens": 2,
            },
        },
        "verified": False,
    }  # fmt: skip
    return EncoderSpec(**(row | changes))


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A folder as the hub client lays it out, with a small random network."""
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    spec = tiny_spec()
    model = timm.create_model(spec.timm.architecture, num_classes=3, **spec.timm.kwargs)
    folder = tmp_path_factory.mktemp("tiny")
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder, model.eval()


def test_color_stats_by_hand(registry):
    encoder = load_encoder(registry["color_stats"])
    tile = np.zeros((1, 2, 2, 3), np.uint8)
    tile[0, 0, :, 0] = 255  # red: 255 255 0 0; green: 0; blue: 51 everywhere
    tile[..., 2] = 51
    features = encoder.encode(tile)
    assert features.dtype == np.float32
    assert features[0].tolist() == pytest.approx([0.5, 0, 0.2, 0.5, 0, 0], abs=1e-6)


def test_color_stats_needs_no_torch(repository):
    import subprocess
    import sys

    code = (
        "import sys, numpy as np\n"
        "from acpbench.features.registry import load_registry\n"
        "from acpbench.features.encoders import load_encoder\n"
        f"e = load_encoder(load_registry({str(repository / 'config' / 'encoders.yaml')!r})['color_stats'])\n"
        "e.encode(np.zeros((1, 4, 4, 3), np.uint8))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def efficientnet(registry):
    return load_encoder(registry["efficientnet_lite0"], device="cpu")


def test_efficientnet_is_the_trained_network(efficientnet):
    """With the package's own classifier on top, photographs get their right ImageNet class."""
    data = pytest.importorskip("skimage.data")
    from PIL import Image

    images = {
        "coffee": (967, 504),
        "chelsea": (281, 282, 285),
    }  # espresso, mug; tabby, tiger and Egyptian cat
    batch = np.stack(
        [np.asarray(Image.fromarray(getattr(data, n)()).resize((224, 224), Image.BICUBIC)) for n in images]
    )
    features = efficientnet.encode(batch)
    assert features.shape == (2, 1280) and features.dtype == np.float32
    with torch.inference_mode():
        top = efficientnet.model._fc(torch.from_numpy(features)).argmax(dim=1).tolist()
    assert all(found in right for found, right in zip(top, images.values(), strict=True))


def test_features_do_not_depend_on_the_batch(efficientnet):
    """Not a bit, on a CPU: neither on how many tiles come together, nor on their order and neighbours."""
    tiles = np.random.default_rng(1).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    together = efficientnet.encode(tiles)
    assert np.array_equal(together[1:2], efficientnet.encode(tiles[1:2]))
    assert np.array_equal(together, efficientnet.encode(tiles[::-1])[::-1])
    assert np.array_equal(together[2:5], efficientnet.encode(tiles[2:5]))
    assert efficientnet.encode(TILES[:0]).shape == (0, 1280)


@pytest.mark.parametrize(("variant", "dim"), [("cls", 16), ("cls_mean", 32)])
def test_timm_checkpoint(tiny_folder, variant, dim):
    folder, model = tiny_folder
    encoder = load_encoder(tiny_spec(variant=variant, dim=dim), weights=folder, device="cpu")
    images = torch.from_numpy(TILES).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        tokens = model.forward_features((images - 0.5) / 0.25)  # class token, 2 registers, 16 patches
    expected = tokens[:, 0]
    if variant == "cls_mean":
        expected = torch.cat([expected, tokens[:, 3:].mean(dim=1)], dim=1)
    assert np.allclose(encoder.encode(TILES), expected.numpy(), atol=1e-5)


def test_weights_hash_follows_the_weights(tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, _ = tiny_folder
    state = load_file(folder / "model.safetensors")
    first = load_encoder(tiny_spec(), weights=folder, device="cpu").weights_sha256
    state["norm.bias"] = state["norm.bias"] + 1
    save_file(state, tmp_path / "model.safetensors")
    assert load_encoder(tiny_spec(), weights=tmp_path, device="cpu").weights_sha256 != first


def test_weights_that_do_not_fit_are_refused(tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, _ = tiny_folder
    state = load_file(folder / "model.safetensors")
    del state["cls_token"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="1 missing"):
        load_encoder(tiny_spec(), weights=tmp_path, device="cpu")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match="not a readable weights file"):
        load_encoder(tiny_spec(), weights=tmp_path, device="cpu")
    with pytest.raises(InputError, match="no weights"):
        load_encoder(tiny_spec(), weights=tmp_path / "elsewhere", device="cpu")


def test_pickled_code_is_not_run(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Evil()}))
    with pytest.raises(InputError, match="not a readable weights file"):
        load_encoder(tiny_spec(), weights=tmp_path, device="cpu")
    assert not (tmp_path / "owned").exists()


def test_offline_opens_no_connection(monkeypatch):
    opened = []
    monkeypatch.setattr(socket.socket, "connect", lambda *a: opened.append(a))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: opened.append(a))
    with pytest.raises(InputError, match="offline"):
        load_encoder(tiny_spec(), device="cpu")
    assert opened == []


def test_wrong_dim_and_wrong_tiles(tiny_folder):
    folder, _ = tiny_folder
    with pytest.raises(InputError, match="row says dim 17"):
        load_encoder(tiny_spec(dim=17), weights=folder, device="cpu").encode(TILES)
    encoder = load_encoder(tiny_spec(), weights=folder, device="cpu")
    with pytest.raises(InputError, match="expected uint8"):
        encoder.encode(TILES.astype(np.float32))


def test_out_of_memory_halves_the_batch():
    class Small(TorchEncoder):
        sizes: list[int] = []  # noqa: RUF012

        def forward(self, images):
            self.sizes.append(len(images))
            if len(images) > 2:
                raise torch.OutOfMemoryError("too large")
            return images.mean(dim=(2, 3))

    encoder = Small(tiny_spec(dim=3), torch.nn.Identity(), "0" * 64, "cpu")
    encoder._chunk = None  # whole batches first, as on a GPU
    batch = np.arange(7, dtype=np.uint8)[:, None, None, None].repeat(32, 1).repeat(32, 2).repeat(3, 3)
    features = encoder.encode(batch)
    assert features[:, 0].tolist() == pytest.approx([(i / 255 - 0.5) / 0.25 for i in range(7)], abs=1e-5)
    assert encoder.sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    encoder.encode(batch)  # the size that fitted is kept
    assert encoder.sizes[9] == 1


def test_no_memory_for_one_tile_is_said(monkeypatch):
    class Hungry(TorchEncoder):
        def forward(self, images):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    encoder = Hungry(tiny_spec(dim=3), torch.nn.Identity(), "0" * 64, "cpu")
    with pytest.raises(InputError, match="one tile does not fit into memory with tiny; give the job more"):
        encoder.encode(TILES)

    class Broken(Hungry):
        def forward(self, images):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):  # any other error stays what it is
        Broken(tiny_spec(dim=3), torch.nn.Identity(), "0" * 64, "cpu").encode(TILES)


def test_a_gpu_gets_the_next_batch_before_the_last_is_fetched():
    """On a device that computes by itself, results come one batch late and in order; on a CPU at once."""
    events = []

    class Logged(TorchEncoder):
        def forward(self, images):
            events.append("launch")
            return images.mean(dim=(2, 3))

        def _fetch(self, parts):
            events.append("fetch")
            return super()._fetch(parts)

    encoder = Logged(tiny_spec(dim=3), torch.nn.Identity(), "0" * 64, "cpu")
    batches = [encoder.prepare(TILES[i : i + 1]) for i in range(3)]
    at_once = list(encoder.encode_stream(batches))
    assert events == ["launch", "fetch"] * 3
    events.clear()
    encoder.device = "elsewhere"
    encoder._normalise = lambda tiles: tiles.permute(0, 3, 1, 2).float()
    later = list(encoder.encode_stream(batches))
    assert events == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]
    assert [len(part) for part in later] == [1, 1, 1] == [len(part) for part in at_once]


def test_device():
    assert pick_device("cpu") == "cpu"
    assert pick_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="expected auto"):
        pick_device("tpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_agrees_with_cpu(registry, efficientnet, dtype):
    """Also its tiles a second: extraction's part (copy, normalise, fetch) against the forward alone."""
    import time

    spec = registry["efficientnet_lite0"].model_copy(update={"compute_dtype": dtype})
    cuda = load_encoder(spec, device="cuda")
    wanted, found = efficientnet.encode(TILES), cuda.encode(TILES)
    assert np.abs(found - wanted).max() <= {"float32": 2e-2, "float16": 3e-2, "bfloat16": 0.3}[dtype]
    tiles = np.random.default_rng(1).integers(0, 256, (64, 224, 224, 3), dtype=np.uint8)
    batches = [cuda.prepare(tiles)] * 20
    assert batches[0].is_pinned()
    list(cuda.encode_stream(batches))  # warm-up
    start = time.perf_counter()
    for _ in cuda.encode_stream(batches):
        pass
    whole = time.perf_counter() - start
    with torch.inference_mode():
        images = cuda._normalise(batches[0])
        reduced = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(dtype)
        with torch.autocast("cuda", dtype=reduced or torch.float16, enabled=reduced is not None):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in batches:
                cuda.forward(images)
            torch.cuda.synchronize()
    alone = time.perf_counter() - start
    print(f"{dtype}: {1280 / whole:.0f} tiles/s, forward alone {1280 / alone:.0f} tiles/s")
    assert whole <= 1.5 * alone


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_job_has_a_context_on_its_own_gpu_only():
    """CUDA is not started before the device is chosen, and then sees one device."""
    import subprocess
    import sys

    code = (
        "from acpbench.features.devices import claim_gpu, pick_device\n"
        "import acpbench.features.encoders, acpbench.features.extract\n"
        "with claim_gpu() as name:\n"
        "    import torch\n"
        "    assert not torch.cuda.is_initialized()\n"
        "    assert pick_device('auto') == 'cuda' and torch.cuda.device_count() == 1, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
