"""The pool: who can be asked by which name, and a call with its limits, retries, failover, cooldown and money."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from antiphon import log
from antiphon._call import Line, OneCall, Services
from antiphon._gates import Gate
from antiphon._served import Owners
from antiphon.contracts import CallContext, MemberView, Pricing, Request
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import ConfigError, DescriptorError, PluginError
from antiphon.money import is_amount
from antiphon.names import Names, named
from antiphon.redact import redact
from antiphon.types import Call, Message, Usage

if TYPE_CHECKING:
    from antiphon.money import Budget
    from antiphon.registry import Registry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a call is tried; seconds.

    Attributes:
        attempts: at each endpoint, the first included.
        attempt_timeout_s: one attempt.
        call_timeout_s: the whole call, waiting and failover included; a rollout's deadline may be sooner.
        backoff_s: the first wait between attempts; it doubles up to `backoff_max_s`, with jitter.
        cooldown_max_s: the longest an endpoint is left alone because it asked for it.
    """

    attempts: int = 3
    attempt_timeout_s: float = 60.0
    call_timeout_s: float = 120.0
    backoff_s: float = 0.5
    backoff_max_s: float = 8.0
    cooldown_max_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts must be at least 1, got {self.attempts!r}")
        for name in ("attempt_timeout_s", "call_timeout_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} must be a number of seconds above 0, got {getattr(self, name)!r}")
        for name in ("backoff_s", "backoff_max_s", "cooldown_max_s"):
            if not is_amount(getattr(self, name)):
                raise ConfigError(f"{name} must be a number of seconds of at least 0, got {getattr(self, name)!r}")


