"""Files of a slide, and copies of them on a faster disk."""

import multiprocessing
import os
import shutil
import signal
import time

import pytest

from acpbench.core.files import read_json, sha256_bytes, sha256_file
from acpbench.slides import slide_files as module
from acpbench.slides.slide_files import local_copy, slide_files, slide_sha256, slide_size


@pytest.fixture
def mirax(tmp_path):
    """A slide of the MIRAX layout: an index file and a folder of the same name."""
    folder = tmp_path / "slow" / "A.B"
    folder.mkdir(parents=True)
    (tmp_path / "slow" / "A.B.mrxs").write_bytes(b"index")
    (folder / "Slidedat.ini").write_bytes(b"ini")
    (folder / "Data0000.dat").write_bytes(b"pixels" * 1000)
    return tmp_path / "slow" / "A.B.mrxs"


@pytest.fixture
def slide(tmp_path):
    (tmp_path / "slow").mkdir(exist_ok=True)
    path = tmp_path / "slow" / "s.svs"
    path.write_bytes(os.urandom(200_000))
    return path


def copies(cache):
    return [
        p for p in cache.rglob("*") if p.is_file() and p.name not in ("copy.json",) and p.suffix != ".lock"
    ]


def test_a_slide_of_several_files_is_hashed_and_measured_whole(mirax):
    assert [path.name for path in slide_files(mirax)] == ["A.B.mrxs", "Data0000.dat", "Slidedat.ini"]
    assert slide_size(mirax) == 5 + 3 + 6000
    before = slide_sha256(mirax)
    (mirax.parent / "A.B" / "Data0000.dat").write_bytes(b"pixelt" * 1000)
    assert slide_sha256(mirax) != before


def test_hash_of_a_single_file_is_that_of_its_bytes(slide):
    assert slide_sha256(slide) == sha256_bytes(slide.read_bytes())


def test_off_by_default(slide, tmp_path):
    assert local_copy(slide, None) == slide


def test_a_copy_is_made_once_and_is_the_same(slide, tmp_path, monkeypatch):
    first = local_copy(slide, tmp_path / "fast")
    assert first.is_relative_to(tmp_path / "fast") and first.name == "s.svs"
    assert first.read_bytes() == slide.read_bytes()
    monkeypatch.setattr(module, "_copy", lambda *_: pytest.fail("copied again"))
    assert local_copy(slide, tmp_path / "fast") == first
    assert read_json(first.parent / "copy.json")["files"] == {"s.svs": sha256_file(slide)}


def test_all_files_of_a_slide_are_copied(mirax, tmp_path):
    copy = local_copy(mirax, tmp_path / "fast")
    assert slide_sha256(copy) == slide_sha256(mirax)
    assert [path.name for path in slide_files(copy)] == [path.name for path in slide_files(mirax)]


def test_variables_name_the_folder_of_the_node(slide, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "node"))
    assert local_copy(slide, "$NODE_DISK/slides").is_relative_to(tmp_path / "node" / "slides")


def test_a_changed_source_is_copied_anew(slide, tmp_path):
    first = local_copy(slide, tmp_path / "fast")
    slide.write_bytes(b"other content")
    second = local_copy(slide, tmp_path / "fast")
    assert second != first and second.read_bytes() == b"other content"


def test_two_slides_of_one_name_do_not_collide(slide, tmp_path):
    other = tmp_path / "elsewhere" / "s.svs"
    other.parent.mkdir()
    other.write_bytes(b"another slide")
    assert (
        local_copy(slide, tmp_path / "fast").read_bytes() != local_copy(other, tmp_path / "fast").read_bytes()
    )


@pytest.mark.parametrize("damage", ["cut", "gone", "no mark"])
def test_a_damaged_copy_is_made_again(slide, tmp_path, damage):
    copy = local_copy(slide, tmp_path / "fast")
    if damage == "cut":
        copy.write_bytes(slide.read_bytes()[:100])
    else:
        (copy if damage == "gone" else copy.parent / "copy.json").unlink()
    assert local_copy(slide, tmp_path / "fast").read_bytes() == slide.read_bytes()


def test_a_copy_that_differs_is_not_used(slide, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "sha256_file", lambda path: "0" * 64)
    assert local_copy(slide, tmp_path / "fast") == slide
    assert "differs from its source" in capsys.readouterr().err
    assert copies(tmp_path / "fast") == []


def test_no_room_costs_no_slide(slide, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_copy_file", full)
    assert local_copy(slide, tmp_path / "fast") == slide
    assert "No space left" in capsys.readouterr().err
    assert copies(tmp_path / "fast") == []


@pytest.mark.parametrize("names", [["a.vms"], ["a.dcm", "b.dcm"]])
def test_formats_with_parts_elsewhere_are_read_in_place(tmp_path, names, capsys):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert local_copy(tmp_path / names[0], tmp_path / "fast") == tmp_path / names[0]
    assert "other files" in capsys.readouterr().err


def _copy_slowly(path, cache, started):
    copy = module._copy_file

    def slow(source, target):
        digest = copy(source, target)
        started.set()
        time.sleep(30)
        return digest

    module._copy_file = slow
    local_copy(path, cache)


def test_a_copy_killed_on_the_way_is_not_trusted_and_holds_no_lock(slide, tmp_path):
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_copy_slowly, args=(slide, tmp_path / "fast", started))
    process.start()
    assert started.wait(20)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(copies(tmp_path / "fast")) == 1  # the leftover, under a temporary name
    copy = local_copy(slide, tmp_path / "fast")
    assert copy.read_bytes() == slide.read_bytes()
    assert copies(tmp_path / "fast") == [copy]


def _copy_and_count(path, cache, counter):
    copy = module._copy

    def counted(*arguments):
        with counter.get_lock():
            counter.value += 1
        time.sleep(0.3)
        copy(*arguments)

    module._copy = counted
    local_copy(path, cache)


def test_jobs_that_want_one_slide_copy_it_once(slide, tmp_path):
    context = multiprocessing.get_context("fork")
    counter = context.Value("i", 0)
    jobs = [
        context.Process(target=_copy_and_count, args=(slide, tmp_path / "fast", counter)) for _ in range(4)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert (counter.value, [job.exitcode for job in jobs]) == (1, [0] * 4)


def test_a_removed_cache_is_filled_again(slide, tmp_path):
    local_copy(slide, tmp_path / "fast")
    shutil.rmtree(tmp_path / "fast")
    assert local_copy(slide, tmp_path / "fast").read_bytes() == slide.read_bytes()
