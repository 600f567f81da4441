"""The `function` adapter: sync, async and object callables, their failures, and the calculator that ships with it."""

import asyncio
import functools
import operator
import threading
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.contracts import CallContext, Reply, Request
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError, DescriptorError, MemberError
from antiphon.types import Message, Usage
from antiphon_pools.adapters.function import FunctionAdapter, member
from antiphon_pools.members import calculator

PLAIN = str.maketrans("<>:", "___")  # a member's name has none of them
CONTEXT = CallContext(task_id="t7", sample=3)


def of(function: object, name: str) -> FunctionAdapter:
    descriptor = member(function, name=name, description="x")  # type: ignore[arg-type]  # wrong ones are tried too
    return FunctionAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


def named(model: str, **options: object) -> FunctionAdapter:
    data = {"name": "Ada", "description": "x", "adapter": "function", "model": model, "options": options}
    descriptor = Descriptor.of(data)
    return FunctionAdapter(endpoint=descriptor.endpoints[0], descriptor=descriptor)


async def ask(adapter: FunctionAdapter, text: str = "ping", timeout_s: float = 60.0) -> Reply:
    messages = (Message("system", "s"), Message("user", "earlier"), Message("assistant", "a"), Message("user", text))
    return await adapter.complete(Request("m", messages, 32, timeout_s), CONTEXT)


async def failure(adapter: FunctionAdapter, timeout_s: float = 60.0) -> MemberError:
    with pytest.raises(MemberError) as caught:
        await ask(adapter, timeout_s=timeout_s)
    return caught.value


class Shouts:
    def __call__(self, text: str) -> str:
        return text.upper()


class ShoutsLater:
    async def __call__(self, text: str) -> str:
        return text.upper()


async def shout_later(text: str) -> str:
    return text.upper()


def shout_twice(text: str, times: int = 2) -> str:
    return " ".join([text.upper()] * times)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (str.upper, "PING"),
        (lambda text: text.upper(), "PING"),
        (shout_later, "PING"),
        (lambda text: shout_later(text), "PING"),
        (functools.partial(shout_later), "PING"),
        (Shouts(), "PING"),
        (ShoutsLater(), "PING"),
        (shout_twice, "PING PING"),
        (lambda text, context: f"{text} {context.task_id} {context.sample}", "ping t7 3"),
        (lambda text, context=None: f"{context.task_id}", "t7"),
        (lambda *parts: f"{len(parts)}", "1"),
    ],
)
async def test_a_callable_of_any_kind_gets_the_query_and_costs_nothing(
    function: object, expected: str, request: pytest.FixtureRequest
) -> None:
    reply = await ask(of(function, request.node.name.translate(PLAIN)))
    assert (reply.text, reply.usage) == (expected, Usage())


async def test_a_sync_callable_runs_off_the_loop_and_many_at_once() -> None:
    together = threading.Barrier(40, timeout=300)  # each waits until all 40 run
    adapter = of(lambda text: f"{together.wait() >= 0}", "barrier")
    replies = await asyncio.gather(*[ask(adapter) for _ in range(40)])
    assert {reply.text for reply in replies} == {"True"}


async def test_a_reply_is_taken_as_it_is() -> None:
    said = Reply("Lima", Usage(5, 2), "tool-2", "length", 1.5)
    assert await ask(of(lambda text: said, "as it is")) == said


def stop(_: str) -> str:
    raise StopIteration("enough")


def socket_is_slow(_: str) -> str:
    raise TimeoutError("read")


def leave(_: str) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        (lambda text: 1 / 0, "error", "ZeroDivisionError"),
        (lambda text: 7, "bad_response", "returned int"),
        (lambda text: None, "bad_response", "returned NoneType"),
        (lambda text: "  ", "empty_response", "no text"),
        (stop, "error", "StopIteration"),
        (socket_is_slow, "timeout", "raised TimeoutError: read"),
        (leave, "error", "SystemExit"),
    ],
)
async def test_a_failure_is_a_member_error(
    function: object, kind: str, says: str, request: pytest.FixtureRequest
) -> None:
    error = await failure(of(function, request.node.name.translate(PLAIN)))
    assert error.kind == kind
    assert says in str(error)


async def test_a_callable_may_say_which_kind_its_failure_is() -> None:
    def busy(text: str) -> str:
        raise MemberError("rate_limited", "later", retry_after_s=3.0)

    error = await failure(of(busy, "busy"))
    assert (error.kind, error.retry_after_s) == ("rate_limited", 3.0)


