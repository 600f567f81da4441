"""The `litellm` adapter: whatever LiteLLM reaches (NIM, Together, vLLM, Ollama, …), one request an attempt."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from antiphon.contracts import CallContext, Reply, Request
from antiphon.errors import ConfigError, MemberError
from antiphon.redact import secrets_of
from antiphon_pools.adapters._chat import http_failure, messages_of, read_reply, retry_after, short, status_kind
from antiphon_pools.adapters._options import OncePerKey, Options, api_key, in_thread, read_options, within

if TYPE_CHECKING:
    from antiphon.descriptor import Descriptor, Endpoint
    from antiphon.types import Outcome

TIMEOUT_S = 3600.0
"""Handed to LiteLLM, whose own default is 6,000 s. The attempt's real time-out is set around the call: LiteLLM makes a
new client for each value that it sees, and no deadline is seen twice."""

_OURS = frozenset({"model", "messages", "max_tokens", "timeout", "api_key", "api_base", "base_url", "stream"}) | {
    "num_retries",
    "max_retries",
    "fallbacks",
    "client",
}


class LiteLLMOptions(Options):
    """Attributes:
    params: what else `litellm.acompletion` takes (`api_version`, `vertex_project`, `extra_headers`, …); no keys.
    system_role: false where the model refuses system messages (Gemma 2): they go in front of the first user message.
    drop_params: let LiteLLM leave out sampling parameters that the provider does not know, instead of refusing.
    """

    params: dict[str, Any] = Field(default_factory=dict)
    system_role: bool = True
    drop_params: bool = False

    @field_validator("params")
    @classmethod
    def _not_what_the_call_says(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & set(value)):
            raise ValueError(f"{', '.join(taken)}: set by the endpoint or by the call itself; take it out of params")
        return value


class LiteLLMAdapter:
    """One attempt through `litellm.acompletion`, with its retries, callbacks, cost look-ups and price download off.

    Raises:
        ConfigError: LiteLLM is not installed, or an unknown option.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        self._options = read_options(LiteLLMOptions, endpoint, descriptor)
        if find_spec("litellm") is None:
            raise ConfigError(
                f"member {descriptor.name!r}: the litellm adapter needs the package litellm: pip install litellm; "
                "or reach a compatible endpoint with adapter = 'openai'"
            )
        self._endpoint = endpoint
        self._prefix = endpoint.model.partition("/")[0]

    async def complete(self, request: Request, context: CallContext) -> Reply:
        key, secrets = api_key(self._endpoint), secrets_of(self._endpoint)
        bodies: list[object] = []  # as LiteLLM got them, before it made anything of them
        try:
            with within(request.timeout_s):
                async with asyncio.timeout(request.timeout_s):
                    # Importing LiteLLM takes seconds, so it happens off the loop, once.
                    litellm = _loaded.get("litellm", _load) if _loaded.ready("litellm") else await in_thread(_import)
                    arguments = self._arguments(litellm, request, key)
                    arguments["logger_fn"] = lambda details: bodies.append(details.get("original_response"))
                    body = _body(await litellm.acompletion(**arguments), self._prefix)
        except (MemberError, asyncio.CancelledError):
            raise
        except Exception as error:
            body = _refused_body(error, bodies)
            if body is None:
                raise _failure(error, secrets) from None
        return read_reply(body, request, secrets)

    async def aclose(self) -> None:
        """LiteLLM keeps its clients, one set for each event loop, and closes them itself."""

    def _arguments(self, litellm: Any, request: Request, key: str | None) -> dict[str, Any]:
        if self._prefix in ("ollama", "ollama_chat"):
            # Unless it lists the model, LiteLLM asks Ollama about it before each call, blocking the event loop.
            litellm.model_cost.setdefault(request.model, {"litellm_provider": self._prefix, "mode": "chat"})
        arguments = {
            **request.sampling,
            **self._options.params,
            "model": request.model,
            "messages": messages_of(request, system_role=self._options.system_role),
            "max_tokens": request.max_tokens,
            "timeout": TIMEOUT_S,
            "stream": False,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": self._options.drop_params,
            "no-log": True,  # none of the callbacks that the process may have set
            # Costs are the pool's. Without a price, LiteLLM looks one up, and asks Ollama for it over the network.
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
        }
        if self._endpoint.api_base is not None:
            arguments["api_base"] = self._endpoint.api_base
        if key is not None:
            arguments["api_key"] = key
        if self._prefix in litellm.openai_compatible_providers:
            # Else max_retries is dropped on the way for some of them (nvidia_nim), and the SDK's default of 2 holds.
            arguments["allowed_openai_params"] = ["max_retries", *arguments.get("allowed_openai_params", ())]
        return arguments


