"""What all loop workers of a run share, in one place: the pool behind its gates, the run's money, the reward's windows.

In a verl run it is one named Ray actor; where Ray is not running it lives in the process itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, cast

from pydantic import ValidationError

from antiphon._setup import Chosen, Setup, build
from antiphon.config import Config, load_config
from antiphon.contracts import AsksMembers, CallContext, Capabilities, Chunk, Encoded, Generator, MemberView
from antiphon.descriptor import explain
from antiphon.errors import ConfigError, GeneratorError
from antiphon.money import Budget
from antiphon.names import Names, named
from antiphon.reward import Composition, RewardResult, compose
from antiphon.train.charged import ChargedPool
from antiphon.train.environment import Environment, Randomise
from antiphon.train.memo import MemoPool
from antiphon.train.stepped import Order, SteppedReward
from antiphon.types import Call, Message, Trajectory

MOST_AT_ONCE = 10_000
"""Calls and scores under way in the actor; what comes after them waits."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run's rollouts are made of, the same for every worker of it.

    Attributes:
        config_path: an antiphon.toml; a `.json` file is a whole configuration, taken as it is.
        policy, pool, grammar: names; None: as the configuration says.
        reward: name of a composition, or one as data.
        alpha: in place of the composition's own.
        environment: `memo`, `allow_unpriced`, `randomise`, as in the table `[environment]` of a training file.
        seed: of what the environment draws.
        max_cost_usd: for all that the run asks of members; what a judge asks counts, and is never refused for it.
    """

    config_path: str | None = None
    policy: str | None = None
    pool: str | None = None
    grammar: str | None = None
    reward: str | Mapping[str, Any] = "paper"
    alpha: float | None = None
    environment: Mapping[str, Any] | None = None
    seed: int = 0
    max_cost_usd: float | None = None

    @classmethod
    def read(cls, path: str) -> Self:
        """Options that were written as JSON."""
        return cls(**json.loads(Path(path).read_bytes()))

    @property
    def name(self) -> str:
        """A name for the hub of this run, for those who do not give one."""
        return f"antiphon-{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"

    def config(self) -> Config:
        """The configuration.

        Raises:
            ConfigError: it is not there, or does not hold.
        """
        if self.config_path is None or Path(self.config_path).suffix != ".json":
            return load_config(self.config_path)
        try:
            return Config.model_validate_json(Path(self.config_path).read_bytes())
        except OSError as error:
            raise ConfigError(f"{self.config_path}: {error.strerror}") from None
        except ValidationError as error:
            raise ConfigError(f"{self.config_path}: {explain(error, Config)}") from None

    def setup(self, resources: AsyncExitStack, model: Generator, pool: AsksMembers | None = None) -> Setup:
        """Pool, policy, grammar and limits, as everywhere else.

        Raises:
            ConfigError, PluginError, MissingExtra: a name, file or option does not hold.
        """
        unpriced = (self.environment or {}).get("allow_unpriced")
        chosen = Chosen(
            self.pool if pool is None else pool,
            self.policy,
            model,
            self.grammar,
            self.config(),
            allow_unpriced=unpriced,
        )
        return build(chosen, resources)

    def drawn(self, pool: AsksMembers) -> Environment:
        """The pool as each task of each step sees it."""
        settings = (self.environment or {}).get("randomise") or {}
        try:
            randomise = Randomise.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(f"environment.randomise: {explain(error, Randomise)}") from None
        return Environment(pool, randomise, seed=self.seed)


class Hub:
    """Asks members, keeps within the run's budget, and scores trajectories for all workers.

    Everything is made at the first call, on the event loop that makes it.
    """

    def __init__(self, options: Options, *, spent_usd: float = 0.0) -> None:
        self._options, self._budget = options, Budget(options.max_cost_usd)
        self._budget.charge(spent_usd)
        self._budgets: dict[str, Budget] = {}  # of the rollouts under way that have asked somebody
        self._rewards: dict[str, SteppedReward] = {}
        self._resources = AsyncExitStack()

    async def members(self) -> tuple[tuple[MemberView, ...], str]:
        """Who can be asked, and the pool's hash.

        Raises:
            ConfigError, PluginError, MissingExtra: the set-up does not hold.
        """
        self._reward("train")  # so that a reward that does not hold is known before anything is generated
        pool = self._setup.pool
        return pool.members, getattr(pool, "hash", "")

    async def ask(self, member: str, messages: Sequence[Message], context: CallContext, max_tokens: int | None) -> Call:
        """Ask a member within what is left for the rollout and for the run.

        Args:
            context: its deadline is given in seconds from now.
        """
        if context.deadline is not None:
            context = replace(context, deadline=time.monotonic() + context.deadline)
        budget = self._budgets.get(context.rollout_id)
        if budget is None:
            budget = self._budgets[context.rollout_id] = Budget(self._setup.limits.max_cost_usd, self._budget)
        return await self._pool.ask(member, messages, context=context, budget=budget, max_tokens=max_tokens)

    async def score(self, trajectory: Trajectory, split: str, step: int | None, order: Order) -> RewardResult:
        """What a trajectory earns; see `SteppedReward`. Each split has windows of its own; a failure enters none."""
        self._budgets.pop(trajectory.id, None)
        reward = self._reward(split)
        if trajectory.stop == "error":
            return await reward.reward.score(trajectory)
        return await reward.score(trajectory, step=step, order=order)

    async def failed(self, rollout_id: str, split: str, step: int | None, error: str) -> None:
        """A rollout came to nothing."""
        self._budgets.pop(rollout_id, None)

    async def spent_usd(self) -> float:
        """What members have been paid, earlier parts of the run included."""
        return self._budget.spent_usd

    async def state_dict(self) -> dict[str, Any]:
        """JSON data: the state of each split's reward."""
        return {split: reward.reward.state_dict() for split, reward in self._rewards.items()}

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            ConfigError: it belongs to another composition.
        """
        for split, kept in state.items():
            self._reward(split).reward.load_state_dict(kept)

    async def aclose(self) -> None:
        """Close the pool."""
        await self._resources.aclose()

    @cached_property
    def _setup(self) -> Setup:
        return self._options.setup(self._resources, Elsewhere())

    @cached_property
    def _pool(self) -> AsksMembers:
        setup = self._setup
        memo = (self._options.environment or {}).get("memo", False)
        return MemoPool(setup.pool, setup.registry.replays) if memo else setup.pool

    def _reward(self, split: str) -> SteppedReward:
        if split not in self._rewards:
            setup, asked = self._setup, self._options.reward
            composition = setup.config.reward(asked) if isinstance(asked, str) else Composition.of(asked)
            pool = ChargedPool(setup.pool, self._budget)
            made = compose(composition, setup.registry, pool=pool, alpha=self._options.alpha)
            self._rewards[split] = SteppedReward(made)
        return self._rewards[split]


class Shares(Protocol):
    """What a loop worker needs of a hub, in this process or another."""

    async def members(self) -> tuple[tuple[MemberView, ...], str]: ...

    async def ask(
        self, member: str, messages: Sequence[Message], context: CallContext, max_tokens: int | None
    ) -> Call: ...

    async def score(self, trajectory: Trajectory, split: str, step: int | None, order: Order) -> RewardResult: ...

    async def failed(self, rollout_id: str, split: str, step: int | None, error: str) -> None: ...


class Remote:
    """A hub that is a Ray actor; its methods are the hub's."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._actor, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            import ray

            reference = method.remote(*args, **kwargs)
            try:
                return await reference
            except asyncio.CancelledError:
                ray.cancel(reference)
                raise

        return call


