"""Scores tokens under a causal language model, with gradients: log-probability, entropy, value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from antiphon.errors import ConfigError
from antiphon.train.attention import branch_attention
from antiphon.train.lora import causal_parts
from antiphon.train.packing import pack
from antiphon.train.samples import Sample

if TYPE_CHECKING:
    from antiphon.train.packing import Row

_CHUNK = 512  # tokens whose scores over the vocabulary are in float32 at once


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the M scored tokens of a row, float32.

    Attributes:
        logprobs: [M], under softmax(logits / temperature).
        entropy: [M], of that distribution; None where not asked for.
        values: [M], of the context before each token; None without a value head.
    """

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None


class Scorer:
    """A network as what scores rows.

    Args:
        network: a causal language model of transformers, or peft's of one; left in eval mode, for dropout would make
            its log-probabilities differ from the rollout's.
        temperature: at which the rollouts were sampled.
        value_head: hidden states to values, float32.

    Raises:
        ConfigError: the architecture cannot be scored this way.
    """

    def __init__(self, network: Any, *, temperature: float = 1.0, value_head: torch.nn.Linear | None = None) -> None:
        if temperature <= 0:
            raise ConfigError(f"training needs samples of a temperature above 0, got {temperature:g}")
        self._network = network.eval()
        self._decoder, self._head = causal_parts(network)
        self._temperature = temperature
        self._value_head = value_head
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self.device)
        with torch.no_grad():
            self._check()

    @property
    def device(self) -> torch.device:
        device: torch.device = self._head.weight.device
        return device

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within it the network can be called; LoRA weights are used in the dtype of their base."""
        with ExitStack() as stack:
            stack.enter_context(branch_attention(self._decoder))
            if hasattr(self._network, "peft_config"):
                from peft.helpers import disable_input_dtype_casting

                stack.enter_context(disable_input_dtype_casting(self._network))
            yield

    def __call__(self, row: Row, *, logprobs: bool = True, entropy: bool = False) -> Scores:
        """Score a row's tokens. Without `logprobs` they are zeros, and the vocabulary is left alone."""
        hidden = self._hidden(row)[row.at]
        values = None if self._value_head is None else self._value_head(hidden.float())[:, 0]
        if not logprobs:
            return Scores(hidden.new_zeros(len(hidden), dtype=torch.float32), None, values)
        parts = [
            _LogProbs.apply(self._logits(states), targets, self._temperature, entropy)
            for states, targets in zip(hidden.split(_CHUNK), row.targets.split(_CHUNK), strict=True)
        ]
        logprobs_, entropies = (torch.cat(each) for each in zip(*parts, strict=True))
        return Scores(logprobs_, entropies if entropy else None, values)

    def _hidden(self, row: Row) -> Tensor:
        """[T, size]"""
        with self._autocast():
            output = self._decoder(
                input_ids=row.ids,
                position_ids=row.positions,
                attention_mask=self._no_mask,
                branches=row.branches,
                use_cache=False,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        with self._autocast():
            logits: Tensor = self._head(hidden)
        return logits

    def _autocast(self) -> torch.autocast:
        """Mixed precision where the base is in 16 bits; else nothing."""
        dtype = self._head.weight.dtype
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def _check(self) -> None:
        """Compare with the network's own forward pass, on two samples that share a beginning.

        They say what the network would: in 16 bits, scores of unlikely tokens differ much by rounding alone.
        """
        prompt = [token % self._head.weight.shape[0] for token in (5, 7, 11)]
        samples = [
            Sample(prompt, [first, self._likeliest([*prompt, first])[0]], [1, 1], None)
            for first in self._likeliest(prompt)
        ]
        scored = torch.ones(2, 2, dtype=torch.bool, device=self.device)
        (row,) = pack(list(enumerate(samples)), scored, 100)
        try:
            with self.ready():
                got = self(row).logprobs
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{self._name} cannot be trained here ({type(error).__name__}: {error})") from None
        whole = torch.tensor([[*s.prompt_ids, *s.response_ids] for s in samples], device=self.device)
        logits = self._network(input_ids=whole).logits[:, 2:4].float() / self._temperature
        wanted = torch.log_softmax(logits, -1).gather(2, whole[:, 3:, None])[row.samples, row.tokens, 0]
        exact = self._head.weight.dtype == torch.float32
        if not torch.allclose(got, wanted, atol=(1e-3 if exact else 0.5) / self._temperature):
            raise ConfigError(
                f"{self._name} gives other scores when samples share their beginning (by up to "
                f"{(got - wanted).abs().max():.3g}): its attention or its head does more than this trainer knows; "
                "take another base, or, for reinforcement learning, engine = 'verl'"
            )

    def _likeliest(self, ids: list[int]) -> list[int]:
        """The two most likely tokens after `ids`, by the network's own forward pass."""
        best: list[int] = self._network(torch.tensor([ids], device=self.device)).logits[0, -1].topk(2).indices.tolist()
        return best

    @property
    def _name(self) -> str:
        return f"an architecture of type {getattr(self._decoder.config, 'model_type', 'unknown')!r}"


class _LogProbs(torch.autograd.Function):  # type: ignore[misc]
    """Log-probabilities of targets and entropies, from logits [M, vocabulary] that alone are kept for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        every = torch.log_softmax(logits.float() / temperature, -1)
        ctx.save_for_backward(logits, targets)
        ctx.temperature, ctx.with_entropy = temperature, with_entropy
        entropy = -(every.exp() * every).sum(-1) if with_entropy else every.new_zeros(len(every))
        return every.gather(1, targets[:, None])[:, 0], entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropy = grad_outputs
        logits, targets = ctx.saved_tensors
        every = torch.log_softmax(logits.float() / ctx.temperature, -1)
        shares = every.exp()
        grad = shares * -of_logprobs[:, None]
        grad.scatter_add_(1, targets[:, None], of_logprobs[:, None])
        if ctx.with_entropy:
            entropy = -(shares * every).sum(-1, keepdim=True)
            grad -= of_entropy[:, None] * shares * (every + entropy)
        return (grad / ctx.temperature).to(logits.dtype), None, None, None
