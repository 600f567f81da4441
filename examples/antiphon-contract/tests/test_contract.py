"""The discount is what the contract says, the reward what the calls say, and the plugin holds as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from antiphon_contract.pricing import VolumeDiscount
from antiphon_contract.reward import ContractShare

from antiphon import Call, Descriptor, Message, Request, Task, Trajectory, Usage
from antiphon.errors import DescriptorError
from antiphon.testing import check_plugin

MEMBER = Descriptor.of(
    {"name": "Atlas", "description": "Knows much.", "model": "m", "price": {"input": 0.6, "output": 0.8}}
)
DISCOUNTS = [[100, 0.10], [1000, 0.20]]


@pytest.mark.parametrize(("committed", "share"), [(99, 1.0), (100, 0.9), (999, 0.9), (1000, 0.8)])
def test_the_committed_volume_decides_the_discount(committed: float, share: float) -> None:
    quote = VolumeDiscount(committed, DISCOUNTS).quote(MEMBER)
    assert quote.input == pytest.approx(0.6 * share)
    assert quote.output == pytest.approx(0.8 * share)


def test_a_million_tokens_each_way_cost_the_quote() -> None:
    pricing = VolumeDiscount(500, DISCOUNTS)
    assert pricing.cost(Usage(1_000_000, 1_000_000), MEMBER) == pytest.approx(0.54 + 0.72)


def test_the_upper_bound_covers_what_a_request_can_cost() -> None:
    request = Request(model="m", messages=(Message("user", "What is 2 + 2?"),), max_tokens=50, timeout_s=10)
    pricing = VolumeDiscount(500, DISCOUNTS)
    assert pricing.upper_bound(request, MEMBER) >= pricing.cost(Usage(14, 50), MEMBER)


def test_a_discount_that_is_none_is_refused() -> None:
    with pytest.raises(DescriptorError, match=r"volume_discount: \[100, 10\]"):
        VolumeDiscount(500, [[100, 10]])


def test_the_reward_is_the_share_of_calls_under_contract() -> None:
    calls = tuple(Call(member=member, query="?", outcome="ok") for member in ("Atlas", "Other", "Atlas", "Atlas"))
    trajectory = Trajectory("t", Task("?"), "p", "a", "answer", calls=calls)
    assert ContractShare(["Atlas"])(trajectory) == 0.75
    assert ContractShare(["Atlas"])(Trajectory("t", Task("?"), "p", "a", "answer")) == 0.0


def test_the_plugin_has_no_faults() -> None:
    assert check_plugin(Path(__file__).parents[1]) == []
