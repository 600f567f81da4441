"""Local models: each base loaded once per process and shared, with LoRA adapters switched per request."""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.contracts import Chunk
from antiphon.errors import ConfigError, GeneratorError, MissingExtra, did_you_mean, first_line

if TYPE_CHECKING:
    from antiphon.batching import Engine
    from antiphon.generators._chat import Chat

CACHE_TOKENS = 32768
"""Tokens of finished contexts whose keys and values a model keeps for reuse: those of a full batch of rollouts."""

MAX_BATCH = 64
"""Requests decoded at once: many cost hardly more time than one, on a CPU too."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_IN_PACKAGE = re.compile(r"([A-Za-z_]\w+(?:\.\w+)*):(\w[\w./-]*)")  # two letters at least: C:/models is a path
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
    """The folder of a model or of a LoRA adapter: a name in the store, a path, or `package:folder/in/it`.

    Raises:
        ConfigError: it is not there; says how to get it.
    """
    text = str(name_or_path)
    if match := _IN_PACKAGE.fullmatch(text):
        return _in_package(match[1], match[2])
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


def _in_package(package: str, folder: str) -> Path:
    """A folder that an installed package brings; the package is not run."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{package}:{folder}: no package {package!r} is installed; install what brings it")
    for place in spec.submodule_search_locations:
        if (path := Path(place, folder)).is_dir():
            return path.resolve()
    raise ConfigError(f"{package}:{folder}: the package {package!r} has no such folder; another version may have it")


@dataclass(slots=True, eq=False)
class _Base:
    """One base in memory, with its LoRA adapters and how many use it."""

    path: Path
    engine: Engine
    ends: tuple[int, ...]  # what its own configuration says ends a generation
    longest: int
    users: int = 0
    adapters: dict[Path, str] = field(default_factory=dict)
    adapting: threading.Lock = field(default_factory=threading.Lock)


