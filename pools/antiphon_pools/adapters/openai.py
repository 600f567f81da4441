"""The `openai` adapter: any endpoint that speaks OpenAI's chat completions, over httpx and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary, WeakSet

from pydantic import Field

from antiphon.contracts import CallContext, Reply, Request
from antiphon.errors import ConfigError, MemberError
from antiphon.redact import secrets_of
from antiphon_pools.adapters._chat import http_failure, messages_of, parse_body, read_reply, short
from antiphon_pools.adapters._options import Options, api_key, read_options, within

if TYPE_CHECKING:
    import ssl

    import httpx

    from antiphon.descriptor import Descriptor, Endpoint

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a reply's body, after decompression; a longer one is a `bad_response`."""
MAX_AT_ONCE = 16
"""Requests at once on one httpx client. Its pool looks at every connection for every request, so that the work grows
with the square of what is in flight: at 256 at once one client spent 8.7 s of CPU where clients of 16 spend 1.7 s.
"""


class OpenAIOptions(Options):
    """Attributes:
    max_tokens_field: what the endpoint calls the output limit (newer OpenAI models: `max_completion_tokens`).
    system_role: false where the model refuses system messages (Gemma 2): they go in front of the first user message.
    headers: extra request headers; not for keys, which come from the environment.
    extra_body: extra fields of the request's body.
    trust_env: let httpx use the proxies that the environment names (HTTPS_PROXY, NO_PROXY, …).
    """

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: bool = True
    headers: dict[str, str] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    trust_env: bool = True


class OpenAIAdapter:
    """One attempt at a compatible endpoint. Adapters with the same `api_base` share a client on each event loop.

    Raises:
        ConfigError: no `api_base`, one that is no http(s) address or that holds a password, or an unknown option.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        self._options = read_options(OpenAIOptions, endpoint, descriptor)
        self._endpoint = endpoint
        self._url = _completions_url(endpoint.api_base, f"member {descriptor.name!r}, endpoint {endpoint.label!r}")
        self._key = (self._url.rpartition("/chat/completions")[0], self._options.trust_env)
        self._held: WeakSet[_Shared] = WeakSet()  # the shared clients that this adapter counts as a user of

    async def complete(self, request: Request, context: CallContext) -> Reply:
        import httpx

        key = api_key(self._endpoint)
        headers = {"content-type": "application/json", "accept": "application/json", **self._options.headers}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        options = self._options
        body = {  # neither options nor sampling override what the call itself says
            **options.extra_body,
            **request.sampling,
            "model": request.model,
            "messages": messages_of(request, system_role=options.system_role),
            options.max_tokens_field: request.max_tokens,
            "stream": False,
        }
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            with within(request.timeout_s):
                async with asyncio.timeout(request.timeout_s):
                    status, answer_headers, raw = await _post(self._client(), self._url, headers, content)
        except httpx.TimeoutException:
            raise MemberError("timeout", f"no answer within {request.timeout_s:g} s") from None
        except httpx.TransportError as error:
            said = short(f"{type(error).__name__}: {error}", self._secrets())
            raise MemberError("connection", said) from None  # a body cut midway is one too
        except httpx.DecodingError as error:
            raise MemberError("bad_response", short(f"the body cannot be decompressed: {error}")) from None
        if not 200 <= status < 300:
            raise http_failure(status, answer_headers, raw, self._secrets())
        return read_reply(parse_body(raw), request, self._secrets())

    async def aclose(self) -> None:
        shared = _clients.get(asyncio.get_running_loop(), {}).get(self._key)
        if shared is None or shared not in self._held:
            return
        self._held.discard(shared)
        shared.users -= 1
        if shared.users == 0:
            del _clients[asyncio.get_running_loop()][self._key]
            await shared.client.aclose()

    def _secrets(self) -> frozenset[str]:
        return secrets_of(self._endpoint)

    def _client(self) -> _Clients:
        """The shared clients of this event loop: connections cannot cross loops."""
        here = _clients.setdefault(asyncio.get_running_loop(), {})
        shared = here.get(self._key)
        if shared is None:
            shared = here[self._key] = _Shared(_Clients(self._options.trust_env))
        if shared not in self._held:
            self._held.add(shared)
            shared.users += 1
        return shared.client


class _Clients:
    """Small httpx clients, as many as the requests at once need; the first with room takes the next request."""

    def __init__(self, trust_env: bool) -> None:
        self._trust_env = trust_env
        self._clients: list[httpx.AsyncClient] = []
        self._in_flight: list[int] = []

    @asynccontextmanager
    async def stream(self, method: str, url: str, **rest: Any) -> AsyncIterator[httpx.Response]:
        index = next((index for index, count in enumerate(self._in_flight) if count < MAX_AT_ONCE), len(self._clients))
        if index == len(self._clients):
            self._clients.append(_new_client(self._trust_env))
            self._in_flight.append(0)
        self._in_flight[index] += 1
        try:
            async with self._clients[index].stream(method, url, **rest) as response:
                yield response
        finally:
            self._in_flight[index] -= 1

    @property
    def is_closed(self) -> bool:
        return all(client.is_closed for client in self._clients)

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Shared:
    client: _Clients
    users: int = 0


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, bool], _Shared]] = WeakKeyDictionary()


def _new_client(trust_env: bool) -> httpx.AsyncClient:
    import httpx

    return httpx.AsyncClient(
        verify=_tls(trust_env),
        timeout=None,  # the whole attempt has one time-out, set around it
        limits=httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=MAX_AT_ONCE),
        follow_redirects=False,  # the key must not travel to wherever an answer points
        trust_env=trust_env,
    )


@cache
def _tls(trust_env: bool) -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than many a call."""
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


async def _post(
    client: _Clients, url: str, headers: Mapping[str, str], content: bytes
) -> tuple[int, Mapping[str, str], bytes]:
    """One exchange: status, headers, body. A failure's status stands, whatever becomes of its body.

    Raises:
        MemberError: `bad_response` for a success with a body over the limit.
    """
    import httpx

    async with client.stream("POST", url, headers=headers, content=content) as response:
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BODY:
                    raise MemberError("bad_response", f"the body is over {MAX_BODY // 2**20} MiB")
        except (httpx.TransportError, httpx.DecodingError, MemberError):
            if response.is_success:
                raise
            chunks = []
        return response.status_code, response.headers, b"".join(chunks)


def _completions_url(api_base: str | None, where: str) -> str:
    if not api_base:
        raise ConfigError(f"{where}: the openai adapter needs an api_base, such as 'https://host.example/v1'")
    try:
        parts = urlsplit(api_base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        parts, usable = urlsplit(""), False
    if not usable:
        raise ConfigError(f"{where}: api_base is not an address that begins with http:// or https://")
    if parts.username or parts.password:
        raise ConfigError(f"{where}: api_base holds a user or a password; name a variable in api_key_env instead")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return urlunsplit((parts.scheme, parts.netloc, f"{path}/chat/completions", parts.query, ""))
