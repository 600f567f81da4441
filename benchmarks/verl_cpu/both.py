"""What vLLM and transformers each go on with, greedily, after a few words: `both.py MODEL`; prints JSON."""

from __future__ import annotations

import contextlib
import json
import sys

TEXT, TOKENS = "The capital of France is", 16


def with_vllm(model: str) -> str:
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype="float32", enforce_eager=True, max_model_len=256)
    [done] = engine.generate([TEXT], SamplingParams(temperature=0, max_tokens=TOKENS))
    return str(done.outputs[0].text)


def with_transformers(model: str) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = tokenizer(TEXT, return_tensors="pt")
    [said] = network.generate(**ids, do_sample=False, max_new_tokens=TOKENS)
    return str(tokenizer.decode(said[ids["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # vLLM writes there too
        found = {"transformers": with_transformers(sys.argv[1]), "vllm": with_vllm(sys.argv[1])}
    print(json.dumps(found))
