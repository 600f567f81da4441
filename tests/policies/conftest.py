"""Pools by construction: who is right is a known function of the question, or of nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import models
from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor

TOPICS = {"rivers": "Geographer", "atoms": "Physicist", "operas": "Musician"}
PRICES = {"Geographer": 0.2, "Physicist": 1.0, "Musician": 4.0}
_TALK = ("Which of the", "Name one of the", "Tell me about", "What do people say of", "Is it true of the")
_NAMES = ("Ada", "Bo", "Cy", "Dan", "Eve", "Fay", "Gus", "Hal", "Ina", "Jo")


def views(prices: dict[str, float] = PRICES, **more: Any) -> tuple[MemberView, ...]:
    """A pool's members, without a pool."""
    descriptors = [
        Descriptor.of(
            {
                "name": name,
                "description": f"Knows all about {topic}.",
                "model": "m",
                "price": {"input": 0, "output": prices[name]},
                **more,
            }
        )
        for topic, name in TOPICS.items()
    ]
    return tuple(MemberView(one, one.price) for one in descriptors)


def questions(n: int, seed: int = 0) -> list[tuple[str, str]]:
    """(topic, question), each question once."""
    rng = random.Random(seed)
    made: dict[str, str] = {}
    while len(made) < n:
        topic = rng.choice(sorted(TOPICS))
        made[f"{rng.choice(_TALK)} {topic} that {rng.choice(_NAMES)} saw in {rng.randrange(1500, 2000)}?"] = topic
    return [(topic, question) for question, topic in made.items()]


def row(question: str, llm: str, score: float, **more: Any) -> dict[str, Any]:
    return {"question": question, "llm": llm, "score": score, "output_tokens": 100, **more}


def topical_scores(
    folder: Path, n: int = 150, *, shuffled: bool = False, without: str | None = None, seed: int = 0, mute: bool = False
) -> str:
    """A file of scores of a pool where the topic says who is right.

    Shuffled, nothing does: the Physicist is right three times in five, the others less. Mute, all replies are the same.
    """
    rng = random.Random(seed + 1)
    rows = []
    for topic, question in questions(n, seed):
        right = {name: float(name == TOPICS[topic]) for name in PRICES}
        if shuffled:
            right = {"Geographer": 0.3, "Physicist": 0.6, "Musician": 0.4}
            right = {name: float(rng.random() < share) for name, share in right.items()}
        said = {1.0: f"I am sure: it is {topic} indeed.", 0.0: "Hm." if mute else "I do not know that."}
        said[1.0] = said[0.0] if mute else said[1.0]
        rows += [row(question, name, score, response=said[score]) for name, score in right.items() if name != without]
    path = folder / f"scores-{n}-{shuffled}-{without}-{seed}-{mute}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")
    return str(path)


@pytest.fixture
def topical(tmp_path: Path) -> Callable[..., str]:
    """`topical(n, …)`: the path of `topical_scores`."""
    return lambda *given, **more: topical_scores(tmp_path, *given, **more)


@pytest.fixture
def no_embedder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty model store: features are TF-IDF, wherever the tests run."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    assert models.stored() == ()
