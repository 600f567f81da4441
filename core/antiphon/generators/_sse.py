"""Server-sent events of an OpenAI-compatible server: one POST, its JSON events as they come, its faults in words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from antiphon.errors import GeneratorError
from antiphon.redact import redact

_REMEDIES = {
    401: "check the key",
    403: "the key does not allow this model",
    404: "check base_url (it ends in /v1) and the model's name",
    429: "the server's rate limit is reached: lower the concurrency or wait",
}
_LONGEST_LINE = 4 << 20  # characters; a stream without line breaks must not fill the memory


async def events(
    client: Any,
    url: str,
    body: Mapping[str, Any],
    *,
    key: str | None,
    key_env: str | None,
    name: str,
) -> AsyncIterator[dict[str, Any]]:
    """The events of a streamed reply. Closing the iterator closes the connection, by which servers stop generating.

    Raises:
        GeneratorError: names the server, what happened and what to do; never the key.
    """
    import httpx

    def fault(text: str) -> GeneratorError:
        return GeneratorError(f"{name}: " + redact(text, [key] if key else []))

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with client.stream("POST", url, json=dict(body), headers=headers) as response:
            if response.status_code != 200:
                said = _message((await response.aread()).decode("utf-8", "replace"))
                remedy = _REMEDIES.get(response.status_code, "see the server's log")
                if response.status_code == 401:
                    remedy += f" in {key_env}" if key_env else ": set api_key_env"
                raise fault(f"{url} refused with HTTP {response.status_code} ({said}); {remedy}")
            if "html" in response.headers.get("content-type", ""):
                raise fault(f"{url} answered with a web page; check base_url (it ends in /v1)")
            async for data in _data(response):
                if data.strip() == "[DONE]":
                    return
                try:
                    event = json.loads(data)
                except ValueError:
                    raise fault(
                        f"{url} sent an event that is not JSON: {data[:80]!r}; is it OpenAI-compatible?"
                    ) from None
                if not isinstance(event, dict):
                    raise fault(f"{url} sent an event that is no object: {data[:80]!r}; is it OpenAI-compatible?")
                if event.get("error"):
                    raise fault(f"{url} failed while it generated ({_message(data)}); see the server's log")
                yield event
    except httpx.TimeoutException as error:
        raise fault(
            f"{url} did not answer in time ({type(error).__name__}); raise timeout_s or check the server"
        ) from None
    except httpx.ConnectError as error:
        raise fault(f"{url} cannot be reached ({error}); check base_url and that the server runs") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise fault(f"the answer of {url} was cut off ({type(error).__name__}: {error}); try again") from None


async def _data(response: Any) -> AsyncIterator[str]:
    """The data of each event: lines that begin with `data:`, joined up to a blank line."""
    lines: list[str] = []
    rest = ""
    async for text in response.aiter_text():
        rest += text
        *whole, rest = rest.split("\n")
        if len(rest) > _LONGEST_LINE:
            raise GeneratorError("the server sent an event of more than 4 MB; is it OpenAI-compatible?")
        for line in whole:
            line = line.rstrip("\r")
            if line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines = []
    if rest.startswith("data:"):
        lines.append(rest[5:].strip())
    if lines:
        yield "\n".join(lines)


def _message(text: str) -> str:
    """What a server says went wrong, in one line."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    said: Any = data
    while isinstance(said, dict):
        said = said.get("error") or said.get("message") or said.get("detail")
    return " ".join(str(said if isinstance(said, str) else text).split())[:300] or "no reason given"
