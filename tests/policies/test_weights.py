"""The weights that the package brings: their card says how they were made, and their README says the same."""

from __future__ import annotations

from antiphon import card, models
from antiphon.train.card import readme
from antiphon.train.sft import SFTSettings


def test_the_card_of_the_default_router_tells_of_its_fine_tuning() -> None:
    folder = models.find("antiphon_policies:weights/antiphon-135m")
    known = card.read(folder)
    assert known is not None
    assert (known.algorithm, known.rollouts, known.reward, known.start) == ({}, {}, None, None)
    assert known.demonstrations["teacher"] == "antiphon_pools.chamber.teacher:teacher"
    settings = SFTSettings.model_validate(known.fine_tuning)
    assert settings.total_steps(known.demonstrations["kept"]) == known.steps == 89
    assert (folder / "README.md").read_text("utf-8") == readme(known)
