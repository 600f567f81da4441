"""How a prompt shows the pool, and how a user's own prompt file is filled in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import ConfigError, did_you_mean
from antiphon.types import Message, Task

STYLES = ("full", "compact", "none")
LARGEST_TEMPLATE = 1_000_000
_FIELDS = ("members", "names", "question", "rounds")
_FIELD = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


class Prompt:
    """A prompt made for a task and a pool.

    Args:
        text: the prompt, with `{{members}}`, `{{names}}`, `{{rounds}}` and `{{question}}` where they belong.
        style: how members are shown: `full` (description, size, strengths, price, latency, context), `compact` (size,
            strengths, price on one line) or `none` (names alone).
        member: how a member is shown instead, with any of `{{name}}`, `{{description}}`, `{{strengths}}`, `{{size}}`,
            `{{price}}` and `{{output_price}}` (`$0.2`, per million tokens).
        template: path of a file (UTF-8) to use instead of `text`.
        examples: worked trajectories, each `{question = "…", text = "…"}`, shown as earlier turns of the chat: what
            stands before the line of `{{question}}` is said once, in front of the first. One that also has `members`
            is shown only where all of these are in the pool.

    Raises:
        ConfigError: an unknown style, a file that cannot be read, an unknown placeholder, no `{{question}}` (or no
            `{{name}}` of a member), or an example that is not one.

    Attributes:
        hash: of text, style and examples: what trajectories record as their template.
    """

    def __init__(
        self,
        text: str,
        *,
        style: str,
        template: str | Path | None,
        member: str | None = None,
        examples: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if style not in STYLES:
            raise ConfigError(f"no style {style!r} for members in the prompt{did_you_mean(style, STYLES)}")
        self._shown = _line_of(member) if member is not None else lambda view: shown(view, style)
        text = text if template is None else _read(Path(template))
        where = "the prompt" if template is None else f"prompt template {str(template)!r}"
        _check_fields(text, where, _FIELDS)
        question = next((match.start() for match in _FIELD.finditer(text) if match[1] == "question"), None)
        if question is None:
            raise ConfigError(f"{where} has no {{{{question}}}}; put it where the question belongs, best at the end")
        line = text.rfind("\n", 0, question) + 1
        self._before, self._asked = text[:line], text[line:]
        self._examples = tuple(_example(index, each) for index, each in enumerate(examples))
        hashed = repr(self._examples) if self._examples else ""
        how = style if member is None else member
        self.hash = hashlib.sha256(f"{how}\n{text}{hashed}".encode()).hexdigest()[:16]

    def messages(self, task: Task, members: Sequence[MemberView], rounds: int) -> list[Message]:
        """Examples and earlier turns of the conversation as they were, then the question as the user's last message."""
        values: Mapping[str, Callable[[], str]] = {
            "members": lambda: "\n".join(self._shown(view) for view in members),
            "names": lambda: ", ".join(view.name for view in members),
            "rounds": lambda: str(rounds),
        }

        def filled(text: str, question: str) -> str:
            # One pass: what is put in is never looked at again, so that a question may contain placeholders.
            return _FIELD.sub(lambda match: question if match[1] == "question" else values[match[1]](), text)

        names = {view.name for view in members}
        examples = [example for example in self._examples if names.issuperset(example.members)]
        questions = [*(example.question for example in examples), task.question]
        users = [Message("user", filled(self._asked, question)) for question in questions]
        users[0] = Message("user", filled(self._before + self._asked, questions[0]))
        shown_first = [
            message
            for user, example in zip(users, examples, strict=False)
            for message in (user, Message("assistant", example.text))
        ]
        return [*shown_first, *task.messages, users[-1]]


class _Example(NamedTuple):
    question: str
    text: str
    members: tuple[str, ...]


def _example(index: int, given: Mapping[str, Any]) -> _Example:
    if not isinstance(given, Mapping) or not {"question", "text"} <= set(given) <= {"question", "text", "members"}:
        raise ConfigError(f'example {index + 1} of the prompt: give it as {{ question = "…", text = "…" }}')
    for key in ("question", "text"):
        if not isinstance(given[key], str) or not given[key].strip():
            raise ConfigError(f"example {index + 1} of the prompt: {key} is a string with something in it")
    members = given.get("members", [])
    if not isinstance(members, list | tuple) or not all(isinstance(name, str) for name in members):
        raise ConfigError(f"example {index + 1} of the prompt: members is a list of names")
    return _Example(given["question"], given["text"].strip(), tuple(members))


def shown(view: MemberView, style: str) -> str:
    """One member as the policy reads it."""
    member = view.descriptor
    if style == "none":
        return f"- {member.name}"
    facts = [
        _size(member),
        f"good at {', '.join(map(_line, member.strengths))}" if member.strengths else "",
        _price(view.quote),
    ]
    if style == "compact":
        told = "; ".join(filter(None, facts))
        return f"- {member.name}: {told or _line(member.description)}"
    if member.latency is not None:
        first, then = member.latency.first_token_s, member.latency.tokens_per_s
        facts.append(f"first token after {first:g} s, then {then:g} tokens a second")
    if member.context_tokens is not None:
        facts.append(f"reads up to {member.context_tokens:,} tokens")
    told = "; ".join(filter(None, facts))
    return f"- {member.name}: {_line(member.description)}" + (f" ({told})" if told else "")


def _line_of(template: str) -> Callable[[MemberView], str]:
    """Shows a member by a line of the user's own."""
    values: Mapping[str, Callable[[MemberView], str]] = {
        "name": lambda view: view.name,
        "description": lambda view: _line(view.descriptor.description),
        "strengths": lambda view: ", ".join(map(_line, view.descriptor.strengths)),
        "size": lambda view: _size(view.descriptor),
        "price": lambda view: _price(view.quote),
        "output_price": lambda view: "" if view.quote is None else f"${view.quote.output:g}",
    }
    where = "the prompt's line of a member"
    _check_fields(template, where, tuple(values))
    if "name" not in _FIELD.findall(template):
        raise ConfigError(f"{where} has no {{{{name}}}}; without it nobody can be asked")
    return lambda view: _FIELD.sub(lambda match: values[match[1]](view), template)


def _check_fields(text: str, where: str, known: Sequence[str]) -> None:
    for name in sorted(set(_FIELD.findall(text)) - set(known)):
        raise ConfigError(f"{where}: unknown placeholder {{{{{name}}}}}{did_you_mean(name, known)}")


def _size(member: Descriptor) -> str:
    if member.parameters_b is None:
        return ""
    active = member.active_parameters_b
    partly = f", {active:g}B active" if active is not None and active != member.parameters_b else ""
    return f"{member.parameters_b:g}B parameters{partly}"


def _price(quote: Price | None) -> str:
    if quote is None:
        return ""
    if not quote.output and not quote.input:
        return "free"
    taken = f"${quote.input:g} in, " if quote.input else ""
    return f"price {taken}${quote.output:g} out per million tokens"


def _line(text: str) -> str:
    return " ".join(text.split())


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEMPLATE:
            raise ConfigError(f"prompt template {str(path)!r} is larger than {LARGEST_TEMPLATE:,} bytes; shorten it")
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"prompt template {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"prompt template {str(path)!r} is not UTF-8; save it as UTF-8") from None
