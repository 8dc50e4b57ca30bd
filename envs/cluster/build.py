"""From a trace, a cluster and objectives to the plain arrays of a ``Problem``."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from envs.cluster.problem import (
    LAW_DTYPE,
    PS,
    REQUEST_INPUT_DTYPE,
    WORKER_INPUT_DTYPE,
    HandoverPs,
    Problem,
    TablePs,
    whole_ps,
)
from envs.cluster.slo import SloSpec
from envs.cluster.spec import ClusterSpec, WorkerSpec
from envs.cluster.tables import MOST_TOKENS, room, table_ps
from envs.hardware.profile import HandoverLaw, StepLaw
from policies.contract import ROLES, WORKER_DTYPE, tie_hash
from traces import Trace

_PREFIX_VIEWS = {"none": 0, "exact": 1, "approximate": 2}


def to_ps(seconds: float) -> int:
    """Whole picoseconds."""
    return round(seconds * PS)


def law_record(law: StepLaw) -> NDArray[Any]:
    """A step law in picoseconds; the decode terms are rounded to whole ones."""
    record = np.zeros(1, LAW_DTYPE)
    record["floor_ps"] = max(1, to_ps(law.floor_s))
    record["c0_ps"], record["c_seq_ps"], record["c_kv_ps"] = to_ps(law.c0_s), to_ps(law.c_seq_s), to_ps(law.c_kv_s)
    record["c_tok_ps"], record["c_attn_ps"] = law.c_tok_s * PS, law.c_attn_s * PS
    return record[0]


def handover_ps(law: HandoverLaw) -> HandoverPs:
    """A handover law in picoseconds."""
    return HandoverPs(
        to_ps(law.dispatch_s), to_ps(law.connect_s), to_ps(law.base_s), to_ps(law.per_block_s),
        law.bandwidth_bytes_per_s / PS,
    )  # fmt: skip


def _groups(workers: tuple[WorkerSpec, ...]) -> NDArray[np.int64]:
    """Dense group numbers in order of first appearance; -1 is a group of its own."""
    seen: dict[Any, int] = {}
    return np.array(
        [seen.setdefault(w.group if w.group >= 0 else ("own", i), len(seen)) for i, w in enumerate(workers)]
    )


def _workers(cluster: ClusterSpec, prefix_tokens: int) -> tuple[NDArray[Any], NDArray[Any]]:
    n = len(cluster.workers)
    rows, seen = np.zeros(n, WORKER_INPUT_DTYPE), np.zeros(n, WORKER_DTYPE)
    rows["group"] = _groups(cluster.workers)
    predictors = cluster.predictors or tuple(w.profile for w in cluster.workers)
    for i, (w, predictor) in enumerate(zip(cluster.workers, predictors, strict=True)):
        row, view, kv = rows[i], seen[i], w.profile.kv
        tokens = w.kv_tokens if w.kv_tokens is not None else kv.capacity_tokens
        block = kv.block_tokens
        if prefix_tokens and prefix_tokens % block:
            raise ValueError(
                f"prefix blocks of {prefix_tokens} tokens are no multiple of profile {w.profile.name!r}'s "
                f"kv.block_tokens {block}"
            )
        row["role"] = ROLES.index(w.role)
        row["can_prefill"], row["can_decode"], row["prefix_cache"] = w.can_prefill, w.can_decode, w.prefix_cache
        row["rack"] = w.rack
        row["total_blocks"], row["block_tokens"] = tokens // block, block
        row["node_blocks"] = prefix_tokens // block
        row["max_batched_tokens"], row["max_num_seqs"] = w.max_batched_tokens, w.max_num_seqs
        row["prefill_share_permille"] = round(1000 * w.prefill_share)
        row["kv_bytes_per_token"] = kv.bytes_per_token
        row["law"] = law_record(w.profile.step)
        if row["total_blocks"] < 1:
            raise ValueError(f"worker {i} of {cluster.name!r} holds {tokens} KV tokens, less than one block of {block}")
        for name in ("group", "role", "can_prefill", "can_decode", "prefix_cache", "rack", "max_batched_tokens"):
            view[name] = row[name]
        view["id"] = i
        view["max_num_seqs"] = w.max_num_seqs
        view["kv_capacity_tokens"] = row["total_blocks"] * block
        law, h = predictor.step, cluster.predicted_handover or cluster.handover
        for name in ("floor_s", "c0_s", "c_tok_s", "c_attn_s", "c_seq_s", "c_kv_s"):
            view[name] = getattr(law, name)
        view["kv_bytes_per_token"] = predictor.kv.bytes_per_token
        view["handover_s"] = h.dispatch_s + h.base_s
        # The view has one figure a byte: descriptors, paid a block, come on top of the bandwidth.
        a_byte_s = 1.0 / h.bandwidth_bytes_per_s + h.per_block_s / (block * predictor.kv.bytes_per_token)
        view["link_bytes_per_s"] = 1.0 / a_byte_s
        view["last_tbt_s"] = np.nan
        view["min_slo_tpot_s"] = np.inf
    return rows, seen


def _tables(cluster: ClusterSpec, rows: NDArray[Any]) -> tuple[TablePs, ...]:
    """The table laws of the cluster, each once; sets ``table`` and the fitted range of every worker."""
    seen: dict[TablePs, int] = {}
    for row, w in zip(rows, cluster.workers, strict=True):
        fitted = w.profile.fitted
        row["fit_tokens"], row["fit_context"] = fitted.tokens, fitted.context
        row["fit_seqs"], row["fit_kv"] = fitted.seqs, fitted.kv
        if w.profile.tables is not None:
            row["table"] = seen.setdefault(table_ps(w.profile.tables), len(seen) + 1)
    if seen and max(room(rows)) > MOST_TOKENS:
        raise ValueError(
            f"cluster {cluster.name!r}: max_batched_tokens and max_num_seqs of up to {max(room(rows)):,}: expected at "
            f"most {MOST_TOKENS:,} where a profile has tables"
        )
    return tuple(seen)


def _codes(frame: pl.DataFrame, column: str, missing: int) -> NDArray[np.int64]:
    if column not in frame.columns:
        return np.full(frame.height, missing, np.int64)
    values = frame[column]
    ranks = values.rank("dense").cast(pl.Int64).fill_null(missing + 1) - 1
    return ranks.to_numpy().astype(np.int64)


def _optional(frame: pl.DataFrame, column: str, missing: int) -> NDArray[np.int64]:
    if column not in frame.columns:
        return np.full(frame.height, missing, np.int64)
    return frame[column].fill_null(missing).cast(pl.Int64).to_numpy()


def _links(frame: pl.DataFrame) -> NDArray[np.int64]:
    """Index of each request's next turn, -1 if none (closed and clients replay)."""
    indexed = frame.select("session", "turn").with_row_index("row")
    ordered = indexed.filter(pl.col("session") >= 0).sort("session", "turn", "row")
    following = ordered.with_columns(
        nxt=pl.when(pl.col("session").shift(-1) == pl.col("session")).then(pl.col("row").shift(-1)).otherwise(None)
    )
    links = np.full(frame.height, -1, np.int64)
    rows = following["row"].to_numpy()
    links[rows] = following["nxt"].cast(pl.Int64).fill_null(-1).to_numpy()
    return links


