"""Trained weights carry a card: they load with the grammar and template of their training, over any pool."""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antiphon import Orchestrator
from antiphon._setup import Chosen, build
from antiphon.card import FILE, Card, Questions, check, of_model, pool_changes, read
from antiphon.cli import run
from antiphon.config import load_config
from antiphon.contracts import MemberView
from antiphon.descriptor import Descriptor
from antiphon.errors import ConfigError
from antiphon.registry import default_registry
from antiphon.reward import Composition
from antiphon.train.card import make, readme, write

PROMPT = {"prompt": "{{members}}\n{{question}}", "style": "none"}
REWARD = Composition.of(
    {"alpha": 0.6, "terms": [{"term": "format", "gate": True}, {"term": "cost", "weight": "alpha"}]}
)


def views(*members: dict[str, Any]) -> tuple[MemberView, ...]:
    given = [
        {"description": "Knows things.", "model": "m", "price": {"input": 1.0, "output": 2.0}, **one} for one in members
    ]
    descriptors = [Descriptor.of(one) for one in given]
    return tuple(MemberView(one, one.price) for one in descriptors)


POOL = views({"name": "A"}, {"name": "B", "api_base": "https://b.example/v1"})


def policy(**options: Any) -> Any:
    registry = default_registry()
    return registry.policy("router_r1", grammar=registry.grammar("router_r1", **options))


def a_card(base: Path, **changes: Any) -> Card:
    given: dict[str, Any] = {
        "name": "trained",
        "base": base,
        "policy": policy(**PROMPT),
        "grammar_options": PROMPT,
        "members": POOL,
        "reward": REWARD,
        "data": [Questions(dataset="chamber", split="train", tasks=3, hash="abc")],
        "algorithm": {"algorithm": "grpo", "lr": 0.0001},
        "lora": {"rank": 4},
        "limits": {"rounds": 2, "turn_tokens": 8, "deadline_s": None},
        "seeds": [0],
        "steps": 7,
        "results": {"em on validation": 0.5},
        "license": "Apache-2.0",
    }
    return make(**{**given, **changes})