async def test_a_hanging_callable_ends_by_the_timeout_and_holds_up_nobody() -> None:
    release = threading.Event()
    hanging = of(lambda text: f"{release.wait(600)}", "hanging")
    try:
        errors = await asyncio.gather(*[failure(hanging, timeout_s=0.2) for _ in range(40)])
        assert {error.kind for error in errors} == {"timeout"}
        assert (await ask(of(str.upper, "free"))).text == "PING"
    finally:
        release.set()


async def test_a_module_and_attribute_are_imported() -> None:
    assert (await ask(named("antiphon_pools.members:calculator"), "6 times 7")).text == "42"
    assert (await ask(named("builtins:str.upper"))).text == "PING"


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("no_such_module_here:f", {}, "no_such_module_here"),
        ("antiphon_pools.members:calculater", {}, "did you mean 'calculator'"),
        ("antiphon_pools.members:LONGEST", {}, "not a callable"),
        ("nobody registered this", {}, "module:attr"),
        ("builtins:str.upper", {"k": 1}, "unknown key 'k'"),
    ],
)
def test_a_wrong_model_is_refused_by_name(model: str, options: dict, says: str) -> None:
    with pytest.raises(ConfigError, match="Ada") as caught:
        named(model, **options)
    assert says in str(caught.value)


def test_what_takes_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither"):
        of(lambda: "x", "takes nothing")
    with pytest.raises(ConfigError, match="neither"):
        of(lambda text, context, more: "x", "takes too much")


def test_one_name_is_one_callable() -> None:
    member(str.upper, name="twice", description="x")
    member(str.upper, name="twice", description="x")
    with pytest.raises(ConfigError, match=r"twice.*str\.upper already"):
        member(operator.not_, name="twice", description="x")
    with pytest.raises(ConfigError, match="colon"):
        member(str.upper, name="a:b", description="x")
    with pytest.raises(DescriptorError, match="did you mean"):
        member(str.upper, name="typo", description="x", pric={"output": 1})


def test_a_member_is_free_unless_it_says_otherwise() -> None:
    assert member(str.upper, name="free of charge", description="x").price.output == 0
    assert member(str.upper, name="charged", description="x", price={"output": 2}).price.output == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12 * (3 + 4) / 7", "12"),
        ("What is 12+30?", "42"),
        ("calculate: 1,234,567 + 1 =", "1234568"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2^10 − 24", "1000"),
        ("6 × 7 ÷ 2", "21"),
        ("five is unknown, but 9 squared is 9²", None),
        ("100 divided by 8", "12.5"),
        ("square root of 144", "12"),
        ("sqrt(2)", "1.41421356237"),
        ("2 ** -2", "0.25"),
        ("2 ** 0.5 * 2 ** 0.5", "2"),
        ("round(2.567, 1)", "2.6"),
        ("max(3, 4, 2) - min(1, 2)", "3"),
        ("(-1) ** 1000000001", "-1"),
        ("1e3 + 1", "1001"),
        ("2 * pi", "6.28318530718"),
        ("-0.5", "-0.5"),
        ("1 / 0", None),
        ("0 ** -1", None),
        ("9 ** 9 ** 9", None),
        ("2 ** 5000", None),
        ("(-8) ** 0.5", None),
        ("1 +", None),
        ("", None),
        ("no numbers at all", None),
        ("1 and 2", None),
        ("__import__('os').system('ls')", None),
        ("(" * 300 + "1" + ")" * 300, None),
        ("1" * 500, None),
    ],
)
def test_the_calculator_computes_or_says_what_it_takes(text: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(MemberError, match="calculator") as caught:
            calculator(text)
        assert caught.value.kind == "bad_request"
    else:
        assert calculator(text) == value


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9), st.sampled_from(["+", "-", "*"]))
def test_the_calculator_agrees_with_exact_arithmetic(a: int, b: int, sign: str) -> None:
    exact = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](Fraction(a), Fraction(b))
    assert calculator(f"({a}) {sign} ({b})") == str(exact)


@given(st.text(alphabet="0123456789.+-*/%() esqrtpi,^", max_size=60))
@example("9**9**9**9")
def test_the_calculator_never_does_anything_else(text: str) -> None:
    try:
        value = calculator(text)
    except MemberError:
        return
    assert value