def hub_of(options: Options, name: str | None = None) -> Shares:
    """The hub that all workers of a run share: a Ray actor of this name, made by whoever comes first; without Ray, one
    of this process alone."""
    import ray

    if not ray.is_initialized():
        return Hub(options)
    return cast(Shares, Remote(actor(Hub, name or options.name).remote(options)))


def actor(cls: type[Hub], name: str, **more: Any) -> Any:
    """A hub class as a Ray actor class of a name; whose name is taken already, that actor is meant."""
    import ray

    made: Any = ray.remote(cls)
    return made.options(name=name, get_if_exists=True, num_cpus=0, max_concurrency=MOST_AT_ONCE, **more)


class HubPool:
    """A hub's pool as a rollout asks it (`antiphon.contracts.AsksMembers`).

    Budgets are kept by the hub, by the rollout's id: none has to be given here.
    """

    def __init__(self, hub: Shares, members: tuple[MemberView, ...], hash: str) -> None:
        self.members, self.hash = members, hash
        self._hub = hub
        self._names = Names.of(view.descriptor for view in members)

    def resolve(self, asked: str) -> str | None:
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
        """As the pool would.

        Raises:
            ConfigError: nobody is called `member`.
        """
        name = named(member, self.resolve, self.members)
        if context.deadline is not None:  # clocks of processes differ
            context = replace(context, deadline=context.deadline - time.monotonic())
        return await self._hub.ask(name, tuple(messages), context, max_tokens)


class Elsewhere:
    """Stands for the policy's model (`antiphon.contracts.Generator`) where it is not: it says what that can do."""

    name = "verl"
    capabilities = Capabilities()

    def open(self, messages: Sequence[Message]) -> Encoded:
        self._not_here()

    def turn(self, text: str) -> Encoded:
        self._not_here()

    def encode(self, text: str) -> Encoded:
        self._not_here()

    def decode(self, token_ids: Sequence[int]) -> str:
        self._not_here()

    def generate(self, request: Any) -> AsyncIterator[Chunk]:
        self._not_here()

    async def aclose(self) -> None:
        """Nothing to free."""

    def _not_here(self) -> NoReturn:
        raise GeneratorError("the policy's model is served by verl; nothing can be generated here")
