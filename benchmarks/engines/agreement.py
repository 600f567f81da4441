"""Whether vLLM says what transformers says: greedy text of 50 prompts, token by token.

Half of the prompts begin with a description longer than a block of vLLM's cache. Where the two first differ, the token
that vLLM took is looked up in transformers' scores at that very place: no further than `--tie` below the best, rounding
decides between the two, and the place is listed as a tie. Anything else is a wrong engine: it is listed, and the exit
status is 1. `--engine` takes vLLM's engine arguments as JSON: {"enforce_eager": false} is the compiled path, which CPUs
do not take by default. `--control` runs vLLM on a model with another base of its rotary positions: a wrong engine,
which must be found wrong.

    python benchmarks/engines/agreement.py [--json] [--dtype float32] [--tokens 32] [--engine JSON] [--control]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from antiphon import models
from antiphon.contracts import GenerationRequest
from antiphon.generators.vllm import VLLMGenerator
from antiphon.types import Message

SUBJECTS = (
    "France", "the Moon", "bread", "a violin", "the river Nile", "chess", "iron", "a honey bee", "the number seven",
    "winter",
)  # fmt: skip
QUESTIONS = (
    "What is {}?",
    "Write one sentence about {}.",
    "Name three things that go with {}.",
    "How would you explain {} to a child?",
    "Is {} larger than a cat? Say why.",
)
SHARED = "You are one of several helpers. " + " ".join(
    f"Helper {number} answers questions of kind {number} in one short sentence and says so when it does not know."
    for number in range(1, 9)
)
TIES = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""By dtype: how far below the best score a token may lie for rounding to decide; scores are about 10 to 30."""


@dataclass(frozen=True)
class Difference:
    """Where two greedy texts part. `gap`: transformers' best score less its score of the token that vLLM took."""

    prompt: str
    position: int
    vllm: str
    transformers: str
    gap: float


def prompts() -> list[list[Message]]:
    asked = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS]
    system = [Message("system", SHARED)]
    return [(system if index % 2 else []) + [Message("user", text)] for index, text in enumerate(asked)]


async def by_vllm(args: argparse.Namespace) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], Any]:
    """The prompts' ids, the generated ids, and the chat that made them."""
    options = {"max_context": 1024, "max_num_seqs": 16, **args.engine}
    if args.control:
        rotary = json.loads((models.find(args.model) / "config.json").read_text())["rope_parameters"]
        options["hf_overrides"] = {"rope_parameters": {**rotary, "rope_theta": rotary["rope_theta"] / 5}}
    generator = VLLMGenerator(args.model, dtype=args.dtype, **options)
    opened = [generator.open(messages).token_ids or () for messages in prompts()]

    async def one(ids: tuple[int, ...]) -> tuple[int, ...]:
        request = GenerationRequest((), "", ids, (), args.tokens, "r", {"temperature": 0.0})
        return tuple(i for chunk in [c async for c in generator.generate(request)] for i in chunk.token_ids or ())

    try:
        said = await asyncio.gather(*map(one, opened))
    finally:
        await generator.aclose()
    return opened, list(said), generator._model.chat


def network_of(args: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = AutoModelForCausalLM.from_pretrained(models.find(args.model), dtype=getattr(torch, args.dtype))
    return made.eval().to(device)


def by_transformers(network: Any, opened: Sequence[Sequence[int]], chat: Any, tokens: int) -> list[tuple[int, ...]]:
    """Greedy ids by transformers' own `generate`, in batches of prompts of one length: none is padded."""
    import torch

    said: dict[int, tuple[int, ...]] = {}
    for length in sorted({len(ids) for ids in opened}):
        rows = [index for index, ids in enumerate(opened) if len(ids) == length]
        ids = torch.tensor([opened[row] for row in rows], device=network.device)
        with torch.inference_mode():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=sorted(chat.end_ids),
                pad_token_id=min(chat.end_ids),
            )
        for row, whole in zip(rows, out.tolist(), strict=True):
            said[row] = to_end(whole[length:], chat.end_ids)
    return [said[index] for index in range(len(opened))]


def to_end(ids: Sequence[int], ends: frozenset[int]) -> tuple[int, ...]:
    """Up to and with the first token that ends a turn."""
    stop = next((index + 1 for index, token in enumerate(ids) if token in ends), len(ids))
    return tuple(ids[:stop])


def difference(
    network: Any, chat: Any, ids: Sequence[int], vllm: Sequence[int], theirs: Sequence[int]
) -> Difference | None:
    import torch

    if tuple(vllm) == tuple(theirs):
        return None
    # Both hold their end, so one that ends earlier differs from the other there.
    at = next(i for i, (one, other) in enumerate(zip(vllm, theirs, strict=False)) if one != other)
    context = torch.tensor([[*ids, *vllm[:at]]], device=network.device)
    with torch.inference_mode():
        scores = network(context).logits[0, -1].float()
    gap = float(scores.max() - scores[vllm[at]])
    return Difference(chat.decode(ids)[-60:], at, chat.decode(vllm), chat.decode(theirs), gap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", choices=tuple(TIES), default="float32")
    parser.add_argument("--tokens", type=int, default=32, help="decoded after each prompt")
    parser.add_argument("--tie", type=float, help="the gap in scores that counts as a tie; default: by the dtype")
    parser.add_argument("--engine", type=json.loads, default={}, help="engine arguments of vLLM, as JSON")
    parser.add_argument("--control", action="store_true", help="with a wrong model in vLLM: must fail")
    args = parser.parse_args()
    tie = TIES[args.dtype] if args.tie is None else args.tie
    opened, vllm, chat = asyncio.run(by_vllm(args))
    network = network_of(args)
    theirs = by_transformers(network, opened, chat, args.tokens)
    found = [difference(network, chat, *each) for each in zip(opened, vllm, theirs, strict=True)]
    differences = [one for one in found if one is not None]
    ties = [one for one in differences if one.gap <= tie]
    wrong = [one for one in differences if one.gap > tie]
    equal = len(opened) - len(differences)
    print(f"{len(opened)} prompts: {equal} equal, {len(ties)} part at a tie (gap at most {tie:g}), {len(wrong)} wrong")
    for one in differences:
        print(f"  …{one.prompt!r} at token {one.position}, gap {one.gap:.3g}: {one.vllm!r} | {one.transformers!r}")
    if args.json:
        settings = {key: getattr(args, key) for key in ("model", "dtype", "tokens", "engine", "control")}
        counts = {"prompts": len(opened), "tokens_compared": sum(map(len, vllm)), "equal": equal, "tie": tie}
        listed = {"ties": [asdict(one) for one in ties], "wrong": [asdict(one) for one in wrong]}
        print(json.dumps({"benchmark": "agreement", **settings, **counts, **listed}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
