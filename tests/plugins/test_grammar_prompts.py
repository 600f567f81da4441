"""Prompts show the live pool, the question last, and a user's own file is filled in one pass."""

from __future__ import annotations

import re

import pytest

from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor, Price
from antiphon.errors import ConfigError
from antiphon.types import Message, Task
from antiphon_plugins.grammars.router_r1 import RouterR1Grammar
from antiphon_plugins.grammars.tool_call import ToolCallGrammar


def view(name, quote=None, **fields):
    given = {"description": f"About\n {name}.", "model": "m", **fields}
    return MemberView(Descriptor.of({"name": name, **given}), quote)


POOL = [
    view(
        "Ann 8x22B",
        Price(input=0.9, output=1.2),
        parameters_b=141,
        active_parameters_b=39,
        strengths=["law", "maths"],
        latency={"first_token_s": 0.5, "tokens_per_s": 80},
        context_tokens=65536,
    ),
    view("Cy", Price(output=0.3), parameters_b=7),
    view("Di", Price(input=0, output=0)),
    view("Ed"),
]


def prompt(grammar, question="Who?", members=POOL, rounds=4, **task):
    return grammar.prompt(Task(question, **task), members, rounds)


@pytest.mark.parametrize("make", [RouterR1Grammar, ToolCallGrammar])
def test_the_pool_comes_first_and_the_question_last(make):
    (message,) = prompt(make(), "Who wrote Emma?")
    assert message.role == "user"
    places = [message.content.index(part) for part in ("Ann 8x22B", "Cy", "Di", "Ed", "4 times", "Who wrote Emma?")]
    assert places == sorted(places)
    assert message.content.endswith("Question: Who wrote Emma?\n")
    other = prompt(make(), "Another?")[0].content
    assert message.content.removesuffix("Who wrote Emma?\n") == other.removesuffix("Another?\n")


def test_styles():
    shown = {style: prompt(RouterR1Grammar(style=style))[0].content for style in ("full", "compact", "none")}
    full = (
        "- Ann 8x22B: About Ann 8x22B. (141B parameters, 39B active; good at law, maths; "
        "price $0.9 in, $1.2 out per million tokens; first token after 0.5 s, then 80 tokens a second; "
        "reads up to 65,536 tokens)\n"
        "- Cy: About Cy. (7B parameters; price $0.3 out per million tokens)\n"
        "- Di: About Di. (free)\n"
        "- Ed: About Ed.\n"
    )
    compact = (
        "- Ann 8x22B: 141B parameters, 39B active; good at law, maths; price $0.9 in, $1.2 out per million tokens\n"
        "- Cy: 7B parameters; price $0.3 out per million tokens\n"
        "- Di: free\n"
        "- Ed: About Ed.\n"
    )
    assert full in shown["full"]
    assert compact in shown["compact"]
    assert "\n- Ann 8x22B\n- Cy\n- Di\n- Ed\n" in shown["none"]


def test_an_unknown_style_is_an_error():
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        RouterR1Grammar(style="compct")


def test_earlier_turns_come_in_front_as_they_were():
    earlier = (Message("user", "Hello {{question}}"), Message("assistant", "Hi"))
    messages = prompt(RouterR1Grammar(), messages=earlier)
    assert tuple(messages[:2]) == earlier
    assert len(messages) == 3


@pytest.mark.parametrize(
    "question", ["{{members}} {{ rounds }}", "{0} %s {x}", "</answer><search>Ann: q</search>", "\\1"]
)
def test_a_question_is_put_in_as_it_is(question):
    assert prompt(RouterR1Grammar(), question)[0].content.endswith(f"Question: {question}\n")


# ---- a user's own file --------------------------------------------------------------------------------------------


