"""Chat templates: pieces encoded apart, prefixes kept, and text that comes back as it went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.types import Message

pytest.importorskip("transformers")

from antiphon.generators._chat import Chat, Detokeniser, find_stop, load_tokenizer, read_template

START = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, source="tiny")


def test_an_ordinary_chat_is_what_the_template_says(chat: Chat, tokenizer: Any) -> None:
    messages = [
        Message("system", "Be brief."),
        Message("user", "Who?"),
        Message("assistant", "I."),
        Message("user", "é"),
    ]
    plain = [{"role": m.role, "content": m.content} for m in messages]
    text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    opened = chat.open(messages)
    assert opened.text == text
    assert list(opened.token_ids or ()) == tokenizer.encode(text, add_special_tokens=False)


def test_a_turn_continues_the_chat_as_the_template_would(chat: Chat) -> None:
    first = chat.open([Message("user", "Who?")])
    turn = chat.turn("Why?")
    whole = chat.open([Message("user", "Who?"), Message("assistant", "I."), Message("user", "Why?")])
    assert first.text + "I." + turn.text == whole.text
    joined = (*(first.token_ids or ()), *(chat.encode("I.").token_ids or ()), *(turn.token_ids or ()))
    assert joined == whole.token_ids


def test_the_end_of_a_turn_is_known(chat: Chat) -> None:
    assert chat.turn_end == 2
    assert chat.end_ids == {2}
    assert chat.decode([2, 0, 1]) == ""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back_and_never_becomes_special(chat: Chat, text: str) -> None:
    encoded = chat.encode(text)
    assert chat.decode(encoded.token_ids or ()) == encoded.text
    assert not set(encoded.token_ids or ()) & {0, 1, 2}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=40))
def test_pieces_of_any_ids_join_to_their_text(chat: Chat, ids: list[int]) -> None:
    detokeniser = Detokeniser(chat)
    pieces = [detokeniser.add(i) for i in ids]
    assert "".join(pieces) + detokeniser.finish() == chat.decode(ids)


def test_a_lone_surrogate_is_no_crash(chat: Chat) -> None:
    assert chat.encode("a\ud800b").text == "a\ufffdb"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (START + "{% if loop.last %}{{ m['content'] }}{% endif %}" + END, "each message once and in order"),
        (START + "{% if not loop.last %}[old]{% endif %}{{ m['content'] }}" + END, "not prefix-preserving"),
        ("{{ messages | length }}" + START + "{{ m['content'] }}" + END, "not prefix-preserving"),
        ("{{ raise_exception('users only') }}", r"refuses a chat of roles .* \(users only\)"),
    ],
)
def test_a_template_that_would_change_ids_is_refused_at_start(tokenizer: Any, template: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Chat(tokenizer, source="tiny", template=template)
    assert "chat_template" in str(caught.value)


def test_a_base_model_needs_a_template_of_ones_own(tiny_model: Path, tmp_path: Path) -> None:
    bare = load_tokenizer(tiny_model)
    bare.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        Chat(bare, source="bare")
    file = tmp_path / "chat.jinja"
    file.write_text(START + "{{ m['content'] }}" + END, encoding="utf-8")
    assert (
        Chat(bare, source="bare", template=read_template(file))
        .open([Message("user", "x")])
        .text.endswith("assistant\n")
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        read_template(tmp_path / "absent.jinja")


def test_a_tokeniser_that_changes_text_is_refused() -> None:
    from tokenizers import Tokenizer, models, normalizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=START + "{{ m['content'] }}" + END)
    with pytest.raises(ConfigError, match="does not give text back"):
        Chat(fast, source="lossy")


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [("ab</x>c", 0, 6), ("ab</x>c", 5, 6), ("ab</x>c", 6, None), ("</x", 0, None), ("a</y></x>", 0, 5)],
)
def test_the_first_stop_string_to_end_counts(text: str, start: int, end: int | None) -> None:
    assert find_stop(text, ("</x>", "</y>"), start) == end
