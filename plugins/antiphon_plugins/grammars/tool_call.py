"""A grammar for chat endpoints, which cannot continue an assistant's turn: one JSON tool call ends each message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from antiphon.contracts import MemberView
from antiphon.types import Action, Answer, Call, Invalid, Message, Task, Turn, clean

from ._prompts import Prompt
from ._replies import blank, told
from ._routing import routed
from ._scanner import TagScanner

TAGS = ("tool_call", "tool_response")

_PROMPT = """\
You answer a question with the help of other language models, the members of your pool.

The pool:
{{members}}

End each of your messages with one tool call, and write nothing after it. Before it, think as much as you need. \
There are two tools:
- Ask a member of the pool: \
<tool_call>{"name": "ask", "arguments": {"member": "MEMBER-NAME", "query": "YOUR-QUERY"}}</tool_call> \
The member sees nothing but the query, so it must be understood on its own. The reply comes in the next message.
- Give the answer, which ends the task: \
<tool_call>{"name": "answer", "arguments": {"text": "THE-ANSWER"}}</tool_call> \
The answer alone, as short as it can be.

You can ask {{rounds}} times at most. Members cost money and time: ask when you are not sure, prefer the \
cheapest member that is likely to know, and ask another one when a reply does not help.

Question: {{question}}
"""


class ToolCallGrammar:
    """Free text, then `<tool_call>{"name": "ask" | "answer", "arguments": {…}}</tool_call>`.

    Replies come as the next user message, each in a `<tool_response>` block. A message without a tool call is no
    action. The rules, with every problem code, are in `docs/reference/grammars.md`.

    Args:
        style: how members are shown: `full`, `compact` or `none`.
        template: path of a prompt file of the user's own; see `Prompt`.

    Raises:
        ConfigError: the style or the template does not hold.
    """

    name = "tool_call"
    version = "1"
    stops = ("</tool_call>",)
    continues = False

    def __init__(self, *, style: str = "full", template: str | Path | None = None) -> None:
        self._prompt = Prompt(_PROMPT, style=style, template=template)
        self.template = self._prompt.hash

    def prompt(self, task: Task, members: Sequence[MemberView], rounds: int) -> list[Message]:
        return self._prompt.messages(task, members, rounds)

    def parser(self, resolve: Callable[[str], str | None], members: Sequence[str], first: bool) -> ToolCallParser:
        return ToolCallParser(resolve)

    def information(self, items: Sequence[Call | Invalid], members: Sequence[str], cut: Callable[[str], str]) -> str:
        """One block per item, in the order given; of several, each says which member it came from."""
        blocks = []
        for item in items:
            label = f"{item.member}:\n" if len(items) > 1 and isinstance(item, Call) and item.ok else ""
            blocks.append(f"<tool_response>\n{label}{told(item, members, TAGS, cut)}\n</tool_response>")
        return "\n".join(blocks)

    def check(self, turns: Sequence[Turn]) -> tuple[str, ...]:
        """The problems of its turns; other than one answer, at the end (`no_answer`, `several_answers`)."""
        problems = [problem for turn in turns for problem in turn.problems]
        if not turns or not isinstance(turns[-1].action, Answer):
            problems.append("no_answer")
        if sum(isinstance(turn.action, Answer) for turn in turns) > 1:
            problems.append("several_answers")
        return tuple(dict.fromkeys(problems))


class ToolCallParser(TagScanner):
    """Parses one message."""

    def __init__(self, resolve: Callable[[str], str | None]) -> None:
        super().__init__(TAGS)
        self._resolve = resolve
        self._thinking: list[str] = []
        self._call: list[str] | None = None  # the text of the open tool call

    def missing_stop(self) -> str:
        return "" if self._call is None else "</tool_call>"

    def finish(self) -> Turn:
        unclosed = self._call is not None and not self.closed
        problems = [*self._problems, "unclosed"] if unclosed else self._problems
        return Turn(
            text="".join(self._text) + self._held,
            thinking=("".join(self._thinking) + ("" if unclosed else self._held)).strip(),
            action=self._action,
            problems=tuple(dict.fromkeys(problems)),
        )

    def _say(self, text: str) -> str:
        (self._thinking if self._call is None else self._call).append(text)
        return text if self._call is None else ""

    def _tag(self, written: str) -> str:
        inside = self._call is not None
        if written == "<tool_call>" and not inside:
            self._call = []
        elif written == "</tool_call>" and self._call is not None:
            self._act("".join(self._call))
        else:  # a tag where it means nothing: text, and a fault
            outside = "unopened" if written.startswith("</") else "forged_information"
            self._problems.append("nested" if inside else outside)
            return self._take(written)
        self._count(written)
        return ""

    def _act(self, content: str) -> None:
        self._action = called(content, self._resolve)
        if isinstance(self._action, Invalid):
            self._problems.append(self._action.reason)
        elif isinstance(self._action, Answer) and not self._action.text:
            self._problems.append("empty_answer")


def called(content: str, resolve: Callable[[str], str | None]) -> Action:
    """What a tool call's JSON asks for. `arguments` may be an object, or a string that holds one."""
    try:
        call = _read(content)
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = _read(arguments)
    except (ValueError, RecursionError) as error:
        return Invalid("bad_json", f"the tool call is not JSON ({error}); double quotes, no line break in a string")
    if not isinstance(call, dict) or not isinstance(arguments, dict):
        return Invalid("bad_json", 'the tool call is not an object with "name" and with "arguments", an object too')
    tool = str(call.get("name"))
    fields = {"ask": ("member", "query"), "answer": ("text",)}.get(tool)
    if fields is None:
        return Invalid("unknown_tool", f'no tool is called {clean(tool[:100])!r}; there are "ask" and "answer"')
    said = []
    for field in fields:
        value = arguments.get(field)
        if not isinstance(value, str):
            return Invalid("missing_field", f'the tool call {tool!r} needs "{field}", a string')
        said.append(clean(value))  # JSON escapes can hold lone surrogates
    if tool == "ask":
        return routed(said[0], said[1], resolve)
    return Answer("" if blank(said[0]) else said[0].strip())


_read = partial(json.loads, parse_int=str, parse_float=str, parse_constant=str)  # models leave numbers unquoted
