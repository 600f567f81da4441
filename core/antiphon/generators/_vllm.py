"""vLLM's AsyncLLM as a `TokenEngine`: its arguments checked, ids in, ids and log-probabilities out. Only here is vLLM
imported."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError, GeneratorError, MissingExtra, did_you_mean, first_line
from antiphon.generators._engine import EngineDied, Lora, Tokens, Wanted

CPU_CACHE_BYTES = 2 << 30
"""For keys and values on a CPU, where nothing says otherwise: vLLM itself would take most of the machine's memory."""

_OURS = {
    "tokenizer": "the model's own is used",
    "skip_tokenizer_init": "the model's own tokeniser is used",
    "max_model_len": "say max_context",
    "logprobs_mode": "training needs the log-probabilities of the policy as sampled",
    "runner": "a policy generates",
    "convert": "a policy generates",
}
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes as max_lora_rank
_SIZES_OF_CACHE = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
# Before vLLM is imported; what the user has set stands. Results go to standard output, and so would vLLM's log. Engines
# are started from a thread, and a process with threads must not be forked.
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def load(what: str) -> None:
    """Import vLLM, quietly.

    Raises:
        MissingExtra: it is not installed.
        ConfigError: it is, and cannot be imported.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "vllm":
            raise MissingExtra(what, "vllm") from None
        raise ConfigError(f"{what}: vLLM cannot be imported ({first_line(error)}); repair its installation") from None
    except Exception as error:  # a torchvision of another torch raises a RuntimeError, a wrong CUDA an OSError
        raise ConfigError(f"{what}: vLLM cannot be imported ({first_line(error)}); repair its installation") from None


def arguments(path: Path, given: Mapping[str, Any], *, max_context: int | None, rank: int | None) -> dict[str, Any]:
    """The engine arguments for a model folder: those given, over our defaults.

    Args:
        given: fields of the installed vLLM's `AsyncEngineArgs`.
        rank: of the LoRA adapter that is wanted, if one is.

    Raises:
        ConfigError: an argument that vLLM does not know, or that is not the user's to set.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    known = {one.name for one in dataclasses.fields(AsyncEngineArgs) if not one.name.startswith("_")}
    check_names(given, known - {"model"})
    made: dict[str, Any] = {"model": str(path), "logprobs_mode": "processed_logprobs"}
    made |= {"enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
    if max_context is not None:
        made["max_model_len"] = max_context
    if rank is not None:
        made["enable_lora"] = True
        if rank > 16:  # vLLM's own default
            made["max_lora_rank"] = next((most for most in _RANKS if most >= rank), rank)
    if current_platform.is_cpu():
        made["enforce_eager"] = True  # the compiled path has been seen to give wrong text
        made["enable_chunked_prefill"] = False  # the engine dies of a seed whose prompt is run in pieces
        if not os.environ.get("VLLM_CPU_KVCACHE_SPACE") and not any(size in given for size in _SIZES_OF_CACHE):
            made["kv_cache_memory_bytes"] = CPU_CACHE_BYTES
    return made | dict(given)


def check_names(given: Mapping[str, Any], known: set[str]) -> None:
    """Raises:
    ConfigError: an option that is not among `known`, or that is set for the user.
    """
    for name in given:
        if name in _OURS:
            raise ConfigError(f"generator 'vllm': {name} is not to be set ({_OURS[name]})")
        if name not in known:
            options = known - _OURS.keys() | {"lora", "max_context", "chat_template"}
            raise ConfigError(
                f"generator 'vllm': the installed vLLM takes no engine argument {name!r}{did_you_mean(name, options)}"
            )


def check(made: Mapping[str, Any]) -> int:
    """Have vLLM check the values of its arguments; returns the longest context in tokens.

    Raises:
        ConfigError: vLLM refuses one; repeats what it says.
    """
    from pydantic import ValidationError
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        config = AsyncEngineArgs(**made).create_engine_config()
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        said = f"{where}: {fault['msg']}" if where else fault["msg"].removeprefix("Value error, ")
        raise ConfigError(f"generator 'vllm': vLLM refuses the engine arguments ({said})") from None
    except Exception as error:  # vLLM raises whatever comes to its mind
        raise ConfigError(f"generator 'vllm': vLLM refuses the engine arguments ({first_line(error)})") from None
    return int(config.model_config.max_model_len)


class VLLMEngine:
    """One AsyncLLM, on the running loop; making it takes seconds to minutes.

    Args:
        made: of `arguments`.
    """

    def __init__(self, made: Mapping[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**made))
        # For rows without an adapter, vLLM's CPU build takes the weights in the last place for adapters (index -1).
        self._adapters_only = bool(made.get("enable_lora")) and current_platform.is_cpu()
        self._guard = guard(self._processes())
        self._numbers = itertools.count()
        self._loras: set[int] = set()
        self._loading = asyncio.Lock()

    async def stream(self, prompt: Sequence[int], max_tokens: int, wanted: Wanted) -> AsyncGenerator[Tokens, None]:
        """As `TokenEngine.stream`.

        Log-probabilities are those of softmax(scores / temperature), as training recomputes them. vLLM takes them after
        top-k and top-p where these are asked for, so then there are none.
        """
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if wanted.lora is None and self._adapters_only:
            raise GeneratorError(
                "vLLM's CPU build computes the base wrongly in an engine that takes LoRA adapters; what speaks without "
                "one needs an engine of its own, without enable_lora"
            )
        lora = wanted.lora and LoRARequest(wanted.lora.name, wanted.lora.number, str(wanted.lora.path))
        name = f"antiphon-{next(self._numbers)}"
        try:
            await self._load(wanted.lora, lora)
            outputs = self.llm.generate(
                {"type": "token", "prompt_token_ids": list(prompt)},
                _sampling(max_tokens, len(prompt), wanted),
                name,
                lora_request=lora,
            )
            async with aclosing(outputs) as arriving:
                async for output in arriving:
                    yield _tokens(output)
        except EngineDeadError as error:
            raise EngineDied(self._cause(error)) from None
        except GeneratorError:
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, EngineGenerateError) and error.__cause__ else error
            raise GeneratorError(f"vLLM refused the generation: {type(cause).__name__}: {first_line(cause)}") from error

    def shutdown(self) -> None:
        self._guard.kill()
        self._guard.communicate()
        if self.llm.output_handler is not None:  # else vLLM logs an orderly end as an error
            self.llm.output_handler.cancel()
        self.llm.shutdown()

    def _processes(self) -> list[int]:
        """Ids of the engine's processes on this machine; none where Ray started them."""
        with suppress(Exception):  # these are vLLM's own affairs, and differ by its version and by what runs it
            return [process.pid for process in self.llm.engine_core.resources.engine_manager.processes]
        return []

    async def _load(self, wanted: Lora | None, request: Any) -> None:
        """Have vLLM read an adapter before it is needed: found faulty in the middle of a step, it would end all."""
        if wanted is None or wanted.number in self._loras:
            return
        from vllm.v1.engine.exceptions import EngineDeadError

        async with self._loading:
            if wanted.number in self._loras:
                return
            try:
                await self.llm.add_lora(request)
            except EngineDeadError:
                raise
            except Exception as error:
                raise GeneratorError(
                    f"{wanted.path}: vLLM cannot use it as a LoRA adapter ({first_line(error)}); it needs weights "
                    "trained on this base, of a rank of at most max_lora_rank"
                ) from None
            self._loras.add(wanted.number)

    def _cause(self, error: Exception) -> str:
        """Which process of vLLM ended, and how; what vLLM says where that cannot be known."""
        with suppress(Exception):  # these are vLLM's own affairs, and differ by its version and by what runs it
            ended = self.llm.engine_core.resources.engine_manager.finished_procs()
            codes = [f"{name} ended by {_ending(code)}" for name, code in ended.items() if code]
            if codes:
                return ", ".join(codes)
        return first_line(error)


