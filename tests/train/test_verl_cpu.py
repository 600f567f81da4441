"""The CPU as verl's platform, in a process of its own: it changes torch and verl for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")

CODE = """
import json, os, torch, verl
from verl.utils.device import get_device_name, get_torch_device, get_nccl_backend, get_resource_name
from verl.workers.engine.base import EngineRegistry
import verl.workers.engine.fsdp.transformer_impl as fsdp
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group(f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}", rank=0, world_size=1,
                        store=dist.HashStore())
module = torch.nn.Linear(4, 4)
fully_shard(module, mesh=dist.init_device_mesh("cpu", (1,)), offload_policy=CPUOffloadPolicy(pin_memory=True))
module(torch.ones(2, 4)).sum().backward()
device = get_torch_device()
free, total = device.mem_get_info()
from verl.utils.model import load_valuehead_model
from transformers import AutoConfig
config = AutoConfig.from_pretrained(os.environ["MODEL"])
config.num_labels = 1
head = load_valuehead_model(os.environ["MODEL"], torch.float32, config, False)
print(json.dumps([
    get_device_name(), get_resource_name(), dist.get_backend(),
    EngineRegistry.get_engine_cls("language_model", "fsdp2") is fsdp.FSDPEngineWithLMHead,
    module.weight.grad is not None, 0 < free < total, device.memory_allocated() > 0,
    tuple(head(torch.tensor([[3, 4, 5]])).logits.shape),
]))
"""


def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "antiphon.testing.verl_cpu",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **more,
    }
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_verls_fsdp_engine_device_and_value_head_work_on_a_cpu(tiny_policy: Path) -> None:
    done = run(CODE, MODEL=str(tiny_policy))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == '["cpu", "GPU", "gloo", true, true, true, true, [1, 3, 1]]'


@pytest.mark.slow
def test_another_verl_is_refused() -> None:
    patched = "real = m.version; m.version = lambda name: '0.8.0' if name == 'verl' else real(name)"
    done = run(f"import importlib.metadata as m; {patched}; import verl")
    assert done.returncode != 0
    assert "is written for verl 0.9.1, and 0.8.0 is installed" in done.stderr
