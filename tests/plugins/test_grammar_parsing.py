"""Parsers give the same in any chunking; what is between tags never changes what a turn is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.contracts import Parser, TagGrammar
from antiphon.errors import ConfigError
from antiphon.names import Names
from antiphon.types import Answer, Invalid, Route
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_plugins.grammars.tool_call import ToolCallGrammar

resolve = Names({"Ann": ["A"], "LLM-Name 2": []}).resolve
PIECES = [
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>",
    "<", ">", "/", "</", "<thi", "nk>", "<answer >", "<Answer>", " ", "\n", "...", "x", "Ann: q", "Ann", ":", "é\u200b",
    "<tool_call>", "</tool_call>", "<tool_response>", "{",
    '{"name": "ask", "arguments": {"member": "Ann", "query": "q"}}',
    '{"name": "answer", "arguments": {"text": "x"}}',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join)


def router(text_pieces, first=True):
    return fed(RouterR1Grammar().parser(resolve, ["Ann"], first), text_pieces)


def tools(text_pieces):
    return fed(ToolCallGrammar().parser(resolve, ["Ann"], True), text_pieces)


def fed(parser, pieces):
    shown = "".join(parser.feed(piece) for piece in pieces)
    return parser.finish(), shown, parser.closed, parser.end, parser.missing_stop()


def test_they_are_grammars():
    for grammar in (RouterR1Grammar(), ToolCallGrammar()):
        assert isinstance(grammar, TagGrammar)
        assert isinstance(grammar.parser(resolve, [], True), Parser)


@settings(max_examples=300)
@pytest.mark.parametrize("parse", [router, tools])
@given(TEXTS, st.data())
def test_any_chunking_gives_the_same(parse, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text])
    assert parse(pieces) == whole
    assert parse(list(text)) == whole


@settings(max_examples=300)
@given(TEXTS)
def test_what_a_turn_is_made_of(text):
    turn, _, closed, end, _ = router([text])
    assert turn.text == text[:end]
    assert closed == (turn.action is not None)
    if closed:
        assert turn.text.endswith(("</search>", "</answer>"))
    else:
        assert end == len(text)
    # Without the rest, the same turn; more text after it changes nothing.
    assert router([text[:end]])[0] == turn
    if closed:
        assert router([text[:end], "<think>more", "</answer>"])[0] == turn


@given(st.text(st.characters(exclude_characters="<"), min_size=1), st.text(st.characters(exclude_characters="<:")))
def test_an_action_holds_exactly_what_was_written(query, thought):
    turn = router([f"<think>.{thought}.a</think><search>A:{query}</search>"])[0]
    if isinstance(turn.action, Route):
        assert turn.action == Route("Ann", query.strip())
        assert turn.problems == ()
    else:
        assert isinstance(turn.action, Invalid)
        assert turn.problems == (turn.action.reason,)
        assert turn.action.reason in ("empty_query", "placeholder")


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("no colon", "no_colon"),
        ("", "no_colon"),
        (" : q w", "empty_name"),
        ("\u200b: q w", "empty_name"),
        ("Ann:", "empty_query"),
        ("Ann: \u2060\n", "empty_query"),
        ("Ann: Your-Query", "placeholder"),
        ("Ann: [YOUR_QUERY]", "placeholder"),
        ("LLM-Name: who?", "placeholder"),
        ("«llm name»: who?", "placeholder"),
        ("MEMBER\u2011NAME: YOUR\u2013QUERY", "placeholder"),
        ("An: who?", "unknown_member"),
        ("Ann B: who?", "unknown_member"),
    ],
)
def test_invalid_actions_say_why(inside, reason):
    turn = router([f"<think>a b</think><search>{inside}</search>"])[0]
    assert isinstance(turn.action, Invalid)
    assert (turn.action.reason, turn.problems) == (reason, (reason,))


def test_a_member_that_is_called_like_a_placeholder_can_be_asked():
    names = Names({"LLM-Name": []})
    parser = RouterR1Grammar().parser(names.resolve, ["LLM-Name"], True)
    assert fed(parser, ["<think>a</think><search>LLM-Name: who?</search>"])[0].action == Route("LLM-Name", "who?")


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("<think>a", ""),
        ("<think>a</think><search>Ann: q", "</search>"),
        ("<think>a</think><answer>q", "</answer>"),
        ("<think>a <search>q", "</search>"),
        ("<think>a <search>q</search> b", ""),
        ("<think>a <search>q</search> <answer>b", "</answer>"),
        ("<think>a</think>", ""),
        ("", ""),
    ],
)
def test_the_stop_that_is_missing(text, stop):
    assert router([text])[4] == stop


def test_thinking_is_shown_as_it_comes_and_nothing_else_is():
    parser = RouterR1Grammar().parser(resolve, [], True)
    shown = [parser.feed(piece) for piece in ["<thi", "nk>I ", "know</th", "ink> or <answer>B", "o</answer>"]]
    assert shown == ["", "I ", "know", "", ""]
    assert parser.finish().action == Answer("Bo")


@pytest.mark.parametrize(
    ("turns", "problems"),
    [
        ([], ("no_think", "no_answer")),
        (["<think>a</think><answer>b</answer>"], ()),
        (["<think>a</think><answer>b</answer>", "<answer>b</answer>"], ("several_answers",)),
        (["<think>a</think><search>Ann: q w</search>"], ("no_answer",)),
        (["<think>a</think><search>Ann: q w</search>", "<answer>b</answer>"], ()),
        (["<answer>b</answer>"], ("no_think_first", "no_think")),
        (
            ["<think>a</think><search>Nan: q</search>", "<think></think>"],
            ("unknown_member", "empty_think", "no_answer"),
        ),
    ],
)
def test_the_check_of_a_whole_context(turns, problems):
    grammar = RouterR1Grammar()
    parsed = [router([text], first=not index)[0] for index, text in enumerate(turns)]
    assert grammar.check(parsed) == problems


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("Ann: who wrote it?", None),
        ("Ann: who scored Alien: Resurrection?", "several_colons"),
        ("Ann: what is ANN good at?", "name_in_query"),
        (": who?", "empty_name"),
        ("Ann who?", "no_colon"),
    ],
)
def test_the_released_rules_are_stricter_and_another_version(inside, reason):
    grammar = RouterR1Grammar(rules="released")
    turn = fed(grammar.parser(resolve, ["Ann"], True), [f"<think>a b</think><search>{inside}</search>"])[0]
    assert turn.problems == (() if reason is None else (reason,))
    assert (grammar.version, RouterR1Grammar().version) == ("1-released", "1")


def test_unknown_rules_are_an_error():
    with pytest.raises(ConfigError, match="no rules 'relased'; did you mean 'released'"):
        RouterR1Grammar(rules="relased")


# ---- tool calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ('{"name": "ask", "arguments": {"member": "a", "query": " who: \\n? "}}', Route("Ann", "who: \n?")),
        ('\n {"arguments": "{\\"member\\": \\"Ann\\", \\"query\\": \\"who?\\"}", "name": "ask"}', Route("Ann", "who?")),
        ('{"name": "answer", "arguments": {"text": " Bo "}}', Answer("Bo")),
        ('{"name": "answer", "arguments": {"text": 42}}', Answer("42")),
        ('{"name": "answer", "arguments": {"text": 1.50}}', Answer("1.50")),
        ('{"name": "answer", "arguments": {"text": 1e999}}', Answer("1e999")),
        ('{"name": "answer", "arguments": {"text": "\\ud800"}}', Answer("\ufffd")),
        ('{"name": "answer", "arguments": {"text": "\\u200b"}}', Answer("")),
        ("", "bad_json"),
        ("{", "bad_json"),
        ("[]", "bad_json"),
        ('{"name": "ask"}', "bad_json"),
        ("[" * 100_000, "bad_json"),
        ('{"name": "look", "arguments": {}}', "unknown_tool"),
        ('{"name": ["ask"], "arguments": {}}', "unknown_tool"),
        ('{"name": "ask", "arguments": {"member": "Ann"}}', "missing_field"),
        ('{"name": "ask", "arguments": {"member": "Ann", "query": null}}', "missing_field"),
        ('{"name": "answer", "arguments": {"text": true}}', "missing_field"),
        ('{"name": "ask", "arguments": {"member": "", "query": "q w"}}', "empty_name"),
        ('{"name": "ask", "arguments": {"member": "Ann", "query": " "}}', "empty_query"),
        ('{"name": "ask", "arguments": {"member": "MEMBER-NAME", "query": "YOUR-QUERY"}}', "placeholder"),
        ('{"name": "ask", "arguments": {"member": "Cy", "query": "q w"}}', "unknown_member"),
    ],
)
def test_tool_calls(call, action):
    turn, shown, *_ = tools([f"I think <b>.<tool_call>{call}</tool_call> and more"])
    assert (shown, turn.thinking) == ("I think <b>.", "I think <b>.")
    if isinstance(action, str):
        assert isinstance(turn.action, Invalid)
        assert (turn.action.reason, turn.problems) == (action, (action,))
    else:
        assert turn.action == action
        assert turn.problems == (("empty_answer",) if action == Answer("") else ())


def test_a_message_without_a_tool_call_is_no_action():
    grammar = ToolCallGrammar()
    turn = tools(["Jane Austen wrote it."])[0]
    assert (turn.action, turn.problems, turn.thinking) == (None, (), "Jane Austen wrote it.")
    assert grammar.check([turn]) == ("no_answer",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a</tool_call>", "unopened"),
        ("<tool_response>forged</tool_response>", "forged_information"),
        ('<tool_call>{"name": "ask"', "unclosed"),
        ('<tool_call>{"name": <tool_call>', "nested"),
    ],
)
def test_tags_of_tool_calls_where_they_mean_nothing(text, problem):
    assert problem in tools([text])[0].problems
