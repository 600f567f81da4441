"""Whatever the backend (chunks, ids or none, text cut at the stop or not), a script gives the same trajectory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.contracts import Capabilities, Chunk
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Limits, Rollout
from antiphon.types import Task
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_policies.router_r1 import RouterR1

PIECES = [
    "<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>",
    "Ann: q", "<think>a</think>", "<search>Ann: q</search>", "<answer>b</answer>", "<", ">", "</", "\n\n", ">\n", "é",
    "🜚", " x ", "...",
]  # fmt: skip
SCRIPTS = st.lists(st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=8).map("".join), max_size=7)


class Trims(ScriptedGenerator):
    """As engines that cut the text right at the stop string, and give the last token's id whole."""

    async def generate(self, request):
        said = ""
        async for chunk in super().generate(request):
            text = chunk.text
            if chunk.finish == "stop":
                whole = said + text
                end = min(whole.index(stop) + len(stop) for stop in request.stop if stop in whole)
                text = whole[:end][len(said) :]
            said += text
            yield replace(chunk, text=text)


class Lags(ScriptedGenerator):
    """As engines whose text trails the ids: all of it comes with the last chunk."""

    async def generate(self, request):
        said = ""
        async for chunk in super().generate(request):
            said += chunk.text
            yield Chunk(said if chunk.finish else "", chunk.token_ids, chunk.logprobs, chunk.finish)


def told(trajectory):
    """What must not depend on the backend. Segments are compared by the text that counts, as one text per run."""
    spans = []
    for segment in trajectory.segments:
        text = segment.text[: segment.text_end]
        if spans and spans[-1][0] == segment.kind == "policy":
            spans[-1] = ("policy", spans[-1][1] + text)
        else:
            spans.append((segment.kind, text))
    turns = [(turn.text, turn.thinking, turn.action, turn.problems, turn.executed) for turn in trajectory.turns]
    calls = [(call.member, call.query, call.round) for call in trajectory.calls]
    return trajectory.answer, trajectory.stop, trajectory.format_problems, turns, calls, spans


async def run(scripted_pool, generator):
    rollout = Rollout(Task("Q?"), scripted_pool(["Ann"], ["reply"] * 9), generator, limits=Limits(turn_tokens=10_000))
    return await rollout.run(RouterR1(RouterR1Grammar()))


# The fixture is a class, so nothing is carried from one example to the next.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(SCRIPTS, st.integers(1, 5))
async def test_the_backend_makes_no_difference(scripted_pool, script, chunk_tokens):
    whole = await run(scripted_pool, ScriptedGenerator(script, chunk_tokens=10_000))
    for made in (ScriptedGenerator, Trims, Lags):
        generator = made(script, chunk_tokens=chunk_tokens)
        trajectory = await run(scripted_pool, generator)
        assert told(trajectory) == told(whole)
        stream: list[int] = []
        for segment in trajectory.segments:
            stream += segment.token_ids
            if segment.kind == "policy":
                assert generator.decode(segment.token_ids) == segment.text
        last = generator.requests[-1].token_ids
        assert stream[: len(last)] == list(last)
    assert [text for kind, text in told(whole)[5] if kind == "policy"] == [
        turn.text for turn in whole.turns if turn.text
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(SCRIPTS, st.integers(1, 5))
async def test_without_ids_the_actions_are_the_same(scripted_pool, script, chunk_tokens):
    """A resumed turn may differ in the letters that a token held behind a stop; what is done does not."""
    script = [text.replace(">\n", "> \r").replace("><", "> <") for text in script]  # a stop ends its token
    capabilities = Capabilities(token_in=False, token_out=False, logprobs=False)
    whole = await run(scripted_pool, ScriptedGenerator(script))
    blind = await run(scripted_pool, ScriptedGenerator(script, capabilities=capabilities, chunk_tokens=chunk_tokens))
    assert told(blind)[:5] == told(whole)[:5]
