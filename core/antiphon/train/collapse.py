"""Tells from the metrics of the last steps that a training run has collapsed, and says why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from antiphon.log import warn
from antiphon.tables import Count, Table
from antiphon.train.settings import AlgorithmSettings


def _off(value: Any) -> Any:
    return None if value is False else value  # TOML has no null


Bound = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_off)]


class CollapseSettings(Table):
    """When a run stops itself; each bound holds for the mean over the window, `false` turns it off.

    Attributes:
        window: steps; a younger run is never stopped.
        format_ok: the share of well-formed rollouts may not fall below it.
        entropy: nor may the policy's entropy, in nats a token.
        kl: the divergence from the reference, in nats a token, may not rise above it; it is measured only where
            `algorithm.kl_coefficient` is above 0.
        calls: calls a rollout may not fall to it.
    """

    window: Count = 20
    format_ok: Bound = 0.05
    entropy: Bound = 0.001
    kl: Bound = 5.0
    calls: Bound = 0.0


def collapse(rows: Sequence[Mapping[str, Any]], settings: CollapseSettings) -> str | None:
    """Why training has collapsed, in words; None: it has not.

    Args:
        rows: metrics of the steps so far, oldest first. The mean is over those rows of the window that have the metric;
            None stands for a number that is not finite, as in `metrics.jsonl`, and so for a collapse.
    """
    window = rows[-settings.window :]
    if len(window) < settings.window:
        return None

    def mean(name: str) -> float | None:
        values = [math.nan if row[name] is None else float(row[name]) for row in window if name in row]
        return sum(values) / len(values) if values else None

    over = f"over the last {len(window)} steps"
    format_ok, entropy, kl, calls = (mean(name) for name in ("format_ok", "entropy", "kl", "calls"))
    if _below(format_ok, settings.format_ok):
        return (
            f"{format_ok:.1%} of the rollouts {over} were well-formed, fewer than {settings.format_ok:.1%} (format_ok)"
        )
    if _below(entropy, settings.entropy):
        return f"the policy's entropy {over} was {entropy:.2g} nats a token, below {settings.entropy:g} (entropy)"
    if settings.kl is not None and kl is not None and not kl <= settings.kl:  # NaN is a collapse too
        return f"the divergence from the reference {over} was {kl:.3g} nats a token, above {settings.kl:g} (kl)"
    if settings.calls is not None and calls is not None and calls <= settings.calls:
        return f"a rollout {over} asked {calls:.2g} members on average, no more than {settings.calls:g} (calls)"
    return None


def warn_of_inert(settings: CollapseSettings | None, algorithm: AlgorithmSettings) -> None:
    """Log a warning where a bound on the divergence was asked for that nothing measures."""
    asked = settings is not None and settings.kl is not None and "kl" in settings.model_fields_set
    if asked and not algorithm.kl_coefficient:
        warn(
            "antiphon.train",
            "collapse.kl never stops this run: divergence is measured only where algorithm.kl_coefficient is above 0",
        )


def _below(value: float | None, floor: float | None) -> bool:
    return floor is not None and value is not None and not value >= floor