def logged_order(frame: pl.DataFrame) -> NDArray[np.int64] | None:
    """(n,) rows in the order of a logged run's request ids (column ``logged_order``), or None for that of the trace.

    Ids decide what comes first within one instant: requests that leave a prefill step together reach their decode
    worker in that order. A run in closed replay numbers turns by their nominal arrivals, its log has the real ones.
    """
    if "logged_order" not in frame.columns:
        return None
    return np.argsort(frame["logged_order"].to_numpy(), kind="stable")


def _objectives(frame: pl.DataFrame, slo: SloSpec) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    prompts = frame["prompt_tokens"].to_numpy().astype(np.float64)
    ttft = slo.ttft_base_s + slo.ttft_per_token_s * prompts
    tpot = np.full(frame.height, slo.tpot_s)
    if slo.by_class and "class" in frame.columns:
        names = frame["class"].to_numpy()
        for name, own in slo.by_class.items():
            mask = names == name
            ttft[mask] = own.ttft_base_s + own.ttft_per_token_s * prompts[mask]
            tpot[mask] = own.tpot_s
    return ttft, tpot


def build_problem(
    trace: Trace,
    cluster: ClusterSpec,
    slo: SloSpec,
    *,
    seed: int = 0,
    replay: str | None = None,
    adjust_period_s: float = 0.0,
) -> Problem:
    """Everything a run needs besides the policy.

    Args:
        trace: the requests.
        cluster: workers, links, view.
        slo: objectives, per class where the trace has classes.
        seed: for ties, random policies and the assignment of sessions to router replicas.
        replay: ``open``, ``closed`` or ``clients``; default: the trace's own.
        adjust_period_s: period of the policy's timer, 0 for none.

    Raises:
        ValueError: replay mode unknown, or prefix blocks that do not fit the KV blocks.
    """
    mode = replay or trace.replay
    if mode not in ("open", "closed", "clients"):
        raise ValueError(f"replay {mode!r}: expected open, closed or clients")
    frame, n = trace.frame, trace.frame.height
    rows = np.zeros(n, REQUEST_INPUT_DTYPE)
    sessions = frame["session"].to_numpy()
    uniques, dense = np.unique(sessions, return_inverse=True)
    has_none = len(uniques) > 0 and uniques[0] < 0
    rows["session"] = np.where(sessions < 0, -1, dense - (1 if has_none else 0))
    rows["turn"] = frame["turn"].to_numpy()
    rows["arrival_ps"] = whole_ps(frame["arrival_s"].to_numpy())
    rows["prompt_tokens"] = rows["view_prompt_tokens"] = frame["prompt_tokens"].to_numpy()
    rows["output_tokens"] = frame["output_tokens"].to_numpy()
    rows["max_output_tokens"] = _optional(frame, "max_output_tokens", -1)
    rows["output_hint_tokens"] = _optional(frame, "output_hint_tokens", -1)
    rows["priority"] = _optional(frame, "priority", 0)
    if "class" in frame.columns:
        index = {name: i for i, name in enumerate(trace.classes)}
        rows["class_id"] = frame["class"].replace_strict(index, return_dtype=pl.Int64).to_numpy()
    for name in ("tenant", "model", "lora"):
        rows[name] = _codes(frame, name, -1)
    rows["next_turn"] = -1
    if mode != "open":
        links = _links(frame)
        rows["next_turn"] = links
        later = links[links >= 0]
        rows["arrival_ps"][later] = -1
        think = frame["think_s"].fill_null(0.0).to_numpy()
        rows["think_ps"][later] = whole_ps(think[later])
    if mode == "clients":  # rounds of one benchmark user share no context: the router sees single requests
        rows["session"], rows["turn"] = -1, 1
    rows["slo_ttft_s"], rows["slo_tpot_s"] = _objectives(frame, slo)
    offsets = trace.chain_offsets
    rows["chain_start"], rows["chain_len"] = offsets[:-1], np.diff(offsets)
    order = logged_order(frame)
    if order is not None:
        rows = rows[order]
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        rows["next_turn"] = np.where(rows["next_turn"] >= 0, place[rows["next_turn"]], -1)
    replicas = cluster.view.replicas
    if replicas > 1:
        keys = np.where(rows["session"] >= 0, rows["session"], rows["session"].max(initial=0) + 1 + np.arange(n))
        rows["replica"] = [tie_hash(seed, int(k), -7) % replicas for k in keys]
    workers, seen = _workers(cluster, trace.prefix_block_tokens)
    tables = _tables(cluster, workers)
    return Problem(
        requests=rows,
        chain_ids=trace.chain_ids,
        n_prefix_ids=int(trace.chain_ids.max()) + 1 if len(trace.chain_ids) else 0,
        prefix_block_tokens=trace.prefix_block_tokens,
        workers=workers,
        handover=handover_ps(cluster.handover),
        predictor_rows=seen,
        n_sessions=int(rows["session"].max(initial=-1)) + 1,
        n_classes=int(rows["class_id"].max(initial=0)) + 1,
        replicas=replicas,
        scrape_period_ps=to_ps(cluster.view.scrape_period_s),
        prefix_view=_PREFIX_VIEWS[cluster.view.prefix],
        kv_event_delay_ps=to_ps(cluster.view.kv_event_delay_s),
        approximate_ttl_ps=to_ps(cluster.view.approximate_ttl_s),
        adjust_period_ps=to_ps(adjust_period_s),
        seed=seed,
        order=order,
        replay=mode,
        tables=tables,
    )
