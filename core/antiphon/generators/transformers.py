"""The generator for a model in this process: transformers on the CPU or one GPU, batched over all waiting rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from antiphon import models
from antiphon.contracts import Capabilities, Chunk, Encoded, GenerationRequest
from antiphon.errors import GeneratorError

if TYPE_CHECKING:
    from antiphon.generators._chat import Chat
    from antiphon.types import Message


class Model(Protocol):
    """A model in this process: `antiphon.models.LocalModel`, or vLLM's."""

    chat: Chat

    @property
    def path(self) -> Path: ...

    def adapter(self, lora: str | Path) -> Any: ...

    def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        sampling: Mapping[str, Any] | None = None,
        adapter: Any = None,
    ) -> AsyncIterator[Chunk]: ...

    def release(self) -> None: ...


class ModelGenerator:
    """Generates with a local model; it can do everything that a generator may declare.

    Args:
        model: given back when the generator is closed.
        adapter: what `model.adapter` gave; None: the base.
    """

    def __init__(self, name: str, model: Model, adapter: Any = None) -> None:
        self.name = name
        self.capabilities = Capabilities()
        self._model, self._adapter, self._closed = model, adapter, False

    @property
    def tokenizer_path(self) -> Path:
        """The folder that holds the tokeniser, for training."""
        return self._model.path

    def open(self, messages: Sequence[Message]) -> Encoded:
        return self._model.chat.open(messages)

    def turn(self, text: str) -> Encoded:
        return self._model.chat.turn(text)

    def encode(self, text: str) -> Encoded:
        return self._model.chat.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._model.chat.decode(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """In chunks of one token, or several where they come together.

        The log-probabilities are those of softmax(scores / temperature), before top-k and top-p.
        """
        if self._closed:
            raise GeneratorError(f"generator {self.name!r} is closed; make a new one")
        if request.token_ids is None:
            raise GeneratorError(f"generator {self.name!r} needs the context's token ids; open it with its own `open`")
        stream = self._model.generate(
            request.token_ids,
            max_tokens=request.max_tokens,
            stop=request.stop,
            sampling=request.sampling,
            adapter=self._adapter,
        )
        async with aclosing(stream) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    async def aclose(self) -> None:
        """Give the model back; the last user of it frees the memory."""
        if not self._closed:
            self._closed = True
            self._model.release()


class TransformersGenerator(ModelGenerator):
    """A policy model loaded with transformers.

    Several generators of one model share one copy in memory and one batch; each may have its own LoRA adapter.

    Args:
        model: a name in the model store, or the path of a Hugging Face folder.
        lora: a LoRA adapter, likewise; None: the base.
        options: those of `antiphon.models.load`: dtype, device, max_batch, max_context, threads, chat_template, …

    Raises:
        ConfigError, MissingExtra: as `antiphon.models.load`.
    """

    def __init__(self, model: str | Path, *, lora: str | Path | None = None, **options: Any) -> None:
        loaded = models.load(model, **options)
        try:
            adapter = loaded.adapter(lora) if lora is not None else None
        except BaseException:
            loaded.release()
            raise
        name = f"transformers:{Path(model).name}" + (f"+{Path(lora).name}" if lora else "")
        super().__init__(name, loaded, adapter)
