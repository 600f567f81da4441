"""Pricing functions: what a member's tokens cost.

Each is pure: `quote` gives USD per million tokens, `cost` charges usage at it, `upper_bound` is what a budget reserves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from antiphon.contracts import Request
from antiphon.descriptor import Descriptor, Price, explain
from antiphon.errors import DescriptorError, did_you_mean
from antiphon.money import most_usage, per_token
from antiphon.types import Usage


class _Quoted:
    """Charges every token at the quote of the subclass."""

    def quote(self, descriptor: Descriptor) -> Price:
        raise NotImplementedError

    def cost(self, usage: Usage, descriptor: Descriptor) -> float:
        return per_token(usage, self.quote(descriptor))

    def upper_bound(self, request: Request, descriptor: Descriptor) -> float:
        most, price = most_usage(request), self.quote(descriptor)
        all_cached = Usage(most.input_tokens, most.output_tokens, most.input_tokens)
        return max(per_token(most, price), per_token(all_cached, price))  # a cached price may be the higher one


class PerToken(_Quoted):
    """Input, cached input and output at the descriptor's own prices."""

    def quote(self, descriptor: Descriptor) -> Price:
        price = _priced(descriptor)
        if price.input is None:
            raise DescriptorError(
                f"member {descriptor.name!r} has no input price; give `price.input` (0 where input is free), "
                'or charge output alone with pricing = "output_only"'
            )
        return price


class OutputOnly(_Quoted):
    """Output tokens alone, as the paper's cost counts them (arXiv 2506.09033, section 3: m(P) * T_out)."""

    def quote(self, descriptor: Descriptor) -> Price:
        return _priced(descriptor).model_copy(update={"input": 0.0, "cached_input": None})


class BySizeTier(_Quoted):
    """One price for input and output by the member's size, as hosts of open models set it.

    Args:
        tiers: `[[most parameters in billions, USD per million tokens], …]`, smallest first.

    Raises:
        DescriptorError: the tiers do not hold, or a member has no size or a size above the last tier.
    """

    def __init__(self, tiers: Sequence[Sequence[float]]) -> None:
        if not isinstance(tiers, list | tuple):
            raise DescriptorError(f"pricing by_size_tier: tiers is a list of [most billions, USD], got {tiers!r:.100}")
        self._tiers = [_tier(tier) for tier in tiers]
        sizes = [size for size, _ in self._tiers]
        if not sizes or sizes != sorted(set(sizes)):
            raise DescriptorError(f"pricing by_size_tier: tiers must be given and grow in size, got sizes {sizes}")

    def quote(self, descriptor: Descriptor) -> Price:
        size = descriptor.parameters_b
        if size is None:
            raise DescriptorError(f"member {descriptor.name!r} is priced by size; give its `parameters_b`")
        for most, price in self._tiers:
            if size <= most:
                return price
        last = self._tiers[-1][0]
        raise DescriptorError(
            f"member {descriptor.name!r} has {size:g}B parameters, more than the last tier ({last:g}B); add a tier"
        )


class LiteLLMMap(_Quoted):
    """Prices from the map that LiteLLM's package brings; its file is read without importing LiteLLM.

    Args:
        model: the map's name for it; default: the first endpoint's model, with and without the parts before a slash.
    """

    def __init__(self, model: str | None = None) -> None:
        if not isinstance(model, str | None):
            raise DescriptorError(f"pricing litellm_map: model is the map's name for it, a string, got {model!r:.100}")
        self._model = model
        self._quotes: dict[str, Price] = {}

    def quote(self, descriptor: Descriptor) -> Price:
        asked = self._model or descriptor.endpoints[0].model
        if asked not in self._quotes:
            self._quotes[asked] = self._look_up(asked, descriptor.name)
        return self._quotes[asked]

    def _look_up(self, asked: str, member: str) -> Price:
        prices, source = _litellm_map()
        parts = asked.split("/")
        spellings = [asked] if self._model else ["/".join(parts[skip:]) for skip in range(len(parts))]
        name = next((spelling for spelling in spellings if spelling in prices), None)
        if name is None:
            raise DescriptorError(
                f"member {member!r}: LiteLLM's price map has no {asked!r}{did_you_mean(asked, prices)} "
                "(name another one in pricing_args.model, or give a price)"
            )
        entry = prices[name]
        per_million = {
            field: round(float(entry[key]) * 1e6, 9)
            for field, key in (
                ("input", "input_cost_per_token"),
                ("output", "output_cost_per_token"),
                ("cached_input", "cache_read_input_token_cost"),
            )
            if entry.get(key) is not None
        }
        return _price(f"member {member!r}: {name!r} in LiteLLM's price map", {**per_million, "source": source})


def _priced(descriptor: Descriptor) -> Price:
    if descriptor.price is None:
        raise DescriptorError(
            f"member {descriptor.name!r} has no price; give one in USD per million tokens: "
            "price = { input = …, output = … } (0 where it is free)"
        )
    return descriptor.price


def _tier(tier: Sequence[float]) -> tuple[float, Price]:
    match tier:
        case [int() | float() as size, int() | float() as usd] if size > 0 and size is not True:
            return float(size), _price(f"pricing by_size_tier: tier up to {size:g}B", {"input": usd, "output": usd})
    raise DescriptorError(
        f"pricing by_size_tier: a tier is [most billions of parameters, USD per million], got {tier!r}"
    )


def _price(what: str, data: Mapping[str, Any]) -> Price:
    try:
        return Price.model_validate(data)
    except ValidationError as error:
        raise DescriptorError(f"{what}: {explain(error, Price)}") from None


@cache
def _litellm_map() -> tuple[dict[str, dict[str, Any]], str]:
    """LiteLLM's map by model, and what to name as its source."""
    spec = find_spec("litellm")  # a top-level package: finding it imports nothing
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        raise DescriptorError("pricing litellm_map reads the price map of the package litellm, which is not installed")
    file = Path(folders[0]) / "model_prices_and_context_window_backup.json"
    try:
        prices = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DescriptorError(f"pricing litellm_map: cannot read {file.name} of the package litellm: {error}") from None
    return prices, f"litellm {version('litellm')}"
