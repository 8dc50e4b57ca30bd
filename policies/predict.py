"""Estimates that the rules share: what a router can compute from its own counters and the predictor's law.

Every function takes scalars and worker records (anything with the fields of ``contract.WORKER_FIELDS``), is
plain enough for numba to compile, and says its formula. Names: ``new`` = prompt tokens to compute,
``cached`` = prompt tokens in that worker's prefix cache, ``law`` terms = the worker's ``c0_s`` .. ``c_kv_s``.

What the router does not know is left out, not guessed: how far a running prefill has got (its tokens count in
full until it ends), the part of the current step that is over, when a prefill in the queue meets a full cache.
Split workers are estimated as mixed ones, since the view does not show their share.
"""

from __future__ import annotations

from typing import Any


def step_s(worker: Any, new: float, attn: float, seqs: float, kv: float) -> float:
    """Time of one step: ``max(floor, c0 + c_tok*new) + c_attn*attn + c_seq*seqs + c_kv*kv``.

    ``attn`` = sum over chunks of ``chunk * (context + chunk / 2)``, ``seqs`` = decoding sequences, ``kv`` = the
    tokens that their attention reads.
    """
    total: float = matrices_s(worker, new) + worker.c_attn_s * attn + worker.c_seq_s * seqs + worker.c_kv_s * kv
    return total


def matrices_s(worker: Any, new: float) -> float:
    """The part of a step that reads the weights: ``max(floor, c0 + c_tok*new)``."""
    linear: float = worker.c0_s + worker.c_tok_s * new
    floor: float = worker.floor_s
    return linear if linear > floor else floor


def chunked_s(worker: Any, tokens: int, budget: int, each_s: float) -> float:
    """Steps that compute ``tokens`` (at least 1) prompt tokens, ``budget`` a step, the last step the rest.

    ``full * (max(floor, c0 + c_tok*budget) + each) + max(floor, c0 + c_tok*rest) + each`` with ``0 < rest <= budget``.
    """
    full = (tokens - 1) // budget
    rest = tokens - full * budget
    total: float = full * (matrices_s(worker, budget) + each_s) + matrices_s(worker, rest) + each_s
    return total


def new_tokens(worker: Any, prompt_tokens: int) -> int:
    """Prompt tokens that this worker would compute: ``max(1, prompt - cached)``; one is always computed."""
    new: int = prompt_tokens - worker.cached_tokens
    return new if new > 1 else 1


def prefill_work_s(worker: Any, new: float, cached: float) -> float:
    """What a prefill takes beyond the constant of its steps: ``c_tok*new + c_attn*new*(cached + new/2)``.

    The attention term is exact for every way of cutting the prompt into chunks; steps below the floor cost more.
    """
    work: float = worker.c_tok_s * new + prefill_attention_s(worker, new, cached)
    return work


def prefill_attention_s(worker: Any, new: float, cached: float) -> float:
    """Attention of a prefill: ``c_attn*new*(cached + new/2)``, however it is cut into chunks."""
    work: float = worker.c_attn_s * (new * (cached + 0.5 * new))
    return work


def queued_work_s(worker: Any) -> float:
    """Work of the prefills queued on a worker, their number ``q`` and total ``t`` known, taken as equally long.

    ``c_tok*t + c_attn*t*t/(2*q)``: with equal lengths ``t/q`` each has attention ``(t/q)**2 / 2``; the cached
    context of each is not known and counts as 0.
    """
    work: float = worker.c_tok_s * worker.prefill_tokens + queued_attention_s(worker)
    return work


def queued_attention_s(worker: Any) -> float:
    """Attention of the prefills queued on a worker, taken as equally long: ``c_attn*t*t/(2*q)``."""
    t = worker.prefill_tokens
    work: float = worker.c_attn_s * (0.5 * t * t / max(1, worker.prefill_requests))
    return work


def chunk_budget(worker: Any) -> int:
    """Prefill tokens that one step has room for: ``max(1, max_batched_tokens - streams)``."""
    room: int = worker.max_batched_tokens - worker.streams
    return room if room > 1 else 1


