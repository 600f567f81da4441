"""The generator for a model that vLLM runs in this process: continuous batching, prefix caching, LoRA by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon import models
from antiphon.errors import ConfigError
from antiphon.generators import _engine, _vllm
from antiphon.generators._chat import Chat, Utterance, load_chat
from antiphon.generators._engine import Lora, SharedEngine, Wanted
from antiphon.generators.transformers import ModelGenerator
from antiphon.sampling import Sampling

if TYPE_CHECKING:
    from antiphon.contracts import Chunk


class VLLMModel:
    """A use of an engine. Get it with `load`, give it back with `release`; else like `antiphon.models.LocalModel`."""

    def __init__(self, path: Path, engine: SharedEngine, chat: Chat, key: str) -> None:
        self.path, self.engine, self.chat = path, engine, chat
        self.max_context = engine.max_context
        self._key, self._released = key, False

    def adapter(self, lora: str | Path) -> Lora:
        """A LoRA adapter, as its folder now is, for `generate`; vLLM reads it when it is first used.

        Raises:
            ConfigError: it is not there, or no LoRA adapter.
        """
        path = models.find(lora)
        rank_of(path)
        return self.engine.lora(path)

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        sampling: Mapping[str, Any] | None = None,
        adapter: Lora | None = None,
    ) -> AsyncIterator[Chunk]:
        """As `LocalModel.generate`, in chunks of one or several tokens; the last chunk has usage.

        Raises:
            GeneratorError: the context does not fit, an option is wrong, or the engine failed, twice where it died.
        """
        room = models.room_after(token_ids, self.max_context, self.path.name)
        said = Utterance(self.chat, stop, min(max_tokens, room))
        wanted = Wanted(Sampling.of(sampling or {}), tuple(sorted(self.chat.end_ids)), adapter)
        async with aclosing(self.engine.generate(token_ids, said, wanted)) as chunks:
            async for chunk in chunks:
                yield chunk

    def release(self) -> None:
        """Give it back; the engine ends with its last user. A second time does nothing."""
        if not self._released:
            self._released = True
            _engine.release(self._key)


def load(
    model: str | Path,
    *,
    lora: str | Path | None = None,
    max_context: int | None = None,
    chat_template: str | Path | None = None,
    **arguments: Any,
) -> VLLMModel:
    """A model of the store or a Hugging Face folder, run by vLLM: one engine for the same model and arguments.

    The engine starts when something is first generated; its arguments are checked here.

    Args:
        lora: an adapter that will be wanted: the engine is made to take adapters of its rank.
        max_context: tokens of prompt and reply together; default: as many as the model was made for.
        chat_template: a Jinja file to use instead of the model's own template.
        arguments: engine arguments of the installed vLLM.

    Raises:
        ConfigError: the model is not there, or an argument does not hold.
        MissingExtra: vLLM is not installed.
    """
    path = models.find(model)
    rank = None if lora is None else rank_of(models.find(lora))
    _vllm.load(f"generator 'vllm' ({path.name})")
    made = _vllm.arguments(path, arguments, max_context=max_context, rank=rank)
    chat = load_chat(path, chat_template)
    chat.add_ends(models.ends_in(path))
    key = json.dumps(made, sort_keys=True, default=repr)
    engine = _engine.lease(key, lambda: SharedEngine(path.name, lambda: _vllm.VLLMEngine(made), _vllm.check(made)))
    return VLLMModel(path, engine, chat, key)


class VLLMGenerator(ModelGenerator):
    """A policy model run by vLLM in this process, on GPUs or on vLLM's CPU build.

    Several generators of one model and equal engine arguments share one engine, each with its own LoRA adapter.

    Args:
        model: a name in the model store, or the path of a Hugging Face folder.
        lora: a LoRA adapter, likewise; None: the base.
        options: those of `load`: max_context, chat_template, and vLLM's engine arguments.

    Raises:
        ConfigError, MissingExtra: as `load`.
    """

    def __init__(self, model: str | Path, *, lora: str | Path | None = None, **options: Any) -> None:
        loaded = load(model, lora=lora, **options)
        adapter = None if lora is None else loaded.adapter(lora)
        super().__init__(f"vllm:{loaded.path.name}" + (f"+{Path(lora).name}" if lora else ""), loaded, adapter)

    def swap(self, lora: str | Path | None) -> None:
        """Speak with another LoRA adapter, or new weights in the same folder, from the next generation on; None: the
        base. A generation under way goes on as it was. The engine must have been made to take adapters.

        Raises:
            ConfigError: it is not there, or no LoRA adapter.
        """
        self._adapter = None if lora is None else self._model.adapter(lora)

    async def aclose(self) -> None:
        """Give the engine back; it ends with its last user, which takes seconds."""
        self._closed = True
        await asyncio.to_thread(self._model.release)


def rank_of(path: Path) -> int:
    """The highest rank of a LoRA adapter that peft saved.

    Raises:
        ConfigError: there is none in the folder.
    """
    file = path / "adapter_config.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return max(int(said["r"]), *(int(rank) for rank in (said.get("rank_pattern") or {}).values()), 1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: no LoRA adapter ({type(error).__name__}: {error}); it needs adapter_config.json with its rank, "
            "as peft saves it"
        ) from None
