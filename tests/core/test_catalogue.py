"""Members are found by name, alias or distribution; overrides apply field by field; pools are what was listed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antiphon.catalogue import Catalogue, overridden
from antiphon.config import load_config
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, DescriptorError


@dataclass(frozen=True)
class Brought:
    source: str
    descriptor: Descriptor


@dataclass(frozen=True)
class Plugin:
    distribution: str
    version: str = "1.0"


@dataclass
class StubRegistry:
    """As much of a registry as a catalogue needs."""

    descriptors: list[Brought] = field(default_factory=list)

    @property
    def plugins(self) -> list[Plugin]:
        return [Plugin(source) for source in sorted({brought.source for brought in self.descriptors})]

    def bring(self, source: str, name: str, **fields: Any) -> "StubRegistry":
        data = {"name": name, "description": f"{name} of {source}.", "price": {"input": 1, "output": 2}, **fields}
        if "endpoints" not in data:
            data.setdefault("model", f"{source}/{name}")
        self.descriptors.append(Brought(source, Descriptor.of(data)))
        return self


@pytest.fixture
def registry() -> StubRegistry:
    return (
        StubRegistry()
        .bring("acme", "Ada-7B", aliases=["acme/ada-7b"])
        .bring("acme", "Babbage", aliases=["bab"])
        .bring("borg", "Curie")
    )


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTIPHON_CONFIG", "ANTIPHON_DATA", "ANTIPHON_POOL"):
        monkeypatch.delenv(name, raising=False)


def catalogue(registry: StubRegistry, **tables: Any) -> Catalogue:
    """A catalogue under the given tables of a configuration; `p` is a pool of all that `pool` lists."""
    if "pool" in tables:
        tables["pools"] = {**tables.get("pools", {}), "p": {"members": tables.pop("pool")}}
    return Catalogue.of(registry, load_config(overrides=tables))


# ---- finding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["Ada-7B", " ada‐7b ", "ACME/ADA-7B", "acme:Ada-7B", "acme: ada-7b"])
def test_a_member_is_found_by_name_alias_or_distribution_after_folding(registry: StubRegistry, ref: str) -> None:
    assert catalogue(registry).find(ref).name == "Ada-7B"


@pytest.mark.parametrize("ref", ["Ada", "Ada-7B-Instruct", "borg:Ada-7B", "acme:", ""])
def test_nobody_is_found_by_a_part_of_a_name(registry: StubRegistry, ref: str) -> None:
    with pytest.raises(ConfigError, match=r"nobody .* is called"):
        catalogue(registry).find(ref)


def test_an_unknown_name_gets_the_nearest_known_one(registry: StubRegistry) -> None:
    with pytest.raises(ConfigError, match="'Babage'; did you mean 'Babbage'"):
        catalogue(registry).find("Babage")


def test_a_name_from_two_distributions_lists_what_to_write(registry: StubRegistry) -> None:
    registry.bring("borg", "ADA-7b")
    both = catalogue(registry)
    with pytest.raises(ConfigError, match="'ada-7b' could be any of 2 members; write one of 'acme:Ada-7B', 'borg:ADA"):
        both.find("ada-7b")
    assert both.find("borg:ada-7b").name == "ADA-7b"
    assert both.find("acme/ada-7b").name == "Ada-7B"  # the alias is still one member's alone


def test_a_name_beats_another_members_alias(registry: StubRegistry) -> None:
    registry.bring("late", "Zed", aliases=["Curie", "Babbage"])
    assert catalogue(registry).entry("Curie").source == "borg"


def test_one_distribution_that_brings_a_name_twice_is_blamed(registry: StubRegistry) -> None:
    registry.bring("borg", "Curie")
    with pytest.raises(ConfigError, match="borg brings more than one member called 'Curie'"):
        catalogue(registry).find("Curie")


def test_an_alias_with_a_colon_is_found_as_it_is(registry: StubRegistry) -> None:
    registry.bring("borg", "Llama-8B", aliases=["llama3:8b"])
    assert catalogue(registry).find("llama3:8b").name == "Llama-8B"


# ---- overriding ---------------------------------------------------------------------------------------------------


def test_the_configuration_beats_the_plugin_which_beats_the_default_field_by_field(registry: StubRegistry) -> None:
    registry.bring("acme", "Dora", context_tokens=8192, price={"input": 1, "output": 2, "cached_input": 0.5})
    found = catalogue(registry, members={"dora": {"price": {"output": 9}}}).entry("Dora")
    price = found.descriptor.price
    assert price is not None
    assert (price.input, price.output, price.cached_input) == (1, 9, 0.5)
    assert found.descriptor.context_tokens == 8192  # the plugin's
    assert found.descriptor.max_output_tokens == 512  # the default
    assert found.overridden == ("price",)
    assert (found.source, found.version) == ("acme", "1.0")


def test_a_new_price_does_not_keep_the_date_and_source_of_the_old_one() -> None:
    dated = {"input": 1, "output": 2, "as_of": "2026-01-01", "source": "list"}
    descriptor = Descriptor.of({"name": "A", "description": "d", "model": "m", "price": dated})
    changed = overridden(descriptor, {"price": {"output": 3}}).price
    assert changed is not None
    assert (changed.as_of, changed.source) == (None, None)
    contract = overridden(descriptor, {"price": {"output": 3, "source": "our contract"}}).price
    assert contract is not None
    assert (contract.as_of, contract.source) == (None, "our contract")
    relabelled = overridden(descriptor, {"price": {"source": "the same list, again"}}).price
    assert relabelled is not None
    assert str(relabelled.as_of) == "2026-01-01"


def test_another_pricing_function_does_not_get_the_arguments_of_the_old_one() -> None:
    data = {"name": "A", "description": "d", "model": "m", "pricing": "by_volume", "pricing_args": {"free": 3}}
    descriptor = Descriptor.of(data)
    assert overridden(descriptor, {"pricing": "per_token"}).pricing_args == {}
    assert overridden(descriptor, {"pricing_args": {"step": 1}}).pricing_args == {"free": 3, "step": 1}


def test_api_base_alone_changes_the_one_endpoint_and_model_replaces_it(registry: StubRegistry) -> None:
    registry.bring("acme", "Solo", api_key_env="K", options={"a": 1})
    (moved,) = (
        catalogue(registry, members={"Solo": {"api_base": "http://h", "options": {"b": 2}}}).find("Solo").endpoints
    )
    assert (moved.model, moved.api_base, moved.api_key_env) == ("acme/Solo", "http://h", "K")
    assert moved.options == {"a": 1, "b": 2}
    (other,) = catalogue(registry, members={"Solo": {"model": "m", "adapter": "openai"}}).find("Solo").endpoints
    assert (other.model, other.adapter, other.api_key_env) == ("m", "openai", None)


def test_where_there_are_two_endpoints_api_base_alone_is_refused(registry: StubRegistry) -> None:
    registry.bring("acme", "Duo", endpoints=[{"model": "a"}, {"model": "b"}])
    with pytest.raises(ConfigError, match="has 2 endpoints, and `api_base` does not say which"):
        catalogue(registry, members={"Duo": {"api_base": "http://h"}})
    listed = catalogue(registry, members={"Duo": {"endpoints": [{"model": "c"}]}}).find("Duo")
    assert [endpoint.model for endpoint in listed.endpoints] == ["c"]


def test_the_result_of_an_override_is_validated_again(registry: StubRegistry) -> None:
    registry.bring("acme", "Moe", parameters_b=8)
    with pytest.raises(DescriptorError, match=r"Moe.*active_parameters_b is more than"):
        catalogue(registry, members={"Moe": {"active_parameters_b": 9}})


def test_an_override_of_nobody_says_so_and_how_to_define_a_member(registry: StubRegistry) -> None:
    with pytest.raises(ConfigError, match=r"members.\"Babage\".*nobody brings.*description and a model.*'Babbage'"):
        catalogue(registry, members={"Babage": {"price": {"output": 1}}})


def test_an_override_of_an_ambiguous_name_must_say_whose(registry: StubRegistry) -> None:
    registry.bring("borg", "Ada-7B")
    with pytest.raises(ConfigError, match=r"members.\"Ada-7B\".*'acme:Ada-7B', 'borg:Ada-7B'"):
        catalogue(registry, members={"Ada-7B": {"context_tokens": 1}})
    one = catalogue(registry, members={"borg:Ada-7B": {"context_tokens": 1}})
    assert one.find("borg:Ada-7B").context_tokens == 1
    assert one.find("acme:Ada-7B").context_tokens is None


WHOLE = {"description": "Ours.", "model": "hosted_vllm/ours", "api_base": "http://127.0.0.1:8000/v1"}


def test_a_whole_table_defines_a_member_that_takes_nothing_from_plugins(registry: StubRegistry) -> None:
    mine = catalogue(registry, members={"Curie": WHOLE, "New": WHOLE})
    assert mine.entry("Curie").source == "config"
    assert mine.find("curie").price is None
    assert mine.find("borg:Curie").price is not None
    assert mine.find("config:New").endpoints[0].api_base == "http://127.0.0.1:8000/v1"


# ---- pools --------------------------------------------------------------------------------------------------------


def test_a_pool_has_its_members_in_the_order_listed(registry: StubRegistry) -> None:
    listed = catalogue(registry, pool=["Curie", "acme/ada-7b", "acme:Babbage"]).pool("p")
    assert [member.name for member in listed] == ["Curie", "Ada-7B", "Babbage"]


def test_installing_a_plugin_never_changes_what_a_pool_is_made_of(registry: StubRegistry) -> None:
    members = {"Mine": WHOLE}
    pool = ["Curie", "bab", "Mine", "acme:Ada-7B"]
    before = catalogue(registry, pool=pool, members=members)
    registry.bring("late", "Zed", aliases=["Curie", "mine"]).bring("late", "Mine").bring("late", "Ada-7B")
    after = catalogue(registry, pool=pool, members=members)
    assert after.pool("p") == before.pool("p")
    assert after.lock("p") == before.lock("p")
    # One that claims the very name is never taken in silence: the pool says what to write instead.
    registry.bring("late", "Curie")
    with pytest.raises(ConfigError, match=r"pool 'p'.*'borg:Curie', 'late:Curie'"):
        catalogue(registry, pool=pool, members=members).pool("p")


def test_names_and_aliases_are_unique_within_a_pool_only(registry: StubRegistry) -> None:
    registry.bring("late", "Bab")
    assert len(catalogue(registry, pool=["Bab", "Curie"]).pool("p")) == 2
    with pytest.raises(ConfigError, match="pool 'p': 'Bab' means both 'Babbage' and 'Bab'"):
        catalogue(registry, pool=["Babbage", "late:Bab"]).pool("p")
    with pytest.raises(ConfigError, match="pool 'p' has two members called 'Curie'"):
        catalogue(registry, pool=["Curie", "borg:curie"]).pool("p")


def test_unknown_pools_and_members_are_named_with_a_hint(registry: StubRegistry) -> None:
    with pytest.raises(ConfigError, match="no pool is called 'embeded'; did you mean 'embedded'"):
        catalogue(registry).pool("embeded")
    with pytest.raises(ConfigError, match=r"pool 'p': .*'Curry'; did you mean 'Curie'"):
        catalogue(registry, pool=["Curry"]).pool("p")


def test_a_pools_adapter_takes_the_place_of_every_members_endpoints(registry: StubRegistry) -> None:
    registry.bring("acme", "Duo", endpoints=[{"model": "nim/a", "api_key_env": "K"}, {"model": "b"}])
    table = {"members": ["Duo", "Curie"], "adapter": "recorded", "options": {"path": "/r.jsonl"}, "concurrency": 3}
    duo, curie = catalogue(registry, pools={"p": table}).pool("p")
    (endpoint,) = duo.endpoints
    assert (endpoint.label, endpoint.api_key_env, endpoint.options) == ("recorded:nim/a", None, {"path": "/r.jsonl"})
    assert curie.endpoints[0].label == "recorded:borg/Curie"
    assert (endpoint.concurrency, duo.price) == (3, Descriptor.of(duo).price)


def test_what_a_pool_wraps_keeps_its_own_endpoints_inside(registry: StubRegistry) -> None:
    own = {"model": "a", "api_key_env": "K", "adapter": "openai", "options": {"path": "~/x", "y": 1}}
    registry.bring("acme", "Duo", endpoints=[own, {"model": "b", "price": {"input": 3, "output": 3}}])
    table = {"members": ["Duo"], "wrap": "cassette", "options": {"path": "/tape"}}
    (duo,) = catalogue(registry, pools={"p": table}).pool("p")
    first, second = duo.endpoints
    assert (first.label, first.api_key_env) == ("cassette:a", "K")
    assert first.options == {
        "path": "/tape", "adapter": "openai", "inner": {"path": str(Path("~/x").expanduser()), "y": 1},
    }  # fmt: skip
    assert second.options == {"path": "/tape", "adapter": "litellm", "inner": {}}
    assert second.price is not None


def test_a_pool_calls_its_members_by_other_names(registry: StubRegistry) -> None:
    table = {"members": ["bab", "Curie"], "names": {"acme:Babbage": "Oak"}}
    oak, curie = catalogue(registry, pools={"p": table}).pool("p")
    assert (oak.name, oak.aliases, curie.name) == ("Oak", ("Babbage", "bab"), "Curie")
    assert (oak.endpoints[0].model, oak.price) == ("acme/Babbage", curie.price)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"Babage": "Oak"}, "pool 'p': .*'Babage'; did you mean 'Babbage'"),
        ({"Ada-7B": "Oak"}, "pool 'p': `names` renames acme:Ada-7B, who is not among its members"),
        ({"Babbage": "curie"}, "pool 'p': 'Curie' means both 'curie' and 'Curie'"),
        ({"Babbage": "Oak: tree"}, "pool 'p': .*'Oak: tree'.*no colon"),
    ],
)
def test_a_name_that_a_pool_cannot_give_is_refused(registry: StubRegistry, names: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        catalogue(registry, pools={"p": {"members": ["Babbage", "Curie"], "names": names}}).pool("p")


def test_a_pools_concurrency_holds_where_an_endpoint_says_nothing(registry: StubRegistry) -> None:
    registry.bring("acme", "Duo", endpoints=[{"model": "a", "concurrency": 2}, {"model": "b"}])
    (duo,) = catalogue(registry, pools={"p": {"members": ["Duo"], "concurrency": 7}}).pool("p")
    assert [endpoint.concurrency for endpoint in duo.endpoints] == [2, 7]


def test_a_paths_variable_is_needed_only_by_the_pool_that_uses_it(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.bring("acme", "Records", adapter="recorded", options={"path": "${ANTIPHON_DATA}/r.jsonl"})
    both = catalogue(registry, pools={"a": {"members": ["Curie"]}, "b": {"members": ["Curie", "Records"]}})
    assert len(both.pool("a")) == 1
    with pytest.raises(ConfigError, match=r"pool 'b', member 'Records' needs \$\{ANTIPHON_DATA\}.*--data DIR"):
        both.pool("b")
    monkeypatch.setenv("ANTIPHON_DATA", "/d")
    assert both.pool("b")[1].endpoints[0].options == {"path": "/d/r.jsonl"}
