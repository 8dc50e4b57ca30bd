"""One run's inputs as plain arrays: what the kernel and the reference simulator both start from.

Times are integer picoseconds, so that both programs compute with the same exact numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PS = 1_000_000_000_000  # picoseconds in a second


def whole_ps(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest whole picosecond of each time.

    Whole seconds and the rest are converted apart: one product would lose picoseconds from 2**51 ps (38 min) on. So
    ``whole_ps(ps / 1e12) == ps`` as long as float64 seconds tell picoseconds apart, which is up to 2**13 s (2.3 h).
    """
    whole = np.floor(seconds)
    return np.asarray(whole.astype(np.int64) * PS + np.rint((seconds - whole) * PS).astype(np.int64))


# Step law in picoseconds. The terms of a decode-only step are whole numbers, so that k undisturbed decode steps sum
# exactly (closed form == stepwise). The two prefill terms stay floats and are rounded, each once a step.
LAW_DTYPE = np.dtype(
    [
        ("floor_ps", "i8"),
        ("c0_ps", "i8"),
        ("c_seq_ps", "i8"),
        ("c_kv_ps", "i8"),
        ("c_tok_ps", "f8"),
        ("c_attn_ps", "f8"),
    ]
)

REQUEST_INPUT_DTYPE = np.dtype(
    [
        ("arrival_ps", "i8"),  # first turns and open replay; later turns of a closed session: -1
        ("think_ps", "i8"),  # gap from the end of the previous turn (closed replay)
        ("next_turn", "i8"),  # index of the request released when this one ends, -1 if none
        ("prompt_tokens", "i8"),
        ("view_prompt_tokens", "i8"),  # what the router believes the prompt length is
        ("output_tokens", "i8"),  # >= 1
        ("max_output_tokens", "i8"),  # -1 if none
        ("output_hint_tokens", "i8"),  # -1 if none
        ("session", "i8"),  # dense 0..n_sessions-1, -1 if none
        ("turn", "i8"),  # from 1
        ("class_id", "i8"),
        ("priority", "i8"),
        ("tenant", "i8"),
        ("model", "i8"),
        ("lora", "i8"),
        ("replica", "i8"),
        ("slo_ttft_s", "f8"),
        ("slo_tpot_s", "f8"),
        ("chain_start", "i8"),  # first index into Problem.chain_ids
        ("chain_len", "i8"),  # prefix blocks of prompt + output, prompt blocks first
    ]
)

WORKER_INPUT_DTYPE = np.dtype(
    [
        ("group", "i8"),  # dense 0..n_groups-1
        ("role", "i8"),
        ("can_prefill", "i8"),
        ("can_decode", "i8"),
        ("prefix_cache", "i8"),
        ("rack", "i8"),
        ("total_blocks", "i8"),
        ("block_tokens", "i8"),
        ("node_blocks", "i8"),  # KV blocks that one prefix block (chain id) occupies
        ("max_batched_tokens", "i8"),
        ("max_num_seqs", "i8"),
        ("prefill_share_permille", "i8"),  # split workers
        ("kv_bytes_per_token", "f8"),
        ("law", LAW_DTYPE),
        ("table", "i8"),  # k: the law is Problem.tables[k - 1]; 0: it is ``law``
        ("fit_tokens", "i8"),  # where the law was fitted: at most so many tokens in a step,
        ("fit_context", "i8"),  # that many tokens attended to by a prefill token, on the mean of a step,
        ("fit_seqs", "i8"),  # that many decodes,
        ("fit_kv", "i8"),  # and that many KV tokens of them; 0: not known
    ]
)


@dataclass(frozen=True, slots=True)
class HandoverPs:
    """The handover law in picoseconds, bandwidth in bytes per picosecond."""

    dispatch_ps: int
    connect_ps: int
    base_ps: int
    per_block_ps: int
    bytes_per_ps: float


