"""What a plugin implements: protocols only, and the frozen data that crosses them.

Every protocol is structural: a plugin needs no base class, and most need no import of antiphon at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from antiphon.types import Call, Finish, Invalid, Message, Task, Trajectory, Turn, Usage

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.descriptor import Descriptor, Price
    from antiphon.money import Budget
    from antiphon.rollout import Rollout

Factory = str | Callable[..., Any]
"""`"module:attr"`, imported when first used, or a callable. Called with the options of the configuration."""


# ---- pool members -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What an adapter is asked for.

    Attributes:
        model: the endpoint's model id.
        timeout_s: seconds this attempt may take; the pool enforces it too.
        sampling: temperature, top_p, … (the descriptor's defaults, then the caller's).
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    timeout_s: float
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallContext:
    """Where a call comes from. `deadline` is on the clock of `time.monotonic`, None: none."""

    task_id: str = "task"
    question: str = ""
    dataset: str | None = None
    rollout_id: str = ""
    round: int = 0
    sample: int = 0
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a member said.

    Attributes:
        usage: None where the provider did not say (the pool estimates and marks it).
        model: the model that answered, as the provider names it.
        finish: `length` where the output limit cut it.
        latency_s: set by recorded members: how long the original took.
    """

    text: str
    usage: Usage | None = None
    model: str | None = None
    finish: Literal["stop", "length"] = "stop"
    latency_s: float | None = None


@runtime_checkable
class Adapter(Protocol):
    """Reaches members of one kind. Made by `factory(endpoint=…, descriptor=…)`, once per endpoint.

    An adapter makes one attempt: no retries, no failover, no budget; those are the pool's. It raises
    `antiphon.errors.MemberError` with the outcome's kind, or anything else, which is recorded as `error`.
    One that can do without the endpoint's key (it replays) says so by an attribute `needs_key`, False.
    """

    async def complete(self, request: Request, context: CallContext) -> Reply: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Pricing(Protocol):
    """A pure pricing function. Made by `factory(**descriptor.pricing_args)`.

    It raises `DescriptorError` from `quote` where the descriptor lacks what it needs; pools call that at load.
    """

    def quote(self, descriptor: Descriptor) -> Price:
        """USD per million tokens: what the prompt shows and what m(P) of the reward is."""
        ...

    def cost(self, usage: Usage, descriptor: Descriptor) -> float:
        """USD for this usage."""
        ...

    def upper_bound(self, request: Request, descriptor: Descriptor) -> float:
        """The most USD the request can cost: what a budget reserves."""
        ...


# ---- the policy's model -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a generator can do.

    Attributes:
        token_in: takes a context's token ids as they are.
        token_out: gives the ids it generated.
        logprobs: gives the log-probability of each generated token.
        continue_turn: goes on inside an open assistant turn (a tag grammar needs it).
        keeps_stop: the text includes the stop string that ended it.
    """

    token_in: bool = True
    token_out: bool = True
    logprobs: bool = True
    continue_turn: bool = True
    keeps_stop: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """Text and, where the generator has a tokeniser, its ids."""

    text: str
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation.

    Attributes:
        messages: the chat so far; for generators without `token_in`.
        prefix: the text of the open assistant turn, after the messages (empty at its start).
        token_ids: the whole context, for generators with `token_in`.
        request_id: the same for every generation of a context, so that a server can stick to it.
        sampling: temperature, top_p, top_k, seed, …
    """

    messages: tuple[Message, ...]
    prefix: str
    token_ids: tuple[int, ...] | None
    stop: tuple[str, ...]
    max_tokens: int
    request_id: str
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a generation. The texts of all chunks make up the decoded text; `finish` comes with the last.

    `usage` may come with the last chunk where the generator counts its own tokens.
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish: Finish | None = None
    usage: Usage | None = None


@runtime_checkable
class Generator(Protocol):
    """Turns a context into policy tokens. Made by `factory(**options of the model)`.

    Only `generate` may be slow; the others run on the event loop.
    """

    name: str
    capabilities: Capabilities

    def open(self, messages: Sequence[Message]) -> Encoded:
        """The chat rendered up to the start of the assistant's turn. User text never becomes a special id."""
        ...

    def turn(self, text: str) -> Encoded:
        """What ends the assistant's turn, says `text` as the user, and opens the next assistant turn."""
        ...

    def encode(self, text: str) -> Encoded:
        """Plain text to go on with inside a turn; never special ids."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of generated ids, special tokens left out."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Generate up to a stop string, the end-of-sequence token or the limit. Cancelling it frees its resources."""
        ...

    async def aclose(self) -> None: ...


