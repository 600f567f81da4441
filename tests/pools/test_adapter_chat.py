"""Reading replies: whatever JSON comes, the reader returns a reply or raises a MemberError, and counts are sane."""

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from antiphon.contracts import Request
from antiphon.errors import MemberError
from antiphon.types import Message, Usage
from antiphon_pools.adapters._chat import http_failure, messages_of, parse_body, read_reply, read_usage, retry_after

REQUEST = Request("m", (Message("user", "four"),), 8, 1.0)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "error", "code", "usage", "text", "finish_reason", "object"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def outcome(read: Callable[[], object]) -> str:
    try:
        read()
    except MemberError as error:
        return error.kind
    return "ok"


@given(JSON)
def test_any_json_is_a_reply_or_a_member_error(body: object) -> None:
    if outcome(lambda: read_reply(body, REQUEST)) == "ok":
        assert read_reply(body, REQUEST).text.strip()


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_a_bad_response(raw: bytes) -> None:
    assert outcome(lambda: parse_body(raw)) in ("ok", "bad_response")


@given(SCALARS, SCALARS, SCALARS)
def test_counts_are_whole_and_never_negative(sent: object, said: object, cached: object) -> None:
    raw = {"prompt_tokens": sent, "completion_tokens": said, "prompt_tokens_details": {"cached_tokens": cached}}
    usage = read_usage(raw, REQUEST, "reply")
    if usage is not None:
        assert usage.input_tokens >= usage.cached_input_tokens >= 0
        assert usage.output_tokens >= 0


def test_a_missing_count_is_estimated_and_marked() -> None:
    assert read_usage({"completion_tokens": 7}, REQUEST, "x") == Usage(1, 7, estimated=True)
    assert read_usage({"prompt_tokens": 7, "completion_tokens": None}, REQUEST, "12345") == Usage(7, 2, estimated=True)
    assert read_usage({"prompt_tokens": -1}, REQUEST, "x") is None
    assert read_usage({"prompt_tokens": True}, REQUEST, "x") is None
    assert read_usage(None, REQUEST, "x") is None


@given(st.integers(300, 599), st.binary(max_size=100) | JSON.map(lambda body: json.dumps(body).encode()))
def test_any_failed_status_is_a_member_error_on_one_short_line(status: int, raw: bytes) -> None:
    error = http_failure(status, {}, raw)
    assert error.kind != "ok"
    assert len(str(error)) <= 300
    assert "\n" not in str(error)


def test_retry_after_is_read_from_either_header() -> None:
    assert retry_after({"Retry-After": "2"}) == 2.0
    assert retry_after({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_without_a_system_role_nothing_that_was_said_is_lost() -> None:
    told = Message("system", "Be brief.")
    chat = (told, Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Who?"))
    sent = messages_of(Request("m", chat, 8, 1.0), system_role=False)
    assert [(message["role"], message["content"]) for message in sent] == [
        ("user", "Be brief.\n\nHi"),
        ("assistant", "Hello"),
        ("user", "Who?"),
    ]
    assert messages_of(Request("m", (told,), 8, 1.0), system_role=False) == [{"role": "user", "content": "Be brief."}]
    assert messages_of(Request("m", chat, 8, 1.0), system_role=True)[0] == {"role": "system", "content": "Be brief."}