@dataclass(frozen=True, slots=True)
class TablePs:
    """``envs.hardware.tables.StepTables`` in picoseconds; all but ``c_attn_ps`` are whole numbers.

    ``kv_ps`` is ``seqs*d1``: decode attention for each token of mean context.
    """

    tokens: tuple[int, ...]
    w_ps: tuple[int, ...]
    seqs: tuple[int, ...]
    d0_ps: tuple[int, ...]
    kv_ps: tuple[int, ...]
    a0_ps: int
    h0_ps: int
    h1_ps: int
    c_attn_ps: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a run needs besides the policy."""

    requests: NDArray[Any]  # (n,) REQUEST_INPUT_DTYPE; roots sorted by arrival
    chain_ids: NDArray[np.int32]  # (n_chain,) dense prefix-block ids, see REQUEST_INPUT_DTYPE.chain_*
    n_prefix_ids: int
    prefix_block_tokens: int  # 0: the trace has no prefix information
    workers: NDArray[Any]  # (w,) WORKER_INPUT_DTYPE
    handover: HandoverPs
    predictor_rows: NDArray[Any]  # (w,) policies.contract.WORKER_DTYPE with every static field set
    n_sessions: int
    n_classes: int
    replicas: int
    scrape_period_ps: int  # 0: live
    prefix_view: int  # 0 none, 1 exact, 2 approximate
    kv_event_delay_ps: int
    approximate_ttl_ps: int
    adjust_period_ps: int  # 0: no adjust timer
    seed: int
    order: NDArray[np.int64] | None = None  # (n,) trace row of each request; None: as in the trace
    replay: str = "open"
    tables: tuple[TablePs, ...] = ()  # laws of the workers with a ``table``


# What a run yields for each request. -1 in a time: it did not happen.
OUTCOME_DTYPE = np.dtype(
    [
        ("status", "i8"),
        ("reason", "i8"),  # the policy's reason index, or for REJECTED by the engine see TOO_LARGE
        ("prefill_worker", "i8"),
        ("decode_worker", "i8"),
        ("local", "i8"),
        ("arrival_ps", "i8"),  # when it reached the router
        ("routed_ps", "i8"),
        ("prefill_start_ps", "i8"),  # start of the step with its first chunk
        ("prefill_done_ps", "i8"),
        ("pull_start_ps", "i8"),  # decode worker reserved blocks
        ("pull_end_ps", "i8"),
        ("first_token_ps", "i8"),
        ("finish_ps", "i8"),
        ("emitted_tokens", "i8"),
        ("cached_tokens", "i8"),  # prompt tokens found in the prefilling worker's cache, first admission
        ("pulled_tokens", "i8"),
        ("pulled_bytes", "f8"),
        ("preemptions", "i8"),
        ("holds", "i8"),
        ("prefill_tokens_computed", "i8"),  # recomputation after preemption included
    ]
)

PENDING, SERVED, REJECTED, CANCELLED, FAILED = range(5)
STATUS = ("pending", "served", "rejected", "cancelled", "failed")
TOO_LARGE = -1
"""``reason`` of a request whose prompt + output exceeds the KV capacity of a worker it was sent to."""

WORKER_OUTCOME_DTYPE = np.dtype(
    [
        ("steps", "i8"),
        ("extrapolated_steps", "i8"),  # of them, those outside the range that the law was fitted in
        ("prefill_ps", "i8"),  # time in steps with prefill tokens only
        ("decode_ps", "i8"),  # time in steps with decodes only
        ("mixed_ps", "i8"),  # time in steps with both
        ("idle_rank_ps", "i8"),  # time an idle rank spent in steps of its group
        ("prefill_tokens", "i8"),
        ("decode_tokens", "i8"),  # tokens emitted by decode steps (first tokens of local prefills not included)
        ("evictions", "i8"),
        ("preemptions", "i8"),
        ("peak_used_blocks", "i8"),  # reserved + cached in use, evictable blocks not included
    ]
)

# Gaps between tokens are counted in bins of about 3 % width: bin = 32 * floor(log2 ns) + next 5 bits.
TBT_BINS = 32 * 48


def tbt_bin(gap_ps: int) -> int:
    """Histogram bin of a token gap: exact integer arithmetic on nanoseconds, below 32 ns all in bin 0."""
    ns = gap_ps // 1000
    if ns < 32:
        return 0
    top = 5
    while (ns >> (top + 1)) > 0:
        top += 1
    b = 32 * top + ((ns >> (top - 5)) & 31)
    return b if b < 32 * 48 else 32 * 48 - 1


def tbt_bin_edges_s() -> NDArray[np.float64]:
    """Lower edges of the TBT histogram bins, in seconds, shape (TBT_BINS,)."""
    index = np.arange(TBT_BINS)
    top, low = index // 32, index % 32
    return np.where(top >= 5, np.ldexp(32.0 + low, top - 5), 0.0) * 1e-9


def step_ps(law: Any, new_tokens: int, attn2: int, n_decodes: int, kv_tokens: int) -> int:
    """Duration of one step by the plane: the one shared definition. ``attn2`` = sum(chunk * (2*ctx + chunk)).

    The floor is the time to read the weights once: it bounds the matrix products from below, and attention,
    sequences and KV reads come on top.
    """
    t = law.c0_ps
    if new_tokens > 0:
        t += int(round(law.c_tok_ps * new_tokens))
    if t < law.floor_ps:
        t = law.floor_ps
    if new_tokens > 0:
        t += int(round(law.c_attn_ps * (0.5 * attn2)))
    return t + law.c_seq_ps * n_decodes + law.c_kv_ps * kv_tokens
