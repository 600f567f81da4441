"""Chat templates and tokenisers: text to ids and back, so that what a user or a member says is never a special id.

Shared by every generator that has a tokeniser, and by the training loops.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from antiphon.contracts import Chunk, Encoded
from antiphon.errors import ConfigError, GeneratorError, MissingExtra, first_line
from antiphon.types import Finish, Message, clean

_OPENERS = ("user", "assistant", "user", "assistant", "user")  # the chat on which a template is tried at start


class Chat:
    """A tokeniser with its chat template, checked once at the start.

    A chat is rendered with a placeholder for each content. The template's own pieces are encoded with special tokens,
    the contents without, and the ids are joined: nothing that a content says can end a turn. Every method is safe
    across threads.

    Attributes:
        turn_end: the special token by which the template ends an assistant's turn, or None.
        end_ids: tokens that end a generation.

    Args:
        tokenizer: a fast tokeniser of transformers.
        source: what to call it in errors: a path or a model's name.
        template: Jinja text to use instead of the tokeniser's own template.

    Raises:
        ConfigError: no chat template, one that is not prefix-preserving, or a tokeniser that changes text.
    """

    def __init__(self, tokenizer: Any, *, source: str, template: str | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{source}: needs a fast tokeniser (tokenizer.json); save one with the tokenizers library"
            )
        self.source = source
        self._tokenizer = tokenizer
        self._template = template
        # Two copies of our own: whether special tokens are parsed is a state of the object, and others share theirs.
        self._marked, self._plain = (type(backend).from_str(backend.to_str()) for _ in range(2))
        for copy in (self._marked, self._plain):
            copy.no_truncation()
            copy.no_padding()
        self._plain.encode_special_tokens = True
        if template is None and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{source}: the tokeniser has no chat template (a base model?); use an instruct model, or give "
                "chat_template = the path of a Jinja file"
            )
        self._check_text()
        self._close, self._open = self._check_prefixes()
        closing = self._marked.encode(self._close, add_special_tokens=False).ids
        special = {i for i, token in self._marked.get_added_tokens_decoder().items() if token.special}
        own = {tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set()
        self.turn_end: int | None = closing[0] if closing and closing[0] in special else None
        self.end_ids: frozenset[int] = frozenset(own if self.turn_end is None else own | {self.turn_end})
        self._special = special

    def add_ends(self, token_ids: Iterable[int]) -> None:
        """Further ids that end a generation, such as those that a model's configuration names."""
        self.end_ids |= frozenset(token_ids)

    def open(self, messages: Sequence[Message]) -> Encoded:
        """The chat up to the start of the assistant's turn: text, and ids."""
        pieces = self._pieces([message.role for message in messages])
        text, ids = pieces[0], self._marks(pieces[0])
        for message, piece in zip(messages, pieces[1:], strict=True):
            content = clean(message.content)
            text += content + piece
            ids += self._plain_ids(content) + self._marks(piece)
        return Encoded(text, tuple(ids))

    def turn(self, text: str) -> Encoded:
        """What ends the assistant's turn, says `text` as the user, and opens the next assistant turn.

        The ids begin with the token that ends a turn, so the context must not hold it already.
        """
        text = clean(text)
        ids = self._marks(self._close) + self._plain_ids(text) + self._marks(self._open)
        return Encoded(self._close + text + self._open, tuple(ids))

    def encode(self, text: str) -> Encoded:
        """Plain text: no special ids."""
        text = clean(text)
        return Encoded(text, tuple(self._plain_ids(text)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special and end-of-turn tokens left out."""
        kept = [i for i in token_ids if i not in self._special and i not in self.end_ids]
        return str(self._plain.decode(kept, skip_special_tokens=False))

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _marks(self, text: str) -> list[int]:
        return list(self._marked.encode(text, add_special_tokens=False).ids) if text else []

    def _pieces(self, roles: Sequence[str], *, open_turn: bool = True) -> list[str]:
        """The template's own text before, between and after the contents of a chat of these roles."""
        key = uuid.uuid4().hex  # new for each rendering: no content can know it
        marks = [f"q{key}n{index}q" for index in range(len(roles))]
        text = self._render([{"role": r, "content": m} for r, m in zip(roles, marks, strict=True)], open_turn)
        found = re.findall(f"q{key}n\\d+q", text)
        if found != marks:
            raise ConfigError(
                f"{self.source}: the chat template does not show each message once and in order (roles: "
                f"{', '.join(roles)}); merge or reorder the messages, or give chat_template = a Jinja file that does"
            )
        return re.split("|".join(marks), text) if marks else [text]

    def _render(self, chat: list[dict[str, str]], open_turn: bool) -> str:
        from jinja2 import TemplateError

        try:
            rendered = self._tokenizer.apply_chat_template(
                chat, chat_template=self._template, tokenize=False, add_generation_prompt=open_turn
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in chat)
            raise ConfigError(
                f"{self.source}: the chat template refuses a chat of roles {roles} ({error}); "
                "give chat_template = the path of a Jinja file that takes it"
            ) from None
        return str(rendered)

    def _check_prefixes(self) -> tuple[str, str]:
        """What closes an assistant's turn and says the next user's content after it; prefix-preservation on the way."""
        whole = self._pieces(_OPENERS)
        for length in (1, 3):
            if self._pieces(_OPENERS[:length]) != whole[: length + 1] or whole[4:] != whole[2:4]:
                raise ConfigError(
                    f"{self.source}: the chat template is not prefix-preserving: a longer chat does not begin with the "
                    "shorter one and the assistant's text, so that ids would change under the policy; give "
                    "chat_template = the path of a Jinja file that keeps earlier turns as they were"
                )
        return whole[2], whole[3]

    def _check_text(self) -> None:
        for sample in (" a", "a  b\n\n<search>c: d</search>\n", "é¿😀"):
            back = self._plain.decode(self._plain_ids(sample), skip_special_tokens=False)
            if back != sample:
                raise ConfigError(
                    f"{self.source}: the tokeniser does not give text back as it was ({sample!r} became {back!r}), so "
                    "turns cannot be continued exactly; serve the model with vLLM and use generator = 'openai'"
                )


class Detokeniser:
    """Ids to text as they come; the pieces join to `chat.decode(ids)`. A half character waits for its rest."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._ids: list[int] = []
        self._start = 0  # where the window begins whose text is compared: at a character's end
        self._shown = 0  # ids whose text has been given out

    def add(self, token_id: int) -> str:
        self._ids.append(token_id)
        return self._advance(final=False)

    def finish(self) -> str:
        """What was held back."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        before = self._chat.decode(self._ids[self._start : self._shown])
        now = self._chat.decode(self._ids[self._start :])
        if len(now) <= len(before) or (now.endswith("\ufffd") and not final):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


class Utterance:
    """One generation as its tokens come: their text, and whether the last of them ended it.

    Args:
        stop: strings at which it ends; they are part of it.
        max_tokens: after so many it ends.

    Attributes:
        ids: what has been said.
    """

    def __init__(self, chat: Chat, stop: Iterable[str], max_tokens: int) -> None:
        self._chat, self._stop, self._max_tokens = chat, tuple(s for s in stop if s), max_tokens
        self._detokeniser = Detokeniser(chat)
        self._text = ""
        self.ids: list[int] = []

    @property
    def room(self) -> int:
        """How many tokens may still come."""
        return self._max_tokens - len(self.ids)

    def add(self, token_id: int, logprob: float) -> Chunk:
        """What the next token adds; `finish` is set where it is the last.

        Raises:
            GeneratorError: the log-probability is not a number.
        """
        if math.isnan(logprob):
            raise GeneratorError("its scores are not numbers")
        self.ids.append(token_id)
        piece = self._detokeniser.add(token_id)
        finish: Finish | None = None
        if token_id in self._chat.end_ids:
            finish = "end"
        elif piece and find_stop(self._text + piece, self._stop, len(self._text)) is not None:
            finish = "stop"
        elif self.room <= 0:
            finish = "length"
        if finish is not None:
            piece += self.cut()
        self._text += piece
        return Chunk(piece, (token_id,), (logprob,), finish)

    def cut(self) -> str:
        """What was held back of a half character: when no more will come."""
        return self._detokeniser.finish()


def load_chat(path: Path, chat_template: str | Path | None) -> Chat:
    """The tokeniser of a model folder with its chat template, or with the one of a Jinja file."""
    return Chat(load_tokenizer(path), source=str(path), template=read_template(chat_template))


def load_tokenizer(path: Path) -> Any:
    """The tokeniser of a model folder.

    Raises:
        MissingExtra: transformers is not installed.
        ConfigError: there is no tokeniser at `path`.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("a tokeniser", "local") from None
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder; a tokeniser is a folder with tokenizer.json in it")
    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no usable tokeniser ({first_line(error)}); it needs tokenizer.json") from None


def read_template(path: str | Path | None) -> str | None:
    """The Jinja text of a `chat_template` option."""
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template {str(path)!r} cannot be read: {error}") from None


def find_stop(text: str, stops: Iterable[str], start: int) -> int | None:
    """Where the first stop string that ends after `start` ends in `text`; None: nowhere."""
    ends = []
    for stop in stops:
        found = text.find(stop, max(0, start - len(stop) + 1))
        if found >= 0:
            ends.append(found + len(stop))
    return min(ends, default=None)
