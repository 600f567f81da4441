"""A generator that says what it is told to: for tests, for examples, and for trying a grammar without a model."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncIterator, Callable, Sequence

from antiphon.contracts import Capabilities, Chunk, Encoded, GenerationRequest
from antiphon.errors import GeneratorError
from antiphon.types import Finish, Message, clean

_SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# Pieces of several characters, so that a tag may end inside a token (">\n", "> ", "><") and a name is a few tokens.
_PIECES = (
    ">\n\n", "><", ">\n", "> ", "</", "think", "search", "answer", "inform", "ation", "tool", "_call", "the ", "The ",
    "Who ", "What ", "of ", "is ", "ing ", ": ", ". ", ", ", "\n\n", "LLaMA-", "Qwen", "Instruct", "Mi", "stral", "é",
)  # fmt: skip
_FIRST_BYTE = len(_SPECIAL)
_FIRST_PIECE = _FIRST_BYTE + 256
_ID_OF = {piece: _FIRST_PIECE + index for index, piece in enumerate(_PIECES)}
_PIECE = re.compile("|".join(map(re.escape, sorted(_PIECES, key=len, reverse=True))) + "|(?s:.)")


class ScriptedGenerator:
    """Says the next reply of a script, one per generation; after the last it ends at once with no text.

    Its tokeniser is its own: reversible, with tokens of several characters and tokens of half a character, and with
    special ids for chat roles that no text encodes to. Every request is kept in `requests`.

    Args:
        replies: what to say, in the order in which generations begin; or a function of the request (for rollouts
            that run at once).
        capabilities: what to declare and keep to: no ids or log-probabilities where they are not declared, stop
            strings withheld where they are not kept, an error where a turn may not be continued.
        ignore_stops: run on past stop strings, as some backends do.
        chunk_tokens: tokens per chunk of the stream.
        delay_s: seconds before each chunk.
    """

    name = "scripted"

    def __init__(
        self,
        replies: Sequence[str] | Callable[[GenerationRequest], str] = (),
        *,
        capabilities: Capabilities | None = None,
        ignore_stops: bool = False,
        chunk_tokens: int = 3,
        delay_s: float = 0.0,
    ) -> None:
        self.capabilities = capabilities or Capabilities()
        self.requests: list[GenerationRequest] = []
        self._replies = replies
        self._ignore_stops = ignore_stops
        self._chunk_tokens = max(1, chunk_tokens)
        self._delay_s = delay_s

    def open(self, messages: Sequence[Message]) -> Encoded:
        said = [_said(message.role, message.content) for message in messages]
        return self._encoded("".join(text for text, _ in said) + _SPECIAL[3], [*_flat(said), 3])

    def turn(self, text: str) -> Encoded:
        shown, ids = _said("user", text)
        return self._encoded(_SPECIAL[0] + shown + _SPECIAL[3], [0, *ids, 3])

    def encode(self, text: str) -> Encoded:
        return self._encoded(text, _encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(_bytes, token_ids)).decode("utf-8", "replace")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The next reply, cut at the first stop string and at the token limit."""
        if request.prefix and not self.capabilities.continue_turn:
            raise GeneratorError(
                "generator 'scripted' was asked to continue a turn, and does not declare continue_turn"
            )
        index = len(self.requests)
        self.requests.append(request)
        reply = self._reply(request, index)
        ids, text, finish = self._cut(reply, request)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left = len(text)
        for start in range(0, max(1, len(ids)), self._chunk_tokens):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            part = ids[start : start + self._chunk_tokens]
            last = start + self._chunk_tokens >= len(ids)
            said = decoder.decode(b"".join(map(_bytes, part)), final=last)[:left]
            left -= len(said)
            yield Chunk(
                said,
                tuple(part) if self.capabilities.token_out else None,
                tuple(-1.0 / (2 + token) for token in part) if self.capabilities.logprobs else None,
                finish if last else None,
            )

    async def aclose(self) -> None:
        """Nothing to free."""

    def _reply(self, request: GenerationRequest, index: int) -> str:
        if callable(self._replies):
            return self._replies(request)
        return self._replies[index] if index < len(self._replies) else ""

    def _cut(self, reply: str, request: GenerationRequest) -> tuple[list[int], str, Finish]:
        """The reply's ids, whole up to the token in which a stop string ends; its text; why it ends there."""
        ids = _encode(reply)
        text = self.decode(ids)
        found = [(at, stop) for stop in request.stop if (at := text.find(stop)) >= 0 and not self._ignore_stops]
        finish: Finish = "end"
        if found:
            at, stop = min(found, key=lambda one: one[0] + len(one[1]))
            ids = ids[: _covering(ids, len(text[: at + len(stop)].encode()))]
            text = self.decode(ids) if self.capabilities.keeps_stop else text[:at]
            finish = "stop"
        if len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
            text = self.decode(ids)
        return ids, text, finish

    def _encoded(self, text: str, ids: Sequence[int]) -> Encoded:
        return Encoded(text, tuple(ids) if self.capabilities.token_in else None)


def _encode(text: str) -> list[int]:
    ids: list[int] = []
    for piece in _PIECE.findall(clean(text)):
        known = _ID_OF.get(piece)
        ids += [known] if known is not None else [_FIRST_BYTE + byte for byte in piece.encode()]
    return ids


def _bytes(token: int) -> bytes:
    if token < _FIRST_BYTE:
        return b""
    return _PIECES[token - _FIRST_PIECE].encode() if token >= _FIRST_PIECE else bytes([token - _FIRST_BYTE])


def _covering(ids: Sequence[int], size: int) -> int:
    """How many leading tokens hold `size` bytes."""
    for index, token in enumerate(ids):
        if size <= 0:
            return index
        size -= len(_bytes(token))
    return len(ids)


def _said(role: str, text: str) -> tuple[str, list[int]]:
    """A message as text and ids: role, content, end."""
    special = f"<|{role}|>"
    return f"{special}{text}{_SPECIAL[0]}", [_SPECIAL.index(special), *_encode(text), 0]


def _flat(said: Sequence[tuple[str, list[int]]]) -> list[int]:
    return [token for _, ids in said for token in ids]
