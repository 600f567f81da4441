"""Tells from the metrics of the last steps that a training run has collapsed, and says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from antiphon.tables import Count, Table


def _off(value: Any) -> Any:
    return None if value is False else value  # TOML has no null


Bound = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_off)]


class CollapseSettings(Table):
    """When a run stops itself; each bound holds for the mean over the window, `false` turns it off.

    Attributes:
        window: steps; a younger run is never stopped.
        format_ok: the share of well-formed rollouts may not fall below it.
        entropy: nor may the policy's entropy, in nats a token.
        kl: the divergence from the reference, in nats a token, may not rise above it.
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
        rows: metrics of the steps so far, oldest first; a metric that a row of the window lacks is not judged.
    """
    window = rows[-settings.window :]
    if len(window) < settings.window:
        return None

    def mean(name: str) -> float | None:
        values = [row.get(name) for row in window]
        return None if any(value is None for value in values) else sum(map(float, values)) / len(values)  # type: ignore[arg-type]

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


def _below(value: float | None, floor: float | None) -> bool:
    return floor is not None and value is not None and not value >= floor
