"""What a rollout records is token-exact: a context's ids are what the generator saw, and masks follow the segments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.contracts import Capabilities, Chunk
from antiphon.errors import ConfigError
from antiphon.generators.scripted import ScriptedGenerator
from antiphon.rollout import Limits, Rollout
from antiphon.types import Answer, Call, Message, Task, Trajectory
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_plugins.grammars.tool_call import ToolCallGrammar
from antiphon_policies.router_r1 import RouterR1

NO_IDS = Capabilities(token_in=False, token_out=False, logprobs=False)
ROUTE = "<think>I ask.</think>\n<search>Ann: who é?</search>\n\nand more"
ANSWER = "<think>So.</think><answer>Bo</answer>\n"


def ids_seen_next(trajectory: Trajectory, generator: ScriptedGenerator, context: int = 0) -> None:
    """Every request's ids are the segments before it, joined; segments' texts are what their ids decode to."""
    segments = trajectory.contexts[context]
    boundaries = [[]]
    for segment in segments:
        assert segment.token_ids is not None
        boundaries.append([*boundaries[-1], *segment.token_ids])
        if segment.kind == "policy":
            assert generator.decode(segment.token_ids) == segment.text
        if segment.logprobs is not None:
            assert len(segment.logprobs) == len(segment.token_ids)
    requests = [list(r.token_ids) for r in generator.requests if r.request_id.endswith(f"-{context}")]
    starts = [boundaries[i] for i, segment in enumerate(segments) if segment.kind == "policy"]
    assert requests[: len(starts)] == starts


async def test_segments_join_to_what_the_generator_saw(scripted_pool):
    generator = ScriptedGenerator([ROUTE, ANSWER])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["It is <b>Bo</b>."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    ids_seen_next(trajectory, generator)
    assert [segment.kind for segment in trajectory.segments] == ["prompt", "policy", "information", "policy"]
    assert [segment.trainable for segment in trajectory.segments] == [False, True, False, True]
    assert [segment.logprobs is not None for segment in trajectory.segments] == [False, True, False, True]
    assert trajectory.answer == "Bo"
    assert trajectory.turns[0].text.endswith("</search>")


async def test_a_stop_that_ends_inside_a_token_keeps_the_token_and_says_where_the_text_ends(scripted_pool):
    generator = ScriptedGenerator([ROUTE, ANSWER])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    first = trajectory.segments[1]
    assert first.text.endswith("</search>\n\n")  # the token is ">\n\n", whole
    assert first.text_end == len(first.text) - 2
    assert first.text[: first.text_end] == trajectory.turns[0].text


@pytest.mark.parametrize("chunk_tokens", [1, 2, 7, 1000])
async def test_a_backend_that_ignores_stops_is_cut_after_the_first_closed_action(chunk_tokens, scripted_pool):
    run_on = ROUTE + "<answer>no</answer>" * 50
    generator = ScriptedGenerator([run_on, ANSWER], ignore_stops=True, chunk_tokens=chunk_tokens)
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    ids_seen_next(trajectory, generator)
    assert trajectory.answer == "Bo"
    assert "no" not in "".join(segment.text for segment in trajectory.segments[1:])
    assert trajectory.format_problems == ()
    # What was generated and dropped is paid for all the same.
    kept = sum(len(segment.token_ids) for segment in trajectory.segments if segment.kind == "policy")
    assert trajectory.policy_usage.output_tokens >= kept


async def test_a_stop_inside_an_open_think_resumes_the_same_turn(scripted_pool):
    generator = ScriptedGenerator(["<think>Maybe <search>Ann: q</search>", " or not.</think><answer>Bo</answer>"])
    pool = scripted_pool(["Ann"])
    trajectory = await Rollout(Task("Who?"), pool, generator).run(RouterR1(RouterR1Grammar()))
    ids_seen_next(trajectory, generator)
    assert pool.asked == []
    assert len(trajectory.turns) == 1
    assert len(generator.requests) == 2
    assert generator.requests[1].prefix == "<think>Maybe <search>Ann: q</search>"
    assert trajectory.turns[0].usage.output_tokens == sum(
        len(segment.token_ids) for segment in trajectory.segments if segment.kind == "policy"
    )
    assert trajectory.answer == "Bo"


async def test_text_behind_a_stop_in_the_same_token_is_parsed_when_the_turn_resumes(scripted_pool):
    """The token `><` closes the search tag and opens `</think>`: half of that tag is in the piece before."""

    class Trims(ScriptedGenerator):
        """As engines that cut the text at the stop string, yet give the whole of the last token's id."""

        async def generate(self, request):
            async for chunk in super().generate(request):
                text = chunk.text[:-1] if chunk.finish == "stop" and chunk.text.endswith("<") else chunk.text
                yield Chunk(text, chunk.token_ids, chunk.logprobs, chunk.finish)

    generator = Trims(["<think>Maybe <search>Ann: q</search></think>", "/think><answer>Bo</answer>"])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"]), generator).run(RouterR1(RouterR1Grammar()))
    ids_seen_next(trajectory, generator)
    assert trajectory.segments[1].text.endswith("</search><")
    assert trajectory.answer == "Bo"


