"""Routers between two members, a weak and a strong one, as RouteLLM and HybridLLM publish it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError, did_you_mean
from antiphon.types import Task

from ._examples import Array, Arrays, Data, Profile
from ._learned import Learned


class PairRouter(Learned):
    """Asks the strong member where its predicted advantage reaches a threshold, else the weak one.

    With `usd_per_point`, where the advantage is worth the difference in cost. `fit` gives, beside weights, `pair` (the
    columns of weak and strong) and `threshold`; `predict` gives NaN for all others.
    """

    chooses_by_quality: ClassVar[bool] = False

    class Settings(Learned.Settings):
        """Attributes:
        strong: a member's name; None: the best on the training part.
        weak: a member's name; None: the cheapest of the others, and the best of several; where prices are unknown, the
            best of all others.
        """

        strong: str | None = None
        weak: Annotated[str | None, Field()] = None

    def choose(self, task: Task, pool: Sequence[MemberView]) -> str:
        fitted = self.fitted(task, pool)
        fitted.profiles_in(pool)  # says what is wrong with the pool
        names = [profile.name for profile in fitted.profiles]
        weak, strong = (int(column) for column in fitted.arrays["pair"])
        here = {view.name for view in pool}
        if self._usd is not None or not {names[weak], names[strong]} <= here:
            return super().choose(task, pool)
        [raw] = fitted.raw([task.question])
        return names[strong if advantage(raw[None], (weak, strong))[0] >= fitted.arrays["threshold"][0] else weak]


def advantage(raw: Array, pair: tuple[int, int]) -> Array:
    """Of strong over weak, (questions,)."""
    found: Array = raw[:, pair[1]] - raw[:, pair[0]]
    return found


def pair_of(data: Data, settings: Any, policy: str) -> tuple[int, int]:
    """Columns of the weak and the strong member.

    Raises:
        ConfigError: a name is nobody's, both are the same, or there is one member alone.
    """
    import numpy as np

    if len(data.profiles) < 2:
        raise ConfigError(f"policy {policy}: it chooses between two members, and scores are there of one alone")
    means = np.nan_to_num(np.nanmean(data.train.scores, axis=0), nan=-1.0)
    strong = int(means.argmax()) if settings.strong is None else _column(data.profiles, settings.strong, policy)
    if settings.weak is not None:
        weak = _column(data.profiles, settings.weak, policy)
    else:
        others = [column for column in range(len(means)) if column != strong]
        priced = all(data.profiles[column].price is not None for column in others)
        prices = [profile.price or 0.0 if priced else 0.0 for profile in data.profiles]
        weak = min(others, key=lambda column: (prices[column], -means[column]))
    if weak == strong:
        raise ConfigError(f"policy {policy}: weak and strong are both {data.profiles[weak].name!r}; name two members")
    return weak, strong


def only(raw: Array, pair: Sequence[int]) -> Array:
    """NaN in all columns but the pair's."""
    import numpy as np

    kept = np.full_like(raw, np.nan)
    kept[:, list(pair)] = raw[:, list(pair)]
    return kept


def with_pair(arrays: Arrays, pair: tuple[int, int], threshold: float) -> Arrays:
    import numpy as np

    return {**arrays, "pair": np.array(pair), "threshold": np.array([threshold])}


def _column(profiles: Sequence[Profile], name: str, policy: str) -> int:
    names = [profile.name for profile in profiles]
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigError(f"policy {policy}: nobody with scores in this pool is called {name!r}{hint}")
    return names.index(name)
