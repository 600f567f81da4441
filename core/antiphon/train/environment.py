"""Training environments: a pool whose members are shown in another order, by other names, words and prices each time.

So a policy learns to read descriptors, not names. One real pool stands behind every view of it: clients, limits and
cooldowns are shared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from antiphon.contracts import AsksMembers, CallContext, MemberView
from antiphon.descriptor import HIGHEST_PRICE, LOWEST_PRICE, Price, content_hash
from antiphon.errors import ConfigError
from antiphon.names import Names, fold, named
from antiphon.tables import Flag, Table
from antiphon.types import Attempt, Call, Message, Shown, Task

if TYPE_CHECKING:
    from antiphon.money import Budget

INVENTED_NAMES = tuple(
    head + tail
    for tail in ("bo", "dix", "gan", "lum", "mer", "nok", "pra", "tis", "vik", "zu")
    for head in (
        *("Bel", "Dar", "Fen", "Gor", "Hul", "Jun", "Kel", "Lor", "Mip"),
        *("Nev", "Pol", "Rud", "Sav", "Tov", "Vex", "Wim", "Yor", "Zan"),
    )
)
"""Names that mean nothing: what `names` draws from."""

SHOWN_DIGITS = 2
"""Significant digits of a drawn price: no more are needed to compare, and each costs tokens in every prompt."""

Factor = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Step = Annotated[int, Field(strict=True, ge=0)]


class Randomise(Table):
    """What is drawn anew for each task of each step; everything is off by default. Keys are members' own names.

    Attributes:
        order: the order of the members.
        names: other names, invented or of the list given, never one that the pool knows; aliases are not shown then.
        descriptions: member -> other texts that say the same; one of them or the member's own is shown.
        price_scale: lowest and highest factor for all prices together, drawn evenly on a logarithmic scale.
        member_price_scale: the same for each member by itself, on top; what is free stays free.
        hide: probability of leaving a member out; one always stays.
        keep: members that are never hidden.
        absent: members that are never shown: an LLM that only judges, one held back for a test.
        joins: member -> the step from which on it is there (an LLM added during training).
        each_sample: every sample of a task has draws of its own. Samples that would all ask the same member then differ
            in whom they ask, and can be compared; but their prompts are no longer encoded once for all.
    """

    order: Flag = False
    names: Flag | Annotated[tuple[str, ...], Field(min_length=1)] = False
    descriptions: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    price_scale: tuple[Factor, Factor] = (1.0, 1.0)
    member_price_scale: tuple[Factor, Factor] = (1.0, 1.0)
    hide: Share = 0.0
    keep: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    joins: dict[str, Step] = Field(default_factory=dict)
    each_sample: Flag = False

    @model_validator(mode="after")
    def _lowest_first(self) -> Self:
        for name in ("price_scale", "member_price_scale"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is [lowest, highest], got [{low:g}, {high:g}]")
        return self

    @property
    def is_off(self) -> bool:
        return self == Randomise(each_sample=self.each_sample)


class Environment:
    """A pool, and how it is shown to the rollouts of a training run.

    Args:
        pool: the real one; it stays the caller's to close.
        seed: with the step and the task's id it decides every draw, on any machine.

    Raises:
        ConfigError: a setting names nobody, leaves nobody to ask, or leads to prices that no descriptor may have.
    """

    def __init__(self, pool: AsksMembers, randomise: Randomise | None = None, *, seed: int = 0) -> None:
        self._pool, self._seed = pool, seed
        self._settings = _resolved(randomise or Randomise(), pool)
        taken = {fold(spelling) for view in pool.members for spelling in (view.name, *view.descriptor.aliases)}
        known = self._settings.names if isinstance(self._settings.names, tuple) else INVENTED_NAMES
        self._names = tuple({fold(name): name for name in known if fold(name) not in taken}.values())
        if self._settings.names and len(pool.members) > len(self._names):
            raise ConfigError(
                f"the pool has {len(pool.members)} members and there are {len(self._names)} names to draw from; "
                "list more in `names`, or leave it off"
            )
        _check_prices(self._settings, pool.members)

    def pool(self, task: Task, step: int, sample: int = 0) -> AsksMembers:
        """The pool as a sample of this task sees it at this step; the real one itself where nothing is drawn."""
        if self._settings.is_off:
            return self._pool
        key = f"{self._seed}/{step}/{task.id}"
        draw = _Draw(self._settings, f"{key}/{sample}" if self._settings.each_sample else key)
        members = draw.present(self._pool.members, step)
        names = draw.names(len(members), self._names) or [view.name for view in members]
        scale = draw.price_scale()
        shown = [_Member(view.name, *draw.shown(view, name, scale)) for view, name in zip(members, names, strict=True)]
        return PoolView(self._pool, draw.ordered(shown), scale)


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of a view: its own name, how it is shown, and what its costs are multiplied by."""

    name: str
    view: MemberView
    factor: float


