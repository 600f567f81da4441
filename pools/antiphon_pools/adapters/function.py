"""The `function` adapter: a Python callable, sync or async, as a member: a tool, a service of one's own, a test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, MemberError, did_you_mean
from antiphon.types import Usage, clean
from antiphon_pools.adapters._chat import short
from antiphon_pools.adapters._options import Options, in_thread, last_user_text, read_options, within

if TYPE_CHECKING:
    from antiphon.descriptor import Endpoint
    from antiphon.types import Outcome

Function = Callable[..., str | Reply | Awaitable[str | Reply]]
"""`f(text)` or `f(text, context)`: the query, and where the call comes from."""

_FREE = {"input": 0, "output": 0}
_registered: dict[str, Function] = {}


def member(function: Function, *, name: str, description: str, **fields: Any) -> Descriptor:
    """A descriptor of a callable of this process, for an embedding that has no module to name.

    Args:
        fields: other fields of the descriptor; without a price it is free.

    Raises:
        ConfigError: another callable goes by this name already.
        DescriptorError: a field does not hold.
    """
    if ":" in name:
        raise ConfigError(f"{name!r}: a colon would read as module:attr; choose a name without one")
    fields = {"price": _FREE, **fields, "name": name, "description": description, "adapter": "function", "model": name}
    descriptor = Descriptor.of(fields, source="function.member")
    known = _registered.get(descriptor.name)
    if known is not None and known is not function and _origin(known) != _origin(function):
        raise ConfigError(f"{name!r} is {_origin(known)} already; give {_origin(function)} another name")
    _registered[descriptor.name] = function
    return descriptor


class FunctionAdapter:
    """Calls the callable that the endpoint's `model` names: `module:attr`, or what `member` was given.

    A sync callable runs in a thread of its own. A string is a reply of no tokens: plain code has none. A callable that
    pays for something itself returns a `Reply` with its usage.

    Raises:
        ConfigError: there is no such callable, or it takes neither `(text)` nor `(text, context)`.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        read_options(Options, endpoint, descriptor)
        where = f"member {descriptor.name!r}"
        self._function = _find(endpoint.model, where)
        self._takes_context = _takes_context(self._function, where)
        self._label = endpoint.model

    async def complete(self, request: Request, context: CallContext) -> Reply:
        text = last_user_text(request)
        arguments = (text, context) if self._takes_context else (text,)
        with within(request.timeout_s):
            async with asyncio.timeout(request.timeout_s):
                result = await self._call(*arguments)
        if isinstance(result, str):
            result = Reply(clean(result), Usage())
        if not isinstance(result, Reply):
            raise MemberError(
                "bad_response", f"{self._label} returned {type(result).__name__}, not a string or a Reply"
            )
        if not result.text.strip():
            raise MemberError("empty_response", f"{self._label} returned no text", usage=result.usage)
        return result

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _call(self, *arguments: Any) -> Any:
        function = self._function
        try:
            if any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))):  # noqa: B004
                return await cast("Awaitable[Any]", function(*arguments))
            result = await in_thread(function, *arguments)
            return await result if inspect.isawaitable(result) else result
        except MemberError:
            raise
        except Exception as error:
            kind: Outcome = "timeout" if isinstance(error, TimeoutError) else "error"
            raise MemberError(kind, short(f"{self._label} raised {type(error).__name__}: {error}")) from error


def _find(model: str, where: str) -> Function:
    if ":" not in model:
        if model not in _registered:
            hint = did_you_mean(model, _registered)
            raise ConfigError(f"{where}: no function {model!r} in this process{hint}; give model = 'module:attr'")
        return _registered[model]
    module, _, attribute = model.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"{where}: module {module!r} cannot be imported ({type(error).__name__}: {error}); it must be installed or "
            "on PYTHONPATH"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{where}: module {module!r} has no {attribute!r}{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{where}: {model} is {type(found).__name__}, not a callable")
    return cast("Function", found)


def _takes_context(function: Function, where: str) -> bool:
    """Whether to pass the context: where a second argument is required, or is called `context`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins do not say what they take
        return False
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wants = len(positional) > 1 and (
        positional[1].name == "context" or positional[1].default is inspect.Parameter.empty
    )
    try:
        signature.bind(*("text", CallContext())[: 2 if wants else 1])
    except TypeError:
        raise ConfigError(f"{where}: {_origin(function)}{signature} takes neither (text) nor (text, context)") from None
    return wants


def _origin(function: Function) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module else str(name)
