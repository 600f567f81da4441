"""The one decision of all learned routers: predicted quality and expected cost of each member -> whom to ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError

from ._scores import best

Usd = float | None

POINT = 0.01
"""One point of quality, as a share of the score."""

TYPICAL_TOKENS = 128.0
"""Output tokens of a reply where nobody recorded any."""

CHARACTERS_A_TOKEN = 4


def decide(
    quality: Mapping[str, float], costs: Mapping[str, float] | None, pool: Sequence[MemberView], usd_per_point: Usd
) -> str:
    """The member of the highest worth: `usd_per_point` times its predicted points of quality, less its expected cost.

    Without `usd_per_point`, quality alone. A tie goes to the cheaper member, then to the first in the pool.

    Args:
        quality: member -> expected score, 0 to 1.
        costs: member -> expected USD of the question; needed with `usd_per_point`.
    """
    if usd_per_point is None or costs is None:
        return best(quality, pool)
    worth = {name: usd_per_point * value / POINT - costs[name] for name, value in quality.items()}
    scale = max(map(abs, worth.values())) or 1.0  # ties are told by their digits, and amounts here are tiny
    return best({name: value / scale for name, value in worth.items()}, pool, costs)


def expected_costs(
    pool: Sequence[MemberView], tokens: Mapping[str, float], question: str, policy: str
) -> dict[str, float]:
    """Member -> USD: quoted prices times the question's length and the member's usual output tokens.

    Args:
        tokens: member -> mean recorded output tokens; for others the mean of these, else `TYPICAL_TOKENS`.

    Raises:
        ConfigError: a member has no price.
    """
    usual = sum(tokens.values()) / len(tokens) if tokens else TYPICAL_TOKENS
    unpriced = [view.name for view in pool if view.quote is None]
    if unpriced:
        raise ConfigError(
            f"policy {policy}: usd_per_point weighs prices, and there is none for {', '.join(unpriced)}; add it to the "
            "descriptor or the config, or leave usd_per_point out"
        )
    read = len(question) / CHARACTERS_A_TOKEN
    return {
        view.name: ((view.quote.input or 0.0) * read + view.quote.output * tokens.get(view.name, usual)) / 1e6
        for view in pool
        if view.quote is not None
    }


def checked_usd(given: float | None, policy: str) -> Usd:
    """The setting, if it is one.

    Raises:
        ConfigError: it is neither None nor a finite number of at least 0.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        raise ConfigError(
            f"policy {policy}: usd_per_point is USD a question for one more point of quality, at least 0; got {given!r}"
        )
    return float(given)
