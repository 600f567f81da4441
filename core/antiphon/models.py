"""Local models: each base loaded once per process and shared, with LoRA adapters switched per request."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.contracts import Chunk
from antiphon.errors import ConfigError, GeneratorError, MissingExtra, did_you_mean

if TYPE_CHECKING:
    from antiphon.batching import Engine
    from antiphon.generators._chat import Chat

CACHE_TOKENS = 8192
"""Tokens of finished contexts whose keys and values a model keeps for reuse."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DTYPES = ("auto", "float32", "bfloat16", "float16")


def store() -> Path:
    """Where models live: `$ANTIPHON_HOME/models`, by default `~/.cache/antiphon/models`."""
    home = os.environ.get("ANTIPHON_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "antiphon").expanduser() / "models"


def stored() -> tuple[str, ...]:
    """Names of the models in the store."""
    folder = store()
    if not folder.is_dir():
        return ()
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and _NAME.fullmatch(p.name)))


def store_path(name: str) -> Path:
    """Where a model of this name lives, there or not.

    Raises:
        ConfigError: no name for a folder.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no model name: letters, digits, dots, dashes and underscores only")
    return store() / name


def find(name_or_path: str | Path) -> Path:
    """The folder of a model or of a LoRA adapter: a name in the store, or a path.

    Raises:
        ConfigError: it is not there; says how to get it.
    """
    text = str(name_or_path)
    if _NAME.fullmatch(text) and (store() / text).is_dir():
        return store() / text
    path = Path(text).expanduser()
    if path.is_dir():
        return path.resolve()
    if _NAME.fullmatch(text):
        raise ConfigError(
            f"model {text!r} is not in {store()}{did_you_mean(text, stored())}; run `antiphon models fetch {text}`, or "
            "give the path of a Hugging Face folder"
        )
    raise ConfigError(f"{text}: no such folder; give a Hugging Face folder (config.json, weights, tokenizer.json)")


class LocalModel:
    """One base in memory with its LoRA adapters. Get it with `load`, give it back with `release`.

    Attributes:
        chat: its tokeniser and chat template.
        max_context: tokens of prompt and reply together.
    """

    def __init__(self, path: Path, engine: Engine, chat: Chat, max_context: int) -> None:
        self.path, self.engine, self.chat, self.max_context = path, engine, chat, max_context
        self.users = 0
        self._adapters: dict[Path, str] = {}
        self._adapting = threading.Lock()

    def adapter(self, lora: str | Path) -> str:
        """Load a LoRA adapter (once), and say the name that `generate` takes.

        Raises:
            ConfigError: it is not there, no LoRA, or not for this base.
        """
        path = find(lora)
        with self._adapting:
            if path not in self._adapters:
                name = f"lora{len(self._adapters)}"
                self.engine.call(lambda: self._attach(path, name))
                self._adapters[path] = name
            return self._adapters[path]

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        sampling: Mapping[str, Any] | None = None,
        adapter: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """Generate after `token_ids`: one chunk a token, the last with `finish`; closing the iterator frees its place.

        Args:
            sampling: temperature (default 1; 0: greedy), top_p, top_k, seed. With a seed the same context gives the
                same tokens, whatever else runs.
            adapter: a name from `adapter`; None: the base.

        Raises:
            GeneratorError: the context does not fit, an option is wrong, or the model failed.
        """
        from antiphon.batching import BASE, Job
        from antiphon.sampling import Sampling

        room = self.max_context - len(token_ids)
        if not token_ids or room <= 0:
            raise GeneratorError(
                f"model {self.path.name!r}: a context of {len(token_ids)} tokens leaves no room in {self.max_context}; "
                "set limits.context_tokens below that, or raise max_context where the model allows it"
            )
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()

        def deliver(item: Chunk | Exception) -> None:
            if loop.is_closed():  # nobody is waiting any more
                job.cancelled = True
            else:
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        job = Job(
            tuple(token_ids),
            tuple(s for s in stop if s),
            min(max_tokens, room),
            Sampling.of(sampling or {}),
            adapter or BASE,
            deliver,
        )
        self.engine.submit(job)
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finish is not None:
                    return
        finally:
            job.cancelled = True

    def release(self) -> None:
        """Say that one user of `load` is done; the last one frees the memory."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, model in _loaded.items() if model is self]:
                del _loaded[key]
        self.engine.close()

    def _attach(self, path: Path, name: str) -> None:
        try:
            from peft import PeftConfig, PeftModel
        except ImportError:
            raise MissingExtra("a LoRA adapter", "local") from None
        engine = self.engine
        try:
            config = PeftConfig.from_pretrained(str(path))
            if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA" or getattr(
                config, "use_dora", False
            ):
                raise ConfigError(
                    f"{path}: only plain LoRA adapters can be switched per request; merge this one instead"
                )
            if hasattr(engine.model, "peft_config"):
                engine.model.load_adapter(str(path), adapter_name=name, torch_device=str(engine.model.device))
            else:
                engine.model = PeftModel.from_pretrained(
                    engine.model, str(path), adapter_name=name, torch_device=str(engine.model.device)
                )
            engine.model.eval()
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"{path}: cannot be loaded as a LoRA adapter of {self.path} ({first}); it needs adapter_config.json "
                "and weights trained on this base"
            ) from None


