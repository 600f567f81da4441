"""Which weights a run starts from: a folder of weights, or the best that another run has made."""

from __future__ import annotations

from pathlib import Path

from antiphon import models
from antiphon.train.checkpoint import CHECKPOINTS, Checkpoints


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
