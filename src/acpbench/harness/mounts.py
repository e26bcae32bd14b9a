"""What bubblewrap mounts into a sandbox: the system, the programs that run in it, the run's own places."""

from __future__ import annotations

import ipaddress
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import acpbench
from acpbench.core.files import write_text
from acpbench.core.groups import Sandbox

SLIDES_FOLDER = Path("/slides")
MAX_SLIDES = 2000
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC_ENTRIES = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "pki",
    "protocols",
    "services",
    "ssl",
    "timezone",
)
"""What programs need of ``/etc``. Users, hosts and the resolver's file are made for the run."""


@dataclass(frozen=True)
class Setting:
    """Places of one run. ``private`` holds its sockets; ``executables`` are the harness's programs."""

    workspace: Path
    home: Path
    private: Path
    read_only: tuple[Path, ...] = ()
    slides: Mapping[str, Path] = field(default_factory=dict)
    executables: tuple[Path, ...] = ()
    endpoint: tuple[str, int] | None = None
    name: str = "acpbench"
    env_names: tuple[str, ...] = ()


def is_address(host: str) -> bool:
    """Whether a host is given by its address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def system(folder: Path) -> list[str]:
    """A folder of the system, read-only (or the link that it is)."""
    if folder.is_symlink():
        return ["--symlink", os.readlink(folder), str(folder)]
    return ["--ro-bind", str(folder), str(folder)] if folder.is_dir() else []


def etc(wanted: Sandbox, setting: Setting, user: int) -> list[str]:
    """The few files of ``/etc`` that programs need; users and hosts are the run's own."""
    words = []
    for name in ETC_ENTRIES:
        source = Path("/etc") / name
        if source.is_symlink():
            words += ["--symlink", os.readlink(source), str(source)]
        elif source.exists():
            words += ["--ro-bind", str(source), str(source)]
    hosts = "127.0.0.1 localhost\n::1 localhost\n"
    if (
        wanted.network == "model_only"
        and setting.endpoint is not None
        and not is_address(setting.endpoint[0])
    ):
        hosts += f"127.0.0.1 {setting.endpoint[0]}\n"
    made = {
        "passwd": f"agent:x:{user}:{user}:agent:{setting.home}:/bin/sh\n",
        "group": f"agent:x:{user}:\n",
        "hosts": hosts,
    }
    for name, text in made.items():
        path = setting.private / f"etc_{name}"
        write_text(path, text)
        words += ["--ro-bind", str(path), f"/etc/{name}"]
    if wanted.network == "host" and Path("/etc/resolv.conf").exists():
        words += ["--ro-bind", str(Path("/etc/resolv.conf").resolve()), "/etc/resolv.conf"]
    return words


def programs(setting: Setting) -> list[Path]:
    """Folders and files to mount read-only so that Python, the relay and the harness run; each once."""
    wanted = [Path(sys.prefix), Path(sys.base_prefix), Path(acpbench.__file__).resolve().parents[1]]
    wanted += [Path(sys.executable).resolve().parents[1]]
    for program in setting.executables:
        wanted += program_places(program)
    node = shutil.which("node")
    if node is not None:
        wanted += program_places(Path(node))
    kept: list[Path] = []
    for path in sorted({path.absolute() for path in wanted}, key=lambda path: len(path.parts)):
        covered = any(path.is_relative_to(other) for other in [*kept, Path("/usr")])
        if not covered and path.exists() and path != Path("/"):
            kept.append(path)
    return kept


def program_places(program: Path) -> list[Path]:
    """What a program needs of the disk: its package tree if npm's, else the file and what it points to."""
    places = [program.absolute()]
    resolved = program.resolve()
    for path in (program.absolute(), resolved):
        names = [index for index, part in enumerate(path.parts) if part == "node_modules"]
        if names:
            places.append(Path(*path.parts[: names[0] + 1]))
        else:
            places.append(path)
    return places


def slides(setting: Setting) -> list[str]:
    """Slides under their ids, read-only: file names of a cohort often tell the label."""
    words: list[str] = []
    if len(setting.slides) > MAX_SLIDES:
        return words
    for slide_id, path in setting.slides.items():
        if not path.exists():
            continue
        target = SLIDES_FOLDER / f"{slide_id}{path.suffix if path.is_file() else ''}"
        words += ["--ro-bind", str(path.resolve()), str(target)]
        companion = path.with_suffix("")
        if path.is_file() and path.suffix.lower() == ".mrxs" and companion.is_dir():
            words += ["--ro-bind", str(companion.resolve()), str(SLIDES_FOLDER / slide_id)]
    return words