class PoolView:
    """A pool as one task sees it (`antiphon.contracts.AsksMembers`); made by `Environment.pool`.

    Calls are in terms of what was shown: the member's shown name, costs at the shown prices. Budgets hold real money:
    they reserve and settle at the members' own prices, whatever was shown.

    Attributes:
        members: as shown, in the shown order.
        shown: whom the names stand for, recorded in the trajectory. The cost reward takes its prices from there and
            divides by their scale, so that its window compares rollouts of differently priced pools.
    """

    def __init__(self, pool: AsksMembers, members: Sequence[_Member], price_scale: float) -> None:
        self._pool = pool
        self.members = tuple(member.view for member in members)
        self._names = Names.of(view.descriptor for view in self.members)
        self._by_shown = {member.view.name: member for member in members}
        self._by_name = {member.name: member for member in members}
        self._price_scale = price_scale
        self.shown = Shown(
            {shown: member.name for shown, member in self._by_shown.items()},
            {view.name: view.quote.output for view in self.members if view.quote is not None},
            price_scale,
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all that is shown, its order included."""
        shown = [
            (view.descriptor.hash, None if view.quote is None else view.quote.model_dump(mode="json"))
            for view in self.members
        ]
        return content_hash(shown)

    def resolve(self, asked: str) -> str | None:
        """The shown name that a policy means; nobody is found by a name that is not shown."""
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
        """Ask the real member behind a shown name; see `antiphon.pool.Pool.ask`.

        Raises:
            ConfigError: nobody is shown as `member`.
        """
        asked = self._by_shown[named(member, self.resolve, self.members)]
        try:
            call = await self._pool.ask(asked.name, messages, context=context, budget=budget, max_tokens=max_tokens)
        except asyncio.CancelledError as error:
            ended: Call | None = getattr(error, "call", None)
            if ended is not None:  # with the attempts that had ended
                error.call = self._as_shown(ended, asked)  # type: ignore[attr-defined]
            raise
        return self._as_shown(call, asked)

    def _as_shown(self, call: Call, asked: _Member) -> Call:
        attempts = tuple(self._attempt_as_shown(attempt) for attempt in call.attempts)
        return replace(call, member=asked.view.name, attempts=attempts)

    def _attempt_as_shown(self, attempt: Attempt) -> Attempt:
        """At the shown price of whose price was charged; that of a model which is not shown by the pool's scale."""
        if attempt.priced_as is None:
            return attempt
        payee = self._by_name.get(attempt.priced_as)
        factor = self._price_scale if payee is None else payee.factor
        named = attempt.priced_as if payee is None else payee.view.name
        return replace(attempt, cost_usd=attempt.cost_usd * factor, priced_as=named)


class _Draw:
    """The draws of one task, or of one sample of it, at one step.

    Each kind has a stream of its own: to switch one on changes no other.
    """

    def __init__(self, settings: Randomise, key: str) -> None:
        self._settings, self._key = settings, key

    def present(self, members: Sequence[MemberView], step: int) -> list[MemberView]:
        """Those who have joined and are not hidden; at least one."""
        settings, random = self._settings, self._random("hide")
        there = [view for view in members if view.name not in settings.absent]
        joined = [view for view in there if settings.joins.get(view.name, 0) <= step]
        stay = random.choice(joined).name
        return [
            view
            for view in joined
            if random.random() >= settings.hide or view.name == stay or view.name in settings.keep
        ]

    def names(self, count: int, known: Sequence[str]) -> list[str]:
        """Other names; none where members go by their own."""
        return self._random("names").sample(known, count) if self._settings.names else []

    def price_scale(self) -> float:
        return _log_uniform(self._random("price_scale"), self._settings.price_scale)

    def shown(self, view: MemberView, name: str, scale: float) -> tuple[MemberView, float]:
        """The member as shown, and the factor of its costs."""
        descriptor = view.descriptor
        changed: dict[str, object] = {}
        if name != view.name:
            changed |= {"name": name, "aliases": ()}
        if texts := self._settings.descriptions.get(view.name):
            text = self._random(f"description/{view.name}").choice((descriptor.description, *texts))
            changed["description"] = text
        factor = scale * _log_uniform(self._random(f"price/{view.name}"), self._settings.member_price_scale)
        quote = view.quote
        if quote is not None and factor != 1:
            quote, factor = _scaled(quote, factor)
            changed["price"] = quote
        return MemberView(descriptor.model_copy(update=changed), quote), factor

    def ordered(self, members: list[_Member]) -> list[_Member]:
        return self._random("order").sample(members, len(members)) if self._settings.order else members

    def _random(self, what: str) -> Random:
        return Random(f"{self._key}/{what}")


def _log_uniform(random: Random, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return low if low == high else math.exp(random.uniform(math.log(low), math.log(high)))


def _scaled(price: Price, factor: float) -> tuple[Price, float]:
    """The price times a factor, in few digits, and the factor that the shown output price really has."""
    output = _rounded(price.output * factor)
    if price.output:
        factor = output / price.output

    def scaled(amount: float | None) -> float | None:
        return None if amount is None else _rounded(amount * factor)

    return Price(input=scaled(price.input), output=output, cached_input=scaled(price.cached_input)), factor


def _rounded(amount: float) -> float:
    return float(f"{amount:.{SHOWN_DIGITS}g}")


def _resolved(settings: Randomise, pool: AsksMembers) -> Randomise:
    """The settings with every member by its own name."""

    def own(asked: str, field: str) -> str:
        return named(asked, pool.resolve, pool.members, owner=f"randomise.{field}: ")

    def by_own(field: str, table: Mapping[str, object]) -> dict[str, object]:
        return {own(asked, field): value for asked, value in table.items()}

    joins = by_own("joins", settings.joins)
    absent = tuple(own(asked, "absent") for asked in settings.absent)
    if not any(view.name not in absent and joins.get(view.name, 0) == 0 for view in pool.members):
        raise ConfigError("randomise leaves nobody to ask at step 0 (absent, joins); let one member be there")
    return settings.model_copy(
        update={
            "descriptions": by_own("descriptions", settings.descriptions),
            "keep": tuple(own(asked, "keep") for asked in settings.keep),
            "absent": absent,
            "joins": joins,
        }
    )


def _check_prices(settings: Randomise, members: Sequence[MemberView]) -> None:
    """Every price that can be drawn is one that a descriptor may have."""
    low, high = (a * b for a, b in zip(settings.price_scale, settings.member_price_scale, strict=True))
    for view in members:
        quote = view.quote
        amounts = [] if quote is None else [each for each in (quote.input, quote.output, quote.cached_input) if each]
        if amounts and (_rounded(min(amounts) * low) < LOWEST_PRICE or _rounded(max(amounts) * high) > HIGHEST_PRICE):
            raise ConfigError(
                f"randomise: the prices of {view.name} would lie between ${min(amounts) * low:g} and "
                f"${max(amounts) * high:g} per million tokens; keep them within {LOWEST_PRICE:g} and {HIGHEST_PRICE:g}"
            )
