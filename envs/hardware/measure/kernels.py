"""Attention with torch: decode, prompt over cached tokens, and the cascade over a prefix that a batch shares.

Decodes fold the query heads of a KV head into the query's length, which is the same sum and what engines' kernels do.
Layouts: queries (sequences, heads, tokens, head dim), keys and values (sequences, KV heads, tokens, head dim).
"""

from __future__ import annotations

from typing import Any

from envs.hardware.measure.lab import Lab

BACKENDS = {"cuda": "torch_flash_attention", "cpu": "torch_cpu_attention"}
CUDNN = "torch_cudnn_attention"


def backend_name(lab: Lab) -> str:
    """What is written as ``kernel_source``."""
    return BACKENDS[lab.device]


def causal(lab: Lab, q: Any, k: Any, v: Any, cudnn: bool = False) -> Any:
    """Prompt attention: the last query sees every key, each one before it one key less.

    Args:
        lab: where it runs.
        q: (b, heads, new, d).
        k: (b, kv_heads, cached + new, d); ``v`` alike.
        v: see ``k``.
        cudnn: by cuDNN instead of flash attention.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    attention = lab.torch.nn.functional.scaled_dot_product_attention
    which = SDPBackend.CUDNN_ATTENTION if cudnn else SDPBackend.FLASH_ATTENTION
    allowed = [which] if lab.cuda else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(allowed):
        if q.shape[2] == k.shape[2]:
            return attention(q, k, v, is_causal=True, enable_gqa=True)
        return attention(q, k, v, attn_mask=causal_lower_right(q.shape[2], k.shape[2]), enable_gqa=True)


def decode(lab: Lab, q: Any, k: Any, v: Any) -> Any:
    """One new token a sequence over its context.

    Args:
        lab: where it runs.
        q: (b, heads, d).
        k: (b, kv_heads, context, d); a first stride of 0 means that all sequences read the same memory.
        v: alike.

    Returns:
        (b, heads, d).
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    allowed = [SDPBackend.FLASH_ATTENTION] if lab.cuda else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    folded = q.view(q.shape[0], k.shape[1], -1, q.shape[2])
    with sdpa_kernel(allowed):
        out = lab.torch.nn.functional.scaled_dot_product_attention(folded, k, v)
    return out.reshape(q.shape)


def partial(lab: Lab, q: Any, k: Any, v: Any, is_causal: bool = False) -> tuple[Any, Any]:
    """Attention over a part of the keys, with what is needed to merge parts.

    Args:
        lab: where it runs.
        q: (b, heads, n, d).
        k: (b, kv_heads, m, d); ``v`` alike.
        v: see ``k``.
        is_causal: the last query sees every key, each one before it one less (n = m).

    Returns:
        (b, heads, n, d) and the log of the sum of exponentials, (b, heads, n).
    """
    aten = lab.torch.ops.aten
    if lab.cuda:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)
        return out, lse[..., : q.shape[2]]
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)
    return out, lse


def merge(lab: Lab, one: tuple[Any, Any], two: tuple[Any, Any]) -> Any:
    """Attention over both parts of the keys: outputs weighted by their share of the exponentials."""
    share = lab.torch.sigmoid(one[1] - two[1]).unsqueeze(-1).to(one[0].dtype)
    return two[0] + share * (one[0] - two[0])


def shared_prefix(lab: Lab, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The part of all tokens of a step over one prefix, which is read once for all of them.

    Args:
        lab: where it runs.
        q: (tokens, heads, d).
        k: (1, kv_heads, prefix, d); ``v`` alike.
        v: see ``k``.

    Returns:
        (tokens, heads, d) and (tokens, heads).
    """
    tokens, heads, d = q.shape
    group = heads // k.shape[1]
    folded = q.view(tokens, k.shape[1], group, d).transpose(0, 1).reshape(1, k.shape[1], tokens * group, d)
    out, lse = partial(lab, folded, k, v)
    out = out.reshape(k.shape[1], tokens, group, d).transpose(0, 1).reshape(tokens, heads, d)
    return out, lse.reshape(k.shape[1], tokens, group).transpose(0, 1).reshape(tokens, heads)


def own_decode(lab: Lab, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The part of each decode over its own tokens: q (b, heads, d), k (b, kv_heads, own, d); as :func:`partial`."""
    b, heads, d = q.shape
    out, lse = partial(lab, q.view(b, k.shape[1], -1, d), k, v)
    return out.reshape(b, heads, d), lse.reshape(b, heads)


def own_chunk(lab: Lab, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The part of a prompt's new tokens over themselves: q (n, heads, d), k (1, kv_heads, n, d)."""
    out, lse = partial(lab, q.transpose(0, 1).unsqueeze(0), k, v, is_causal=True)
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)
