"""One turn in the making: pieces of policy text until an action closes, the model ends, or a limit is reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from antiphon.contracts import Chunk, GenerationRequest, Generator, Parser, TagGrammar
from antiphon.errors import ConfigError
from antiphon.money import CHARS_PER_TOKEN, Budget, per_token
from antiphon.types import Finish, Message, Segment, Turn, Usage, clean

if TYPE_CHECKING:
    from antiphon.descriptor import Price


@dataclass(slots=True, eq=False)
class Context:
    """A handle on one token stream; make it with `Rollout.context`."""

    index: int
    trainable: bool
    request_id: str
    messages: list[Message]
    token_ids: list[int] | None
    prefix: str = ""
    grammar: TagGrammar | None = None
    turns: list[Turn] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Its length; an estimate where the generator has no tokeniser."""
        if self.token_ids is not None:
            return len(self.token_ids)
        return (sum(len(m.content) for m in self.messages) + len(self.prefix)) // CHARS_PER_TOKEN


class Generation:
    """One turn of a context. A stop inside an open block resumes it.

    Args:
        parser: None without a grammar: the turn is all that the model says up to its end.
        room: tokens already generated in this turn -> how many more may be.
        price: of the policy's own tokens; reserved in `budget` before each piece and settled after it.
        show: takes thinking as it comes.
    """

    def __init__(
        self,
        generator: Generator,
        context: Context,
        grammar: TagGrammar | None,
        parser: Parser | None,
        *,
        room: Callable[[int], int],
        sampling: Mapping[str, Any],
        price: Price | None,
        budget: Budget,
        show: Callable[[str], None],
    ) -> None:
        self._generator, self._context, self._parser = generator, context, parser
        self._stops = grammar.stops if grammar is not None else ()
        self._room, self._sampling, self._price, self._budget, self._show = room, sampling, price, budget, show
        self._keeps_stop = generator.capabilities.keeps_stop
        self._finish: Finish = "end"
        self._fed = 0  # characters given to the parser before the current piece
        self.segments: list[Segment] = []
        self.usage = Usage()
        self.cost_usd = 0.0

    async def run(self) -> None:
        """Generate until an action closes, the model ends, or no room is left.

        Raises:
            BudgetExceeded: the next piece could cost more than is left.
        """
        while True:
            used, fed = self.usage.output_tokens, self._fed
            room = self._room(used)
            if room <= 0:
                self._finish = "length"
                return
            await self._piece(room)
            if self._parser is None or self._parser.closed or self._finish != "stop":
                return
            stuck = self._fed == fed or self.usage.output_tokens == used  # it would be asked again for ever
            if stuck or not self._generator.capabilities.continue_turn:
                self._finish = "end"
                return

    def turn(self) -> Turn:
        if self._parser is None:
            text = "".join(segment.text for segment in self.segments)
            turn = Turn(text, text)
        else:
            turn = self._parser.finish()
        return replace(turn, finish=self._finish, context=self._context.index, usage=self.usage)

    async def _piece(self, room: int) -> None:
        context = self._context
        prompt_tokens = context.tokens
        request = GenerationRequest(
            messages=tuple(context.messages),
            prefix=context.prefix,
            token_ids=None if context.token_ids is None else tuple(context.token_ids),
            stop=self._stops,
            max_tokens=room,
            request_id=context.request_id,
            sampling=self._sampling,
        )
        reservation = self._budget.reserve(self._cost(Usage(prompt_tokens, room)))
        piece = _Piece()
        try:
            async with aclosing(self._generator.generate(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    text = clean(chunk.text)
                    piece.add(chunk, text)
                    self._feed(text)
                    if self._parser is not None and self._parser.closed:
                        break
        finally:
            usage = piece.used(prompt_tokens)
            cost = self._cost(usage)
            self._budget.settle(reservation, cost)
            self.usage += usage
            self.cost_usd += cost
            self._keep(piece)

    def _cost(self, usage: Usage) -> float:
        return per_token(usage, self._price) if self._price is not None else 0.0

    def _feed(self, text: str) -> None:
        shown = text if self._parser is None else self._parser.feed(text)
        if shown:
            self._show(shown)

    def _keep(self, piece: _Piece) -> None:
        """Append the piece to the context, cut after the token in which the first closed action ends."""
        self._finish = piece.finish
        parser, ids, logprobs = self._parser, piece.token_ids, piece.logprobs
        if ids is not None and (parser is None or not parser.closed):
            # What the ids say beyond the text (a stop string cut off, the rest of the token in which it ends) is in the
            # context, so it is parsed too.
            whole = self._generator.decode(ids)
            if whole.startswith(piece.text):
                self._add(piece, whole[len(piece.text) :])
        missing = ""
        if parser is not None and not parser.closed and piece.finish == "stop" and not self._keeps_stop:
            missing = parser.missing_stop()
            if ids is None:
                self._add(piece, missing)
                missing = ""
            else:
                self._feed(missing)
        text = piece.text
        counts = len(text)
        if parser is not None and parser.closed:
            self._finish = "stop"
            counts = min(counts, max(0, parser.end - self._fed))
            if ids is None:
                text = text[:counts]
            else:
                kept = tokens_covering(self._generator, ids, counts)
                ids, logprobs = ids[:kept], None if logprobs is None else logprobs[:kept]
                text = self._generator.decode(ids)
        self._fed += len(piece.text) + len(missing)
        self._append(text, counts, ids, logprobs)
        if missing:  # the policy said it and the generator withheld it: in the context, but nothing to train on
            self._append(missing, len(missing), None, None)

    def _add(self, piece: _Piece, text: str) -> None:
        piece.texts.append(text)
        self._feed(text)

    def _append(self, text: str, counts: int, ids: Sequence[int] | None, logprobs: Sequence[float] | None) -> None:
        if not text and not ids:
            return
        context = self._context
        trainable = context.trainable and ids is not None
        if logprobs is not None and not all(map(math.isfinite, logprobs)):
            logprobs = None  # no JSON line holds such a number, and no training could use it
        context.prefix += text[:counts]
        if context.token_ids is not None:
            ids = self._generator.encode(text[:counts]).token_ids or () if ids is None else ids
            context.token_ids.extend(ids)
        self.segments.append(
            Segment(
                "policy",
                text,
                context.index,
                None if ids is None else tuple(ids),
                None if logprobs is None else tuple(logprobs),
                trainable=trainable,
                text_end=counts if counts < len(text) else None,
            )
        )


class _Piece:
    """The chunks of one generation, joined."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] | None = None
        self.logprobs: list[float] | None = None
        self.finish: Finish = "end"
        self.usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, chunk: Chunk, text: str) -> None:
        self.texts.append(text)
        if chunk.token_ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids.extend(chunk.token_ids)
        if chunk.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.extend(chunk.logprobs)
        self.finish = chunk.finish or self.finish
        self.usage = chunk.usage or self.usage

    def used(self, prompt_tokens: int) -> Usage:
        """What the generator counted, else what we count, else an estimate, marked."""
        if self.usage is not None:
            return self.usage
        if self.token_ids is not None:
            return Usage(prompt_tokens, len(self.token_ids))
        return Usage(prompt_tokens, -(-len(self.text) // CHARS_PER_TOKEN), estimated=True)


def tokens_covering(generator: Generator, ids: Sequence[int], characters: int) -> int:
    """How many leading tokens it takes to decode to at least `characters` characters."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(generator.decode(ids[:middle])) < characters:
            low = middle + 1
        else:
            high = middle
    return low


def cut(generator: Generator, reply: str, limit: int) -> str:
    """The reply, shortened to `limit` tokens of the policy's tokeniser; ` […]` marks that it was."""
    roomy = reply[: limit * 32]  # so that a megabyte is never tokenised for the sake of 600 tokens
    ids = generator.encode(roomy).token_ids
    if ids is None:
        kept = roomy[: limit * CHARS_PER_TOKEN]
    elif len(ids) > limit:
        kept = generator.decode(ids[:limit]).rstrip("\ufffd")  # half a character
    elif len(roomy) == len(reply):
        return reply
    else:
        kept = roomy
    return reply if len(kept) >= len(reply) else kept.rstrip() + " […]"


def check_generator(grammar: TagGrammar, generator: Generator) -> None:
    """A grammar that goes on inside the assistant's turn needs a generator that can.

    Raises:
        ConfigError: it cannot; says what to use instead.
    """
    if grammar.continues and not generator.capabilities.continue_turn:
        raise ConfigError(
            f"grammar {grammar.name!r} continues the assistant's turn, which generator {generator.name!r} cannot; "
            "use a grammar that does not (tool calls), or a completions endpoint such as `vllm serve`"
        )
