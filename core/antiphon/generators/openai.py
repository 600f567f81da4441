"""The generator for a model behind an OpenAI-compatible server: completions (vLLM, llama.cpp, …) or chat (any)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from antiphon import models
from antiphon.contracts import Capabilities, Chunk, Encoded, GenerationRequest
from antiphon.errors import ConfigError, GeneratorError
from antiphon.generators import _sse
from antiphon.generators._chat import Chat, Detokeniser, find_stop, load_chat
from antiphon.types import Usage

if TYPE_CHECKING:
    from antiphon.types import Finish, Message


class OpenAIGenerator:
    """A policy model behind a server.

    What it can do follows from the options and is not guessed:

    ============ ================= ======== =================== =============
    api          server            token_in token_out, logprobs continue_turn
    ============ ================= ======== =================== =============
    completions  vllm              yes      yes                 yes
    completions  generic           yes      no                  yes
    chat         either            no       no                  no
    ============ ================= ======== =================== =============

    The completions API needs the model's tokeniser, by which the prompt goes out as ids: only so can a question or a
    reply not smuggle in special tokens. Stop strings are kept everywhere: a vLLM server is asked to include them; from
    any other server the stream is watched and closed at the stop string, since `finish_reason: "stop"` alone does not
    tell a stop string from the model's end.

    Nothing is sent twice: a failed generation is an error at once.

    Args:
        base_url: up to and with `/v1`.
        model: the server's name for it.
        api_key_env: the name of the environment variable that holds the key; None: no key.
        api: "completions" or "chat".
        server: "vllm" or "generic".
        tokenizer: the model's folder (tokenizer.json is enough), or its name in the model store.
        chat_template: a Jinja file to use instead of the tokeniser's template.
        timeout_s: seconds without a byte from the server.
        extra_body: further fields of every request.

    Raises:
        ConfigError: an option does not hold, the key is not set, or the tokeniser is missing where it is needed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        api: Literal["completions", "chat"] = "completions",
        server: Literal["vllm", "generic"] = "generic",
        tokenizer: str | Path | None = None,
        chat_template: str | Path | None = None,
        timeout_s: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if api not in ("completions", "chat"):
            raise ConfigError(f"generator 'openai': api must be 'completions' or 'chat', got {api!r}")
        if server not in ("vllm", "generic"):
            raise ConfigError(f"generator 'openai': server must be 'vllm' or 'generic', got {server!r}")
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"generator 'openai': base_url must begin with http:// or https://, got {base_url!r}")
        self.name = f"openai:{model}"
        self._key = _key(api_key_env)
        self._url = base_url.rstrip("/") + ("/completions" if api == "completions" else "/chat/completions")
        self._model, self._api, self._key_env = model, api, api_key_env
        self._timeout_s, self._extra = timeout_s, dict(extra_body or {})
        self._client: Any = None
        self._closed = False
        self._chat: Chat | None = None
        if api == "completions":
            self._chat = _tokeniser(tokenizer, chat_template, model)
        self._server_stops = server == "vllm"
        gives_ids = self._chat is not None and self._server_stops
        self.capabilities = Capabilities(
            token_in=self._chat is not None,
            token_out=gives_ids,
            logprobs=gives_ids,
            continue_turn=api == "completions",
            keeps_stop=True,
        )

    def open(self, messages: Sequence[Message]) -> Encoded:
        if self._chat is not None:
            return self._chat.open(messages)
        return Encoded("".join(f"{message.role}: {message.content}\n" for message in messages))

    def turn(self, text: str) -> Encoded:
        return self._chat.turn(text) if self._chat is not None else Encoded(f"\nuser: {text}\n")

    def encode(self, text: str) -> Encoded:
        return self._chat.encode(text) if self._chat is not None else Encoded(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._chat is None:
            raise GeneratorError(f"generator {self.name!r} has no tokeniser: the chat API gives text only")
        return self._chat.decode(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """One chunk per event of the server's stream.

        A vLLM server gives log-probabilities at temperature 1, unless it runs with `--logprobs-mode
        processed_logprobs`.
        """
        body = self._body(request)
        text, counted, watched = "", None, () if self._server_stops else request.stop
        finish: Finish | None = None
        detokeniser = Detokeniser(self._chat) if self._chat is not None and self._server_stops else None
        stream = _sse.events(self._http(), self._url, body, key=self._key, key_env=self._key_env, name=self.name)
        async with aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                counted = _usage(event) or counted
                for choice in event.get("choices") or ():
                    piece = self._chunk(choice, detokeniser)
                    end = find_stop(text + piece.text, watched, len(text))
                    if end is not None:  # what the server said beyond the stop string is not used
                        yield Chunk(piece.text[: end - len(text)], finish="stop")
                        return
                    text += piece.text
                    if piece.text or piece.token_ids:
                        yield piece
                    finish = _finish(choice, request.stop if self._server_stops else ()) or finish
        if finish is None:
            raise GeneratorError(f"{self.name}: the answer of {self._url} was cut off before it ended; try again")
        if detokeniser is None:
            yield Chunk("", finish=finish, usage=counted)
        else:
            yield Chunk(detokeniser.finish(), (), (), finish, counted)

    async def aclose(self) -> None:
        """Close the connections; generations under way fail."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self._extra,
            **{key: value for key, value in request.sampling.items() if value is not None},
            "model": self._model,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._api == "chat":
            if request.prefix:
                raise GeneratorError(
                    f"{self.name}: the chat API cannot continue a turn that has begun; use api = 'completions', or a "
                    "grammar whose stop strings end the turn"
                )
            body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
        else:
            if request.token_ids is None:
                raise GeneratorError(f"{self.name} needs the context's token ids; open it with its own `open`")
            body["prompt"] = list(request.token_ids)
            if self._server_stops:
                body |= {"return_token_ids": True, "logprobs": 0}
        if self._server_stops and request.stop:
            body |= {"stop": list(request.stop), "include_stop_str_in_output": True}
        return body

    def _chunk(self, choice: Mapping[str, Any], detokeniser: Detokeniser | None) -> Chunk:
        """What an event adds. Where the server gives ids the text is ours: servers cut theirs at the stop string."""
        said = choice.get("delta") or {} if self._api == "chat" else choice
        text = said.get("content" if self._api == "chat" else "text") or ""
        if not isinstance(text, str):
            raise GeneratorError(f"{self.name}: {self._url} sent text that is no string; is it OpenAI-compatible?")
        if detokeniser is None:
            return Chunk(text)
        ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if not ids and not text:
            return Chunk("", (), ())
        if not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
            raise GeneratorError(
                f"{self.name}: {self._url} gave no token ids with their log-probabilities; it takes vLLM 0.10.2 or "
                "newer. For any other server set server = 'generic'"
            )
        text = "".join(detokeniser.add(token_id) for token_id in ids)
        return Chunk(text, tuple(ids), tuple(min(float(p), 0.0) for p in logprobs))

    def _http(self) -> Any:
        if self._closed:
            raise GeneratorError(f"generator {self.name!r} is closed; make a new one")
        if self._client is None:
            import httpx

            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                timeout=httpx.Timeout(self._timeout_s, connect=min(10.0, self._timeout_s), pool=None),
            )
        return self._client


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"generator 'openai': the environment variable {name} (api_key_env) is not set; put the key there"
        )
    return value


def _tokeniser(tokenizer: str | Path | None, chat_template: str | Path | None, model: str) -> Chat:
    if tokenizer is None:
        raise ConfigError(
            f"generator 'openai': the completions API needs the tokeniser of {model!r}: set tokenizer = a folder with "
            "its tokenizer.json and chat template. Without one, use api = 'chat' and a grammar of tool calls"
        )
    return load_chat(models.find(tokenizer), chat_template)


def _finish(choice: Mapping[str, Any], stops: Sequence[str]) -> Finish | None:
    """Why the server ended. `stop` is a stop string only where it names one that we sent."""
    reason = choice.get("finish_reason")
    if reason is None:
        return None
    if reason == "length":
        return "length"
    return "stop" if reason == "stop" and choice.get("stop_reason") in stops else "end"


def _usage(event: Mapping[str, Any]) -> Usage | None:
    said = event.get("usage")
    if not isinstance(said, Mapping):
        return None
    counts = [said.get("prompt_tokens"), said.get("completion_tokens")]
    details = said.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    return Usage(counts[0] or 0, counts[1] or 0, cached if isinstance(cached, int) else 0)
