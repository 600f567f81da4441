"""The chat-completions wire format: a request's body, and a reply, a failure and a usage read out of what came back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.contracts import Reply, Request
from antiphon.errors import MemberError
from antiphon.money import CHARS_PER_TOKEN
from antiphon.redact import redact
from antiphon.retry_after import retry_after_seconds
from antiphon.types import Outcome, Usage, clean

LONGEST_MESSAGE = 300
"""Characters kept of what a provider says about an error."""

# What an error says where it gives no status; the first fragment found decides. These are clear enough to be looked for
# in a sentence too, where that is all there is.
_WORDS: tuple[tuple[str, Outcome], ...] = (
    ("rate_limit", "rate_limited"),
    ("ratelimit", "rate_limited"),
    ("too_many_requests", "rate_limited"),
    ("throttl", "rate_limited"),
    ("exhausted", "rate_limited"),
    ("quota", "rate_limited"),
    ("api_key", "auth"),
    ("unauthorized", "auth"),
    ("authenticat", "auth"),
    ("not_found", "not_found"),
    ("notfound", "not_found"),
    ("does_not_exist", "not_found"),
    ("timeout", "timeout"),
    ("timed_out", "timeout"),
    ("context_length", "bad_request"),
)
_CODES: tuple[tuple[str, Outcome], ...] = (
    *_WORDS,
    ("auth", "auth"),
    ("permission", "auth"),
    ("billing", "auth"),
    ("deadline", "timeout"),
    ("invalid", "bad_request"),
    ("badrequest", "bad_request"),
    ("bad_request", "bad_request"),
    ("content_filter", "bad_request"),
    ("unsupported", "bad_request"),
)
_STATUS_KEYS = ("code", "status", "status_code", "http_code", "error_code", "type")


def status_kind(status: int) -> Outcome:
    """The outcome that an HTTP status other than a success means.

    402 (payment required) is `auth`: as with a bad key, the same request fails again until its owner acts.
    """
    if status in (401, 402, 403, 407):
        return "auth"
    if status in (404, 410):
        return "not_found"
    if status == 408:
        return "timeout"
    if status == 429:
        return "rate_limited"
    if status in (409, 423, 425) or status >= 500:  # conflict, locked, too early: they pass
        return "unavailable"
    return "bad_request" if 400 <= status < 500 else "bad_response"


def messages_of(request: Request, *, system_role: bool) -> list[dict[str, str]]:
    """The chat as endpoints take it; without a system role, what it says goes in front of the first user message."""
    if system_role:
        return [{"role": message.role, "content": message.content} for message in request.messages]
    told = [message.content for message in request.messages if message.role == "system"]
    said = [{"role": m.role, "content": m.content} for m in request.messages if m.role != "system"]
    first = next((message for message in said if message["role"] == "user"), None)
    if first is None:
        first = {"role": "user", "content": ""}
        said.insert(0, first)
    first["content"] = "\n\n".join(filter(None, [*told, first["content"]]))
    return said


def parse_body(raw: bytes) -> Any:
    """A JSON document from bytes, whatever charset the header claims: JSON is UTF-8.

    Raises:
        MemberError: `bad_response`.
    """
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise MemberError("bad_response", "the body is not UTF-8") from None
    except (ValueError, RecursionError):
        shown = raw[:80].decode("utf-8", "replace").strip() or "nothing"
        what = (
            "a page of HTML" if shown.lower().startswith(("<!doctype", "<html")) else "not (or not all of) a JSON body"
        )
        raise MemberError("bad_response", f"{what}: {shown!r}") from None


def read_reply(body: Any, request: Request, secrets: Iterable[str] = ()) -> Reply:
    """The reply in the body of a success.

    Raises:
        MemberError: an error inside the success, by its code; `empty_response` (with usage); `bad_response`.
    """
    if isinstance(body, list) and len(body) == 1:  # as Google wraps its errors
        body = body[0]
    if not isinstance(body, Mapping):
        raise MemberError("bad_response", f"the body is a JSON {type(body).__name__}, not an object")
    model = body.get("model") if isinstance(body.get("model"), str) and body.get("model") else None
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if error := _error_of(body, first):
        usage = read_usage(body.get("usage"), request, "")
        kind, message = _error_inside(error, body)
        raise MemberError(kind, short(message, secrets), usage=usage, served_model=model)
    if "choices" not in body or not isinstance(choices, list | None):
        raise MemberError("bad_response", "a JSON object without a list of choices")
    if first is not None and not isinstance(first, Mapping):
        raise MemberError("bad_response", "the first choice is not an object")
    said = {} if first is None else first.get("message") or {}
    if not isinstance(said, Mapping):
        raise MemberError("bad_response", "the first choice's message is not an object")
    text = clean(read_text(said.get("content")))
    usage = read_usage(body.get("usage"), request, text)
    if not text.strip():
        raise MemberError("empty_response", short(_why_empty(first, said), secrets), usage=usage, served_model=model)
    finish = first.get("finish_reason") if first is not None else None
    return Reply(text, usage, model, "length" if finish in ("length", "max_tokens") else "stop")


def read_text(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts, whose texts are joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            read_text(part.get("text")) if isinstance(part, Mapping) else read_text(part) for part in content
        )
    return ""


def read_usage(raw: Any, request: Request, text: str) -> Usage | None:
    """Tokens as reported; None where nothing usable is reported.

    Whole numbers are taken in any dress (`11`, `11.0`, `"11"`), under the names of chat completions or the newer ones
    (`input_tokens`). Where one of the two counts is missing, it is estimated from the text and the usage is marked.
    """
    if not isinstance(raw, Mapping):
        return None
    sent = _count(raw.get("prompt_tokens", raw.get("input_tokens")))
    said = _count(raw.get("completion_tokens", raw.get("output_tokens")))
    if sent is None and said is None:
        return None
    details = raw.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    return usage_from(sent, said, request, text, cached or 0)


def usage_from(sent: int | None, said: int | None, request: Request, text: str, cached: int = 0) -> Usage:
    """A usage of which a count may be unknown: estimated at four characters a token, and marked then."""
    asked = sum(len(message.content) for message in request.messages)
    known_sent = -(-asked // CHARS_PER_TOKEN) if sent is None else sent
    known_said = -(-len(text) // CHARS_PER_TOKEN) if said is None else said
    return Usage(known_sent, known_said, min(cached, known_sent), estimated=sent is None or said is None)


def http_failure(status: int, headers: Mapping[str, str], raw: bytes, secrets: Iterable[str] = ()) -> MemberError:
    """What a status other than a success says; its body may be anything."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        said = " ".join(raw[:LONGEST_MESSAGE].decode("utf-8", "replace").split())
    else:
        said = _message(body)
    if 300 <= status < 400:
        said = "redirects are not followed; give the final address as api_base"
    return MemberError(
        status_kind(status),
        short(f"HTTP {status}: {said}" if said else f"HTTP {status}", secrets),
        retry_after_s=retry_after(headers),
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None where neither is readable."""
    found = {name.lower(): value for name, value in headers.items() if name.lower().startswith("retry-after")}
    milliseconds = retry_after_seconds(found["retry-after-ms"]) if "retry-after-ms" in found else None
    if milliseconds is not None and found["retry-after-ms"].strip()[:1].isdigit():
        return milliseconds / 1000
    return retry_after_seconds(found.get("retry-after"))


def short(message: str, secrets: Iterable[str] = ()) -> str:
    """At most 300 characters, on one line, without secrets."""
    said = " ".join(redact(message, secrets).split())  # redacted first: a cut could leave half a key behind
    return said if len(said) <= LONGEST_MESSAGE else said[: LONGEST_MESSAGE - 1] + "…"


def _error_of(body: Mapping[str, Any], choice: Any) -> Any:
    """What a body tells of an error, or None. Some proxies send an error object that says nothing with every reply."""
    found = [body.get("error"), choice.get("error") if isinstance(choice, Mapping) else None]
    if choice is None:
        found += [body.get("errors"), body if body.get("object") == "error" or _status(body) is not None else None]
    return next((each for each in found if (any(each.values()) if isinstance(each, Mapping) else each)), None)


def _error_inside(error: Any, body: Mapping[str, Any]) -> tuple[Outcome, str]:
    """By the first status that the error or the body beside it gives, else by its codes, else by its words."""
    while isinstance(error, list) and error:
        error = error[0]
    message = _message({"error": error}) or "an error without a message"
    for holder in (error, body):
        status = _status(holder) if isinstance(holder, Mapping) else None
        if status is not None:
            return status_kind(status), message
    codes = [error.get(key) for key in ("code", "status", "type")] if isinstance(error, Mapping) else []
    for said, fragments in ((" ".join(str(code or "") for code in codes), _CODES), (message, _WORDS)):
        said = said.lower().replace("-", "_").replace(" ", "_")
        for fragment, kind in fragments:
            if fragment in said:
                return kind, message
    return "unavailable", message


def _status(holder: Mapping[str, Any]) -> int | None:
    """The HTTP status of a failure that an error object, or the body around it, gives."""
    counts = (_count(holder.get(key)) for key in _STATUS_KEYS)
    return next((count for count in counts if count is not None and 400 <= count < 600), None)


def _message(body: Any) -> str:
    """The words in an error body, in the shapes that providers use."""
    if isinstance(body, str):
        return body
    if not isinstance(body, Mapping):
        return ""
    for key in ("error", "message", "detail", "msg"):
        inner = body.get(key)
        if isinstance(inner, str) and inner.strip():
            return inner
        if isinstance(inner, Mapping) and (said := _message(inner)):
            return said
        if isinstance(inner, list) and inner and (said := _message(inner[0])):
            return said
    return ""


def _why_empty(choice: Mapping[str, Any] | None, message: Mapping[str, Any]) -> str:
    if choice is None:
        return "no choices in the reply"
    if isinstance(message.get("refusal"), str) and message["refusal"].strip():
        return f"refused: {message['refusal']}"
    if message.get("tool_calls"):
        return "a tool call and no text"
    if message.get("reasoning_content") or message.get("reasoning"):
        return "reasoning and no reply; a higher output limit may help"
    if choice.get("finish_reason") == "content_filter":
        return "stopped by the provider's content filter"
    return "no text in the reply"


def _count(value: Any) -> int | None:
    """A whole number of at least 0 in any dress, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return int(number) if number >= 0 and number.is_integer() and number < 1e12 else None
