"""Attention of one token a row without copying the keys and values that its query heads share."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "antiphon_grouped"


def use_grouped_attention(network: Any) -> None:
    """Have a model that attends by torch's SDPA decode in groups of query heads; others stay as they are."""
    if getattr(network.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        network.set_attn_implementation(_NAME)


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[Any, None]:
    """Query heads of one key head are taken as so many queries of it.

    query [rows, heads, 1, size], key and value [rows, key heads, columns, size] -> [rows, 1, heads, size]. Anything but
    one token a row is transformers' own SDPA.
    """
    rows, heads, tokens, size = query.shape
    if tokens > 1 or (attention_mask is not None and attention_mask.shape[1] > 1):
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return attended, None
    groups = query.view(rows, key.shape[1], -1, size)
    attended = torch.nn.functional.scaled_dot_product_attention(
        groups, key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(rows, 1, heads, value.shape[-1]), None
