"""Causal-LM router: a small causal language model, fine-tuned to name the LLM that does best on a question (a router of
this kind: Ong et al., RouteLLM, arXiv 2406.18665, section 4.2, there with labels of a win in place of names)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from antiphon import models
from antiphon.errors import ConfigError

from ._examples import Array, Arrays, Data, Inputs
from ._features import weights_hash
from ._learned import Learned

PROMPT = "Question: {question}\nThe model that answers it best:"
LONGEST = 128
"""Tokens of a prompt that are read."""

BATCH = 32
"""Questions that go through the network at once."""


class CausalLM(Learned):
    """Asks the member whose name the fine-tuned model holds most probable after the question."""

    name = "causal_lm"

    class Settings(Learned.Settings):
        """Attributes: model: a name in the model store, or a Hugging Face folder; rank: of the LoRA weights."""

        model: str = "smollm2-135m-instruct"
        rank: Annotated[int, Field(ge=1)] = 8
        epochs: Annotated[int, Field(ge=1)] = 3
        batch: Annotated[int, Field(ge=1)] = 16

    @classmethod
    def fit(cls, data: Data, settings: Any) -> Arrays:
        """LoRA weights. An example is a question and the name of its best LLM, one for each of several best ones; a
        question where all did alike is left out."""
        import numpy as np
        import peft

        from antiphon.train.lora import LoraSettings, load_trainable
        from antiphon.train.sft import Example, SFTSettings, finetune

        path = models.find(settings.model)
        lora = LoraSettings(rank=settings.rank, alpha=2 * settings.rank)
        network = load_trainable(path, lora, dtype="float32", seed=settings.seed)
        names = [_name(path, profile.name) for profile in data.profiles]
        examples = []
        for text, scores in zip(data.train.texts, data.train.scores, strict=True):
            highest = np.nanmax(scores)
            if highest > np.nanmin(scores):
                prompt = _prompt(path, text)
                for column in np.flatnonzero(scores == highest):
                    name = names[column]
                    examples.append(Example([*prompt, *name], [0] * len(prompt) + [1] * len(name)))
        if examples:
            finetune(
                network,
                examples,
                SFTSettings(lr=settings.lr, batch=settings.batch, epochs=settings.epochs, seed=settings.seed),
            )
        weights = peft.get_peft_model_state_dict(network)
        return {
            **{f"lora.{name}": value.detach().float().numpy() for name, value in weights.items()},
            "rank": np.array([settings.rank]),
            "base": _bytes(settings.model),
            "base_sha256": _bytes(weights_hash(path)),
        }

    @classmethod
    def predict(cls, arrays: Arrays, inputs: Inputs) -> Array:
        """The probability of each name, among all names."""
        import numpy as np
        import torch

        name = bytes(arrays["base"]).decode()
        path = models.find(name)
        if weights_hash(path) != bytes(arrays["base_sha256"]).decode():
            raise ConfigError(f"policy causal_lm: it was fine-tuned from other weights of {name} than those in {path}")
        prompts = [_prompt(path, text) for text in inputs.texts]
        names = [_name(path, profile.name) for profile in inputs.profiles]
        with _predicting, torch.no_grad():
            network = _with_weights(path, arrays)
            parts = [
                log_probabilities(network, prompts[at : at + BATCH], names) for at in range(0, len(prompts), BATCH)
            ]
            return np.asarray(torch.softmax(torch.cat(parts), dim=1))


_predicting = threading.Lock()
_current: dict[int, str] = {}
"""Network -> digest of the LoRA weights that are in it."""


def _with_weights(path: Path, arrays: Arrays) -> Any:
    """The network of a folder with these LoRA weights in it; the base is loaded once."""
    import peft
    import torch

    lora = {name.removeprefix("lora."): value for name, value in arrays.items() if name.startswith("lora.")}
    digest = hashlib.sha256(b"".join(lora[name].tobytes() for name in sorted(lora))).hexdigest()
    network = _network(path, int(arrays["rank"][0]))
    if _current.get(id(network)) != digest:
        peft.set_peft_model_state_dict(network, {name: torch.as_tensor(value) for name, value in lora.items()})
        _current[id(network)] = digest
    return network


@cache
def _network(path: Path, rank: int) -> Any:
    from antiphon.train.lora import LoraSettings, load_trainable

    return load_trainable(path, LoraSettings(rank=rank, alpha=2 * rank), dtype="float32").eval()


@cache
def _tokenizer(path: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def _prompt(path: Path, question: str) -> list[int]:
    """Token ids of the prompt, its end if it is long."""
    before, after = PROMPT.split("{question}")
    ids: list[int] = _tokenizer(path)(before + question + after, add_special_tokens=False).input_ids
    return ids[-LONGEST:]


def _name(path: Path, name: str) -> list[int]:
    """Token ids of a name, with the end of text after it."""
    tokenizer = _tokenizer(path)
    return [*tokenizer(" " + name, add_special_tokens=False).input_ids, tokenizer.eos_token_id]


def log_probabilities(network: Any, prompts: Sequence[Sequence[int]], names: Sequence[Sequence[int]]) -> Any:
    """Of each name after each prompt, (prompts, names).

    A prompt goes through the network once, and all names after it: each sees the prompt and itself, and stands where
    the prompt ends.
    """
    import torch

    branch = [number for number, name in enumerate(names, 1) for _ in name]
    following = [token for name in names for token in name]
    offsets = [place for name in names for place in range(len(name))]
    width = max(map(len, prompts)) + len(following)
    ids, positions, groups = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(3))
    before = torch.zeros(len(prompts), len(following), dtype=torch.long)  # where each of the names' tokens is predicted
    groups -= 1  # padding
    for row, prompt in enumerate(prompts):
        end = len(prompt)
        whole = end + len(following)
        ids[row, :whole] = torch.tensor([*prompt, *following])
        positions[row, :whole] = torch.tensor([*range(end), *(end + place for place in offsets)])
        groups[row, :whole] = torch.tensor([0] * end + branch)
        before[row] = torch.tensor([end - 1 + at if place else end - 1 for at, place in enumerate(offsets)])
    ours, theirs = groups[:, :, None], groups[:, None, :]
    visible = ((theirs == 0) | (theirs == ours)) & torch.ones(width, width).tril().bool()
    mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]
    logits = network(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    rows = torch.arange(len(prompts))[:, None]
    said = torch.log_softmax(logits[rows, before].float(), dim=-1)
    values = said.gather(2, torch.tensor(following).expand(len(prompts), -1)[:, :, None])[:, :, 0]
    return torch.stack([values[:, torch.tensor(branch) == number].sum(dim=1) for number in range(1, len(names) + 1)], 1)


def _bytes(text: str) -> Array:
    import numpy as np

    return np.frombuffer(text.encode(), dtype=np.uint8).copy()
