"""The nouns, as plain frozen data: task, usage, attempt, call, segment, turn, trajectory, event."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Outcome = Literal[
    "ok",
    "empty_response",  # a success without text
    "rate_limited",
    "auth",  # 401, 403: the key is missing, wrong or not allowed
    "not_found",  # 404, 410: an unknown or retired model
    "bad_request",  # 400 and other refusals of what we sent
    "unavailable",  # 5xx
    "connection",  # refused, reset, cut off
    "bad_response",  # not what the protocol promises: HTML, half a JSON document
    "timeout",
    "not_recorded",  # a recorded pool or a cassette has no reply to this
    "over_budget",  # not made: it could have cost more than is left
    "cancelled",
    "error",  # the adapter raised something of its own
]

StopReason = Literal[
    "answer",
    "no_action",  # a generation ended without a closed action
    "length",  # a generation reached its token limit
    "rounds",
    "calls",
    "tokens",
    "deadline",
    "budget",
    "cancelled",
    "error",
]

SegmentKind = Literal["prompt", "policy", "information"]
Finish = Literal["stop", "end", "length"]  # a stop string, the end-of-sequence token, the token limit
EventKind = Literal["thinking", "route_started", "route_finished", "answer", "done", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Task:
    """A question to answer.

    Attributes:
        question: the question; the last user turn of the conversation.
        id: unique within its dataset.
        golden_answers: right answers, or None where none are known; a number becomes its text.
        messages: earlier turns of the conversation, oldest first.
        metadata: JSON data that travels along.
    """

    question: str
    id: str = "task"
    golden_answers: tuple[str, ...] | None = None
    dataset: str | None = None
    messages: tuple[Message, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not self.question.strip():
            raise ConfigError(f"task {self.id!r} has no question; give it a non-empty string")
        golden = self.golden_answers
        if golden is not None and not (isinstance(golden, list | tuple) and all(map(_is_text_or_number, golden))):
            what = "a string" if isinstance(golden, str) else f"{golden!r:.100}"
            raise ConfigError(f"task {self.id!r}: golden_answers is {what}; give a list of strings")
        for name in ("id", "question", "dataset"):
            value = getattr(self, name)
            object.__setattr__(self, name, value if value is None else clean(value))
        if golden is not None:
            object.__setattr__(self, "golden_answers", tuple(clean(str(answer)) for answer in golden))
        object.__setattr__(self, "messages", tuple(Message(m.role, clean(m.content)) for m in self.messages))
        try:  # as it will be read back: a tuple in there becomes a list here already
            written = clean(json.dumps(self.metadata, ensure_ascii=False, allow_nan=False))
            object.__setattr__(self, "metadata", json.loads(written))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"task {self.id!r}: metadata must be JSON data ({error})") from None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt or generation. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    estimated: bool = False  # the provider did not say; counted by us

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one endpoint.

    Attributes:
        endpoint: `adapter:model` as configured.
        cost_usd: what this attempt is charged, in USD; failed attempts that report usage are charged too.
        priced_as: the descriptor whose price was used; None where nothing was charged.
    """

    endpoint: str
    outcome: Outcome
    latency_s: float = 0.0
    usage: Usage | None = None
    cost_usd: float = 0.0
    served_model: str | None = None
    priced_as: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One route action: who was asked what, and every attempt it took.

    Attributes:
        reply: the served text, or None where every attempt failed.
        truncated: the member stopped at its output limit.
        substituted: another model than the asked one answered.
        round: which round of the rollout it belongs to, from 1.
        started_s: seconds since the rollout began.
    """

    member: str
    query: str
    outcome: Outcome
    reply: str | None = None
    attempts: tuple[Attempt, ...] = ()
    truncated: bool = False
    served_model: str | None = None
    substituted: bool = False
    round: int = 0
    started_s: float = 0.0
    latency_s: float = 0.0
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def cost_usd(self) -> float:
        """USD over all attempts: what budgets count."""
        return sum(attempt.cost_usd for attempt in self.attempts)

    @property
    def usage(self) -> Usage | None:
        """The served reply's usage (its output tokens are the reward's T_out); None for a failed call."""
        return self.attempts[-1].usage if self.ok and self.attempts else None


@dataclass(frozen=True, slots=True)
class Route:
    """The policy asks a member. `member` is the canonical name."""

    member: str
    query: str
    kind: Literal["route"] = "route"


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy answers."""

    text: str
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, slots=True)
class Invalid:
    """A closed action that cannot be carried out. `reason` is a stable code, `detail` says it in words."""

    reason: str
    detail: str
    kind: Literal["invalid"] = "invalid"


