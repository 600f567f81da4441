"""What a run has spent, kept in its folder: however a part of it ends, the next one knows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from antiphon.errors import ConfigError
from antiphon.train.writers import METRICS, read_rows, replace_file

SPENT = "spent.json"


class Spending:
    """What all parts of a run have spent, read at the start of a part and on disk whenever `keep` returns.

    Make it before the writers, which drop the rows of steps that come again; without its file the rows tell. A part
    keeps what it has read before it asks anybody, so that a kill counts once and one that could not begin does not.

    Args:
        was_cut_off: the last part was killed in a step. What that has cost nobody knows: it counts as the dearest
            before it.

    Attributes:
        usd: spent by now.
        dearest_usd: what the dearest step has cost, with its validation.

    Raises:
        ConfigError: the file or a row is damaged; names it.
    """

    def __init__(self, folder: Path, *, was_cut_off: bool = False) -> None:
        self._path = folder / SPENT
        self.usd, self.dearest_usd = _kept(self._path) if self._path.exists() else _told(folder)
        if was_cut_off:
            self.usd += self.dearest_usd

    def keep(self, usd: float) -> None:
        """The run has spent so much by now; what has come to it since the last time is what a step has cost."""
        self.usd, self.dearest_usd = usd, max(self.dearest_usd, usd - self.usd)
        replace_file(self._path, json.dumps({"spent_usd": self.usd, "dearest_step_usd": self.dearest_usd}) + "\n")


def _kept(path: Path) -> tuple[float, float]:
    try:
        data = json.loads(path.read_bytes())
        return float(data["spent_usd"]), float(data["dearest_step_usd"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it, and the rows of {METRICS} count") from None


def _told(folder: Path) -> tuple[float, float]:
    rows = read_rows(folder) if (folder / METRICS).exists() else []
    spent = [0.0, *(float(row["spent_usd"]) for row in rows if "spent_usd" in row)]
    return max(spent), max((after - before for before, after in pairwise(spent)), default=0.0)
