"""The weights that the package brings: their card says how they were made, and their README says the same."""

from __future__ import annotations

from antiphon import card, models
from antiphon.train.card import readme


def test_the_card_of_the_default_router_tells_of_its_reinforcement_learning() -> None:
    folder = models.find("antiphon_policies:weights/antiphon-135m")
    known = card.read(folder)
    assert known is not None
    assert known.start is not None
    assert known.reward is not None
    assert (known.start.name, known.steps, known.algorithm["algorithm"]) == ("default-warm", 32, "grpo")
    assert (known.reward.alpha, [use.term for use in known.reward.terms]) == (0.9, ["format", "outcome", "cost"])
    assert (folder / "README.md").read_text("utf-8") == readme(known)
