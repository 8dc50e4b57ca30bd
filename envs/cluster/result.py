"""The result of a run as data frames, with what an idle cluster could have done for each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.problem import OUTCOME_DTYPE, SERVED, STATUS, Problem, TablePs
from envs.cluster.spec import ClusterSpec
from envs.cluster.tables import DenseTable, dense, room
from policies.contract import ROLES

if TYPE_CHECKING:
    from envs.cluster.simulator import KernelRun


@dataclass(frozen=True, slots=True)
class SimResult:
    """One run.

    Attributes:
        requests: one row a request, in the trace's order; times in seconds, null where they did not happen.
            ``request`` is the id that the policy saw: the row, or its place in the trace's ``logged_order``.
            ``ttft_s`` counts from the arrival at the router to the first token at the client, handover included;
            ``tpot_s`` is null for outputs of one token; ``idle_ttft_s`` and ``idle_tpot_s`` are what the
            best placement on an idle cluster with a perfect prefix cache would give (over the SLO: infeasible).
        workers: one row a worker.
        tbt_counts: (problem.TBT_BINS,) token gaps by bin.
        span_s: time of the last event.
        decisions: questions put to the policy.
        gpus: GPUs of the cluster.
        outcomes: (n,) OUTCOME_DTYPE in the trace's order: the same in whole picoseconds, -1 where null.
        replay: mode of the run.
        share_changes: how often the policy set a split worker's prefill share to another value.
        extrapolated_share: share of engine steps outside the range in which the step laws were fitted
            (``envs.hardware.profile.FittedRange``), over the workers whose profile states one; None if none does.
        cancels_ignored: requests with a ``cancel_after_s``, which the simulator does not act on.
    """

    requests: pl.DataFrame
    workers: pl.DataFrame
    tbt_counts: NDArray[np.int64]
    span_s: float
    decisions: int
    gpus: int
    outcomes: NDArray[Any]
    replay: str = "open"
    share_changes: int = 0
    cancels_ignored: int = 0
    extrapolated_share: float | None = None


def _laws(problem: Problem) -> Any:
    return problem.workers["law"]


def _table(problem: Problem, w: int) -> tuple[TablePs, DenseTable] | None:
    """The table law of worker ``w``, if that is its law."""
    k = int(problem.workers["table"][w])
    if k == 0:
        return None
    own = problem.tables[k - 1]
    return own, dense(own, *room(problem.workers))


def ideal_cached_tokens(problem: Problem) -> NDArray[np.int64]:
    """Leading prompt tokens of each request that an earlier one in the trace had, as whole prefix blocks, shape (n,).

    What a prefix cache without bounds, fed by everything before, would hold.
    """
    rq, tokens = problem.requests, problem.prefix_block_tokens
    n = len(rq)
    if tokens == 0 or len(problem.chain_ids) == 0:
        return np.zeros(n, np.int64)
    lengths = rq["chain_len"].astype(np.int64)
    owner = np.repeat(np.arange(n), lengths)
    entry = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = problem.chain_ids[np.repeat(rq["chain_start"], lengths) + entry]
    first = np.full(problem.n_prefix_ids, n, np.int64)
    np.minimum.at(first, ids, owner)
    missing = np.where(first[ids] < owner, np.iinfo(np.int64).max, entry)
    run = lengths.copy()
    np.minimum.at(run, owner, missing)
    usable: NDArray[np.int64] = np.minimum(run, (rq["prompt_tokens"] - 1) // tokens) * tokens
    return usable


def _prefill_s(problem: Problem, w: int, prompts: NDArray[Any], cached: NDArray[Any]) -> NDArray[np.float64]:
    """Prefill time of each prompt alone on worker ``w``, ``cached`` tokens known, in chunks of its budget (s)."""
    law, budget = _laws(problem)[w], int(problem.workers["max_batched_tokens"][w])
    known = cached.astype(np.float64)
    n = prompts - known
    full, rest = np.divmod(n, budget)

    table = _table(problem, w)

    def step(new: Any, attn: Any) -> Any:
        if table is not None:
            own, made = table
            return (made.work[np.asarray(new, np.int64)] + own.a0_ps + own.c_attn_ps * attn) / 1e12
        matrices = np.maximum(law["c0_ps"] + law["c_tok_ps"] * new, law["floor_ps"])
        return (matrices + law["c_attn_ps"] * attn) / 1e12

    total = np.where(rest > 0, step(rest, rest * (known + full * budget + rest / 2)), 0.0)
    for k in range(int(full.max(initial=0))):
        total = total + np.where(k < full, step(float(budget), budget * (known + k * budget + budget / 2)), 0.0)
    return np.asarray(total, np.float64)


def _decode_s(problem: Problem, w: int, context: NDArray[Any]) -> NDArray[np.float64]:
    """Time of a decode step of one request of that ``context`` alone on worker ``w`` (s)."""
    table = _table(problem, w)
    if table is not None:
        made = table[1]
        return np.asarray((made.work[1] + made.base[1] + made.slope[1] * context) / 1e12)
    law = _laws(problem)[w]
    return np.asarray((max(law["c0_ps"], law["floor_ps"]) + law["c_seq_ps"] + law["c_kv_ps"] * context) / 1e12)


def idle_latency(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Best TTFT and TPOT of each request on an idle cluster that has cached all before it, in seconds, each (n,).

    The best over all local and remote placements, for TTFT and TPOT apart, with the prefix hits of
    :func:`ideal_cached_tokens` on every worker that keeps a cache: a lower bound for any policy on a loaded cluster.
    Requests that fit no worker get infinity.
    """
    rq, win, h = problem.requests, problem.workers, problem.handover
    prompts, outputs = rq["prompt_tokens"], rq["output_tokens"]
    ideal = ideal_cached_tokens(problem)
    n = len(rq)
    ttft, tpot = np.full(n, np.inf), np.full(n, np.inf)
    kinds: dict[bytes, int] = {}
    for i in range(len(win)):  # one of each kind of worker is enough
        row = win[i : i + 1].copy()
        row["group"] = row["rack"] = 0
        kinds.setdefault(row.tobytes(), i)
    known = {w: ideal * int(win["prefix_cache"][w]) for w in kinds.values()}
    prefill = {w: _prefill_s(problem, w, prompts, known[w]) for w in kinds.values() if win["can_prefill"][w]}
    dispatch = h.dispatch_ps / 1e12
    for d in kinds.values():
        if not win["can_decode"][d]:
            continue
        block = int(win["block_tokens"][d])
        fits = -(-(prompts + outputs) // block) <= win["total_blocks"][d]

        tpot = np.where(fits, np.minimum(tpot, _decode_s(problem, d, prompts + outputs / 2)), tpot)
        if d in prefill:
            ttft = np.where(fits, np.minimum(ttft, dispatch + prefill[d]), ttft)
        lacking = prompts - known[d]
        blocks = -(-prompts // block) - known[d] // block
        for p, own in prefill.items():
            room = fits & (-(-prompts // int(win["block_tokens"][p])) <= win["total_blocks"][p])
            moved = lacking * win["kv_bytes_per_token"][p] / h.bytes_per_ps
            fixed = 2 * h.dispatch_ps + h.base_ps + h.per_block_ps * blocks
            remote = own + (fixed + moved) / 1e12 + _decode_s(problem, d, prompts)
            ttft = np.where(room, np.minimum(ttft, remote), ttft)
    return ttft, tpot


def _states_range(problem: Problem) -> NDArray[np.bool_]:
    """Workers whose profile says where its law was fitted, (w,)."""
    win = problem.workers
    return np.asarray(np.any([win[f"fit_{axis}"] > 0 for axis in ("tokens", "context", "seqs", "kv")], axis=0))


def make_result(problem: Problem, cluster: ClusterSpec, run: KernelRun) -> SimResult:
    """Frames from the raw arrays of a run."""
    rq, out = problem.requests, run.outcomes
    served = out["status"] == SERVED

    def seconds(name: str) -> pl.Series:
        values = out[name]
        return pl.Series(name.removesuffix("_ps") + "_s", np.where(values >= 0, values / 1e12, np.nan)).fill_nan(None)

    times = [seconds(name) for name in OUTCOME_DTYPE.names or () if name.endswith("_ps")]
    idle_ttft, idle_tpot = idle_latency(problem)
    counts = [
        *("reason", "prefill_worker", "decode_worker", "emitted_tokens", "cached_tokens"),
        *("prefill_tokens_computed", "pulled_tokens", "preemptions", "holds"),
    ]
    frame = pl.DataFrame(
        {
            "request": np.arange(len(rq)),
            "session": rq["session"],
            "turn": rq["turn"],
            "class_id": rq["class_id"],
            "status": pl.Series(np.array(STATUS, dtype=object)[out["status"]].tolist(), dtype=pl.String),
            "prompt_tokens": rq["prompt_tokens"],
            "output_tokens": rq["output_tokens"],
            "local": out["local"] == 1,
            **{name: out[name] for name in counts},
            "pulled_bytes": out["pulled_bytes"],
            "order_key": run.order_keys,
            "local_chunk_tokens": run.chunk_tokens,
            "slo_ttft_s": rq["slo_ttft_s"],
            "slo_tpot_s": rq["slo_tpot_s"],
            "idle_ttft_s": idle_ttft,
            "idle_tpot_s": np.where(rq["output_tokens"] > 1, idle_tpot, np.where(np.isinf(idle_tpot), np.inf, 0.0)),
        }
    ).with_columns(times)
    gaps = np.maximum(out["emitted_tokens"] - 1, 1)
    tpot = np.where(
        served & (out["emitted_tokens"] > 1), (out["finish_ps"] - out["first_token_ps"]) / 1e12 / gaps, np.nan
    )
    frame = frame.with_columns(
        ttft_s=pl.col("first_token_s") - pl.col("arrival_s"),
        e2e_s=pl.when(pl.Series(served)).then(pl.col("finish_s") - pl.col("arrival_s")),
        tpot_s=pl.Series(tpot).fill_nan(None),
    ).with_columns(
        slo_met=(pl.col("status") == "served")
        & (pl.col("ttft_s") <= pl.col("slo_ttft_s"))
        & (pl.col("tpot_s").is_null() | (pl.col("tpot_s") <= pl.col("slo_tpot_s")))
    )
    w, stated = run.workers, _states_range(problem)
    steps = int(w["steps"][stated].sum())
    workers = pl.DataFrame(
        {
            "worker": np.arange(len(w)),
            "role": [ROLES[int(i)] for i in problem.workers["role"]],
            "gpus": [spec.profile.gpus for spec in cluster.workers],
            "steps": w["steps"],
            "extrapolated_steps": pl.Series(w["extrapolated_steps"]).set(pl.Series(~stated), None),
            **{f"{name}_s": w[f"{name}_ps"] / 1e12 for name in ("prefill", "decode", "mixed", "idle_rank")},
            "prefill_tokens": w["prefill_tokens"],
            "decode_tokens": w["decode_tokens"],
            "evictions": w["evictions"],
            "preemptions": w["preemptions"],
            "peak_kv_usage": w["peak_used_blocks"] / problem.workers["total_blocks"],
        }
    )
    if problem.order is not None:  # back to the trace's order; ``request`` stays the id in the run
        back = np.argsort(problem.order)
        frame, out = frame[back], out[back]
    return SimResult(
        requests=frame,
        workers=workers,
        tbt_counts=run.tbt_counts,
        span_s=run.end_ps / 1e12,
        decisions=run.decisions,
        gpus=cluster.gpus,
        outcomes=out,
        replay=problem.replay,
        share_changes=run.share_changes,
        extrapolated_share=float(w["extrapolated_steps"][stated].sum() / max(1, steps)) if stated.any() else None,
    )
