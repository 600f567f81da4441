"""The BERT router fine-tunes a real encoder (a tiny one made here), keeps its layers, and knows its base again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("transformers")

import torch
import transformers

from antiphon.errors import ConfigError
from antiphon.types import Task
from antiphon_policies._features import EMBEDDER, encoder, fit_features
from antiphon_policies._scores import words
from antiphon_policies.bert import BERT

from .conftest import TOPICS, questions, views

TRAINING = {"lr": 3e-3, "epochs": 20, "layers": 2, "patience": 6}


def embedder_in(folder: Path, seed: int = 0) -> None:
    """A BERT of two layers with random weights, under the embedder's name in the store."""
    path = folder / "models" / EMBEDDER
    path.mkdir(parents=True)
    known = sorted({word for _, question in questions(400) for word in words(question)})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?", *known]
    (path / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(path)
    transformers.BertTokenizerFast(vocab={w: i for i, w in enumerate(vocabulary)}).save_pretrained(path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    encoder.cache_clear()
    home = tmp_path / "home"
    embedder_in(home)
    monkeypatch.setenv("ANTIPHON_HOME", str(home))
    return home


def test_it_learns_who_is_right_and_keeps_its_layers(store: Path, topical: Any, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in encoder(store / "models" / EMBEDDER)[1].named_parameters()}
    facts = BERT.train(views(), tmp_path / "r", scores=topical(), options=TRAINING)
    assert facts["validation"]["router"] >= 0.95
    policy = BERT(path=str(tmp_path / "r"))
    unseen = questions(60, seed=7)
    asked = [policy.choose(Task(question), views()) for _, question in unseen]
    assert sum(member == TOPICS[topic] for member, (topic, _) in zip(asked, unseen, strict=True)) >= 0.95 * len(unseen)
    after = dict(encoder(store / "models" / EMBEDDER)[1].named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)  # others use the same encoder


def test_a_long_and_a_short_question_do_not_disturb_each_other(store: Path, topical: Any, tmp_path: Path) -> None:
    """Padding is not read: one question is predicted alike alone and beside another."""
    BERT.train(views(), tmp_path / "r", scores=topical(30), options={**TRAINING, "epochs": 1})
    policy = BERT(path=str(tmp_path / "r"))
    fitted = policy.fitted(Task("Which atoms?"), views())
    long = "Tell me about rivers that Ada saw in 1700 ? " * 3
    together = fitted.raw(["Which atoms?", long])
    assert torch.allclose(torch.tensor(together[0]), torch.tensor(fitted.raw(["Which atoms?"])[0]), atol=1e-5)


def test_another_base_is_refused(store: Path, topical: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BERT.train(views(), tmp_path / "r", scores=topical(30), options={**TRAINING, "epochs": 1})
    embedder_in(tmp_path / "other", seed=1)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=f"was fine-tuned from other weights of {EMBEDDER}"):
        BERT(path=str(tmp_path / "r")).choose(Task("Which atoms?"), views())
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"run `antiphon models fetch {EMBEDDER}`"):
        BERT(path=str(tmp_path / "r")).choose(Task("Which atoms?"), views())
    monkeypatch.setenv("ANTIPHON_HOME", str(store))
    with pytest.raises(ConfigError, match=r"layers is 3, and .* has 2"):
        BERT.train(views(), tmp_path / "x", scores=topical(30), options={"layers": 3})


def test_the_embedder_makes_features_of_one_length_whatever_is_beside_them(store: Path) -> None:
    features = fit_features(["Which atoms?"], "auto", 0)
    assert features.facts["kind"] == "embedder"
    alone = features(["Which atoms?"])
    beside = features(["Tell me about rivers that Ada saw in 1700", "Which atoms?"])
    assert torch.allclose(torch.tensor(alone[0]), torch.tensor(beside[1]), atol=1e-5)
    assert float((alone**2).sum()) == pytest.approx(32, rel=1e-4)
