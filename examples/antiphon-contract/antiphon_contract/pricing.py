"""A price by contract: the more millions of tokens a month one commits to, the larger the discount on list prices."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.contracts import Request
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import DescriptorError
from antiphon.money import most_usage, per_token
from antiphon.types import Usage

HIGHEST_DISCOUNT = 0.95


class VolumeDiscount:
    """The list price less the discount of the committed volume.

    The discount depends on the commitment alone, never on what has been used, so that the price is a pure function.

    Args:
        committed_millions: millions of tokens a month that the contract commits to.
        discounts: `[[from how many millions, share taken off], …]`, such as `[[100, 0.1], [1000, 0.2]]`.

    Raises:
        DescriptorError: the terms do not hold.
    """

    def __init__(self, committed_millions: float, discounts: Sequence[Sequence[float]]) -> None:
        off = 0.0
        for tier in discounts:
            if len(tier) != 2 or not 0 <= tier[1] <= HIGHEST_DISCOUNT:
                raise DescriptorError(
                    f"volume_discount: {list(tier)} is no discount; give [millions of tokens, share of 0 to 0.95]"
                )
            if committed_millions >= tier[0]:
                off = max(off, tier[1])
        self.discount = off

    def quote(self, descriptor: Descriptor) -> Price:
        """The list price less the discount, in USD per million tokens."""
        price = descriptor.price
        if price is None or price.input is None:
            raise DescriptorError(
                f"member {descriptor.name!r}: volume_discount needs the list price of input and output"
            )
        left = 1.0 - self.discount
        cached = None if price.cached_input is None else price.cached_input * left
        # A copy and not a new Price: a discounted price may be lower than any list price.
        return price.model_copy(
            update={"input": price.input * left, "output": price.output * left, "cached_input": cached}
        )

    def cost(self, usage: Usage, descriptor: Descriptor) -> float:
        """USD for this usage."""
        return per_token(usage, self.quote(descriptor))

    def upper_bound(self, request: Request, descriptor: Descriptor) -> float:
        """The most USD the request can cost."""
        most, price = most_usage(request), self.quote(descriptor)
        all_cached = Usage(most.input_tokens, most.output_tokens, most.input_tokens)
        return max(per_token(most, price), per_token(all_cached, price))
