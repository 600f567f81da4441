"""The lock file is the same on every run and machine, and says in words what has changed since."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon import lock
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.errors import ConfigError

MEMBERS: dict[str, Any] = {
    "Ada": {"description": "Knows engines.", "model": "acme/ada", "price": {"input": 0.88, "output": 0.88}},
    "Bab": {"description": "Knows tables.", "model": "acme/bab", "price": {"input": 1, "output": 1}},
}


@dataclass(frozen=True)
class NoPlugins:
    descriptors: tuple[()] = ()
    plugins: tuple[()] = ()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTIPHON_CONFIG", "ANTIPHON_DATA", "ANTIPHON_POOL"):
        monkeypatch.delenv(name, raising=False)


def catalogue(members: dict[str, Any] | None = None, **pool: Any) -> Catalogue:
    members = MEMBERS if members is None else members
    pools = {"p": {"members": list(members), **pool}}
    return Catalogue.of(NoPlugins(), load_config(overrides={"members": members, "pools": pools}))


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return {**MEMBERS, name: {**MEMBERS[name], **fields}}


def test_a_lock_file_is_written_beside_the_configuration_and_twice_the_same(tmp_path: Path) -> None:
    path = lock.write(catalogue(), ["p"])
    assert path == tmp_path / "antiphon.lock"
    once = path.read_bytes()
    assert lock.write(catalogue(), ["p"]).read_bytes() == once
    assert [file.name for file in tmp_path.iterdir()] == ["antiphon.lock"]  # nothing half-written is left
    pool = json.loads(once)["pools"]["p"]
    assert [member["name"] for member in pool["members"]] == ["Ada", "Bab"]
    assert pool["members"][0]["hash"] == catalogue().find("Ada").hash
    assert pool["members"][0]["source"] == "config"


def test_what_did_not_change_is_not_reported() -> None:
    lock.write(catalogue(), ["p"])
    assert catalogue().check_lock("p") == ()


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (changed("Ada", price={"input": 0.88, "output": 0.95}), ("Ada: price.output 0.88 -> 0.95",)),
        (changed("Bab", description="Knows all."), ('Bab: description "Knows tables." -> "Knows all."',)),
        (changed("Bab", context_tokens=8192), ("Bab: context_tokens none -> 8192",)),
        (changed("Bab", model="acme/bab-2"), ('Bab: endpoints[0].model "acme/bab" -> "acme/bab-2"',)),
        ({"Ada": MEMBERS["Ada"]}, ("Bab was removed",)),
        ({**MEMBERS, "Cur": MEMBERS["Ada"]}, ("Cur was added",)),
        (
            {"Bab": MEMBERS["Bab"], "Ada": MEMBERS["Ada"]},
            ("the order of the members changed, and the prompt shows them in order",),
        ),
    ],
)
def test_a_difference_is_said_in_words(now: dict[str, Any], says: tuple[str, ...]) -> None:
    lock.write(catalogue(), ["p"])
    assert catalogue(now).check_lock("p") == says


def test_a_second_endpoint_is_told_by_its_label() -> None:
    lock.write(catalogue(), ["p"])
    table = {"description": "Knows engines.", "price": {"input": 0.88, "output": 0.88}}
    two = {
        **MEMBERS,
        "Ada": {**table, "endpoints": [{"model": "acme/ada"}, {"model": "borg/ada", "adapter": "openai"}]},
    }
    assert catalogue(two).check_lock("p") == (
        "Ada: endpoints litellm:acme/ada -> litellm:acme/ada, openai:borg/ada",
    )  # fmt: skip


def test_taking_unpriced_members_is_a_change() -> None:
    lock.write(catalogue(), ["p"])
    assert catalogue(allow_unpriced=True).check_lock("p") == ("allow_unpriced false -> true",)


def test_nothing_is_said_of_a_pool_that_was_never_locked() -> None:
    assert catalogue().check_lock("p") == ()
    lock.write(catalogue(), ["p"])
    path = Path("antiphon.lock")
    data = json.loads(path.read_text())
    del data["pools"]["p"]
    path.write_text(json.dumps(data))
    assert catalogue(changed("Ada", description="x")).check_lock("p") == ()


def test_locking_one_pool_leaves_the_others_as_they_were() -> None:
    lock.write(catalogue(), ["p"])
    config = load_config(overrides={"members": MEMBERS, "pools": {"q": {"members": ["Ada"]}}})
    path = lock.write(Catalogue.of(NoPlugins(), config), ["q"])
    assert sorted(json.loads(path.read_text())["pools"]) == ["p", "q"]


def test_a_field_that_a_later_release_adds_is_no_difference() -> None:
    path = lock.write(catalogue(), ["p"])
    data = json.loads(path.read_text())
    for member in data["pools"]["p"]["members"]:
        del member["descriptor"]["latency"], member["descriptor"]["max_output_tokens"]
    path.write_text(json.dumps(data))
    assert catalogue().check_lock("p") == ()


def test_the_lock_is_the_same_wherever_the_configuration_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        [members.R]
        description = "Records."
        adapter = "recorded"
        model = "r"
        options = { paths = ["records/a.jsonl", "${ANTIPHON_DATA}/b.jsonl"] }
        [pools.p]
        members = ["R"]
    """
    written = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        monkeypatch.setenv("ANTIPHON_DATA", f"/data/{place}")
        Path("antiphon.toml").write_text(text)
        written.append(lock.write(Catalogue.of(NoPlugins(), load_config()), ["p"]).read_bytes())
    assert written[0] == written[1]
    assert b'"records/a.jsonl"' in written[0]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"antiphon_lock": 1}', '{"antiphon_lock": 1, "pools": {"p": {}}}',
     '{"antiphon_lock": 1, "pools": {"p": {"members": [{"name": "Ada", "descriptor": {}, "source": "x"}]}}}'],
)  # fmt: skip
def test_a_broken_lock_file_is_one_clear_error(content: str) -> None:
    Path("antiphon.lock").write_text(content)
    with pytest.raises(ConfigError, match=r"antiphon.lock is not a lock file .* antiphon pool lock"):
        catalogue().check_lock("p")


def test_a_lock_file_of_another_version_says_to_lock_again() -> None:
    Path("antiphon.lock").write_text('{"antiphon_lock": 2, "pools": {}}')
    with pytest.raises(ConfigError, match=r"another version.*lock again"):
        catalogue().check_lock("p")


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        lock.write(catalogue(), ["p"], tmp_path / "gone" / "antiphon.lock")
