"""Where weights are looked for, that fetching happens once and before, and never without leave."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch

import acpbench.features.weights as weights_module
from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_file
from acpbench.features.encoders import DeferredEncoder, load_encoder
from acpbench.features.weights import find_weights, load_weights, prefetch_weights
from tests.features.test_encoders import tiny_spec


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Whatever opens a connection fails the test; the hub's cache is an empty folder of this test."""

    def refuse(*arguments, **named):
        raise AssertionError(f"a connection was opened: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("ACPBENCH_WEIGHTS", raising=False)


def weights_in(folder: Path, name: str = "model.safetensors", text: str = "weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_places_in_their_order(tmp_path, monkeypatch) -> None:
    spec = tiny_spec()
    with pytest.raises(InputError, match=r"not on this machine and offline is set; put them into a folder"):
        find_weights(spec)
    snapshot = tmp_path / "hub" / "models--nobody--tiny" / "snapshots" / "abc"
    cached = weights_in(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    assert find_weights(spec) == cached
    monkeypatch.setenv("ACPBENCH_WEIGHTS", str(tmp_path / "w"))
    for folder in ("tiny", "nobody--tiny", "nobody/tiny"):
        path = weights_in(tmp_path / "w" / folder)
        assert find_weights(spec) == path
    row = tiny_spec(source={"kind": "hub", "ref": "nobody/tiny", "folder": str(tmp_path / "own")})
    path = weights_in(tmp_path / "own", "pytorch_model.bin")
    assert find_weights(row) == path
    assert find_weights(row, weights=weights_in(tmp_path / "given")) == tmp_path / "given/model.safetensors"


def test_a_named_file_is_the_only_one_taken(tmp_path) -> None:
    source = {"kind": "hub", "ref": "nobody/tiny", "file": "GPFM.pth", "folder": str(tmp_path)}
    weights_in(tmp_path)
    with pytest.raises(InputError, match=r"expected one of GPFM\.pth"):
        find_weights(tiny_spec(source=source))
    assert find_weights(tiny_spec(source=source), weights=weights_in(tmp_path, "GPFM.pth")).name == "GPFM.pth"


def test_weights_that_are_on_no_hub(tmp_path) -> None:
    row = tiny_spec(source={"kind": "local", "ref": "CTransPath", "file": "ctranspath.pth"})
    with pytest.raises(InputError, match=r"not on a hub: put them into a folder 'CTransPath'"):
        find_weights(row, offline=False)


def test_prefetch_records_and_extraction_reads_the_record_alone(tmp_path, monkeypatch) -> None:
    path = weights_in(tmp_path / "own")
    row = tiny_spec(source={"kind": "hub", "ref": "nobody/tiny", "folder": str(path.parent)})
    record = tmp_path / "weights" / "nobody--tiny.json"
    found = prefetch_weights(row, record)
    assert found.sha256 == sha256_file(path)
    assert read_json(record)["path"] == str(path) and read_json(record)["source"] == "nobody/tiny"
    monkeypatch.setattr(weights_module, "sha256_file", lambda p: pytest.fail("hashed again"))
    assert load_weights(tiny_spec(), record=record) == found
    assert DeferredEncoder(tiny_spec(), record=record).weights_sha256 == found.sha256


def test_weights_that_changed_or_went_since_are_refused(tmp_path) -> None:
    path = weights_in(tmp_path / "own")
    row = tiny_spec(source={"kind": "hub", "ref": "nobody/tiny", "folder": str(path.parent)})
    record = tmp_path / "record.json"
    prefetch_weights(row, record)
    state = path.stat()
    path.write_text("heavier")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    with pytest.raises(InputError, match="changed since; fetch them again"):
        load_encoder(row, record=record)
    path.unlink()
    with pytest.raises(InputError, match="are gone; fetch them again"):
        load_encoder(row, record=record)
    record.write_text("[]")
    with pytest.raises(InputError, match="not a record of fetched weights"):
        load_encoder(row, record=record)


def test_other_weights_than_the_row_pins(tmp_path) -> None:
    path = weights_in(tmp_path / "own")
    source = {"kind": "hub", "ref": "nobody/tiny", "folder": str(path.parent), "sha256": "0" * 64}
    with pytest.raises(InputError, match=r"encoder tiny wants 000000000000"):
        prefetch_weights(tiny_spec(source=source), tmp_path / "record.json")
    assert not (tmp_path / "record.json").exists()


def test_offline_reaches_out_nowhere_and_says_what_to_do(tmp_path) -> None:
    with pytest.raises(InputError, match="offline is set"):
        prefetch_weights(tiny_spec(), tmp_path / "record.json", offline=True)
    assert not (tmp_path / "record.json").exists()


def test_the_hub_is_asked_for_one_file_and_told_no_token(tmp_path, monkeypatch) -> None:
    """The client finds the token itself; a gated repository's refusal names the variable, never its value."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    asked = []

    def fetch(repository, name, **options):
        asked.append((repository, name, options))
        if name != "pytorch_model.bin":
            raise EntryNotFoundError("404 no such file")
        return str(weights_in(tmp_path / "fetched", name))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    source = {"kind": "hub", "ref": "nobody/tiny", "revision": "abc123"}
    record = tmp_path / "record.json"
    prefetch_weights(tiny_spec(source=source), record, offline=False)
    assert asked == [("nobody/tiny", name, {"revision": "abc123"})
                     for name in ("model.safetensors", "pytorch_model.bin")]  # fmt: skip
    assert "hf_secret" not in record.read_text()

    def gate(repository, name, **options):
        asked.append(name)
        raise PermissionError("401 Client Error. Access to model nobody/tiny is restricted.")

    asked.clear()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", gate)
    words = r"401 Client Error.*accept its licence there and set HF_TOKEN"
    with pytest.raises(InputError, match=words) as told:
        prefetch_weights(tiny_spec(gated=True), tmp_path / "other.json", offline=False)
    assert len(asked) == 1 and "hf_secret" not in str(told.value)


def test_a_checkpoint_in_the_old_and_in_the_zip_format(tmp_path) -> None:
    state = {"module.a": torch.arange(3.0), "module.b": torch.ones(2)}
    torch.save({"state_dict": state}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    torch.save({"model": state}, tmp_path / "new.bin")
    for name in ("old.bin", "new.bin"):
        held = weights_module.load_state(tmp_path / name)
        assert held["a"].tolist() == [0, 1, 2] and set(held) == {"a", "b"}


def test_jobs_fetch_a_source_once_however_many_variants_use_it(repository, tmp_path) -> None:
    """Two variants of one repository share the file, so they share the job; offline encoders have none."""
    import yaml

    from acpbench.core.files import write_csv
    from tests.workflow.study import plan, snakemake

    rows = [{"slide_id": f"s{i}", "patient_id": f"p{i}", "path": f"s{i}.svs", "grade": "ab"[i % 2]}
            for i in range(6)]  # fmt: skip
    write_csv(tmp_path / "slides.csv", list(rows[0]), rows)
    study = {
        "study": "own", "cohorts": {"mine": {"manifest": str(tmp_path / "slides.csv")}},
        "tasks": {"grade": {"cohort": "mine", "label_column": "grade", "classes": ["a", "b"]}},
        "encoders": ["color_stats", "efficientnet_lite0", "virchow2_cls", "virchow2_cls_mean", "uni"],
        "folds": 3,
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    jobs = plan(repository, tmp_path, "reference")
    assert jobs["prefetch_weights"] == 2 and jobs["extract_features"] == 5 * 6
    shown = snakemake(
        repository, tmp_path, "--dry-run", "results/features/mine/virchow2_cls/s0.h5", "--printshellcmds"
    )
    assert "results/weights/paige-ai--Virchow2.json" in shown.stdout and "gpu=1" in shown.stdout
    study["encoders"] = ["color_stats", "efficientnet_lite0"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    assert "prefetch_weights" not in plan(repository, tmp_path, "reference")