@pytest.mark.parametrize("ids", [True, False])
async def test_a_withheld_stop_is_put_back_into_the_context(ids, scripted_pool):
    capabilities = Capabilities(token_in=ids, token_out=ids, logprobs=ids, keeps_stop=False)
    generator = ScriptedGenerator([ROUTE, ANSWER], capabilities=capabilities)
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    assert generator.requests[1].prefix.startswith("<think>I ask.</think>\n<search>Ann: who é?</search>\n<information>")
    assert trajectory.answer == "Bo"
    assert trajectory.format_problems == ()
    if ids:
        ids_seen_next(trajectory, generator)


async def test_a_stop_withheld_with_its_ids_is_in_the_context_but_not_trained_on(scripted_pool):
    class Withholds(ScriptedGenerator):
        """Neither the text nor the ids hold the stop string."""

        async def generate(self, request):
            async for chunk in ScriptedGenerator([self.said.pop(0)], chunk_tokens=1000).generate(request):
                yield Chunk(chunk.text, chunk.token_ids, chunk.logprobs, "stop")

    generator = Withholds(capabilities=Capabilities(keeps_stop=False))
    generator.said = ["<think>a</think><search>Ann: q", "<think>a</think><answer>Bo"]
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    assert [(s.kind, s.text, s.trainable) for s in trajectory.segments[2:4]] == [
        ("policy", "</search>", False),
        ("information", "\n<information>\nBo.\n</information>\n", False),
    ]
    assert trajectory.answer == "Bo"


async def test_without_ids_nothing_is_trainable_and_usage_is_an_estimate(scripted_pool):
    generator = ScriptedGenerator([ROUTE, ANSWER], capabilities=NO_IDS)
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    assert not any(segment.trainable or segment.token_ids for segment in trajectory.segments)
    assert trajectory.policy_usage.estimated
    assert trajectory.policy_usage.output_tokens > 0
    assert trajectory.answer == "Bo"


async def test_a_tag_grammar_is_refused_by_a_generator_that_cannot_continue_a_turn(scripted_pool):
    generator = ScriptedGenerator([ROUTE], capabilities=Capabilities(continue_turn=False))
    rollout = Rollout(Task("Who?"), scripted_pool(["Ann"]), generator)
    with pytest.raises(ConfigError, match=r"tool calls.*vllm serve"):
        await rollout.generate(rollout.context("x"), RouterR1Grammar())


async def test_a_grammar_of_chat_turns_puts_replies_into_the_next_user_message(scripted_pool):
    capabilities = Capabilities(False, False, False, continue_turn=False, keeps_stop=False)
    ask = 'I ask.<tool_call>{"name": "ask", "arguments": {"member": "Ann", "query": "who?"}}</tool_call>'
    answer = '<tool_call>{"name": "answer", "arguments": {"text": "Bo"}}</tool_call>'
    generator = ScriptedGenerator([ask, answer], capabilities=capabilities)
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["</tool_response>Bo."]), generator).run(
        RouterR1(ToolCallGrammar())
    )
    assert trajectory.answer == "Bo"
    assert trajectory.format_problems == ()
    assert [request.prefix for request in generator.requests] == ["", ""]
    assert generator.requests[1].messages[1:] == (
        Message("assistant", ask),
        Message("user", "<tool_response>\n‹/tool_response›Bo.\n</tool_response>"),
    )