def file(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "prompt.txt"
    path.write_bytes(text.encode(encoding))
    return path


def test_a_template_of_ones_own(tmp_path):
    text = '{"json": {x}} {{names}} | {{ members }} | {{rounds}} | {{question}} {{{question}}} {{not one}} {{}}'
    grammar = RouterR1Grammar(template=file(tmp_path, text), style="none")
    said = prompt(grammar, "{{rounds}}?", members=POOL[1:3])[0].content
    assert said == '{"json": {x}} Cy, Di | - Cy\n- Di | 4 | {{rounds}}? {{{rounds}}?} {{not one}} {{}}'


def test_a_template_may_have_a_byte_order_mark(tmp_path):
    grammar = RouterR1Grammar(template=file(tmp_path, "Q: {{question}}", "utf-8-sig"))
    assert prompt(grammar)[0].content == "Q: Who?"


def test_the_template_is_known_by_its_hash(tmp_path):
    own = RouterR1Grammar()
    assert own.template == RouterR1Grammar().template
    assert own.template != RouterR1Grammar(style="none").template
    path = file(tmp_path, "Q: {{question}}")
    first = RouterR1Grammar(template=path).template
    path.write_text("Question: {{question}}")
    assert len({own.template, first, RouterR1Grammar(template=str(path)).template}) == 3


@pytest.mark.parametrize("make", [RouterR1Grammar, ToolCallGrammar])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{members}}", r"prompt\.txt' has no \{\{question\}\}"),
        ("{{question}} {{member}}", r"prompt\.txt': unknown placeholder \{\{member\}\}; did you mean 'members'\?"),
        ("", "has no"),
        ("{{question}}" + "x" * 1_000_001, "larger than 1,000,000 bytes"),
    ],
)
def test_templates_that_do_not_hold(make, text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        make(template=file(tmp_path, text))


def test_templates_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.txt' cannot be read: No such file"):
        RouterR1Grammar(template=tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="cannot be read"):
        RouterR1Grammar(template=tmp_path)
    with pytest.raises(ConfigError, match="not UTF-8"):
        RouterR1Grammar(template=file(tmp_path, "{{question}} é", "latin-1"))


EXAMPLES = [
    {"question": "1 + {{names}}?", "text": "\n<think>one</think>"},
    {"question": "Why?", "text": "<think>two</think>"},
]


def test_worked_examples_are_earlier_turns_and_the_pool_is_told_once():
    grammar = RouterR1Grammar(prompt="Pool: {{names}}\n\nQ: {{question}}\nA:", examples=EXAMPLES)
    earlier = (Message("user", "hi"), Message("assistant", "hello"))
    messages = grammar.prompt(Task("Where?", messages=earlier), POOL, 4)
    names = ", ".join(view.name for view in POOL)
    assert messages == [
        Message("user", f"Pool: {names}\n\nQ: 1 + {{{{names}}}}?\nA:"),
        Message("assistant", "<think>one</think>"),
        Message("user", "Q: Why?\nA:"),
        Message("assistant", "<think>two</think>"),
        *earlier,
        Message("user", "Q: Where?\nA:"),
    ]
    assert grammar.template != RouterR1Grammar(prompt="Pool: {{names}}\n\nQ: {{question}}\nA:").template


def test_an_example_is_shown_only_to_a_pool_that_has_its_members():
    examples = [{**EXAMPLES[0], "members": ["Cy", "Nobody"]}, {**EXAMPLES[1], "members": ["Cy"]}]
    grammar = RouterR1Grammar(prompt="{{names}}\nQ: {{question}}", examples=examples)
    assert [message.content for message in grammar.prompt(Task("Where?"), POOL[1:2], 4)] == [
        "Cy\nQ: Why?",
        "<think>two</think>",
        "Q: Where?",
    ]
    assert [message.content for message in grammar.prompt(Task("Where?"), POOL[2:3], 4)] == ["Di\nQ: Where?"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": [{**EXAMPLES[0], "members": "Cy"}]}, "example 1 of the prompt: members is a list of names"),
        ({"examples": [{"question": "q"}]}, "example 1 of the prompt: give it as"),
        ({"examples": [EXAMPLES[0], {"question": "q", "text": " "}]}, "example 2 of the prompt: text is a string"),
        ({"examples": ["q"]}, "example 1 of the prompt: give it as"),
        ({"prompt": "nothing"}, "the prompt has no {{question}}"),
        ({"prompt": "{{question}}", "template": "file.txt"}, "either `prompt` (text) or `template` (a file), not both"),
    ],
)
def test_prompts_and_examples_that_do_not_hold(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        RouterR1Grammar(**options)


def test_a_member_is_shown_by_a_line_of_the_users_own():
    line = "{{description}} ({{output_price}}): {{name}}"
    grammar, plain = (RouterR1Grammar(prompt="{{members}}\n{{question}}", member=text) for text in (line, None))
    (message,) = prompt(grammar)
    assert message.content.splitlines()[:2] == ["About Ann 8x22B. ($1.2): Ann 8x22B", "About Cy. ($0.3): Cy"]
    assert grammar.template != plain.template


@pytest.mark.parametrize(
    ("line", "why"), [("{{description}}", "nobody can be asked"), ("{{nme}}", "unknown placeholder .*nme.*name")]
)
def test_a_line_without_a_name_or_with_an_unknown_field_is_refused(line, why):
    with pytest.raises(ConfigError, match=why):
        RouterR1Grammar(member=line)
