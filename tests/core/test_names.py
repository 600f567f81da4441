"""A member's name is matched whole, after folding what models and people write differently: case, spaces, dashes."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import DescriptorError
from antiphon.names import Names, fold

CASES = [
    json.loads(line)
    for name in ("names.jsonl", "names_more.jsonl")
    for line in (Path(__file__).parent.parent / "cases" / name).read_text("utf-8").splitlines()
    if line
]
POOL = CASES[0]["pool"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_resolves_as_it_should(case: dict[str, Any]) -> None:
    aliases = case.get("aliases", {})
    names = Names({name: aliases.get(name, ()) for name in case["pool"]})
    assert names.resolve(case["asked"]) == case["resolves"]


@pytest.mark.parametrize(
    "asked",
    [
        "LLAMA-3.1-70B-INSTRUCT",
        "\tLLaMA-3.1-70B-Instruct\n",
        "LLaMA\u20133.1\u201470B\u2212Instruct",  # en dash, em dash, minus
        "LLaMA\ufe633.1\uff0d70B-Instruct",  # small and full-width hyphens
        "\uff2c\uff2c\uff41\uff2d\uff21-3.1-70B-Instruct",  # full-width letters
        "LLaMA-3.1-70B-Instruct\u200b",  # a zero-width space
        "\ufeffLLaMA-3.1-70B-Instruct",
        "LLaMA-3.1\ufe0f-70B\u2062-Instruct\U000e0041",  # a variation selector, an invisible operator, a tag
        "\u202aLLaMA-3.1-70B-Instruct\u202c",  # bidi marks
        "\u00a0LLaMA-3.1-70B-Instruct\u3000",  # no-break and ideographic spaces
    ],
)
def test_one_name_in_many_spellings(asked: str) -> None:
    assert Names(dict.fromkeys(POOL, ())).resolve(asked) == "LLaMA-3.1-70B-Instruct"


@pytest.mark.parametrize(
    "asked",
    [
        "",
        " ",
        "\u200b",
        "-",
        "LLaMA",
        "70B",
        "LLaMA-3.1-70B",
        "LLaMA-3.1-70B-Instruct-Turbo",
        "meta/LLaMA-3.1-70B-Instruct",
        "LLaMA 3.1 70B Instruct",
        "LLaMA_3.1_70B_Instruct",
        "LLaMA-31-70B-Instruct",
        "LLaMA-3.1-7OB-Instruct",
        "LLaMA-3.1-70B-Instruct, Mistral-7B-Instruct",
        "L" * 100_000,
        "\ud800",
    ],
)
def test_no_part_no_neighbour_and_no_guess_is_taken_for_a_name(asked: str) -> None:
    assert Names(dict.fromkeys(POOL, ())).resolve(asked) is None


def test_spaces_inside_a_name_count_as_one_space_and_never_as_none() -> None:
    names = Names({"Big Model": ()})
    assert names.resolve("big \u00a0 model") == "Big Model"
    assert names.resolve("bigmodel") is None


@pytest.mark.parametrize(
    "aliases",
    [
        {"A": (), "a": ()},
        {"A-1": (), "A\u20131": ()},
        {"A": ("x",), "B": ("X ",)},
        {"A": ("b",), "B": ()},
        {"A": (), "B": ("\uff21",)},
    ],
)
def test_two_members_of_one_spelling_are_a_load_error_that_names_both(aliases: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(DescriptorError) as caught:
        Names(aliases)
    for name in aliases:
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("aliases", [{"A": ("",)}, {"A": (" \u200b",)}, {"\u200b": ()}])
def test_an_empty_name_or_alias_is_a_load_error(aliases: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(DescriptorError, match="empty name or alias"):
        Names(aliases)


def test_a_member_may_repeat_its_own_name_among_its_aliases() -> None:
    names = Names({"A": ("a", "A", "A ")})
    assert (names.names, names.resolve("a")) == (("A",), "A")


def test_every_dash_of_unicode_is_one_dash_and_every_space_one_space() -> None:
    for char in map(chr, range(0x110000)):
        if unicodedata.category(char) == "Pd":
            assert fold(f"a{char}b") == "a-b", hex(ord(char))
        elif char.isspace() and char not in "\x1c\x1d\x1e\x1f":
            assert fold(f"a{char}b") == "a b", hex(ord(char))


@given(st.text())
def test_folding_again_changes_nothing(name: str) -> None:
    assert fold(fold(name)) == fold(name)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.sampled_from([str.upper, str.lower, str.title]))
def test_a_name_is_found_with_spaces_around_it_and_in_its_own_folding(name: str, change: Any) -> None:
    if fold(name):
        names = Names({name: ()})
        assert names.resolve(f" {name}\n") == names.resolve(fold(name)) == name
        if name.isascii():
            assert names.resolve(change(name)) == name
