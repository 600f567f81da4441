"""The training engines: a name leads to the module that trains."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from antiphon.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.train.prepare import Prepared
    from antiphon.train.run import Ended, Listener

ENGINES = {"local": "antiphon.train.run", "verl": "antiphon.train.verl_run"}
"""Name -> module with `train(prepared, folder, *, resume, listener)`."""


class Train(Protocol):
    """Trains in a folder until the run ends."""

    def __call__(self, prepared: Prepared, folder: Path, *, resume: bool, listener: Listener) -> Ended: ...


def engine(name: str) -> Train:
    """The engine of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ENGINES:
        raise ConfigError(f"no training engine is called {name!r}{did_you_mean(name, ENGINES)}")
    train: Train = import_module(ENGINES[name]).train
    return train