Action = Route | Answer | Invalid


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy, parsed.

    Attributes:
        text: all that counts of it, up to the end of its first closed action.
        problems: codes of format faults (see the grammar); empty for a well-formed turn.
        executed: False for a route that came after the last round.
    """

    text: str
    thinking: str = ""
    action: Action | None = None
    problems: tuple[str, ...] = ()
    finish: Finish = "stop"
    context: int = 0
    executed: bool = True
    started_s: float = 0.0
    latency_s: float = 0.0
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Segment:
    """One typed span of a context's token stream.

    Attributes:
        text: the decoded text of all of `token_ids`.
        token_ids: exactly as generated or encoded; None where the generator gives none (not trainable then).
        logprobs: one per token, for policy spans of generators that give them.
        trainable: whether training may put a loss on these tokens.
        text_end: where the text that counts ends, where a stop string ended inside a token; None: at its end.
    """

    kind: SegmentKind
    text: str
    context: int = 0
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    trainable: bool = False
    text_end: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: the whole, generating, waiting for members (calls that ran at once count once each)."""

    started_at: float = 0.0  # Unix time
    wall_s: float = 0.0
    policy_s: float = 0.0
    members_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a pool that was drawn for one rollout showed of its members, so that a reader can undo the draw.

    Attributes:
        members: name as shown, which is the one in calls and turns -> the member's own name.
        prices: name as shown -> USD per million output tokens as shown; an unpriced member is left out.
        price_scale: what every price of the pool was multiplied by.
    """

    members: dict[str, str]
    prices: dict[str, float] = field(default_factory=dict)
    price_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything that one rollout did; rewards and metrics are pure functions of it.

    Attributes:
        stop: why it ended.
        format_problems: what the grammar found wrong with the whole, turn problems included; empty: well-formed.
        policy_cost_usd: USD for the policy's own tokens.
        versions: antiphon, policy, grammar, template, generator, pool (hash).
        notes: what the policy said about its own choices (a fallback taken, what it went by).
        shown: whom the names stand for, where the pool was drawn for this rollout; costs are at the shown prices.
    """

    id: str
    task: Task
    policy: str
    answer: str | None
    stop: StopReason
    segments: tuple[Segment, ...] = ()
    turns: tuple[Turn, ...] = ()
    calls: tuple[Call, ...] = ()
    format_problems: tuple[str, ...] = ()
    policy_usage: Usage = Usage()
    policy_cost_usd: float = 0.0
    timings: Timings = Timings()
    sample: int = 0
    rounds: int = 0
    error: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shown: Shown | None = None

    @property
    def members_cost_usd(self) -> float:
        return sum(call.cost_usd for call in self.calls)

    @property
    def cost_usd(self) -> float:
        """USD for members and policy together."""
        return self.members_cost_usd + self.policy_cost_usd

    @property
    def contexts(self) -> tuple[tuple[Segment, ...], ...]:
        """Segments by context, each in the order of its token stream."""
        count = 1 + max((segment.context for segment in self.segments), default=-1)
        return tuple(tuple(s for s in self.segments if s.context == index) for index in range(count))

    def to_json(self) -> str:
        """One JSON line (no newline in it); `Trajectory.from_json` reads it back equal."""
        return _adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, line: str | bytes) -> Trajectory:
        """Read one JSON line.

        Raises:
            ConfigError: it is not a trajectory; names the field.
        """
        from pydantic import ValidationError

        try:
            return _adapter().validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise ConfigError(f"not a trajectory: {where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class Event:
    """What a stream yields while a rollout runs.

    `thinking`, `answer` and `error` carry text; `route_started` member and text (the query); `route_finished` the call;
    `done` the trajectory.
    """

    kind: EventKind
    text: str = ""
    member: str | None = None
    call: Call | None = None
    trajectory: Trajectory | None = None


def clean(text: str) -> str:
    """Text that every encoder takes: lone surrogates, which JSON escapes can smuggle in, become U+FFFD."""
    return text if _encodable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_text_or_number(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@cache
def _adapter() -> TypeAdapter[Trajectory]:
    from pydantic import TypeAdapter

    return TypeAdapter(Trajectory)
