"""The descriptors shipped hold, name everybody in the recorded files, and carry the prices of their sources."""

import itertools
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

import antiphon_pools.plugin
from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import CallContext, Request
from antiphon.descriptor import Descriptor
from antiphon.names import fold
from antiphon.registry import Registry
from antiphon.types import Message

FILES = tuple(antiphon_pools.plugin.antiphon_descriptors())
SHIPPED: dict[str, Descriptor] = {
    table["name"]: Descriptor.of(table, source=file.name)
    for file in FILES
    for table in tomllib.loads(file.read_text(encoding="utf-8"))["members"]
}

# What the recorded files call their LLMs, so that this holds where the files are not.
RECORDED = {
    "routerr1": [
        "qwen/qwen2.5-7b-instruct", "meta/llama-3.1-8b-instruct", "meta/llama-3.1-70b-instruct",
        "mistralai/mistral-7b-instruct-v0.3", "mistralai/mixtral-8x22b-instruct-v0.1", "google/gemma-2-27b-it",
    ],
    "llmrouter9": [
        "codegemma-7b", "gemma-2-9b-it", "llama-3.1-8b-instruct", "llama-3.1-nemotron-51b-instruct",
        "llama-3.3-nemotron-super-49b-v1", "llama3-chatqa-1.5-70b", "llama3-chatqa-1.5-8b",
        "mistral-7b-instruct-v0.3", "qwen2.5-7b-instruct",
    ],
    "routeprofile8": [
        "qwen2.5-7b-instruct", "gemma-2-9b-it", "llama-3.1-8b-instruct", "mixtral-8x7b-instruct-v0.1",
        "mixtral-8x22b-instruct-v0.1", "llama-3.2-3b-instruct", "mistral-small-24b-instruct-2501-bf16",
        "llama-3.3-70b-instruct",
    ],
    "evouna": ["DPR+FiD", "GPT-3.5", "ChatGPT-3.5", "ChatGPT-4", "Bing Chat"],
}  # fmt: skip

PAPER_PRICES = {  # USD per million output tokens, of Router-R1's released code
    "qwen/qwen2.5-7b-instruct": 0.30,
    "meta/llama-3.1-8b-instruct": 0.18,
    "meta/llama-3.1-70b-instruct": 0.88,
    "mistralai/mistral-7b-instruct-v0.3": 0.20,
    "mistralai/mixtral-8x22b-instruct-v0.1": 1.20,
    "google/gemma-2-27b-it": 0.80,
    "writer/palmyra-creative-122b": 1.80,
    "nvidia/llama3-chatqa-1.5-8b": 0.18,
}


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """Of the real registry, built-ins alone, under the packaged defaults."""
    monkeypatch.chdir(tmp_path)
    for name in ("ANTIPHON_CONFIG", "ANTIPHON_POOL"):
        monkeypatch.delenv(name, raising=False)
    return Catalogue.of(Registry.load(only=()), load_config(overrides={"defaults": {"data": "/data"}}))


def data() -> Path:
    where = os.environ.get("ANTIPHON_DATA")
    if not where or not (Path(where) / "recorded").is_dir():
        pytest.skip("ANTIPHON_DATA names no directory with recorded pools")
    return Path(where) / "recorded"


def test_every_file_is_found_by_the_registry_without_a_problem(catalogue: Catalogue) -> None:
    assert {entry.name for entry in catalogue.entries} == set(SHIPPED)
    assert len(FILES) >= 3
    assert all(not plugin.problems and plugin.state == "loaded" for plugin in Registry.load(only=()).plugins)


@pytest.mark.parametrize("llm", sorted({llm for names in RECORDED.values() for llm in names}))
def test_every_llm_of_the_recorded_files_is_somebody(catalogue: Catalogue, llm: str) -> None:
    assert catalogue.entry(llm).source == "antiphon"


def test_the_names_listed_here_are_those_of_the_files() -> None:
    listed = {llm for names in RECORDED.values() for llm in names}
    found = set()
    for file in data().glob("*.jsonl"):
        with file.open(encoding="utf-8") as lines:
            found |= {json.loads(line)["llm"] for line in lines}
    assert found == listed


@pytest.mark.parametrize(("llm", "usd"), PAPER_PRICES.items())
def test_the_papers_members_cost_what_its_code_says_counted_on_output_alone(
    catalogue: Catalogue, llm: str, usd: float
) -> None:
    member = catalogue.find(llm)
    assert member.price is not None
    assert (member.price.output, member.price.input, member.pricing) == (usd, None, "output_only")
    assert member.price.as_of is not None
    assert member.price.source is not None
    assert "Router-R1" in member.price.source


def test_the_papers_prices_are_those_of_the_recorded_source(catalogue: Catalogue) -> None:
    prices = json.loads((data() / "routerr1_prices.json").read_text(encoding="utf-8"))
    assert len(prices) == 6
    for llm, usd in prices.items():
        price = catalogue.find(llm).price
        assert price is not None
        assert price.output == usd


