"""`antiphon pool profile`: what is measured is what the members do, and antiphon.toml takes it as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.catalogue import Catalogue
from antiphon.config import load_config
from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor, Price
from antiphon.record import Row
from antiphon.record.profile import fitted, profile, to_toml
from antiphon.registry import Registry

Cli = Callable[..., Any]


def row(number: int, **fields: Any) -> Row:
    base: dict[str, Any] = {
        "question_id": f"q{number}",
        "dataset": "nq",
        "question": "?",
        "golden_answers": ["x"],
        "llm": "Big",
        "response": "x",
        "score": 1.0,
        "metric": "em",
        "input_tokens": 100,
        "output_tokens": 10 * (number + 1),
        "sample": 0,
        "latency_s": 0.5 + 0.02 * 10 * (number + 1),
        "outcome": "ok",
    }
    base["cost_usd"] = (base["input_tokens"] * 1 + base["output_tokens"] * 2) / 1e6
    return Row.model_validate({**base, **fields})


def view(price: dict[str, float] | None = None) -> MemberView:
    data = {"name": "Big", "description": "x", "model": "org/big", "price": price or {"input": 1, "output": 2}}
    descriptor = Descriptor.of(data)
    return MemberView(descriptor, descriptor.price)


def test_scores_latency_and_price_of_a_member() -> None:
    rows = [row(n, score=float(n % 2), served_model="big") for n in range(20)]
    found = profile(view(), rows, failed=0)
    assert (found.replies, found.scores, found.notes) == (20, {"nq": 0.5}, ())
    assert found.latency is not None
    assert (found.latency.first_token_s, found.latency.tokens_per_s) == (0.5, 50.0)
    assert found.charged == pytest.approx(1)
    assert found.raised is None


@given(st.floats(0.01, 5), st.floats(1, 5000), st.lists(st.integers(1, 512), min_size=10, max_size=60, unique=True))
def test_the_line_through_replies_of_a_steady_member_is_its_speed(
    start: float, speed: float, tokens: list[int]
) -> None:
    latency, _ = fitted((n, start + n / speed) for n in tokens)
    assert latency is not None
    assert latency.first_token_s == pytest.approx(start, abs=2e-3)
    assert latency.tokens_per_s == pytest.approx(speed, rel=2e-3)


@given(st.lists(st.tuples(st.integers(0, 2048), st.floats(0, 120)), max_size=40))
def test_whatever_the_replies_a_latency_is_one_a_descriptor_takes(replies: list[tuple[int, float]]) -> None:
    latency, why = fitted(replies)
    assert (latency is None) == bool(why)
    if latency is not None:
        assert latency.first_token_s >= 0
        assert 0 < latency.tokens_per_s <= 100_000


@pytest.mark.parametrize(
    ("replies", "says"),
    [
        ([(10, 1.0)] * 9, "9 replies with token counts and times; it takes 10"),
        ([(None, 1.0)] * 50, "0 replies"),
        ([(7, 1.0)] * 50, "all replies are of one length"),
        ([(n, 3 - n / 100) for n in range(1, 50)], "longer replies took no longer"),
    ],
)
def test_a_latency_that_cannot_be_told_is_left_out_with_the_reason(replies: list[Any], says: str) -> None:
    latency, why = fitted(replies)
    assert (latency, says in why) == (None, True)


def test_a_price_that_is_too_low_is_raised_and_one_that_is_too_high_is_left() -> None:
    rows = [row(n) for n in range(12)]
    dearer = profile(view({"input": 0.5, "output": 1}), rows, failed=0)
    assert dearer.raised == (1.0, 2.0)
    assert "charged 2 times what the quoted price says; the price is raised" in dearer.notes
    cheaper = profile(view({"input": 2, "output": 4}), rows, failed=0)
    assert cheaper.raised is None
    assert "the price is left, since budgets reserve by it" in cheaper.notes[0]


def test_what_stands_in_for_a_member_and_what_is_missing_is_noted() -> None:
    rows = [*(row(n, served_model="org/other") for n in range(3)), row(9, outcome="timeout", response=None, score=None)]
    found = profile(view(), rows, failed=1)
    assert found.replies == 3
    assert "answered as org/other" in found.notes
    assert "no reply to 1 of 4, which the scores leave out" in found.notes


def test_the_tables_override_what_the_pool_knows(project: Path, antiphon: Cli) -> None:
    ran = antiphon("pool", "profile", "--data-file", "questions.jsonl", "--out", "overrides.toml", "--json")
    assert ran.status == 0, ran.err
    assert "up to about $0.0105" in ran.err
    assert "spent $0.000500" in ran.err
    assert [(each["name"], each["scores"]) for each in ran.json["members"]] == [
        ("Big", {"questions": 1.0}),
        ("Small", {"questions": 0.2}),  # a0 and a1 alone
    ]
    assert "all replies are of one length" in ran.json["members"][0]["notes"][0]
    assert len(Path("overrides.jsonl").read_text().splitlines()) == 20
    assert load_config("overrides.toml").members["Small"] == {"scores": {"questions": 0.2}}


def test_a_second_run_asks_nothing_and_never_overwrites_anything_else(project: Path, antiphon: Cli) -> None:
    arguments = ("pool", "profile", "--data-file", "questions.jsonl", "--out", "overrides.toml")
    antiphon(*arguments)
    again = antiphon(*arguments)
    assert (again.status, "nothing to ask" in again.err) == (0, True)
    assert "Big" in again.out
    assert len(Path("asked.txt").read_text().splitlines()) == 20
    refused = antiphon(*arguments[:-1], "antiphon.toml")
    assert (refused.status, "holds something else than a profile" in refused.err) == (2, True)
    refused = antiphon(*arguments[:-1], "x.jsonl")
    assert (refused.status, "name it FILE.toml" in refused.err) == (2, True)


def test_every_table_is_one_that_a_catalogue_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["Qwen2.5-7B-Instruct", "Gemma-2-27B-Instruct"]
    registry = Registry.load([])
    before = Catalogue.of(registry, load_config())
    profiles = []
    for name in names:
        descriptor = before.find(name)
        assert descriptor.price is not None
        cheap = Price(input=0.001, output=0.001)
        rows = [row(n, llm=name) for n in range(12)]
        profiles.append(profile(MemberView(descriptor, cheap), rows, failed=2))
    Path("antiphon.toml").write_text(to_toml(profiles, "Measured."), encoding="utf-8")
    after = Catalogue.of(registry, load_config())
    for name in names:
        entry = after.entry(name)
        assert entry.overridden == ("latency", "price", "scores")
        assert entry.descriptor.scores["nq"] == 1.0
        assert entry.descriptor.latency is not None
        assert entry.descriptor.latency.tokens_per_s == 50
        assert entry.descriptor.price is not None
        assert entry.descriptor.price.output > 0.001
        assert json.dumps(entry.descriptor.price.source).count("measured")
