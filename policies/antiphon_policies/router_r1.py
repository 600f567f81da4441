"""The Router-R1 orchestrator: think, ask one member at a time, read its reply, answer (arXiv 2506.09033, §3)."""

from __future__ import annotations

from antiphon.contracts import TagGrammar
from antiphon.rollout import Rollout
from antiphon.types import Answer, Invalid, Message, Route, Task

from ._texts import MEMBER_PROMPT


class RouterR1:
    """Lets the model go on turn by turn until it answers, or until the rollout stops it.

    Args:
        grammar: the language it speaks. `needs_grammar` tells whoever makes a policy to make the grammar first (from
            its own options: style, template) and to hand it over.
        member_prompt: what a member is told before the query, as a system message; default: our own words for the
            paper's prompt. An empty string sends the query alone.
    """

    name = "router_r1"
    needs_grammar = True

    def __init__(self, grammar: TagGrammar, *, member_prompt: str | None = None) -> None:
        self.grammar = grammar
        self.member_prompt = MEMBER_PROMPT if member_prompt is None else member_prompt

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        prompt = self.grammar.prompt(task, rollout.pool, rollout.limits.rounds)
        context = rollout.context(prompt, trainable=True)
        while True:
            turn = await rollout.generate(context, self.grammar)
            match turn.action:
                case Answer(text=text):
                    return text
                case Route(member=member, query=query):
                    call = await rollout.ask(member, query, messages=self._messages(query))
                    rollout.observe(context, [call])
                case Invalid() as invalid:
                    rollout.observe(context, [invalid])
                case None:
                    return None

    def _messages(self, query: str) -> list[Message]:
        told = [Message("system", self.member_prompt)] if self.member_prompt else []
        return [*told, Message("user", query)]