# ---- grammar ------------------------------------------------------------------------------------------------------


@runtime_checkable
class Parser(Protocol):
    """Parses one turn, fed in any chunking with the same result."""

    def feed(self, text: str) -> str:
        """Take more text; returns what to show of it as thinking (possibly nothing)."""
        ...

    @property
    def closed(self) -> bool:
        """The first action has closed: what comes after it is dropped."""
        ...

    @property
    def end(self) -> int:
        """Characters of the fed text that count; all of it until an action has closed."""
        ...

    def missing_stop(self) -> str:
        """The stop string that would close the block now open: for generators that do not keep theirs."""
        ...

    def finish(self) -> Turn:
        """The turn; an action that has not closed is none."""
        ...


@runtime_checkable
class TagGrammar(Protocol):
    """The language of policy and engine. Made by `factory(**options)`.

    Attributes:
        name, version: recorded in trajectories; loading weights with another grammar is an error.
        stops: strings at which generation stops.
        continues: information goes on inside the assistant's turn (needs a generator with `continue_turn`); else it
            is the next user message.
    """

    name: str
    version: str
    stops: tuple[str, ...]
    continues: bool

    def prompt(self, task: Task, members: Sequence[MemberView], rounds: int) -> list[Message]:
        """The messages that open a context."""
        ...

    def parser(self, resolve: Callable[[str], str | None], members: Sequence[str], first: bool) -> Parser:
        """A parser for one turn. `first`: it is the first of its context."""
        ...

    def information(self, items: Sequence[Call | Invalid], members: Sequence[str], cut: Callable[[str], str]) -> str:
        """Replies, failures and invalid actions as the policy reads them. `cut` shortens one reply to the limit."""
        ...

    def check(self, turns: Sequence[Turn]) -> tuple[str, ...]:
        """Format problems of a whole context, those of its turns included; empty: well-formed."""
        ...


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as a prompt shows it: its descriptor, and the price that its pricing function quotes."""

    descriptor: Descriptor
    quote: Price | None

    @property
    def name(self) -> str:
        return self.descriptor.name


class AsksMembers(Protocol):
    """What a rollout needs of a pool; `antiphon.pool.Pool` is one, and a test may bring its own.

    One that shows its members otherwise than they are says so by an attribute `shown` (`antiphon.types.Shown`) and
    one `hash`; trajectories record both (see `antiphon.train.environment`).
    """

    @property
    def members(self) -> tuple[MemberView, ...]: ...

    def resolve(self, asked: str) -> str | None: ...

    async def ask(
        self,
        member: str,
        messages: Sequence[Message],
        *,
        context: CallContext,
        budget: Budget | None = None,
        max_tokens: int | None = None,
    ) -> Call: ...


# ---- policies, rewards, metrics, data -----------------------------------------------------------------------------


@runtime_checkable
class Policy(Protocol):
    """Decides. Made by `factory(**options of the policy)`; one instance serves many rollouts at once.

    A policy that has an attribute `grammar` (a `TagGrammar`) is checked against the generator before anything runs.
    """

    name: str

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        """The answer, or None where it has none."""
        ...


@runtime_checkable
class TrainableRouter(Protocol):
    """What the factory of a policy offers that `antiphon train-router` trains; other policies have no `train`."""

    def train(
        self,
        pool: Sequence[MemberView],
        out: Path,
        *,
        scores: str | Sequence[str],
        questions: str | Sequence[str] | None = None,
        metric: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """Train for a pool and write an artefact, whole or not at all, which the policy's option `path` takes.

        Args:
            scores: files of recorded replies with scores (JSONL, as `antiphon record` keeps them), or globs.
            questions: data sets (JSONL); only their questions are learnt from.
            metric: judge the recorded replies by it, in place of their recorded score.
            options: settings of the training.

        Returns:
            JSON data about it: `questions`, `validation`, `seconds` and what else there is to say.
        """
        ...


@runtime_checkable
class RewardTerm(Protocol):
    """One term of a reward; a pure function of the trajectory. One that must know the pool, keeps state or asks members
    has more methods: `BindsPool`, `Stateful` and `Asks` of `antiphon.reward`.

    Attributes:
        range: lowest and highest value it can take.
        priority: terms of lower numbers come first; a gate among them decides whether the later ones count.
    """

    name: str
    range: tuple[float, float]
    priority: int

    def __call__(self, trajectory: Trajectory) -> float: ...


@runtime_checkable
class Metric(Protocol):
    """Judges an answer against golden answers, 0 to 1. Pure."""

    name: str

    def __call__(self, prediction: str, golden: Sequence[str]) -> float: ...
