"""A descriptor takes what is right, and says of everything else which field is wrong and what to do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.descriptor import HIGHEST_PRICE, LOWEST_PRICE, Descriptor, Endpoint, Price, json_schema
from antiphon.errors import DescriptorError

SHORT: dict[str, Any] = {
    "name": "Ada-7B",
    "description": "Knows engines.",
    "model": "acme/ada-7b",
    "price": {"input": 0.2, "output": 0.6},
}
LONG: dict[str, Any] = {
    **{key: value for key, value in SHORT.items() if key != "model"},
    "endpoints": [{"model": "acme/ada-7b"}, {"adapter": "openai", "model": "ada", "api_base": "http://127.0.0.1/v1"}],
}


def fault(**changes: Any) -> str:
    """The message for SHORT with changes; None removes a key."""
    return fault_of({key: value for key, value in {**SHORT, **changes}.items() if value is not None})


def fault_of(data: Any) -> str:
    with pytest.raises(DescriptorError) as error:
        Descriptor.of(data, source="acme 1.0")
    message = str(error.value)
    assert message.startswith("acme 1.0: ")
    assert "\n" not in message
    return message


def test_the_shortest_descriptor_has_a_name_a_description_a_model_and_a_price() -> None:
    descriptor = Descriptor.of(SHORT)
    assert descriptor.endpoints == (Endpoint(adapter="litellm", model="acme/ada-7b"),)
    assert (descriptor.pricing, descriptor.max_output_tokens, descriptor.aliases) == ("per_token", 512, ())


def test_the_short_form_makes_the_same_descriptor_as_one_endpoint() -> None:
    short = {**SHORT, "adapter": "openai", "api_base": "https://h/v1", "api_key_env": "K", "options": {"a": 1}}
    keys = ("model", "adapter", "api_base", "api_key_env", "options")
    long = {key: value for key, value in short.items() if key not in keys}
    long["endpoints"] = [{key: short[key] for key in keys}]
    assert Descriptor.of(short) == Descriptor.of(long)
    assert Descriptor.of(short).hash == Descriptor.of(long).hash


def test_it_reads_back_equal_from_json_with_the_same_hash() -> None:
    descriptor = Descriptor.of({**LONG, "price": {"output": 1, "as_of": "2026-01-31", "input": 1}, "pricing": "x"})
    again = Descriptor.model_validate_json(descriptor.model_dump_json())
    assert again == descriptor
    assert again.hash == descriptor.hash


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"description": "Other."}, "description"),
        ({"price": {"input": 0.2, "output": 0.7}}, "price"),
        ({"aliases": ["a"]}, "aliases"),
        ({"options": {"a": 1}}, "options"),
    ],
)
def test_every_field_counts_for_the_hash(changes: dict[str, Any], says: str) -> None:
    assert Descriptor.of({**SHORT, **changes}).hash != Descriptor.of(SHORT).hash, says


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({key: SHORT[key] for key in ("name", "description", "price")}, "name a `model` (or `endpoints`)"),
        ({**SHORT, "endpoints": LONG["endpoints"]}, "not both"),
        ({key: value for key, value in {**SHORT, "adapter": "x"}.items() if key != "model"}, "`adapter` belongs to"),
        ({**LONG, "endpoints": []}, "endpoints: "),
        (["not", "a", "table"], "a descriptor is a table of fields, not list"),
        ({key: value for key, value in SHORT.items() if key != "name"}, "a member without a name: 'name' is missing"),
        ({key: value for key, value in SHORT.items() if key != "description"}, "'description' is missing"),
        ({**SHORT, "contract": 2}, "contract 2 is not known here"),
    ],
)
def test_what_is_missing_or_given_twice_is_named(data: Any, says: str) -> None:
    assert says in fault_of(data)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("modle", "model"), ("adaptor", "adapter"), ("api_key", "api_key_env"), ("optoins", "options")],
)
def test_a_misspelt_short_key_is_named_before_what_is_missing_because_of_it(misspelt: str, meant: str) -> None:
    data = {key: value for key, value in SHORT.items() if key != "model"}
    assert f"unknown key {misspelt!r}; did you mean {meant!r}?" in fault_of({**data, misspelt: "x"})


def test_a_misspelt_key_in_a_nested_table_is_named_with_its_path() -> None:
    assert "unknown key 'descripton'; did you mean 'description'?" in fault(description=None, descripton="x")
    assert "unknown key 'price.ouput'; did you mean 'output'?" in fault(price={"input": 1, "ouput": 1})
    assert "unknown key 'latency.first_token'; did you mean 'first_token_s'?" in fault(latency={"first_token": 1})
    nested = {**LONG, "endpoints": [{"model": "m"}, {"modle": "m"}]}
    assert "unknown key 'endpoints.1.modle'; did you mean 'model'?" in fault_of(nested)


@pytest.mark.parametrize(
    ("price", "says"),
    [
        ({"input": -0.1, "output": 1}, "at least 0"),
        ({"input": "NaN", "output": 1}, "finite"),
        ({"input": float("inf"), "output": 1}, "finite"),
        ({"input": 8.8e-07, "output": 1}, "per token"),
        ({"input": 15000, "output": 1}, "another unit"),
        ({"input": True, "output": 1}, "a number, in USD per million tokens"),
        ({"input": "cheap", "output": 1}, "a number, in USD per million tokens"),
        ({"input": [1], "output": 1}, "a number, in USD per million tokens"),
        ({"input": 10**400, "output": 1}, "a number, in USD per million tokens"),
        ({"input": 1}, "'price.output' is missing"),
        (0.3, "a price is a table"),
        ({"output": 1, "as_of": "last week"}, "price.as_of"),
    ],
)
def test_a_price_that_cannot_be_right_is_refused(price: Any, says: str) -> None:
    message = fault(price=price)
    assert says in message
    assert "cheap" not in message


@given(st.floats(min_value=LOWEST_PRICE, max_value=HIGHEST_PRICE) | st.just(0.0))
def test_every_price_between_the_bounds_is_kept_as_it_is_number_or_text(usd: float) -> None:
    assert Price(output=usd).output == usd
    assert Price.model_validate({"output": repr(usd)}).output == usd


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_price_outside_the_bounds_gets_in(usd: float) -> None:
    allowed = usd == 0 or LOWEST_PRICE <= usd <= HIGHEST_PRICE
    try:
        Descriptor.of({**SHORT, "price": {"output": usd}})
    except DescriptorError:
        assert not allowed
    else:
        assert allowed


def test_an_absent_price_is_unpriced_and_not_free() -> None:
    assert Descriptor.of({key: value for key, value in SHORT.items() if key != "price"}).price is None
    free = Descriptor.of({**SHORT, "price": {"input": 0, "output": 0}}).price
    assert free is not None
    assert free.output == 0


SECRET = "sk-planted-0123456789abcdef"


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key_env": SECRET},
        {"api_key": SECRET},
        {"options": {"api_key": SECRET}},
        {"options": {"headers": {"Authorization": f"Bearer {SECRET}"}}},
        {"options": {"extra": [{"X-API-Key": SECRET}]}},
        {"sampling": {"apiKey": SECRET}},
        {"api_base": f"https://user:{SECRET}@host/v1"},
        {"parameters_b": SECRET},
        {"aliases": SECRET},
    ],
)
def test_a_key_in_a_descriptor_is_refused_and_not_repeated(changes: dict[str, Any]) -> None:
    assert SECRET not in fault(**changes)


@pytest.mark.parametrize("name", ["a:b", "<think>", "a\nb", "\u200b", "  ", "", "x" * 101, "a\x00b"])
def test_a_name_that_a_policy_cannot_write_is_refused(name: str) -> None:
    assert "name" in fault(name=name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"aliases": ["\u200b"]}, "aliases"),
        ({"parameters_b": 7, "active_parameters_b": 8}, "active_parameters_b is more than parameters_b"),
        ({"scores": {"nq": 41.5}}, "scores.nq"),
        ({"api_base": "127.0.0.1:8000"}, "http:// or https://"),
        ({"parameters_b": float("inf")}, "parameters_b"),
        ({"context_tokens": 0}, "context_tokens"),
    ],
)
def test_values_that_contradict_each_other_or_make_no_sense_are_refused(changes: dict[str, Any], says: str) -> None:
    assert says in fault(**changes)


def test_an_endpoint_with_its_own_price_changes_what_the_member_costs_there() -> None:
    data = {**LONG, "endpoints": [{"model": "a"}, {"model": "b", "price": {"input": 1, "output": 2}}]}
    descriptor = Descriptor.of(data)
    assert descriptor.at(descriptor.endpoints[0]) is descriptor
    dearer = descriptor.at(descriptor.endpoints[1])
    assert dearer.price is not None
    assert dearer.price.output == 2


def test_the_published_schema_is_what_the_code_says() -> None:
    published = Path(__file__).parents[2] / "docs/reference/descriptor.schema.json"
    printed = subprocess.run(
        [sys.executable, "-m", "antiphon.descriptor"], capture_output=True, check=True, text=True, encoding="utf-8"
    ).stdout
    assert published.read_text(encoding="utf-8") == printed, (
        "run: python -m antiphon.descriptor > docs/reference/descriptor.schema.json"
    )


def test_the_schema_knows_the_short_form_and_refuses_what_the_code_refuses() -> None:
    schema = json_schema()
    assert {"model", "adapter", "api_base", "api_key_env", "options"} <= set(schema["properties"])
    assert sorted(schema["required"]) == ["description", "name"]
    assert schema["additionalProperties"] is False
    price = schema["$defs"]["Price"]["properties"]["output"]
    assert price["anyOf"][1] == {"type": "number", "minimum": LOWEST_PRICE, "maximum": HIGHEST_PRICE}
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(json.dumps(SHORT)), schema)
    jsonschema.validate(json.loads(json.dumps(LONG)), schema)
    for broken in ({**SHORT, "endpoints": LONG["endpoints"]}, {**SHORT, "modle": "x"}, {"name": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)
