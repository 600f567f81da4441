"""The `local` adapter: a small model in this process as a member, its base shared with the policy and other members."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from antiphon.contracts import CallContext, Chunk, Reply, Request
from antiphon.errors import ConfigError, GeneratorError, MemberError
from antiphon.models import MAX_BATCH
from antiphon.types import Message, Usage
from antiphon_pools.adapters._chat import short
from antiphon_pools.adapters._options import Options, in_thread, read_options, within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.descriptor import Descriptor, Endpoint
    from antiphon.models import LocalModel


class LocalOptions(Options):
    """Attributes:
    lora: name in the model store, or path, of a LoRA adapter to answer with.
    system: a system message put first.
    stop: strings at which the reply ends; they are no part of it.
    dtype, device, max_batch, max_context, threads, chat_template: see `antiphon.models.load`.
    """

    lora: str | None = None
    system: str | None = None
    stop: tuple[str, ...] = ()
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "cpu"
    max_batch: Annotated[int, Field(ge=1)] = MAX_BATCH
    max_context: Annotated[int, Field(ge=1)] | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    chat_template: str | None = None


class LocalAdapter:
    """Generates with the model that the endpoint's `model` names: one of the store, or a Hugging Face folder.

    The base is loaded by the first call, off the event loop, and shared by all that use it.

    Raises:
        ConfigError: the model or its LoRA adapter is not there, or an unknown option.
    """

    def __init__(self, *, endpoint: Endpoint, descriptor: Descriptor) -> None:
        from antiphon import models

        self._options = read_options(LocalOptions, endpoint, descriptor)
        self._name = endpoint.model
        self._lock = threading.Lock()
        self._model: LocalModel | None = None
        self._closed = False
        try:
            models.find(endpoint.model)
            if self._options.lora is not None:
                models.find(self._options.lora)
        except ConfigError as error:
            raise ConfigError(f"member {descriptor.name!r}: {error}") from None

    async def complete(self, request: Request, context: CallContext) -> Reply:
        with within(request.timeout_s):
            async with asyncio.timeout(request.timeout_s):
                model, lora = await in_thread(self._loaded)
                return await self._reply(model, lora, request)

    async def aclose(self) -> None:
        await in_thread(self._release)

    async def _reply(self, model: LocalModel, lora: str | None, request: Request) -> Reply:
        system = (Message("system", self._options.system),) if self._options.system else ()
        prompt = model.chat.open((*system, *request.messages)).token_ids or ()
        if len(prompt) >= model.max_context:
            raise MemberError(
                "bad_request", f"{len(prompt)} tokens leave no room in a context of {model.max_context}", usage=Usage()
            )
        chunks: list[Chunk] = []
        stop = self._options.stop
        try:
            started = model.generate(
                prompt, max_tokens=request.max_tokens, stop=stop, sampling=request.sampling, adapter=lora
            )
            async with aclosing(
                cast("AsyncGenerator[Chunk]", started)
            ) as generated:  # so that giving up frees its place
                async for chunk in generated:
                    chunks.append(chunk)
        except GeneratorError as error:
            raise MemberError("error", short(str(error))) from None
        usage = Usage(len(prompt), sum(len(chunk.token_ids or ()) for chunk in chunks))
        text = "".join(chunk.text for chunk in chunks)
        text = text[: min((at for at in (text.find(mark) for mark in stop if mark) if at >= 0), default=None)]
        if not text.strip():
            raise MemberError("empty_response", "no text in the reply", usage=usage, served_model=self._name)
        finish = chunks[-1].finish
        return Reply(text.strip(), usage, self._name, "length" if finish == "length" else "stop")

    def _loaded(self) -> tuple[LocalModel, str | None]:
        """The model and the name of the LoRA adapter in it."""
        from antiphon import models

        options = self._options
        with self._lock:
            if self._closed:
                raise MemberError("error", "this adapter is closed")
            if self._model is None:
                self._model = models.load(
                    self._name,
                    dtype=options.dtype,
                    device=options.device,
                    max_batch=options.max_batch,
                    max_context=options.max_context,
                    threads=options.threads,
                    chat_template=options.chat_template,
                )
            return self._model, None if options.lora is None else self._model.adapter(options.lora)

    def _release(self) -> None:
        with self._lock:
            self._closed = True
            if self._model is not None:
                self._model.release()
                self._model = None