class Pool:
    """Members that can be asked by name. It lives on one event loop at a time.

    Args:
        descriptors: the members, in the order prompts show them.
        registry: makes their adapters and pricing functions.
        allow_unpriced: take members without a price; their calls count as free, and no attempt names a price.
        catalogue: where to look up the price of a model that answered in place of the asked one, beyond the pool.
        policy: retries and timeouts.
        clock, sleep: for tests; the clock is the one that deadlines are given on.

    Raises:
        ConfigError: there are no members.
        DescriptorError: two members share a name, or a price that is needed is missing.
        PluginError: a pricing function does not work.
    """

    def __init__(
        self,
        descriptors: Iterable[Descriptor],
        registry: Registry,
        *,
        allow_unpriced: bool = False,
        catalogue: Sequence[Descriptor] = (),
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.descriptors = tuple(descriptors)
        if not self.descriptors:
            raise ConfigError("the pool has no members; name at least one")
        self._names = Names.of(self.descriptors)
        self._registry = registry
        self._allow_unpriced = allow_unpriced
        self._owners = Owners((*self.descriptors, *catalogue))
        self._pricing_of_owners: dict[str, Pricing | None] = {}
        self._warned: set[str] = set()
        self._services = Services(policy or RetryPolicy(), clock, sleep, self._owner, self._warn)
        self._lines: dict[str, tuple[Line, ...]] = {}
        members = []
        for descriptor in self.descriptors:
            quotes, self._lines[descriptor.name] = self._load(descriptor)
            members.append(MemberView(descriptor, quotes[0]))
        self.members: tuple[MemberView, ...] = tuple(members)

    @property
    def hash(self) -> str:
        """SHA-256 over the members' descriptors, whatever their order."""
        return hashlib.sha256("\n".join(sorted(each.hash for each in self.descriptors)).encode()).hexdigest()

    def resolve(self, asked: str) -> str | None:
        """The name of the member that a policy means, or None: exact name or alias after folding."""
        return self._names.resolve(asked)

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call:
        """Ask a member; what goes wrong on the way is the call's outcome, never an exception.

        Args:
            context: where the call comes from; its deadline holds besides the pool's own.
            budget: each attempt reserves its upper bound in it and settles what it cost.
            max_tokens: most output tokens; the descriptor's own limit holds besides.

        Raises:
            ConfigError: nobody is called `member`, or there is nothing to send.
            asyncio.CancelledError: the caller was cancelled; slots and reservations are free again. Its attribute
                `call` is the call with the attempts that had ended.
        """
        name = named(member, self.resolve, self.members)
        if not messages:
            raise ConfigError(f"there is no message for {name!r}; give at least one")
        lines = self._lines[name]
        limit = lines[0].descriptor.max_output_tokens
        if max_tokens is not None:
            if max_tokens < 1:
                raise ConfigError(f"max_tokens must be at least 1, got {max_tokens!r}")
            limit = min(limit, max_tokens)
        call = OneCall(lines, self._services, messages, context=context, budget=budget, max_tokens=limit)
        return await call.run()

    async def aclose(self) -> None:
        """Close every adapter; one that fails to close is logged."""
        adapters = [line.adapter for lines in self._lines.values() for line in lines]
        results = await asyncio.gather(*(adapter.aclose() for adapter in adapters), return_exceptions=True)
        for adapter, result in zip(adapters, results, strict=True):
            if isinstance(result, Exception):
                self._warn("adapter did not close", adapter=type(adapter).__name__, error=redact(str(result)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- loading --------------------------------------------------------------------------------------------------

    def _load(self, descriptor: Descriptor) -> tuple[list[Price | None], tuple[Line, ...]]:
        """The quotes and lines of a member's endpoints, in their order."""
        pricing = self._registry.pricing(descriptor.pricing, **descriptor.pricing_args)
        quotes, lines = [], []
        for endpoint in descriptor.endpoints:
            priced = descriptor.at(endpoint)
            quote = self._quote(pricing, priced)
            adapter = self._registry.adapter(endpoint.adapter, endpoint=endpoint, descriptor=descriptor)
            gate = Gate(
                endpoint.concurrency,
                endpoint.requests_per_minute,
                clock=self._services.clock,
                sleep=self._services.sleep,
            )
            quotes.append(quote)
            lines.append(Line(endpoint, priced, adapter, None if quote is None else pricing, gate))
        return quotes, tuple(lines)

    def _quote(self, pricing: Pricing, descriptor: Descriptor) -> Price | None:
        """What the pricing function says, checked; None for an unpriced member where that is allowed."""
        try:
            return _checked_quote(pricing, descriptor)
        except DescriptorError as error:
            if descriptor.price is not None:
                raise
            if self._allow_unpriced:
                return None
            raise DescriptorError(f"{error}; or take it unpriced: allow_unpriced = true") from None

    # ---- what calls share -----------------------------------------------------------------------------------------

    def _owner(self, model: str) -> tuple[Descriptor, Pricing] | None:
        """The descriptor that a served model belongs to and its pricing function; None: unknown, or without a price."""
        owner = self._owners.find(model)
        if owner is None:
            return None
        key = owner.hash
        if key not in self._pricing_of_owners:
            self._pricing_of_owners[key] = None
            try:
                pricing = self._registry.pricing(owner.pricing, **owner.pricing_args)
                pricing.quote(owner)
                self._pricing_of_owners[key] = pricing
            except Exception as error:  # nobody asked for this member: the call goes on, at the asked one's price
                self._warn("no price for a model that answered", served=model, error=redact(str(error)))
        found = self._pricing_of_owners[key]
        return None if found is None else (owner, found)

    def _warn(self, event: str, *, once: str | None = None, **fields: object) -> None:
        if once is not None:
            if once in self._warned or len(self._warned) >= _MOST_WARNINGS:
                return
            self._warned.add(once)
        log.warn("antiphon.pool", event, **fields)


_MOST_WARNINGS = 1000  # of one kind each: a provider may make up a new model name for every reply


def _checked_quote(pricing: Pricing, descriptor: Descriptor) -> Price:
    """The quote of a pricing function that has been tried on a small request.

    Raises:
        DescriptorError: the descriptor lacks what it needs.
        PluginError: it raises, or what it returns is no price or no amount.
    """
    what = f"pricing function {descriptor.pricing!r} of member {descriptor.name!r}"
    request = Request(descriptor.endpoints[0].model, (Message("user", "probe"),), 1, 1.0)
    try:
        quote: object = pricing.quote(descriptor)
        amounts = {
            "cost": pricing.cost(Usage(1, 1), descriptor),
            "upper_bound": pricing.upper_bound(request, descriptor),
        }
    except DescriptorError:
        raise
    except Exception as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {error}; mend it or use another") from error
    if not isinstance(quote, Price):
        raise PluginError(f"{what}: quote returned {type(quote).__name__}, not a Price")
    for method, amount in amounts.items():
        if not is_amount(amount):
            raise PluginError(f"{what}: {method} returned {amount!r}, not a finite number of USD of at least 0")
    return quote
