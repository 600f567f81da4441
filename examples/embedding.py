"""Antiphon inside a program of your own: functions as pool members, a policy in five lines, a stream, a batch.

Runs offline, without a key or a model: `python examples/embedding.py`.
"""

from __future__ import annotations

import asyncio

from antiphon import Message, Orchestrator
from antiphon.testing import ScriptedGenerator
from antiphon_pools.adapters.function import member

CAPITALS = {"france": "Paris", "peru": "Lima", "japan": "Tokyo"}


def capitals(question: str) -> str:
    """A member that looks things up."""
    return next((city for country, city in CAPITALS.items() if country in question.lower()), "I do not know.")


async def oracle(question: str) -> str:
    """A member that takes its time and knows less."""
    await asyncio.sleep(0.01)
    return "The answer lies within you."


POOL = [
    member(capitals, name="Atlas", description="Knows capitals of countries.", price={"input": 1, "output": 1}),
    member(oracle, name="Oracle", description="Speaks in riddles."),
]


class AskEverybody:
    """The whole of a policy: ask all members at once, take the first reply that knows."""

    name = "ask_everybody"

    async def run(self, task, rollout):
        calls = await asyncio.gather(*(rollout.ask(view.name, task.question) for view in rollout.pool))
        return next((call.reply for call in calls if call.ok and call.reply in CAPITALS.values()), None)


class Summarise:
    """A policy that thinks with a model of its own: ask, then let the model put the reply into words."""

    name = "summarise"

    async def run(self, task, rollout):
        call = await rollout.ask("Atlas", task.question)
        context = rollout.context([Message("user", f"{task.question} Somebody says: {call.reply}")])
        return (await rollout.generate(context)).text


async def main() -> None:
    async with Orchestrator(pool=POOL, policy=AskEverybody(), max_cost_usd=0.01) as orchestrator:
        trajectory = await orchestrator.aask("What is the capital of France?")
        print(
            trajectory.answer,
            "| asked",
            [call.member for call in trajectory.calls],
            f"| ${trajectory.cost_usd:.6f}",
        )

        trajectories = await orchestrator.abatch(
            [f"What is the capital of {name}?" for name in CAPITALS], concurrency=2
        )
        print([trajectory.answer for trajectory in trajectories])

    model = ScriptedGenerator(lambda request: "It is Lima, they say.")  # in earnest: model="a configured model"
    async with Orchestrator(pool=POOL, policy=Summarise(), model=model) as orchestrator:
        async for event in orchestrator.astream("What is the capital of Peru?"):
            print(event.kind, event.text.strip())


if __name__ == "__main__":
    asyncio.run(main())
