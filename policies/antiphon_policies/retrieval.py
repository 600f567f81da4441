"""Baselines that ask a retriever instead of an LLM; it is a member like any other (adapter `bm25`)."""

from __future__ import annotations

from antiphon.contracts import MemberView, TagGrammar
from antiphon.errors import ConfigError
from antiphon.names import Names, named
from antiphon.rollout import Rollout
from antiphon.types import Message, Task

from . import _texts
from ._answering import base_answer
from .router_r1 import RouterR1


class RAG:
    """Puts the question to the retriever, and lets the base model answer from the passages (Lewis et al., arXiv
    2005.11401, in the form of the paper's baseline: one retrieval, then a prompt).

    Args:
        retriever: the member that retrieves; default: the only member of the pool.

    Raises:
        ConfigError: when run: the pool has no such member, or several and none is named.
    """

    name = "rag"

    def __init__(self, *, retriever: str | None = None) -> None:
        self._retriever = retriever

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        member = _retriever(rollout.pool, self._retriever)
        call = await rollout.ask(member, task.question, messages=[Message("user", task.question)])
        if not call.ok:
            rollout.note(f"{member} gave no passages ({call.outcome}); the base model answers alone")
            return await base_answer(_texts.direct(task), rollout)
        return await base_answer(_texts.passages(task, call.reply or ""), rollout)


class SearchR1(RouterR1):
    """Thinks and searches in turns, then answers (Jin et al., "Search-R1", arXiv 2503.09516): the Router-R1 loop over a
    pool that holds a retriever alone, which gets each query as it is.

    In the grammar `router_r1` a query goes behind the retriever's name (`<search>Wikipedia: …</search>`). Search-R1
    itself has no name there, and weights trained by it have not learnt to write one.

    Args:
        grammar: the language it speaks.

    Raises:
        ConfigError: when run: the pool has more than one member.
    """

    name = "search_r1"

    def __init__(self, grammar: TagGrammar) -> None:
        super().__init__(grammar, member_prompt="")

    async def run(self, task: Task, rollout: Rollout) -> str | None:
        _retriever(rollout.pool, None)
        return await super().run(task, rollout)


def _retriever(pool: tuple[MemberView, ...], asked: str | None) -> str:
    names = [view.name for view in pool]
    if asked is not None:
        return named(asked, Names({view.name: view.descriptor.aliases for view in pool}).resolve, pool)
    if len(names) > 1:
        raise ConfigError(
            f"the pool has {len(names)} members ({', '.join(names)}), and which of them retrieves is not said; "
            "name it (`retriever`, policy rag), or take a pool that holds the retriever alone"
        )
    return names[0]
