"""No key survives in a text that is kept, and what is no key stays readable."""

import pytest

from antiphon.descriptor import Endpoint
from antiphon.redact import redact, secrets_of


@pytest.mark.parametrize(
    "secret",
    [
        "plain+planted/value",  # the value of an environment variable
        "plain%2Bplanted%2Fvalue",  # the same inside an address
        "sk-abcdefghijklmnop1234",
        "nvapi-AbCdEfGhIjKlMnOpQrSt",
        "hf_abcdefghijklmnopqrst",
    ],
)
def test_a_secret_is_taken_out_wherever_it_stands(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VENDOR_API_KEY", "plain+planted/value")
    for text in (secret, f"key={secret}&x=1", f'{{"error": "bad key {secret}"}}', "x " * 240 + secret):
        assert secret[4:12] not in redact(text)


def test_a_bearer_token_and_a_password_of_an_address_are_taken_out() -> None:
    said = redact("Authorization: Bearer abc.def-123456, http://user:hunter22@host/v1 refused")
    assert "abc.def" not in said
    assert "hunter22" not in said
    assert said.endswith("@host/v1 refused")


def test_ordinary_text_stays_as_it_is_but_for_its_length_and_what_cannot_be_encoded() -> None:
    text = "HTTP 429: the token limit of task-force model sk-2 was reached; retry in 2 s (bearer of bad news)"
    assert redact(text) == text
    assert redact("a\ud800b") == "a\ufffdb"
    assert len(redact("x" * 10_000)) == 500


def test_an_endpoints_secrets_are_its_key_and_what_options_of_a_secrets_name_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_VARIABLE", " from-the-environment\n")
    options = {"headers": {"X-Subscription-Key": "in-a-header"}, "top_k": 5, "region": "eu"}
    assert secrets_of(Endpoint(model="m", api_key_env="MY_VARIABLE")) == {"from-the-environment"}
    assert secrets_of(Endpoint(model="m", options=options)) == {"in-a-header"}
    assert secrets_of(Endpoint(model="m", api_key_env="NOT_SET_ANYWHERE")) == secrets_of(Endpoint(model="m")) == set()