class LocalModel:
    """A use of a base in memory. Get it with `load`, give it back with `release`.

    Attributes:
        chat: its tokeniser and chat template.
        max_context: tokens of prompt and reply together.
    """

    def __init__(self, base: _Base, chat: Chat, max_context: int) -> None:
        self.chat, self.max_context = chat, max_context
        self._base = base
        self._released = False

    @property
    def path(self) -> Path:
        return self._base.path

    @property
    def engine(self) -> Engine:
        """What runs it; shared by all uses of the base."""
        return self._base.engine

    def adapter(self, lora: str | Path) -> str:
        """Load a LoRA adapter (once), and say the name that `generate` takes.

        Raises:
            ConfigError: it is not there, no LoRA, or not for this base.
        """
        path, base = find(lora), self._base
        with base.adapting:
            if path not in base.adapters:
                name = f"lora{len(base.adapters)}"
                base.engine.call(lambda: _attach(base, path, name))
                base.adapters[path] = name
            return base.adapters[path]

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

        room = room_after(token_ids, self.max_context, self.path.name)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()

        def deliver(item: Chunk | Exception) -> None:
            if loop.is_closed():  # nobody is waiting any more
                job.cancelled = True
            else:
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        job = Job(
            self.chat,
            tuple(token_ids),
            tuple(stop),
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
        """Give it back; the last user of a base frees its memory. A second time does nothing."""
        with _lock:
            if self._released:
                return
            self._released = True
            self._base.users -= 1
            if self._base.users > 0:
                return
            for key in [key for key, base in _bases.items() if base is self._base]:
                del _bases[key]
        self.engine.close()


_lock = threading.Lock()
_bases: dict[tuple[Path, str, str], _Base] = {}


def room_after(token_ids: Sequence[int], max_context: int, name: str) -> int:
    """How many tokens may follow a context.

    Raises:
        GeneratorError: none; names the model and the remedy.
    """
    room = max_context - len(token_ids)
    if not token_ids or room <= 0:
        raise GeneratorError(
            f"model {name!r}: a context of {len(token_ids)} tokens leaves no room in {max_context}; "
            "set limits.context_tokens below that, or raise max_context where the model allows it"
        )
    return room


def ends_in(path: Path) -> tuple[int, ...]:
    """The tokens that end a generation by a model folder's own configuration."""
    for name in ("generation_config.json", "config.json"):
        with suppress(OSError, ValueError, AttributeError):
            said = json.loads((path / name).read_text(encoding="utf-8"))
            if (ends := said.get("eos_token_id")) is not None:
                return _listed(ends)
    return ()


def _listed(ends: int | Sequence[int] | None) -> tuple[int, ...]:
    return (ends,) if isinstance(ends, int) else tuple(ends or ())


def load(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    max_batch: int = MAX_BATCH,
    max_context: int | None = None,
    cache_tokens: int = CACHE_TOKENS,
    threads: int | None = None,
    chat_template: str | Path | None = None,
) -> LocalModel:
    """A model of the store or a Hugging Face folder; one base in memory for the same path, dtype and device.

    The first to load a base decides max_batch, cache_tokens and threads. Nothing is ever downloaded here.

    Args:
        dtype: "auto" (see `torch_dtype`), "float32", "bfloat16" or "float16".
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
        import transformers  # noqa: F401 - said here, before anything is read
    except ImportError:
        raise MissingExtra(f"model {str(name_or_path)!r}", "local") from None
    from antiphon.generators._chat import load_chat

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chat = load_chat(path, chat_template)
    with _lock:
        key = (path, dtype, device)
        base = _bases.get(key)
        if base is None:
            network = _network(path, dtype, device)
            base = _bases[key] = _base(path, network, max_batch, cache_tokens, threads)
        base.users += 1
    chat.add_ends(base.ends)
    return LocalModel(base, chat, min(max_context or base.longest, base.longest))


def adopt(
    network: Any,
    tokenizer: str | Path,
    *,
    max_batch: int = MAX_BATCH,
    max_context: int | None = None,
    cache_tokens: int = CACHE_TOKENS,
    threads: int | None = None,
    chat_template: str | Path | None = None,
) -> LocalModel:
    """A model that is in memory already, run by an engine of its own; its weights are replaced with `engine.change`.

    Args:
        network: a causal language model of transformers; from now on it is the engine's.
        tokenizer: a name in the model store or a Hugging Face folder: the tokeniser and chat template.

    The other arguments are those of `load`.
    """
    from antiphon.generators._chat import load_chat

    path = find(tokenizer)
    chat = load_chat(path, chat_template)
    base = _base(path, network.eval(), max_batch, cache_tokens, threads)
    with _lock:
        _bases[path, f"adopted {id(network)}", str(network.device)] = base
        base.users += 1
    chat.add_ends(base.ends)
    return LocalModel(base, chat, min(max_context or base.longest, base.longest))


def _base(path: Path, network: Any, max_batch: int, cache_tokens: int, threads: int | None) -> _Base:
    from antiphon.batching import Engine

    longest = getattr(network.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return _Base(
        path,
        Engine(network, name=path.name, max_batch=max_batch, cache_tokens=cache_tokens, threads=threads),
        _listed(network.generation_config.eos_token_id),
        int(longest or 2048),
    )


@contextmanager
def no_bars() -> Iterator[None]:
    """Within it, transformers shows no progress bar of its own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def torch_dtype(dtype: str, device: str) -> Any:
    """What transformers is to read weights in.

    "auto": as they were saved; float32 on a CPU that has no arithmetic in 16 bits (neither AMX nor AVX512-BF16, as most
    laptops), which computes a batch in 16 bits several times slower.
    """
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch does not tell
    slow = bool(told) and not any(there for name, there in told.items() if name.endswith("bf16"))
    return torch.float32 if slow and torch.device(device).type == "cpu" else "auto"


def _network(path: Path, dtype: str, device: str) -> Any:
    """The model itself, in eval mode."""
    import transformers

    try:
        with no_bars():
            network: Any = transformers.AutoModelForCausalLM.from_pretrained(
                str(path), dtype=torch_dtype(dtype, device), local_files_only=True
            )
        network = network.to(device)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{path}: cannot be loaded as a causal language model on {device!r} ({first_line(error)}); it needs "
            "config.json and safetensors weights, and enough memory"
        ) from None
    config = network.config.get_text_config(decoder=True)
    if unknown := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"{path}: layers of kind {', '.join(sorted(unknown))} cannot be batched here; serve the model with vLLM "
            "and use generator = 'openai'"
        )
    return network.eval()


def _attach(base: _Base, path: Path, name: str) -> None:
    """Load a LoRA adapter into a base; runs on the engine's thread, between two steps."""
    try:
        import peft  # noqa: F401 - said here, before anything is read
    except ImportError:
        raise MissingExtra("a LoRA adapter", "local") from None
    try:
        base.engine.adapters.load(path, name)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(
            f"{path}: cannot be loaded as a LoRA adapter of {base.path} ({first_line(error)}); it needs "
            "adapter_config.json and weights trained on this base"
        ) from None


@atexit.register
def _close_all() -> None:
    """Stop the workers before the interpreter goes: torch on a dying thread crashes."""
    with _lock:
        bases = list(_bases.values())
        _bases.clear()
    for base in bases:
        base.engine.close()
