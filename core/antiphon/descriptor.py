"""Who a pool member is: the descriptor, its endpoints and its price. Frozen, validated, published as a JSON Schema.

`python -m antiphon.descriptor` prints the schema.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from antiphon.errors import DescriptorError, did_you_mean
from antiphon.names import fold

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

CONTRACT_VERSION = 1
"""Raised when a field changes meaning or goes away; a new optional field does not raise it."""

LOWEST_PRICE = 0.001
HIGHEST_PRICE = 1000.0


SHORT_KEYS = ("model", "adapter", "api_base", "api_key_env", "options")
"""Keys of a descriptor's top level that stand for one endpoint."""


def _price(value: object) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and (not value.isascii() or "_" in value)):
        value = None  # Python would read `1_000` and digits of other scripts as numbers
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise ValueError("a price is a number, in USD per million tokens")
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"a price is a finite number of at least 0, got {number:g}")
    if number != 0 and number < LOWEST_PRICE:
        raise ValueError(
            f"{number:g} looks like USD per token; prices are USD per million tokens (at least {LOWEST_PRICE:g}, or 0)"
        )
    if number > HIGHEST_PRICE:
        raise ValueError(
            f"{number:g} looks like another unit; prices are USD per million tokens (at most {HIGHEST_PRICE:g})"
        )
    return abs(number)  # not -0.0


PerMillion = Annotated[
    float,
    BeforeValidator(_price),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "number", "minimum": LOWEST_PRICE, "maximum": HIGHEST_PRICE}]}),
]
"""USD per million tokens: 0, or between 0.001 and 1,000."""

_SECRET_KEYS = re.compile(r"(x?apikey|authorization|password|(client)?secret|(access|auth|bearer)token)")


