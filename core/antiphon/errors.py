"""One small tree of errors, by the boundary crossed: the user's files, a plugin, a pool member, the policy's model.

Extension code may raise plain exceptions; the kernel attributes what escapes from it (which member, which plugin).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from antiphon.types import Outcome, StopReason, Usage


class AntiphonError(Exception):
    """The root of everything Antiphon raises on purpose."""


class ConfigError(AntiphonError):
    """A file, flag or environment variable of the user's does not hold: names the culprit and the remedy."""


class DescriptorError(ConfigError):
    """A descriptor, its price or its name does not hold."""


class PluginError(AntiphonError):
    """A plugin failed or offered something unusable: names distribution, version, hook and remedy."""


class MissingExtra(AntiphonError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'antiphon[{extra}]'")


class MemberError(AntiphonError):
    """An adapter's one way to say that an attempt failed.

    Args:
        kind: the outcome to record; it decides whether the pool tries again (see `antiphon.pool`).
        message: what the provider said, without secrets.
        retry_after_s: how long the provider asked us to wait, in seconds.
        usage: what the provider reported although it failed; it is charged.
        served_model: the model that answered, where the provider said so.
    """

    def __init__(
        self,
        kind: Outcome,
        message: str,
        *,
        retry_after_s: float | None = None,
        usage: Usage | None = None,
        served_model: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Outcome = kind
        self.retry_after_s = retry_after_s
        self.usage = usage
        self.served_model = served_model


class GeneratorError(AntiphonError):
    """The policy's model failed, or cannot do what was asked of it."""


class BudgetExceeded(AntiphonError):
    """A reservation does not fit into what is left of a budget."""


class RolloutStopped(AntiphonError):
    """Raised out of a rollout that has stopped; every later `generate` or `ask` raises it again."""

    def __init__(self, reason: StopReason, message: str) -> None:
        super().__init__(message)
        self.reason: StopReason = reason


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error: `; did you mean 'x'?`, or what is known, or nothing."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"; known: {shown}"