def guard(processes: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that waits until this one has ended, be it by a kill, and then ends those: vLLM's would outlive it, and
    keep the GPU. It is to be killed before they are ended in order.
    """
    waits = 'read _; [ $# -eq 0 ] || kill -9 "$@"'  # nobody writes: reading ends when our end of the pipe is closed
    return subprocess.Popen(
        ["sh", "-c", waits, "sh", *map(str, processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C of the terminal is not for it
    )


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {-code}" + (", as when memory runs out" if code == -9 else "")


def _sampling(max_tokens: int, position: int, wanted: Wanted) -> Any:
    """vLLM's parameters: no text and no stop strings, which are watched for in the text that our tokeniser makes of the
    ids, so that the ids stay whole and the text is theirs; and the ends that our chat template has."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from antiphon.sampling import seed_at

    sampling = wanted.sampling
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=0.0 if sampling.greedy else sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=None if sampling.seed is None else seed_at(sampling.seed, position),
        ignore_eos=True,
        stop_token_ids=list(wanted.end_ids),
        logprobs=None if sampling.cuts else 0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _tokens(output: Any) -> Tokens:
    said = output.outputs[0]
    ids = tuple(said.token_ids)
    logprobs = said.logprobs
    return Tokens(
        ids,
        None if logprobs is None else [at[token].logprob for at, token in zip(logprobs, ids, strict=True)],
        output.num_cached_tokens or 0,
        None if said.finish_reason is None else str(said.finish_reason),
    )