def _without_secrets(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Refuse keys that hold credentials, at any depth: files, records and hashes are made of what passes here."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if _SECRET_KEYS.fullmatch(re.sub(r"[^a-z]", "", str(key).lower())):
                raise ValueError(
                    f"{'.'.join((*path, str(key)))!r} would hold a secret; "
                    f"put it into an environment variable and name that in `api_key_env`"
                )
            _without_secrets(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for inner in value:
            _without_secrets(inner, path)
    return value


Options = Annotated[dict[str, Any], BeforeValidator(_without_secrets)]
"""Free JSON data for a plugin; never a secret."""


class Frozen(BaseModel):
    """A table of a file: it does not change, and takes no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)


class Price(Frozen):
    """USD per million tokens.

    `input` may be absent only under a pricing function that counts output alone. `cached_input` defaults to `input`.
    """

    input: PerMillion | None = None
    output: PerMillion
    cached_input: PerMillion | None = None
    as_of: date | None = Field(default=None, description="the day the price was looked up")
    source: str | None = Field(default=None, description="where it was looked up")

    @model_validator(mode="before")
    @classmethod
    def _a_table(cls, data: Any) -> Any:
        if not isinstance(data, Mapping | Price):
            raise ValueError("a price is a table of USD per million tokens: { input = 0.2, output = 0.6 }")
        return data


class Latency(Frozen):
    """What to expect of a member: seconds to the first token, output tokens per second after it."""

    first_token_s: Annotated[float, Field(ge=0)]
    tokens_per_s: Annotated[float, Field(gt=0)]

    def seconds(self, output_tokens: int) -> float:
        return self.first_token_s + output_tokens / self.tokens_per_s


class Endpoint(Frozen):
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
    options: Options = Field(default_factory=dict)

    @field_validator("api_base")
    @classmethod
    def _a_url_without_a_password(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/\s]", value):
            raise ValueError("give a URL that starts with http:// or https://")
        if value is not None and "@" in value.split("/")[2]:  # the value is not repeated: it holds a secret
            raise ValueError("the URL holds a user name or password; name a key's variable in `api_key_env` instead")
        return value

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


class Descriptor(Frozen):
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
    scores: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="dataset -> score, 0 to 1"
    )
    strengths: tuple[str, ...] = ()
    sampling: Options = Field(default_factory=dict, description="defaults sent with each request")
    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1, description="in order of failover")]
    license: str | None = Field(default=None, description="of the model's weights, where stated")

    @model_validator(mode="before")
    @classmethod
    def _one_endpoint_in_short(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = (*cls.model_fields, *SHORT_KEYS)
        for key in data:  # before all else: a misspelt key is what makes another one look missing
            if key not in known:
                raise ValueError(f"unknown key {str(key)!r}{did_you_mean(str(key), known)}")
        short = {key: data[key] for key in SHORT_KEYS if key in data}
        if not short and "endpoints" not in data:
            raise ValueError("it says nowhere how to reach it; name a `model` (or `endpoints`)")
        if not short:
            return data
        if "endpoints" in data:
            raise ValueError(f"give either `{next(iter(short))}` (short for one endpoint) or `endpoints`, not both")
        if "model" not in data:
            raise ValueError(f"`{next(iter(short))}` belongs to a `model`; name it")
        rest = {key: value for key, value in data.items() if key not in short}
        return {**rest, "endpoints": (short,)}

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
        if not fold(value):
            raise ValueError("the name has no visible character; give one that a policy can write")
        return value

    @field_validator("aliases")
    @classmethod
    def _aliases_that_can_be_read(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(fold(alias) for alias in value):
            raise ValueError("an alias has no visible character; drop it")
        return value

    @model_validator(mode="after")
    def _no_more_active_than_all(self) -> Self:
        if self.parameters_b and self.active_parameters_b and self.active_parameters_b > self.parameters_b:
            raise ValueError("active_parameters_b is more than parameters_b; a part is not more than the whole")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 over every field."""
        return content_hash(self.model_dump(mode="json"))

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
        if not isinstance(data, Mapping):
            raise DescriptorError(f"{source}: a descriptor is a table of fields, not {type(data).__name__}")
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            member = f"member {data['name']!r}" if isinstance(data.get("name"), str) else "a member without a name"
            raise DescriptorError(f"{source}: {member}: {explain(error, cls)}") from None


def content_hash(data: Any) -> str:
    """SHA-256 of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The descriptor as JSON Schema, its short form (`model` and the like for one endpoint) included."""
    schema = Descriptor.model_json_schema()
    endpoint = schema["$defs"]["Endpoint"]["properties"]
    short = {key: {**endpoint[key], "description": f"short for `endpoints[0].{key}`"} for key in SHORT_KEYS}
    schema["required"] = [key for key in schema["required"] if key != "endpoints"]
    either = [
        {"required": ["model"], "not": {"required": ["endpoints"]}},
        {"required": ["endpoints"], "not": {"anyOf": [{"required": [key]} for key in SHORT_KEYS]}},
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Antiphon descriptor, contract {CONTRACT_VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
        "properties": {**schema["properties"], **short},
        "oneOf": either,
    }


def first_fault(error: ValidationError) -> ErrorDetails:
    """The fault to speak of: a misspelt key comes before what is missing because of it."""
    faults = error.errors(include_input=False, include_url=False)
    return next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault of a pydantic error in one clause: field, what is wrong, the nearest known key.

    Input values are not repeated, since one of them may be a secret.
    """
    first = first_fault(error)
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *path, key = first["loc"]
        return f"unknown key {where!r}{did_you_mean(str(key), _keys_at(model, tuple(path)))}"
    if first["type"] == "missing":
        return f"{where!r} is missing"
    message = first["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list").replace("Tuple", "List")
    return f"{where}: {message}" if where else message


def _keys_at(annotation: Any, path: tuple[str | int, ...]) -> Iterable[str]:
    """The keys of the model that `path` leads to, through the fields of models and the items of containers."""
    kinds = list(_alternatives(annotation))
    model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    fields = {} if model is None else model.model_fields
    if not path:
        return fields
    if path[0] in fields:
        return _keys_at(fields[str(path[0])].annotation, path[1:])
    items = [arg for kind in kinds for arg in get_args(kind) if arg is not Ellipsis]
    return _keys_at(items[-1], path[1:]) if items else ()


def _alternatives(annotation: Any) -> Iterator[Any]:
    """What an annotation stands for, seen through `Annotated` and `X | None`."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        for arg in get_args(annotation):
            yield from _alternatives(arg)
    else:
        yield annotation


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
