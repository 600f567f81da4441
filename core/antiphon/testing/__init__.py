"""The public test kit: a scripted generator and adapter, a server that injects faults, and a judge of plugins."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.generators.scripted import ScriptedGenerator
    from antiphon.testing.plugins import Problem, check_plugin
    from antiphon.testing.scripted import ScriptedAdapter
    from antiphon.testing.server import FaultServer, HTTPReply

_MODULE_OF = {
    "FaultServer": "antiphon.testing.server",
    "HTTPReply": "antiphon.testing.server",
    "Problem": "antiphon.testing.plugins",
    "ScriptedAdapter": "antiphon.testing.scripted",
    "ScriptedGenerator": "antiphon.generators.scripted",
    "check_plugin": "antiphon.testing.plugins",
}

__all__ = ["FaultServer", "HTTPReply", "Problem", "ScriptedAdapter", "ScriptedGenerator", "check_plugin"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'antiphon.testing' has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