@pytest.fixture
def store(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny model in a store of its own, as `tiny`."""
    (tmp_path / "home" / "models").mkdir(parents=True)
    shutil.copytree(tiny_model, tmp_path / "home" / "models" / "tiny")
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def adapter(store: Path, tiny_loras: tuple[Path, Path], tmp_path: Path) -> Path:
    """A LoRA adapter of it, with a card."""
    folder = tmp_path / "adapter"
    shutil.copytree(tiny_loras[0], folder)
    write(folder, a_card(store / "tiny"))
    return folder


def test_a_card_reads_back_equal_and_names_what_it_was_trained_with(adapter: Path, store: Path) -> None:
    card = read(adapter)
    assert card == a_card(store / "tiny")
    assert card is not None
    assert card.base.name == "tiny"
    assert len(card.base.hash) == 64
    assert card.grammar is not None
    assert card.grammar.options == PROMPT
    assert card.limits == {"rounds": 2, "turn_tokens": 8}
    assert [(one.name, one.price and one.price.output) for one in card.pool] == [("A", 2.0), ("B", 2.0)]
    assert set(card.versions) >= {"antiphon", "torch", "transformers", "peft"}
    assert "b.example" not in (adapter / FILE).read_text()  # where a member is reached is not the policy's affair
    assert read(store / "tiny") is None


def test_a_card_of_before_it_said_how_weights_were_made_is_read(adapter: Path) -> None:
    data = json.loads((adapter / FILE).read_text())
    for key in ("start", "rollouts", "demonstrations", "fine_tuning"):
        del data[key]
    (adapter / FILE).write_text(json.dumps(data))
    card = read(adapter)
    assert card is not None
    assert (card.steps, card.start, card.rollouts, card.demonstrations) == (7, None, {}, {})


def test_the_readme_says_the_same(adapter: Path) -> None:
    card = read(adapter)
    assert card is not None
    text = (adapter / "README.md").read_text()
    assert text == readme(card)
    assert text.startswith("---\nlibrary_name: antiphon\nbase_model: tiny\nlicense: apache-2.0\n---\n")
    for said in (
        "# trained",
        "| A | 1 / 2 | Knows things. |",
        "alpha 0.6",
        "chamber, split train, 3 questions",
        "7 steps",
    ):
        assert said in text
    assert card.base.hash in text


def test_an_adapters_folder_is_a_model_with_the_base_and_the_prompt_of_its_training(
    adapter: Path, scripted_pool: Any
) -> None:
    model = load_config().model(str(adapter))
    assert model.options == {"model": "tiny", "lora": str(adapter)}
    assert model.sampling == {"temperature": 0}
    assert model.turn_tokens == 8
    with Orchestrator(model=str(adapter), pool=scripted_pool(["A", "B"])) as orchestrator:
        trajectory = orchestrator.ask("Where?")
    assert trajectory.error is None
    assert trajectory.policy_usage.output_tokens > 0
    assert trajectory.segments[0].text.startswith("<|im_start|>user\n- A\n- B\nWhere?")


def test_another_grammar_or_template_is_an_error_that_names_both(
    adapter: Path, tmp_path: Path, scripted_pool: Any
) -> None:
    pool = scripted_pool(["A", "B"])
    with pytest.raises(ConfigError, match=r"trained with grammar router_r1/1, template \w+, .* grammar tool_call"):
        Orchestrator(model=str(adapter), pool=pool, grammar="tool_call").ask("Where?")
    config = tmp_path / "antiphon.toml"
    config.write_text('[grammars.router_r1]\nstyle = "compact"\n')
    trained, other = policy(**PROMPT).grammar.template, policy(style="compact").grammar.template
    with pytest.raises(ConfigError, match=rf"template {trained}, .* template {other}; .*no options of it"):
        Orchestrator(model=str(adapter), pool=pool, config=config).ask("Where?")


def test_the_policy_is_made_as_it_was_trained_where_the_configuration_says_nothing(
    adapter: Path, store: Path, tmp_path: Path, scripted_pool: Any
) -> None:
    options = {"member_prompt": "Be brief.", "grammar": "router_r1", "scores": str(tmp_path / "replies.jsonl")}
    card = a_card(store / "tiny", policy_options=options)
    assert card.policy_options == {"member_prompt": "Be brief."}
    write(adapter, card)

    def told(config: Path | None = None) -> Any:
        chosen = Chosen(pool=scripted_pool(["A"]), model=str(adapter), config=config)
        policy: Any = build(chosen, AsyncExitStack()).policy
        return [message.content for message in policy._messages("Where?")]

    config = tmp_path / "antiphon.toml"
    config.write_text('[policies.router_r1]\nmember_prompt = ""\n')
    assert told() == ["Be brief.", "Where?"]
    assert told(config) == ["Where?"]


def test_a_policy_that_speaks_no_grammar_may_use_the_weights(adapter: Path) -> None:
    card = read(adapter)
    assert card is not None
    check(card, adapter, grammar=None, members=views({"name": "C"}))


def test_another_pool_is_fine_and_logged(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = read(adapter)
    assert card is not None
    grammar = policy(**PROMPT).grammar
    check(card, adapter, grammar=grammar, members=POOL)
    assert capsys.readouterr().err == ""
    other = views({"name": "A", "price": {"input": 1.0, "output": 3.0}}, {"name": "C"})
    assert list(pool_changes(card, other)) == ["C is new", "B is gone", "A has another price"]
    check(card, adapter, grammar=grammar, members=other)
    assert "C is new; B is gone; A has another price" in capsys.readouterr().err


def test_a_prompt_file_travels_as_its_text(store: Path, tmp_path: Path) -> None:
    template = tmp_path / "prompt.txt"
    template.write_text("{{members}} {{question}}")
    options = {"template": str(template)}
    card = a_card(store / "tiny", policy=policy(**options), grammar_options=options)
    assert card.grammar is not None
    assert card.grammar.options == {"prompt": "{{members}} {{question}}"}
    assert policy(**card.grammar.options).grammar.template == card.grammar.template
    assert str(tmp_path) not in card.to_json()


def test_a_damaged_card_is_named(adapter: Path) -> None:
    data = json.loads((adapter / FILE).read_text())
    (adapter / FILE).write_text(json.dumps({**data, "steps": "many"}))
    with pytest.raises(ConfigError, match=r"card\.json is no card of this version: steps"):
        of_model({"model": "tiny", "lora": str(adapter)})


def test_models_show_prints_the_card(adapter: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "show", str(adapter)]) == 0
    assert capsys.readouterr().out.startswith("# trained\n")
    assert run(["models", "show", str(adapter), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["card"]["steps"] == 7
    assert run(["models", "show", "tiny"]) == 2
    assert "has no card.json" in capsys.readouterr().err
