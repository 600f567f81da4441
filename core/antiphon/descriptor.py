"""Who a pool member is: the descriptor, its endpoints and its price. Frozen, validated, published as a JSON Schema."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from antiphon.errors import DescriptorError, did_you_mean

CONTRACT_VERSION = 1
"""Raised when a field changes meaning or goes away; a new optional field does not raise it."""

LOWEST_PRICE = 0.001
HIGHEST_PRICE = 1000.0


def _price(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a price is a number, not true or false")
    number = float(value) if isinstance(value, str | int | float) else None
    if number is None:
        raise ValueError("a price is a number, in USD per million tokens")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"a price is a finite number of at least 0, got {value!r}")
    if number != 0 and number < LOWEST_PRICE:
        raise ValueError(
            f"{number:g} looks like USD per token; prices are USD per million tokens (at least {LOWEST_PRICE:g}, or 0)"
        )
    if number > HIGHEST_PRICE:
        raise ValueError(
            f"{number:g} looks like another unit; prices are USD per million tokens (at most {HIGHEST_PRICE:g})"
        )
    return number


PerMillion = Annotated[float, BeforeValidator(_price)]
"""USD per million tokens: 0, or between 0.001 and 1,000."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Price(_Frozen):
    """USD per million tokens.

    `input` may be absent only under a pricing function that counts output alone. `cached_input` defaults to `input`.
    """

    input: PerMillion | None = None
    output: PerMillion
    cached_input: PerMillion | None = None
    as_of: date | None = Field(default=None, description="the day the price was looked up")
    source: str | None = Field(default=None, description="where it was looked up")


class Latency(_Frozen):
    """What to expect of a member: seconds to the first token, output tokens per second after it."""

    first_token_s: Annotated[float, Field(ge=0)]
    tokens_per_s: Annotated[float, Field(gt=0)]

    def seconds(self, output_tokens: int) -> float:
        return self.first_token_s + output_tokens / self.tokens_per_s


class Endpoint(_Frozen):
    """One way to reach a member.

    Attributes:
        adapter: name of an adapter (`litellm`, `openai`, `local`, `function`, …).
        model: the adapter's own id for it.
        api_key_env: the *name* of an environment variable; never a key.
        price: this endpoint's own price, where it differs from the member's.
        concurrency: most requests at once; None: unlimited.
        requests_per_minute: most requests started in any 60 s; None: unlimited.
        options: what else the adapter takes (JSON data; the adapter validates it).
    """

    adapter: str = "litellm"
    model: Annotated[str, Field(min_length=1)]
    api_base: str | None = None
    api_key_env: str | None = None
    price: Price | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("api_key_env")
    @classmethod
    def _a_name_not_a_key(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", value):
            # The value is not repeated: it may well be the key itself.
            raise ValueError("give the NAME of an environment variable (letters, digits, _), never the key itself")
        return value

    @property
    def label(self) -> str:
        """`adapter:model`, as records name it."""
        return f"{self.adapter}:{self.model}"


class Descriptor(_Frozen):
    """Who a pool member is. The shortest valid one has a name, a description, a model and a price.

    `model` (with `adapter`, `api_base` and `api_key_env`) is short for one endpoint.
    """

    contract: int = Field(default=CONTRACT_VERSION, description="version of this contract that the descriptor follows")
    name: Annotated[str, Field(min_length=1, max_length=100, description="what the policy sees and writes")]
    aliases: tuple[str, ...] = ()
    description: Annotated[str, Field(min_length=1, max_length=2000, description="what it is good at, in prose")]
    parameters_b: Annotated[float, Field(gt=0)] | None = None
    active_parameters_b: Annotated[float, Field(gt=0)] | None = None
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    max_output_tokens: Annotated[int, Field(gt=0)] = 512
    price: Price | None = Field(default=None, description="USD per million tokens; absent: unpriced")
    pricing: str = Field(default="per_token", description="name of a pricing function")
    pricing_args: dict[str, Any] = Field(default_factory=dict)
    latency: Latency | None = None
    scores: dict[str, float] = Field(default_factory=dict, description="dataset -> score, 0 to 1")
    strengths: tuple[str, ...] = ()
    sampling: dict[str, Any] = Field(default_factory=dict, description="defaults sent with each request")
    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1, description="in order of failover")]
    license: str | None = Field(default=None, description="of the model's weights, where stated")

    @model_validator(mode="before")
    @classmethod
    def _one_endpoint_in_short(cls, data: Any) -> Any:
        short = ("model", "adapter", "api_base", "api_key_env", "options")
        if not isinstance(data, Mapping) or not any(key in data for key in short):
            return data
        if "endpoints" in data:
            raise ValueError("give either `model` (short for one endpoint) or `endpoints`, not both")
        if "model" not in data:
            raise ValueError("`adapter`, `api_base`, `api_key_env` and `options` belong to a `model`; name it")
        rest = {key: value for key, value in data.items() if key not in short}
        return {**rest, "endpoints": ({key: data[key] for key in short if key in data},)}

    @field_validator("contract")
    @classmethod
    def _a_contract_we_know(cls, value: int) -> int:
        if value != CONTRACT_VERSION:
            raise ValueError(f"contract {value} is not known here; this release reads contract {CONTRACT_VERSION}")
        return value

    @field_validator("name")
    @classmethod
    def _a_name_a_policy_can_write(cls, value: str) -> str:
        if re.search(r"[:<>\n\r\t]", value) or any(unicodedata.category(char) in ("Cc", "Cs") for char in value):
            raise ValueError(
                "a name has no colon, angle bracket, line break or control character: the policy writes it"
            )
        return value

    @property
    def hash(self) -> str:
        """SHA-256 over every field: what a lock file holds."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def at(self, endpoint: Endpoint) -> Self:
        """This member as priced at one of its endpoints."""
        return self if endpoint.price is None else self.model_copy(update={"price": endpoint.price})

    @classmethod
    def of(cls, data: Mapping[str, Any] | Descriptor, *, source: str = "descriptor") -> Descriptor:
        """Validate plain data.

        Raises:
            DescriptorError: names the source, the member and the field, and what to do.
        """
        if isinstance(data, Descriptor):
            return data
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            name = data.get("name", "without a name")
            raise DescriptorError(f"{source}: member {name!r}: {explain(error, cls)}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault of a pydantic error in one clause: field, what is wrong, the nearest known key.

    Input values are not repeated, since one of them may be a secret.
    """
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        owner: Any = model
        for part in first["loc"][:-1]:  # walk down to the model that refused the key
            owner = _submodel(owner, part)
        known = owner.model_fields if isinstance(owner, type) and issubclass(owner, BaseModel) else {}
        return f"unknown key {where!r}{did_you_mean(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _submodel(owner: Any, part: str | int) -> Any:
    """The model a field holds, alone, optional, or as items of a tuple, list or mapping."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        field = owner.model_fields.get(str(part))
        owner = field.annotation if field is not None else None
    pending = [owner]
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        pending.extend(getattr(kind, "__args__", ()))
    return owner