_lock = threading.Lock()
_loaded: dict[tuple[Path, str, str, str | None], LocalModel] = {}


def load(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    max_batch: int = 16,
    max_context: int | None = None,
    cache_tokens: int = CACHE_TOKENS,
    threads: int | None = None,
    chat_template: str | Path | None = None,
) -> LocalModel:
    """A model of the store or a Hugging Face folder; the same object for the same path, dtype, device and template.

    The first to load it decides the other options. Nothing is ever downloaded here.

    Args:
        dtype: "auto" (as saved), "float32", "bfloat16" or "float16".
        device: of torch: "cpu", "cuda", "cuda:1", "auto" (a GPU where there is one).
        max_batch: requests decoded at once; others wait their turn.
        max_context: tokens; default: as many as the model was made for.
        threads: torch threads; None: torch's own choice.
        chat_template: a Jinja file to use instead of the model's own template.

    Raises:
        ConfigError: it is not there, or cannot be used; says what to do.
        MissingExtra: torch or transformers is not installed.
    """
    path = find(name_or_path)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not known{did_you_mean(dtype, _DTYPES)}")
    if max_batch < 1:
        raise ConfigError(f"max_batch must be at least 1, got {max_batch}")
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingExtra(f"model {str(name_or_path)!r}", "local") from None
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with _lock:
        key = (path, dtype, device, None if chat_template is None else str(chat_template))
        model = _loaded.get(key)
        if model is None:
            model = _read(
                transformers, torch, path, dtype, device, max_batch, max_context, cache_tokens, threads, chat_template
            )
            _loaded[key] = model
        model.users += 1
        return model


def _read(
    transformers: Any,
    torch: Any,
    path: Path,
    dtype: str,
    device: str,
    max_batch: int,
    max_context: int | None,
    cache_tokens: int,
    threads: int | None,
    chat_template: str | Path | None,
) -> LocalModel:
    from antiphon.batching import Engine
    from antiphon.generators._chat import Chat, load_tokenizer, read_template

    chat = Chat(load_tokenizer(path), source=str(path), template=read_template(chat_template))
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(
            str(path), dtype="auto" if dtype == "auto" else getattr(torch, dtype), local_files_only=True
        ).to(device)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{path}: cannot be loaded as a causal language model on {device!r} ({first}); it needs config.json and "
            "safetensors weights, and enough memory"
        ) from None
    finally:
        if shown:
            bars.enable_progress_bar()
    config = network.config.get_text_config(decoder=True)
    if unknown := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"{path}: layers of kind {', '.join(sorted(unknown))} cannot be batched here; serve the model with vLLM "
            "and use generator = 'openai'"
        )
    network.eval()
    ends = network.generation_config.eos_token_id
    chat.add_ends([ends] if isinstance(ends, int) else ends or ())
    longest = int(getattr(config, "max_position_embeddings", 0) or 0) or 2048
    engine = Engine(network, chat, name=path.name, max_batch=max_batch, cache_tokens=cache_tokens, threads=threads)
    return LocalModel(path, engine, chat, min(max_context or longest, longest))


@atexit.register
def _close_all() -> None:
    """Stop the workers before the interpreter goes: torch on a dying thread crashes."""
    with _lock:
        models = list(_loaded.values())
        _loaded.clear()
    for model in models:
        model.engine.close()
