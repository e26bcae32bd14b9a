"""Groups: one model a harness family, told apart by its name; no secret has a place in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from acpbench.core.errors import InputError
from acpbench.core.groups import AnyGroup, Policy, load_groups, parse_group
from acpbench.harness.adapter import FAMILIES
from acpbench.harness.policies import POLICIES

CODEX = {"label": "x", "harness": "codex", "model": "m"}
OPENCODE = {"label": "x", "harness": "opencode", "model": "m", "base_url": "http://127.0.0.1:1/v1"}


def test_families_and_policies_are_those_that_exist() -> None:
    families = [get_args(group.model_fields["harness"].annotation)[0] for group in get_args(AnyGroup)]
    assert families == list(FAMILIES)
    assert set(get_args(Policy)) == set(POLICIES)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"label": "x", "harness": "aider"}, "groups.g.harness"),
        ({"label": "x"}, "groups.g.harness"),
        ({"label": "x", "harness": "scripted", "policy": "brilliant"}, "groups.g.policy"),
        ({"label": "x", "harness": "scripted", "policy": "crash", "model": "m"}, "groups.g.model"),
        ({"label": "x", "harness": "codex"}, "groups.g.model"),
        (CODEX | {"policy": "complete"}, "groups.g.policy"),
        (CODEX | {"api_key": "sk-1234"}, "groups.g.api_key"),
        (CODEX | {"api_key_env": "sk-1234 5"}, "groups.g.api_key_env"),
        (CODEX | {"base_url": "https://user:secret@host/v1"}, "groups.g.base_url"),
        (CODEX | {"base_url": "https://host/v1?key=secret"}, "groups.g.base_url"),
        (CODEX | {"model": "--config=x"}, "groups.g.model"),
        (CODEX | {"pass_env": ["HOME"]}, "groups.g: "),
        (CODEX | {"limits": {"wall_s": 0}}, "groups.g.limits.wall_s"),
        (CODEX | {"limits": {"minutes": 5}}, "groups.g.limits.minutes"),
        (CODEX | {"sandbox": {"kind": "none", "network": "model_only"}}, "groups.g.sandbox"),
        (CODEX | {"sandbox": {"kind": "command"}}, "groups.g.sandbox"),
        (CODEX | {"sandbox": {"kind": "chroot"}}, "groups.g.sandbox.kind"),
        (CODEX | {"skills": "others"}, "groups.g.skills"),
        (CODEX | {"provider": {"npm": "x"}}, "groups.g.provider.npm"),
        ({key: value for key, value in OPENCODE.items() if key != "base_url"}, "groups.g.base_url"),
    ],
)
def test_a_wrong_entry_is_named_by_file_and_field(tmp_path: Path, entry: dict[str, Any], field: str) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(yaml.safe_dump({"groups": {"g": entry}}))
    with pytest.raises(InputError) as caught:
        load_groups(path)
    assert str(caught.value).startswith(f"{path}: {field}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../x", ".hidden", "a b", ""])
def test_a_group_id_is_no_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(yaml.safe_dump({"groups": {name: CODEX}}))
    with pytest.raises(InputError, match=r"groups\.yaml"):
        load_groups(path)


def test_entries_survive_the_resolved_study() -> None:
    for entry in (CODEX, OPENCODE | {"limits": {"turns": 3}, "skills": None}):
        group = parse_group(entry)
        assert parse_group(group.model_dump(mode="json")) == group


def test_the_papers_groups_are_nine(repository: Path) -> None:
    groups = load_groups(repository / "config" / "paper_groups.yaml")
    assert len(groups) == 9
    assert all(group.sandbox.network == "model_only" for group in groups.values())
