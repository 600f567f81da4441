"""Antiphon: a policy calls, a pool answers.

The public names, loaded when first used, so that `import antiphon` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.catalogue import Catalogue
    from antiphon.config import Config, load_config
    from antiphon.contracts import MemberView, Reply, Request
    from antiphon.descriptor import Descriptor, Endpoint, Latency, Price
    from antiphon.errors import AntiphonError, ConfigError, MemberError, PluginError
    from antiphon.hookspecs import hookimpl
    from antiphon.money import Budget
    from antiphon.orchestrator import Interrupted, Orchestrator
    from antiphon.pool import Pool
    from antiphon.registry import Registry
    from antiphon.rollout import Limits, Rollout
    from antiphon.types import Answer, Call, Event, Invalid, Message, Route, Task, Trajectory, Turn, Usage

_WHERE = {
    "antiphon.catalogue": ("Catalogue",),
    "antiphon.config": ("Config", "load_config"),
    "antiphon.contracts": ("MemberView", "Reply", "Request"),
    "antiphon.descriptor": ("Descriptor", "Endpoint", "Latency", "Price"),
    "antiphon.errors": ("AntiphonError", "ConfigError", "MemberError", "PluginError"),
    "antiphon.hookspecs": ("hookimpl",),
    "antiphon.money": ("Budget",),
    "antiphon.orchestrator": ("Interrupted", "Orchestrator"),
    "antiphon.pool": ("Pool",),
    "antiphon.registry": ("Registry",),
    "antiphon.rollout": ("Limits", "Rollout"),
    "antiphon.types": (
        "Answer", "Call", "Event", "Invalid", "Message", "Route", "Task", "Trajectory", "Turn", "Usage",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Answer", "AntiphonError", "Budget", "Call", "Catalogue", "Config", "ConfigError", "Descriptor", "Endpoint",
    "Event", "Interrupted", "Invalid", "Latency", "Limits", "MemberError", "MemberView", "Message", "Orchestrator",
    "PluginError", "Pool", "Price", "Registry", "Reply", "Request", "Rollout", "Route", "Task", "Trajectory",
    "Turn", "Usage", "hookimpl", "load_config",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
