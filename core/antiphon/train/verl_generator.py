"""The policy's model behind verl's server client, as a generator: verl serves the weights, our rollout talks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.contracts import Capabilities, Chunk, Encoded, GenerationRequest
from antiphon.errors import ConfigError, GeneratorError
from antiphon.types import Finish, Usage

if TYPE_CHECKING:
    from antiphon.generators._chat import Chat
    from antiphon.types import Message

# How each of verl's engines is told to leave the stop string in; the ids hold it in any case.
_KEEP_STOP: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}


class ServesTokens(Protocol):
    """What is needed of verl's `LLMServerClient` (0.9.1): ids in, a `TokenOutput` out."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any: ...


class VerlGenerator:
    """Generates for one rollout through verl's server client; not shared between rollouts.

    Every generation of a context goes out under the context's request id, so that verl keeps it on one server, and with
    that server's cache of the prefix.

    Args:
        client: verl's server client.
        chat: the policy's tokeniser and chat template.
        prompt_length: longest prompt in tokens; a longer one is refused, since verl would cut it to fit.
        response_length: tokens a context may grow to after its prompt, information included.
        engine: verl's `rollout.name`.
        priority: verl's number of the sample within the batch.

    Attributes:
        error: what the server raised, or a prompt that is too long: no fault of the rollout's.
        min_global_steps, max_global_steps: versions of the weights that generated first and last, as verl counts them.
        preempted: how often the server set a generation aside; None where it does not say.
    """

    name = "verl"

    def __init__(
        self,
        client: ServesTokens,
        chat: Chat,
        *,
        prompt_length: int,
        response_length: int,
        engine: str = "vllm",
        priority: int | None = None,
    ) -> None:
        self.capabilities = Capabilities()
        self.error: Exception | None = None
        self.min_global_steps: int | None = None
        self.max_global_steps: int | None = None
        self.preempted: int | None = None
        self._client, self._chat = client, chat
        self._prompt_length, self._response_length = prompt_length, response_length
        self._keep_stop = _KEEP_STOP.get(engine, {})
        self._extra = {} if priority is None else {"priority": priority}
        self._prompt_tokens: dict[str, int] = {}  # request id -> tokens of its prompt

    def open(self, messages: Sequence[Message]) -> Encoded:
        """The prompt.

        Raises:
            ConfigError: it is longer than `prompt_length`.
        """
        opened = self._chat.open(messages)
        if len(opened.token_ids or ()) > self._prompt_length:
            self.error = ConfigError(
                f"the prompt has {len(opened.token_ids or ())} tokens and verl trains on {self._prompt_length}; raise "
                "data.max_prompt_length, or shorten the prompt (fewer members, a more compact style)"
            )
            raise self.error
        return opened

    def turn(self, text: str) -> Encoded:
        return self._chat.turn(text)

    def encode(self, text: str) -> Encoded:
        return self._chat.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._chat.decode(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """One chunk a generation. A context that has used up `response_length` ends with `length`.

        Raises:
            GeneratorError: the server gave a generation up (weights were being replaced), or broke its contract.
        """
        context = list(request.token_ids or ())
        prompt_tokens = self._prompt_tokens.setdefault(request.request_id, len(context))
        room = min(request.max_tokens, self._response_length - (len(context) - prompt_tokens))
        if room <= 0:
            yield Chunk("", finish="length", usage=Usage())
            return
        sampling = {**request.sampling, "max_tokens": room}
        if request.stop:
            sampling |= {"stop": list(request.stop), **self._keep_stop}
        try:
            output = await self._client.generate(
                request.request_id, prompt_ids=context, sampling_params=sampling, **self._extra
            )
            self._check(output, bool(request.sampling.get("logprobs")))
        except Exception as error:
            self.error = error
            raise
        self._note(output)
        ids = tuple(int(token) for token in output.token_ids)
        text = self.decode(ids)
        yield Chunk(
            text,
            ids,
            None if output.log_probs is None else tuple(float(value) for value in output.log_probs),
            self._finish(text, ids, request.stop),
            Usage(len(context), len(ids), int(output.extra_fields.get("num_cached_tokens") or 0)),
        )

    async def aclose(self) -> None:
        """Nothing of ours to close: the servers are verl's."""

    def _finish(self, text: str, ids: Sequence[int], stops: Sequence[str]) -> Finish:
        """verl says `completed` for every ending, so it is read off what came."""
        if any(stop in text for stop in stops):
            return "stop"
        if ids and ids[-1] in self._chat.end_ids:
            return "end"
        # Neither a stop nor an end: our limit, or the server's own, which it sets below ours where its context is full.
        return "length" if ids else "end"

    def _check(self, output: Any, logprobs: bool) -> None:
        if output.stop_reason in ("aborted", "abort"):
            raise GeneratorError("verl's server aborted the generation, as it does while weights are replaced")
        if logprobs and (output.log_probs is None or len(output.log_probs) != len(output.token_ids)):
            given = "no" if output.log_probs is None else len(output.log_probs)
            raise GeneratorError(
                f"verl's server gave {given} log-probabilities for {len(output.token_ids)} tokens; each was asked for"
            )

    def _note(self, output: Any) -> None:
        fields = output.extra_fields
        steps = fields.get("global_steps")
        low, high = fields.get("min_global_steps", steps), fields.get("max_global_steps", steps)
        if self.min_global_steps is None:
            self.min_global_steps = low
        self.max_global_steps = self.max_global_steps if high is None else high
        if output.num_preempted is not None:
            self.preempted = (self.preempted or 0) + int(output.num_preempted)