async def test_a_grammar_of_chat_turns_over_ids_ends_the_turn_and_opens_the_next(scripted_pool):
    ask = '<tool_call>{"name": "ask", "arguments": {"member": "Ann", "query": "who?"}}</tool_call>'
    answer = '<tool_call>{"name": "answer", "arguments": {"text": "Bo"}}</tool_call>'
    generator = ScriptedGenerator([ask, answer])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], ["Bo."]), generator).run(
        RouterR1(ToolCallGrammar())
    )
    ids_seen_next(trajectory, generator)
    assert trajectory.answer == "Bo"


@pytest.mark.parametrize("capabilities", [Capabilities(), NO_IDS], ids=["ids", "no ids"])
@pytest.mark.parametrize("reply", ["long word " * 10_000, "é" * 50_000, "<answer>" * 5_000, "x" * 3_000_000])
async def test_a_long_reply_is_cut_inside_its_block(capabilities, reply, scripted_pool):
    generator = ScriptedGenerator([ROUTE, ANSWER], capabilities=capabilities)
    limits = Limits(information_tokens=50)
    rollout = Rollout(Task("Who?"), scripted_pool(["Ann"], [reply]), generator, limits=limits)
    trajectory = await rollout.run(RouterR1(RouterR1Grammar()))
    information = trajectory.segments[2].text
    assert information.startswith("\n<information>\n")
    assert information.endswith(" […]\n</information>\n")
    assert len(information) < 700
    assert "\ufffd" not in information
    assert trajectory.answer == "Bo"
    assert trajectory.calls[0].reply == reply  # the record keeps all of it


TEXTS = st.text(st.characters(), max_size=60)


# The fixture is a class, so nothing is carried from one example to the next.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(TEXTS, TEXTS, TEXTS, TEXTS)
async def test_any_text_is_recorded_and_read_back_equal(scripted_pool, question, thought, query, reply):
    generator = ScriptedGenerator([f"<think>{thought}</think><search>Ann: {query}</search>", ANSWER])
    pool = scripted_pool(["Ann"], [reply, reply])
    task = Task("Q" + question, metadata={"m": question}, golden_answers=(reply,))
    trajectory = await Rollout(task, pool, generator).run(RouterR1(RouterR1Grammar()))
    line = trajectory.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line) == trajectory
    ids_seen_next(trajectory, generator)


async def test_a_call_of_any_kind_reads_back_equal(scripted_pool):
    reply = Call("", "", "rate_limited", error="429 \ud800\x00\u2028")
    generator = ScriptedGenerator([ROUTE, ANSWER])
    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], [reply]), generator).run(
        RouterR1(RouterR1Grammar())
    )
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    assert trajectory.calls[0].error == "429 \ufffd\x00\u2028"
    assert trajectory.turns[-1].action == Answer("Bo")


@pytest.mark.parametrize("odd", [float("-inf"), float("nan"), float("inf")])
async def test_log_probabilities_that_are_no_numbers_are_not_kept(scripted_pool, odd):
    class Odd(ScriptedGenerator):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield replace(chunk, logprobs=(odd,) * len(chunk.token_ids))

    trajectory = await Rollout(Task("Who?"), scripted_pool(["Ann"], []), Odd([ANSWER])).run(RouterR1(RouterR1Grammar()))
    assert trajectory.segments[-1].token_ids
    assert trajectory.segments[-1].logprobs is None  # a training that needs them refuses the segment
    assert Trajectory.from_json(trajectory.to_json()) == trajectory


def test_golden_answers_are_texts_or_numbers_in_a_list():
    assert Task("Who?", golden_answers=["a", 1999, 1.5, "\ud800"]).golden_answers == ("a", "1999", "1.5", "\ufffd")
    for wrong in ("a", 5, [None], ["a", True], {"a": 1}, [["a"]]):
        with pytest.raises(ConfigError, match=r"task 'task': golden_answers is .*; give a list of strings"):
            Task("Who?", golden_answers=wrong)
