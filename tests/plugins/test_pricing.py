"""The built-in pricing functions: what each quotes, charges and reserves, and which members it refuses."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contracts import Pricing, Request
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import DescriptorError
from antiphon.registry import Registry
from antiphon.types import Message, Usage
from antiphon_plugins.pricing import BySizeTier, LiteLLMMap, OutputOnly, PerToken

CASES = [
    json.loads(line)
    for name in ("pricing.jsonl", "pricing_more.jsonl")
    for line in (Path(__file__).parent.parent / "cases" / name).read_text("utf-8").splitlines()
    if line
]
MILLION = Usage(1_000_000, 1_000_000)
TIERS = [[4, 0.1], [8, 0.2], [21, 0.3], [80.5, 0.9]]


def member(**fields: Any) -> Descriptor:
    return Descriptor.of({"name": "A", "description": "d", "model": "m", **fields})


def loads(case: dict[str, Any], pricing: Pricing) -> bool:
    try:
        pricing.quote(member(price=case["price"]))
    except DescriptorError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_loads_and_costs_as_it_should(case: dict[str, Any]) -> None:
    needs_input = isinstance(case["price"], dict) and "input" not in case["price"]
    pricing: Pricing = OutputOnly() if needs_input else PerToken()
    assert loads(case, pricing) == case["loads"]
    if needs_input:
        assert not loads(case, PerToken())
    if "usd" in case:
        assert pricing.cost(Usage(**case["usage"]), member(price=case["price"])) == pytest.approx(case["usd"])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("per_token", {}),
        ("output_only", {}),
        ("by_size_tier", {"tiers": TIERS}),
        ("litellm_map", {"model": "gpt-4o"}),
    ],
)
def test_each_is_offered_by_its_name_and_prices_consistently(name: str, args: dict[str, Any]) -> None:
    pricing = Registry.load([]).pricing(name, **args)
    asked = member(price={"input": 1, "output": 2, "cached_input": 0.5}, parameters_b=7)
    quote = pricing.quote(asked)
    assert isinstance(quote, Price)
    assert pricing.cost(MILLION, asked) == pytest.approx((quote.input or 0) + quote.output)
    assert pricing.cost(Usage(), asked) == 0


@given(
    st.sampled_from([PerToken(), OutputOnly(), BySizeTier(TIERS)]),
    st.text(max_size=200),
    st.integers(1, 1000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.just(0.0) | st.floats(0.001, 1000),
)
def test_no_usage_that_a_request_can_have_costs_more_than_its_upper_bound(
    pricing: Pricing, text: str, most: int, given_: float, made: float, cached: float, cached_price: float
) -> None:
    asked = member(price={"input": 1, "output": 2, "cached_input": cached_price}, parameters_b=7)
    request = Request("m", (Message("user", text),), most, 1.0)
    tokens = int(given_ * len(text.encode()))
    usage = Usage(tokens, int(made * most), int(cached * tokens))
    assert 0 <= pricing.cost(usage, asked) <= pricing.upper_bound(request, asked)


def test_output_only_counts_and_quotes_output_alone_as_the_paper_does() -> None:
    asked = member(price={"input": 5, "output": 0.88, "cached_input": 3, "source": "somewhere"})
    quote = OutputOnly().quote(asked)
    assert (quote.input, quote.output, quote.cached_input, quote.source) == (0, 0.88, None, "somewhere")
    assert OutputOnly().cost(Usage(10**6, 10**6, 10**6), asked) == pytest.approx(0.88)


@pytest.mark.parametrize("pricing", [PerToken(), OutputOnly()])
def test_a_member_without_a_price_is_refused_and_the_remedy_named(pricing: Pricing) -> None:
    with pytest.raises(DescriptorError, match=r"'A' has no price; give one in USD per million tokens"):
        pricing.quote(member())


@pytest.mark.parametrize(("size", "usd"), [(0.5, 0.1), (4, 0.1), (4.1, 0.2), (8, 0.2), (70, 0.9), (80.5, 0.9)])
def test_a_size_falls_into_the_first_tier_that_holds_it(size: float, usd: float) -> None:
    pricing = BySizeTier(TIERS)
    assert pricing.quote(member(parameters_b=size)) == Price(input=usd, output=usd)
    assert pricing.cost(MILLION, member(parameters_b=size)) == pytest.approx(2 * usd)


def test_a_size_without_a_tier_and_a_member_without_a_size_are_refused() -> None:
    with pytest.raises(DescriptorError, match=r"'A' has 100B parameters, more than the last tier \(80\.5B\)"):
        BySizeTier(TIERS).quote(member(parameters_b=100))
    with pytest.raises(DescriptorError, match="give its `parameters_b`"):
        BySizeTier(TIERS).quote(member(price={"input": 1, "output": 1}))


@pytest.mark.parametrize(
    "tiers",
    [
        [],
        [[8, 0.2], [4, 0.1]],
        [[4, 0.1], [4, 0.2]],
        [[4]],
        [[0, 1]],
        [["4", 1]],
        [[4, -1]],
        [[4, 15000]],
        [[4, 1e-7]],
        [4],
        [[True, 1]],
        [[4, True]],
        [[math.nan, 1]],
        None,
        "4",
        {"4": 1},
    ],
)
def test_tiers_that_do_not_hold_are_refused(tiers: Any) -> None:
    with pytest.raises(DescriptorError, match="by_size_tier"):
        BySizeTier(tiers)


def test_litellms_map_knows_a_model_by_its_whole_id_or_without_its_providers() -> None:
    whole = LiteLLMMap("gpt-4o").quote(member())
    assert whole.input is not None
    assert 0.001 <= whole.input < whole.output
    assert whole.source is not None
    assert whole.source.startswith("litellm ")
    for model in ("gpt-4o", "some_proxy/gpt-4o", "a/b/gpt-4o"):
        assert LiteLLMMap().quote(member(model=model)) == whole


def test_litellms_map_says_what_it_does_not_know() -> None:
    with pytest.raises(DescriptorError, match="a string, got 5"):
        LiteLLMMap(5)  # type: ignore[arg-type]
    with pytest.raises(DescriptorError, match=r"member 'A'.*no 'gpt-4oo'; did you mean"):
        LiteLLMMap("gpt-4oo").quote(member())
    with pytest.raises(DescriptorError, match=r"in LiteLLM's price map: .*output"):
        LiteLLMMap("whisper-1").quote(member())  # priced by the second


def test_litellms_map_is_read_without_importing_litellm() -> None:
    code = (
        "import sys; from antiphon_plugins.pricing import LiteLLMMap; from antiphon.descriptor import Descriptor; "
        "d = Descriptor.of({'name': 'A', 'description': 'd', 'model': 'gpt-4o'}); "
        "assert LiteLLMMap().quote(d).output > 0; assert 'litellm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
