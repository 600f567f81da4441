"""The tag grammar of Router-R1: think, search, information, answer (arXiv 2506.09033, §3 and appendix A.1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.contracts import MemberView
from antiphon.errors import ConfigError, did_you_mean
from antiphon.names import fold
from antiphon.types import Answer, Call, Invalid, Message, Route, Task, Turn

from ._prompts import Prompt
from ._replies import blank, told
from ._routing import routed
from ._scanner import TagScanner

TAGS = ("think", "search", "information", "answer")
RULES = ("default", "released")

_PROMPT = """\
You answer a question with the help of other language models, the members of your pool.

The pool:
{{members}}

How to write:
- Reason inside <think> and </think>. Begin with it, and reason again each time you have read something new.
- To ask a member, write <search>MEMBER-NAME: YOUR-QUERY</search> with the exact name of one member of the pool, \
a colon, and a question that can be understood on its own. Its reply is put between <information> and </information>; \
never write that block yourself.
- You can ask {{rounds}} times at most. Members cost money and time: ask when you are not sure, prefer the cheapest \
member that is likely to know, and ask another one when a reply does not help.
- When you know the answer, write it between <answer> and </answer>: the answer alone, as short as it can be.

Never put one block inside another.

Question: {{question}}
"""


class RouterR1Grammar:
    """`<think>…</think>`, `<search>name: query</search>`, `<information>…</information>`, `<answer>…</answer>`.

    Tags are exact and in lower case. The first closed search or answer block at top level ends a turn. Nothing opens
    inside an open block. The rules, with every problem code, are in `docs/reference/grammars.md`.

    Args:
        style: how members are shown: `full`, `compact` or `none`; `member`: by a line of the user's own instead.
        template: path of a prompt file of the user's own; `prompt`: the same as text; see `Prompt`.
        examples: worked trajectories to show as earlier turns, `{question = "…", text = "…"}` each: a model that was
            not trained for this grammar keeps to it better so.
        rules: `default`, or `released`: also what the paper's released code asks of a search block: exactly one
            colon, and a query without the name of the member it is put to.

    Raises:
        ConfigError: the style, the prompt, an example or the rules do not hold.
    """

    name = "router_r1"
    stops = ("</search>", "</answer>")
    continues = True

    def __init__(
        self,
        *,
        style: str = "full",
        template: str | Path | None = None,
        prompt: str | None = None,
        member: str | None = None,
        examples: Sequence[Mapping[str, Any]] = (),
        rules: str = "default",
    ) -> None:
        if rules not in RULES:
            raise ConfigError(f"router_r1: no rules {rules!r}{did_you_mean(rules, RULES)}")
        if prompt is not None and template is not None:
            raise ConfigError(
                "router_r1: give either `prompt` (text) or `template` (a file), not both; where a model of the "
                "configuration brings its own prompt, configure a model without one"
            )
        self.version = "1" if rules == "default" else f"1-{rules}"
        self._rules = rules
        self._prompt = Prompt(prompt or _PROMPT, style=style, template=template, member=member, examples=examples)
        self.template = self._prompt.hash

    def prompt(self, task: Task, members: Sequence[MemberView], rounds: int) -> list[Message]:
        return self._prompt.messages(task, members, rounds)

    def parser(self, resolve: Callable[[str], str | None], members: Sequence[str], first: bool) -> TagParser:
        return TagParser(resolve, first, one_colon=self._rules == "released")

    def information(self, items: Sequence[Call | Invalid], members: Sequence[str], cut: Callable[[str], str]) -> str:
        """One block per item, in the order given; of several, each says which member it came from."""
        several = len(items) > 1
        blocks = []
        for item in items:
            said = told(item, members, TAGS, cut)
            label = f"{item.member}:\n" if several and isinstance(item, Call) and item.ok else ""
            blocks.append(f"<information>\n{label}{said}\n</information>\n")
        return "\n" + "".join(blocks)

    def check(self, turns: Sequence[Turn]) -> tuple[str, ...]:
        """The problems of its turns; no think block that says anything (`no_think`); other than one answer, at the end
        (`no_answer`, `several_answers`)."""
        problems = [problem for turn in turns for problem in turn.problems]
        if all(_says_nothing(turn.thinking) for turn in turns):
            problems.append("no_think")
        if not turns or not isinstance(turns[-1].action, Answer):
            problems.append("no_answer")
        if sum(isinstance(turn.action, Answer) for turn in turns) > 1:
            problems.append("several_answers")
        return tuple(dict.fromkeys(problems))


class TagParser(TagScanner):
    """Parses one turn.

    Args:
        resolve: what the policy wrote for a member -> its canonical name, or None.
        first: whether it is the first turn of its context, which must begin with a think block.
        one_colon: a search block has exactly one colon, and its query does not repeat the member's name.
    """

    def __init__(self, resolve: Callable[[str], str | None], first: bool, *, one_colon: bool = False) -> None:
        super().__init__(TAGS)
        self._one_colon = one_colon
        self._resolve = resolve
        self._before_think = first
        self._open: str | None = None
        self._block: list[str] = []
        self._inner: str | None = None  # the search or answer tag last written inside it, not yet closed
        self._thoughts: list[str] = []

    def missing_stop(self) -> str:
        """Of the block now open; inside a think block, of the search or answer tag last opened there; else nothing."""
        tag = self._inner or self._open
        return f"</{tag}>" if tag in ("search", "answer") else ""

    def finish(self) -> Turn:
        problems, thoughts = list(self._problems), list(self._thoughts)
        if self._open == "think":  # cut off in the middle of a thought
            thoughts.append("".join(self._block) + self._held)
        if self._open is not None:
            problems.append("unclosed")
        if self._before_think and self._held:
            problems.append("no_think_first")
        return Turn(
            text="".join(self._text) + self._held,
            thinking="\n".join(thought.strip() for thought in thoughts),
            action=self._action,
            problems=tuple(dict.fromkeys(problems)),
        )

    def _say(self, text: str) -> str:
        if self._open is None:
            if self._before_think and not blank(text):
                self._not_first()
            return ""
        self._block.append(text)
        return text if self._open == "think" else ""

    def _tag(self, written: str) -> str:
        tag, closing = written.strip("</>"), written[1] == "/"
        if closing and tag == self._open:
            self._count(written)
            self._close(tag, "".join(self._block))
            return ""
        if closing or self._open is not None:  # a tag where it means nothing: text, and a fault
            self._problems.append("unopened" if closing else "nested")
            if closing:
                self._inner = None if tag == self._inner else self._inner
            elif tag in ("search", "answer"):
                self._inner = tag
            return self._take(written)
        if tag != "think" and self._before_think:
            self._not_first()
        if tag == "information":
            self._problems.append("forged_information")
        self._before_think = False
        self._count(written)
        self._open, self._block, self._inner = tag, [], None
        return ""

    def _not_first(self) -> None:
        self._before_think = False
        self._problems.append("no_think_first")

    def _close(self, tag: str, content: str) -> None:
        self._open, self._inner = None, None
        if tag == "think":
            self._thoughts.append(content)
            if _says_nothing(content):
                self._problems.append("empty_think")
        elif tag == "answer":
            text = "" if blank(content) else content.strip()
            self._action = Answer(text)
            if not text:
                self._problems.append("empty_answer")
        elif tag == "search":
            self._action = self._searched(content)
            if isinstance(self._action, Invalid):
                self._problems.append(self._action.reason)

    def _searched(self, content: str) -> Route | Invalid:
        name, colon, query = content.partition(":")
        if not colon:
            return Invalid("no_colon", "a search block is a member's name, a colon and the query; there is no colon")
        if self._one_colon and ":" in query:
            return Invalid("several_colons", "the search block has more than one colon; write the query without one")
        if self._one_colon and fold(name) and fold(name) in fold(query):
            return Invalid("name_in_query", "the query repeats the member's name; write the question alone")
        return routed(name, query, self._resolve)


def _says_nothing(thought: str) -> bool:
    return blank(thought.replace(".", "").replace("…", ""))