def prefill_done_s(worker: Any, new: int, cached: int) -> float:
    """Time until this worker has computed the request's last prompt token, first come first served.

    ``steps = ceil((t + new) / budget)`` with ``t`` the pending prefill tokens and ``budget`` from
    :func:`chunk_budget`; each step carries the worker's decodes (mixed steps)::

        sum over steps of max(floor, c0 + c_tok*chunk)      chunk = budget, the last the rest of t + new
            + steps*(c_seq*streams + c_kv*decode_tokens) + attention of the queue and of this prompt

    For a worker without streams this is queue wait plus own prefill.
    """
    decodes_s = worker.c_seq_s * worker.streams + worker.c_kv_s * worker.decode_tokens
    steps_s = chunked_s(worker, worker.prefill_tokens + new, chunk_budget(worker), decodes_s)
    return steps_s + queued_attention_s(worker) + prefill_attention_s(worker, new, cached)


def handover_time_s(prefill: Any, decode: Any, tokens: float) -> float:
    """From the end of the prefill until ``tokens`` of KV are on the decode worker, links otherwise idle.

    ``handover_s of decode + tokens * kv_bytes_per_token(prefill) / min(link of prefill, link of decode)``.
    """
    link = min(prefill.link_bytes_per_s, decode.link_bytes_per_s)
    total: float = decode.handover_s + tokens * prefill.kv_bytes_per_token / link
    return total


def joined_kv_tokens(worker: Any, prompt_tokens: float) -> float:
    """KV tokens that decodes will read on this worker once the request and all on their way have joined.

    The contexts of requests on their way are not in the view; each counts as the mean of the streams' contexts
    and this request's prompt: ``decode_tokens + prompt + (decode_requests - streams) * mean``.
    """
    mean = (worker.decode_tokens + prompt_tokens) / (worker.streams + 1)
    kv: float = worker.decode_tokens + prompt_tokens + (worker.decode_requests - worker.streams) * mean
    return kv


def joined_step_s(worker: Any, prompt_tokens: float) -> float:
    """A decode-only step of this worker once the request and all on their way have joined it."""
    return step_s(worker, 0.0, 0.0, worker.decode_requests + 1.0, joined_kv_tokens(worker, prompt_tokens))


def first_step_s(worker: Any, prompt_tokens: float) -> float:
    """The decode step that yields the first token after a handover.

    As :func:`joined_step_s`, with a chunk of the worker's own pending prefills in it, if it has any:
    ``chunk = min(pending tokens, budget)``, attention ``chunk * mean length / 2``.
    """
    if worker.prefill_tokens == 0:
        return joined_step_s(worker, prompt_tokens)
    chunk = float(min(worker.prefill_tokens, chunk_budget(worker)))
    mean = worker.prefill_tokens / max(1, worker.prefill_requests)
    kv = joined_kv_tokens(worker, prompt_tokens)
    return step_s(worker, chunk, 0.5 * chunk * mean, worker.decode_requests + 1.0, kv)


def ttft_local_s(worker: Any, prompt_tokens: int) -> float:
    """Predicted TTFT if this worker prefills and decodes: its prefill's last step emits the first token."""
    return prefill_done_s(worker, new_tokens(worker, prompt_tokens), worker.cached_tokens)


def ttft_remote_s(prefill: Any, decode: Any, prompt_tokens: int) -> float:
    """Predicted TTFT over a handover: prefill done + handover of what ``decode`` lacks + its first step."""
    done = prefill_done_s(prefill, new_tokens(prefill, prompt_tokens), prefill.cached_tokens)
    moved = float(max(0, prompt_tokens - decode.cached_tokens))
    return done + handover_time_s(prefill, decode, moved) + first_step_s(decode, float(prompt_tokens))


def harm_s(worker: Any, local_s: float) -> float:
    """Delay that a local prefill of ``local_s`` seconds spreads over a worker: ``local_s * decode_requests``.

    ``local_s`` is :func:`ttft_local_s`: while a local prefill is pending the worker's steps are long, so waiting behind
    another one prolongs the harm. Requests on their way count, since most arrive before it is over.
    """
    harm: float = local_s * worker.decode_requests
    return harm


def interference_s(worker: Any, prompt_tokens: int) -> float:
    """Extra step time that one local prefill costs the present streams together.

    ``(sum over its steps of max(floor, c0 + c_tok*chunk) - max(floor, c0), + attention) * streams``: chunks that fit
    under the floor cost them their attention only.
    """
    new = new_tokens(worker, prompt_tokens)
    extra_s = chunked_s(worker, new, chunk_budget(worker), -matrices_s(worker, 0.0))
    work: float = (extra_s + prefill_attention_s(worker, new, worker.cached_tokens)) * worker.streams
    return work
