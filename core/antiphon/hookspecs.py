"""What a plugin may offer: ten hooks, each sync, cheap, and returning values, never live clients.

A factory is `"module:attr"` (imported when first used) or a callable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from antiphon.contracts import Factory
    from antiphon.descriptor import Descriptor
    from antiphon.types import Trajectory

hookspec = pluggy.HookspecMarker("antiphon")
hookimpl = pluggy.HookimplMarker("antiphon")


@hookspec
def antiphon_descriptors() -> Iterable[Descriptor | Mapping[str, Any] | str | Path]:  # type: ignore[empty-body]
    """Pool members: descriptors, plain dicts, or paths of TOML files that hold `[[members]]`."""


@hookspec
def antiphon_adapters() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(*, endpoint, descriptor) -> Adapter."""


@hookspec
def antiphon_generators() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> Generator."""


@hookspec
def antiphon_grammars() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> TagGrammar."""


@hookspec
def antiphon_policies() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> Policy."""


@hookspec
def antiphon_reward_terms() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> RewardTerm."""


@hookspec
def antiphon_pricing() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**pricing_args) -> Pricing."""


@hookspec
def antiphon_metrics() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> Metric."""


@hookspec
def antiphon_datasets() -> Mapping[str, Factory]:  # type: ignore[empty-body]
    """Name -> factory(**options) -> Iterable[Task]."""


@hookspec
def antiphon_on_trajectory(trajectory: Trajectory) -> None:
    """Observe a finished trajectory. Called off the event loop, from a bounded queue; what does not fit is counted."""