_loaded = OncePerKey()


def _import() -> Any:
    return _loaded.get("litellm", _load)


def _load() -> Any:
    """LiteLLM with its defaults tamed.

    Raises:
        MemberError: it cannot be imported.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # read at import; else it downloads prices
    try:
        import litellm
    except Exception as error:
        said = short(f"{type(error).__name__}: {error}")
        raise MemberError("error", f"litellm cannot be imported ({said}); reinstall it: pip install litellm") from None
    litellm.disable_aiohttp_transport = True  # httpx, as everywhere else here
    litellm.suppress_debug_info = True
    return litellm


def _body(response: Any, prefix: str) -> dict[str, Any]:
    """LiteLLM's reply in the shape of the wire, for the reader that both adapters share."""
    model = getattr(response, "model", None)
    choices = [
        {
            "finish_reason": getattr(choice, "finish_reason", None),
            "error": (getattr(choice, "provider_specific_fields", None) or {}).get("error"),
            "message": {
                name: getattr(choice.message, name, None)
                for name in ("content", "refusal", "tool_calls", "reasoning_content")
            },
        }
        for choice in response.choices or ()
    ]
    return {
        "model": model.removeprefix(f"{prefix}/") if isinstance(model, str) else None,
        "choices": choices,
        "usage": _usage(getattr(response, "usage", None)),
    }


def _usage(usage: Any) -> dict[str, Any] | None:
    """None where LiteLLM says (0, 0): that is what it makes of a usage that the provider left out."""
    sent, said = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if not sent and not said:
        return None
    details = getattr(usage, "prompt_tokens_details", None)
    return {
        "prompt_tokens": sent,
        "completion_tokens": said,
        "prompt_tokens_details": {"cached_tokens": getattr(details, "cached_tokens", None)},
    }


def _refused_body(error: Exception, bodies: list[object]) -> Any:
    """The body of a success that LiteLLM refused, where it has the shape of the wire; None: there is none.

    It holds an error, whose code and usage LiteLLM drops, or a reply with a field that LiteLLM does not take.
    """
    import httpx

    last = bodies[-1] if bodies else None
    if not isinstance(last, str) or any(isinstance(cause, httpx.HTTPStatusError) for cause in _causes(error)):
        return None
    try:
        body = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, Mapping) and ("choices" in body or "error" in body) else None


def _failure(error: Exception, secrets: frozenset[str]) -> MemberError:
    """What an exception of LiteLLM's means.

    Its own types cannot be trusted with that: a refused connection and half a JSON document both arrive as
    `InternalServerError` with status 500. What they were raised from tells them apart.
    """
    import httpx
    import openai
    from pydantic import ValidationError

    causes = list(_causes(error))
    said = short(str(getattr(error, "message", None) or error), secrets)
    for cause in causes:
        if isinstance(cause, httpx.HTTPStatusError):
            return http_failure(cause.response.status_code, cause.response.headers, _content(cause.response), secrets)
        if isinstance(cause, httpx.DecodingError):
            return MemberError("bad_response", short(f"the body cannot be decompressed: {cause}", secrets))
    for cause in causes:
        if isinstance(cause, openai.APITimeoutError | httpx.TimeoutException):
            return MemberError("timeout", said)
        if isinstance(cause, httpx.TransportError):
            return MemberError("connection", short(f"{type(cause).__name__}: {cause}", secrets))
        if type(cause) is openai.APIConnectionError:
            return MemberError("connection", said)
        if isinstance(cause, json.JSONDecodeError | UnicodeDecodeError | ValidationError):
            return MemberError("bad_response", said)
    status = getattr(error, "status_code", None)
    if not isinstance(error, openai.OpenAIError):  # not one of LiteLLM's: a fault in it, or in what we sent
        return MemberError("error", short(f"{type(error).__name__}: {said}", secrets))
    kind: Outcome = "bad_response"  # its 500 and 200 without an answer behind them: it could not read the reply
    if isinstance(status, int) and status not in (200, 500):
        kind = status_kind(status)
    return MemberError(kind, said, retry_after_s=retry_after(_headers(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it was raised from, nearest first."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        current = left.pop(0)
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            left += [current.__cause__, current.__context__]


def _content(response: Any) -> bytes:
    import httpx

    try:
        content: bytes = response.content
    except (httpx.ResponseNotRead, httpx.StreamError):
        return b""
    return content


def _headers(error: Exception) -> Mapping[str, str]:
    headers = getattr(error, "litellm_response_headers", None)
    return headers if isinstance(headers, Mapping) else {}
