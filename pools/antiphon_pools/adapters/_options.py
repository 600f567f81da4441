"""What adapters share besides the wire format: options, keys, paths, and work that must not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from antiphon.descriptor import explain
from antiphon.errors import ConfigError, MemberError

if TYPE_CHECKING:
    from antiphon.contracts import Request
    from antiphon.descriptor import Descriptor, Endpoint

T = TypeVar("T")


class Options(BaseModel):
    """Base of an adapter's options: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


O = TypeVar("O", bound=Options)  # noqa: E741 - the options of one adapter


def read_options(model: type[O], endpoint: Endpoint, descriptor: Descriptor) -> O:
    """The endpoint's options, validated.

    Raises:
        ConfigError: names the member, the adapter and the option, and the nearest known one.
    """
    try:
        return model.model_validate(endpoint.options)
    except ValidationError as error:
        where = f"member {descriptor.name!r}, endpoint {endpoint.label!r}"
        raise ConfigError(f"{where}: options: {explain(error, model)}") from None


def api_key(endpoint: Endpoint) -> str | None:
    """The endpoint's key, read from the environment at each call so that it can be changed while we run.

    Raises:
        MemberError: kind `auth`; the variable that the endpoint names is not set, or no header can carry its value.
    """
    name = endpoint.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise MemberError("auth", f"environment variable {name} is not set")
    if not (key.isascii() and key.isprintable()):
        raise MemberError("auth", f"environment variable {name} holds characters that no header can carry")
    return key


def last_user_text(request: Request) -> str:
    """The query: the last user message, or the last message where no user speaks."""
    said = [message for message in request.messages if message.role == "user"] or list(request.messages)
    return said[-1].content if said else ""


@contextmanager
def within(timeout_s: float) -> Iterator[None]:
    """Turns our own time-out into what the pool understands; used around `async with asyncio.timeout(…)`."""
    try:
        yield
    except TimeoutError:
        raise MemberError("timeout", f"no answer within {timeout_s:g} s") from None


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_path(path: str, where: str) -> Path:
    """A path with `${NAME}` and a leading `~` expanded.

    Raises:
        ConfigError: a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1])
        if not known:
            raise ConfigError(f"{where}: path {path!r} needs environment variable {found[1]}, which is not set")
        return known

    return Path(_VARIABLE.sub(value, path)).expanduser()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a blocking function in a daemon thread of its own.

    A thread each, because the stock executor has a handful: one that hangs would hold up every other, name look-ups
    included. Cancelling the wait leaves the function running to its end, its result unused.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # a T, where there was no error
        else:
            future.set_exception(error)

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args)
        except StopIteration as stopped:
            error = RuntimeError(f"StopIteration was raised: {stopped}")  # no future can hold the original
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as ended:
            error = RuntimeError(f"{type(ended).__name__} was raised: {ended}")  # must not end the event loop
        except BaseException as failed:
            error = failed
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="antiphon-adapter", daemon=True).start()
    return await future


class OncePerKey:
    """Makes each value once per process, whoever asks first; others wait for it. A failure is not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._values:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
            with lock:
                if key not in self._values:
                    self._values[key] = make()
        value: T = self._values[key]
        return value

    def ready(self, key: Hashable) -> bool:
        """Whether `get` would answer at once."""
        return key in self._values
