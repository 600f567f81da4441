"""Attention along the branches of a packed row: each token sees its own sample, and nothing is computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from antiphon.train.packing import Branch

_NAME = "antiphon_branches"


class BranchAttention(torch.autograd.Function):  # type: ignore[misc]
    """Softmax attention of a row whose tokens see the paths of its branches.

    Several query heads may share a key head. Gradients of keys and values that samples share are summed in place.

    Args (of `apply`):
        query: [heads, T, size]; key, value: [key heads, T, size].
        branches: of the row.
        scale: of the scores.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, branches: tuple[Branch, ...], scale: float
    ) -> Tensor:
        heads, _, size = query.shape
        out = torch.empty_like(query)
        weights = []
        for branch in branches:
            new, groups, seen = branch.end - branch.start, key.shape[0], len(branch.path)
            asked = _grouped(query[:, branch.start : branch.end] * scale, groups)
            scores = torch.bmm(asked, key[:, branch.path].transpose(1, 2)).view(heads, new, seen)
            scores[:, :, seen - new :].masked_fill_(branch.later, -torch.inf)
            shares = torch.softmax(scores, -1).view(groups, -1, seen)
            out[:, branch.start : branch.end] = torch.bmm(shares, value[:, branch.path]).view(heads, new, size)
            weights.append(shares)
        ctx.save_for_backward(query, key, value, *weights)
        ctx.branches, ctx.scale = branches, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        query, key, value, *weights = ctx.saved_tensors
        groups = key.shape[0]
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for branch, shares in zip(ctx.branches, weights, strict=True):
            here = slice(branch.start, branch.end)
            of_out = _grouped(grad[:, here], groups)
            of_shares = torch.bmm(of_out, value[:, branch.path].transpose(1, 2))
            of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True))
            asked = _grouped(query[:, here] * ctx.scale, groups)
            of_query[:, here] = torch.bmm(of_scores, key[:, branch.path]).view_as(query[:, here]) * ctx.scale
            of_key.index_add_(1, branch.path, torch.bmm(of_scores.transpose(1, 2), asked))
            of_value.index_add_(1, branch.path, torch.bmm(shares.transpose(1, 2), of_out))
        return of_query, of_key, of_value, None, None


def _grouped(heads: Tensor, groups: int) -> Tensor:
    """[heads, n, size] as [groups, heads of a group * n, size]."""
    return heads.reshape(groups, -1, heads.shape[-1])


@contextmanager
def branch_attention(decoder: Any) -> Iterator[None]:
    """Within it a decoder of transformers takes `branches=` of a row (see `antiphon.train.packing`), and needs it.

    Pass an attention mask of four dimensions too, so that no other is made; what it holds is not read.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attend)
    before = decoder.config._attn_implementation
    decoder.config._attn_implementation = _NAME
    try:
        yield
    finally:
        decoder.config._attn_implementation = before


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    branches: tuple[Branch, ...] = (),
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [1, heads, T, size] in, [1, T, heads, size] out."""
    longest = max(len(branch.path) for branch in branches)
    if sliding_window is not None and longest > sliding_window:
        raise ConfigError(
            f"a sample of {longest} tokens is longer than the model's attention window of {sliding_window}; lower "
            "limits.context_tokens of the training run to that"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = BranchAttention.apply(query[0], key[0], value[0], branches, scale)
    return out.transpose(0, 1)[None].contiguous(), None
