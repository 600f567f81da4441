"""The causal-LM router fine-tunes a real language model (a tiny one made here) to name members, and knows its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import tokenizers
import torch
import transformers

from antiphon.errors import ConfigError
from antiphon.types import Task
from antiphon_policies._features import weights_hash
from antiphon_policies.causal_lm import CausalLM, log_probabilities

from .conftest import PRICES, TOPICS, questions, views

pytestmark = pytest.mark.usefixtures("no_embedder")
UNSEEN = questions(40, seed=7)


def language_model(folder: Path, seed: int = 0) -> str:
    """A Llama of two layers with random weights, over the words of these questions."""
    words = sorted({word for _, question in questions(400) for word in question.replace("?", " ?").split()})
    known = ["[UNK]", "[END]", "Question:", "The", "model", "that", "answers", "it", "best:", *words, *PRICES]
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(known))}
    level = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    level.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=level, eos_token="[END]").save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def training(folder: Path, **more: Any) -> dict[str, Any]:
    return {"model": language_model(folder), "lr": 1e-2, "epochs": 12, "features": "tfidf", **more}


def chosen(policy: CausalLM) -> list[str]:
    return [policy.choose(Task(question), views()) for _, question in UNSEEN]


def test_it_learns_to_name_who_is_right(topical: Any, tmp_path: Path) -> None:
    options = training(tmp_path / "lm")
    facts = CausalLM.train(views(), tmp_path / "r", scores=topical(), options=options)
    assert facts["validation"]["router"] >= 0.95
    policy = CausalLM(path=str(tmp_path / "r"))
    right = sum(a == TOPICS[topic] for a, (topic, _) in zip(chosen(policy), UNSEEN, strict=True))
    assert right >= 0.95 * len(UNSEEN)

    # another artefact over the same base does not disturb it
    CausalLM.train(views(), tmp_path / "s", scores=topical(shuffled=True), options={**options, "epochs": 2})
    other, before = CausalLM(path=str(tmp_path / "s")), chosen(policy)
    assert chosen(other).count("Physicist") >= 0.9 * len(UNSEEN)
    assert chosen(policy) == before

    language_model(tmp_path / "lm", seed=1)
    weights_hash.cache_clear()
    with pytest.raises(ConfigError, match="fine-tuned from other weights"):
        CausalLM(path=str(tmp_path / "r")).choose(Task("Which atoms?"), views())


def test_names_are_as_likely_together_as_each_by_itself(tmp_path: Path) -> None:
    """Prompts and names of several lengths, against a pass for each pair."""
    network = transformers.AutoModelForCausalLM.from_pretrained(language_model(tmp_path)).eval()
    prompts, names = [[3, 4, 5, 6], [7, 8], [9, 3, 9]], [[10, 1], [11, 12, 1], [1]]
    with torch.no_grad():
        together = log_probabilities(network, prompts, names)
        for row, prompt in enumerate(prompts):
            for column, name in enumerate(names):
                logits = network(input_ids=torch.tensor([[*prompt, *name]])).logits[0].log_softmax(-1)
                alone = sum(logits[len(prompt) - 1 + at, token] for at, token in enumerate(name))
                assert float(together[row, column]) == pytest.approx(float(alone), abs=1e-4)


def test_a_model_that_is_not_there_is_told(topical: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `antiphon models fetch smollm2-135m-instruct`"):
        CausalLM.train(views(), tmp_path / "r", scores=topical(30))