@pytest.mark.parametrize("llm", PAPER_PRICES)
def test_the_papers_members_are_asked_as_the_paper_asks_them(catalogue: Catalogue, llm: str) -> None:
    member = catalogue.find(llm)
    assert member.sampling == {"temperature": 0.1 if "gemma" in llm else 0.0}
    assert member.max_output_tokens == 512
    nim, *others = member.endpoints
    assert (nim.label, nim.api_key_env) == (f"litellm:nvidia_nim/{llm}", "NVIDIA_NIM_API_KEY")
    unseen = llm in ("writer/palmyra-creative-122b", "nvidia/llama3-chatqa-1.5-8b")
    assert len(others) == (0 if unseen else 1)
    for endpoint in others:
        assert endpoint.model.startswith("together_ai/")
        assert endpoint.api_key_env == "TOGETHERAI_API_KEY"


def test_a_mixture_of_experts_says_how_much_of_it_works_on_a_token() -> None:
    mixtral = SHIPPED["Mixtral-8x22B-Instruct"]
    assert (mixtral.parameters_b, mixtral.active_parameters_b) == (141, 39)
    assert all(member.active_parameters_b for name, member in SHIPPED.items() if "8x" in name)


@pytest.mark.parametrize("member", SHIPPED.values(), ids=SHIPPED)
def test_a_description_leaves_numbers_to_their_fields(member: Descriptor) -> None:
    prose = " ".join((member.description, *member.strengths))
    assert not re.search(r"[$€]|\bUSD\b|\bprices?\b|\bper million\b", prose, re.IGNORECASE)
    assert not re.search(r"\d\s*(?:[BbMK]\b|billion|million|tokens?\b|parameters?\b)", prose)
    assert not re.search(r"[<>]", prose)


SIZES = [("very small", 0, 4), ("small", 4, 12), ("mid-sized", 12, 50), ("large", 45, 150), ("very large", 100, 1000)]


@pytest.mark.parametrize("member", SHIPPED.values(), ids=SHIPPED)
def test_a_description_does_not_contradict_the_fields(member: Descriptor) -> None:
    said = re.match(r"An? (very small|very large|small|mid-sized|large)\b", member.description)
    if member.parameters_b is None:
        assert said is None
        return
    assert said is not None, "say how big it is, since that is known"
    low, high = next((low, high) for word, low, high in SIZES if word == said[1])
    assert low <= member.parameters_b <= high
    assert ("mixture of experts" in member.description) == (member.active_parameters_b is not None)
    if "long context" in member.description:
        assert member.context_tokens is not None
        assert member.context_tokens >= 100_000
    if "short inputs" in member.description:
        assert member.context_tokens is not None
        assert member.context_tokens <= 8192


@pytest.mark.parametrize("member", SHIPPED.values(), ids=SHIPPED)
def test_a_price_says_where_it_is_from(member: Descriptor) -> None:
    if member.price is not None:
        assert member.price.source
        assert member.price.as_of or member.price.output == 0
    only_output = member.price is not None and member.price.input is None
    assert only_output == (member.pricing == "output_only")


@pytest.mark.parametrize("pool", ["embedded", "chamber", "chamber-unseen", "paper", "paper-unseen",
                                  "paper-recorded", "evouna-nq", "evouna-triviaqa", "routeprofile8"])  # fmt: skip
def test_each_packaged_pool_can_be_made_and_asks_for_a_flag_only_where_a_price_is_missing(
    catalogue: Catalogue, pool: str
) -> None:
    members = catalogue.pool(pool)
    unpriced = any(member.price is None for member in members)
    assert catalogue.config.pool(pool).allow_unpriced == unpriced
    assert len({member.name for member in members}) == len(members)


def test_the_packaged_pools_are_all_tested_above(catalogue: Catalogue) -> None:
    assert set(catalogue.config.pools) == {
        "embedded", "chamber", "chamber-unseen", "paper", "paper-unseen", "paper-recorded", "evouna-nq",
        "evouna-triviaqa", "routeprofile8",
    }  # fmt: skip


def test_the_embedded_pool_needs_no_key_and_no_address(catalogue: Catalogue) -> None:
    for member in catalogue.pool("embedded"):
        assert member.price is not None
        assert (member.price.input, member.price.output) == (0, 0)
        assert [endpoint.adapter in ("local", "function") for endpoint in member.endpoints] == [True]
        assert all(endpoint.api_base is None and endpoint.api_key_env is None for endpoint in member.endpoints)


@pytest.mark.parametrize("pool", ["paper-recorded", "evouna-nq", "evouna-triviaqa", "routeprofile8"])
async def test_each_member_of_a_recorded_pool_gives_its_own_recorded_reply(pool: str) -> None:
    config = load_config(overrides={"defaults": {"data": str(data().parent)}})
    registry = Registry.load(only=())
    members = Catalogue.of(registry, config).pool(pool)
    (pattern,) = {endpoint.options["path"] for member in members for endpoint in member.endpoints}
    file = sorted(Path(pattern).parent.glob(Path(pattern).name))[0]
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 50)]
    said = {fold(row["llm"]): row["response"] for row in rows if row["question"] == rows[0]["question"]}
    assert len(said) == len(members)
    question = rows[0]["question"]
    for member in members:
        adapter = registry.adapter("recorded", endpoint=member.endpoints[0], descriptor=member)
        request = Request("", (Message("user", question),), 512, 60.0)
        reply = await adapter.complete(request, CallContext(question=question))
        (llm,) = said.keys() & {fold(name) for name in (member.name, *member.aliases)}
        assert reply.text == said[llm]
        await adapter.aclose()
