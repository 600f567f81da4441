"""Which weights a run starts from: a folder of weights, or the best that another run has made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from antiphon import card, models
from antiphon.card import Base
from antiphon.errors import ConfigError
from antiphon.train.card import weights_hash
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints

if TYPE_CHECKING:
    from antiphon._setup import Setup
    from antiphon.train.spec import ModelSettings

_HOW = "policy.grammar = '{name}', with the options that its card.json has: policy.grammar_options"


def start_of(name: str | None) -> Path | None:
    """The folder of weights that `name` means: itself, or of a run's folder the best checkpoint, else the latest.

    Raises:
        ConfigError: it is not there.
    """
    if name is None:
        return None
    folder = models.find(name)
    run = Checkpoints(folder / CHECKPOINTS)
    return run.best or run.latest or folder


def named(name: str | None) -> Base | None:
    """What a card says of the weights that `name` means: their own card's name, else their folder's.

    Raises:
        ConfigError: they are not there.
    """
    folder = start_of(name)
    if folder is None:
        return None
    known = card.read(folder)
    return Base(name=folder.name if known is None else known.name, hash=weights_hash(folder))


def check_start(model: ModelSettings, setup: Setup) -> None:
    """The weights that training begins with speak its grammar and belong to its base; another pool is logged.

    Weights without a card are taken as they are.

    Raises:
        ConfigError: they were trained with another grammar or prompt, or on another base; names both.
    """
    folder = start_of(model.start)
    known = None if folder is None else card.read(folder)
    if folder is None or known is None:
        return
    card.check(known, folder, grammar=getattr(setup.policy, "grammar", None), members=setup.pool.members, how=_HOW)
    base = models.find(model.base)
    found = weights_hash(base)
    whole = not (folder / "adapter_config.json").is_file()
    if found != known.base.hash and not (whole and found == weights_hash(folder)):
        raise ConfigError(
            f"{folder} was trained on {known.base.name} (SHA-256 {known.base.hash}), and model.base = {model.base!r} "
            f"has other weights (SHA-256 {found}); set model.base to the former, or start from weights of the latter"
        )
