"""The kernel's memory: every array of a run, preallocated, and the record types they are made of.

``Memory`` owns the arrays on the Python side and packs their addresses; compiled code reads them through ``handle``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.problem import (
    OUTCOME_DTYPE,
    REQUEST_INPUT_DTYPE,
    TBT_BINS,
    WORKER_INPUT_DTYPE,
    WORKER_OUTCOME_DTYPE,
    Problem,
)
from envs.cluster.tables import TABLE_DTYPE, layout
from policies.contract import REQUEST_DTYPE, WORKER_DTYPE


def _record(*fields: tuple[str, Any]) -> np.dtype[Any]:
    return np.dtype(list(fields), align=True)


def _longs(names: str) -> list[tuple[str, Any]]:
    return [(name, "i8") for name in names.split()]


REQUEST_STATE = _record(
    *_longs(
        # leg: 0 the prefill leg of a remote route, 1 the leg that decodes; wants: 0 a prefill, 1 a pull
        "leg wants binding"
        " prefill_worker decode_worker local chunk_cap predicted_new"
        " q_prev q_next front"  # front: preempted, nothing passes it; links of the worker's queue or ready list
        " target done chunk held held_pinned"  # prefill: tokens wanted, computed, this step's; prefix nodes held
        " emitted step_base token_ps"  # while decoding, emitted = worker's steps_done - step_base
        " flow_from flow_to flow_last_ps flow_end_ps"
    ),
    ("order_key", "f8"),
    ("flow_bytes", "f8"),
    ("flow_rate", "f8"),
)

WORKER_STATE = _record(
    *_longs(
        "q_head q_tail q_len r_head r_tail r_len pulling"
        " n_run n_prefilling n_decoding n_first grow_skip kv_sum steps_done"
        " free_blocks lru_head lru_tail lru_len node_free pinned_blocks"
        " seg_t0 seg_d1 seg_inc seg_k seg_e seg_g"  # the step(s) under way: start, first duration, increment, ...
        " step_decodes step_new step_attn2 last_emit_ps last_decode_ps credit contested preempted share"
        " flows_out flows_in"
        " snap_ps snap_running snap_waiting snap_used snap_pinned"
    )
)

GROUP_STATE = _record(*_longs("busy end_ps flagged first count"))

COUNTERS = _record(
    *_longs(
        "prefill_requests prefill_tokens local_prefills decode_requests decode_tokens streams active transfers"
        " finished failures last_tbt_ps"
    )
)

SESSION = _record(*_longs("last_prefill last_decode last_end_ps"))
REPLICA = _record(*_longs("finished output_tokens"))
EVENT = _record(*_longs("time_ps kind id"))
LOG = _record(*_longs("time_ps kind request worker value"))
KV_EVENT = _record(*_longs("time_ps worker id present"))
NODE = _record(("id", "i4"), ("held", "i4"), ("prev", "i4"), ("next", "i4"))
ANSWER = _record(
    *_longs("kind prefill decode local_chunk_tokens kv_source reason"), ("order_key", "f8"), ("until_s", "f8")
)

# The scalars of a run. ``waiting_for`` says what the kernel stopped for.
SCALARS = _record(
    *_longs(
        "now_ps n_heap next_root n_roots n_done n_seen waiting_for asked error error_request error_value"
        " n_flows flow_next_ps flow_next_id"
        " dispatch_ps connect_ps base_ps per_block_ps scrape_period_ps prefix_view kv_delay_ps approximate_ttl_ps"
        " adjust_period_ps prefix_tokens seed logging n_log n_kv_log kv_applied use_rule decisions"
    ),
    ("bytes_per_ps", "f8"),
)

# Log kinds, read by hooks and environments.
LOG_DISPATCHED, LOG_PREFILL_DONE, LOG_FIRST_TOKEN, LOG_FINISHED, LOG_REFUSED = range(1, 6)


# The arrays of a run: name -> (dtype, dimensions). Compiled code reads them as attributes of the handle.
FIELD_DTYPES: dict[str, tuple[np.dtype[Any], int]] = {
    "inp": (REQUEST_INPUT_DTYPE, 1),  # (n,) REQUEST_INPUT_DTYPE
    "req": (REQUEST_STATE, 1),  # (n,) REQUEST_STATE
    "out": (OUTCOME_DTYPE, 1),  # (n,) OUTCOME_DTYPE
    "roots": (np.dtype("i8"), 1),  # (n_roots,) i8: requests with an arrival time, sorted by (arrival, id)
    "chain": (np.dtype("i4"), 1),  # (n_chain,) i4
    "win": (WORKER_INPUT_DTYPE, 1),  # (w,) WORKER_INPUT_DTYPE
    "work": (np.dtype("i8"), 2),  # (tables + 1, tokens + 1) i8: table laws, see tables.DenseTable
    "base": (np.dtype("i8"), 2),  # (tables + 1, seqs + 1) i8
    "slope": (np.dtype("i8"), 2),  # (tables + 1, seqs + 1) i8
    "tab": (TABLE_DTYPE, 1),  # (tables + 1,) TABLE_DTYPE
    "wk": (WORKER_STATE, 1),  # (w,) WORKER_STATE
    "wout": (WORKER_OUTCOME_DTYPE, 1),  # (w,) WORKER_OUTCOME_DTYPE
    "grp": (GROUP_STATE, 1),  # (g,) GROUP_STATE
    "members": (np.dtype("i8"), 1),  # (w,) i8: workers by group
    "run": (np.dtype("i8"), 2),  # (w, seqs) i8: running requests in order of admission
    "fin": (np.dtype("i8"), 2),  # (w, seqs) i8: steps_done at which it finishes, -1 while prefilling
    "grow": (np.dtype("i8"), 2),  # (w, block) i8: decoding requests by the step phase in which they need a block
    "nodes": (NODE, 2),  # (w, cap) NODE
    "lookup": (np.dtype("i4"), 2),  # (w, ids) i4: node index + 1, 0 if absent
    "pairs": (np.dtype("i8"), 2),  # (w, w) i8: a pull between the two happened
    "flows": (np.dtype("i8"), 1),  # (n,) i8: active flows
    "heap": (EVENT, 1),  # (cap,) EVENT
    "ctr": (COUNTERS, 2),  # (r, w) COUNTERS
    "by_class": (np.dtype("i8"), 3),  # (r, w, classes) i8: streams
    "class_tpot": (np.dtype("f8"), 1),  # (classes,) f8
    "sess": (SESSION, 1),  # (sessions,) SESSION
    "rep": (REPLICA, 1),  # (r,) REPLICA
    "approx": (np.dtype("i8"), 3),  # (r, w, ids) i8: last time routed there, -1 never
    "index": (np.dtype("u1"), 2),  # (w, ids) u1: the delayed prefix index
    "kv_log": (KV_EVENT, 1),  # (cap,) KV_EVENT
    "log": (LOG, 1),  # (cap,) LOG
    "tbt": (np.dtype("i8"), 1),  # (TBT_BINS,) i8
    "reqv": (REQUEST_DTYPE, 1),  # (1,) REQUEST_DTYPE: the question
    "board": (WORKER_DTYPE, 1),  # (w,) WORKER_DTYPE: the view
    "params": (np.dtype("u1"), 1),  # (bytes,) u1
    "memory": (np.dtype("u1"), 2),  # (r, bytes) u1
    "ans": (ANSWER, 1),  # (1,) ANSWER
    "sc": (SCALARS, 1),  # (1,) SCALARS
}
ADDRESS_WORDS = sum(1 + ndim for _, ndim in FIELD_DTYPES.values())


class Memory:
    """Owns the arrays of one run and their packed addresses (``addresses``: (ADDRESS_WORDS,) i8)."""

    def __init__(self, problem: Problem, *, param_bytes: NDArray[np.uint8], memory_row: NDArray[np.uint8]) -> None:
        n, w = len(problem.requests), len(problem.workers)
        ids = max(1, problem.n_prefix_ids)
        prefix = problem.prefix_block_tokens > 0 and problem.n_prefix_ids > 0
        win = problem.workers
        groups = int(win["group"].max()) + 1
        seqs = int(win["max_num_seqs"].max())
        node_cap = int((win["total_blocks"] // np.maximum(win["node_blocks"], 1)).max()) + 1 if prefix else 1
        classes = max(1, problem.n_classes)
        roots = np.flatnonzero(problem.requests["arrival_ps"] >= 0)
        roots = roots[np.argsort(problem.requests["arrival_ps"][roots], kind="stable")]
        r = problem.replicas
        delayed = prefix and problem.prefix_view == 1 and problem.kv_event_delay_ps > 0
        approximate = prefix and problem.prefix_view == 2
        self.log_slack = 4 * seqs * w + 64
        self.arrays: dict[str, NDArray[Any]] = {
            "inp": np.ascontiguousarray(problem.requests),
            "req": np.zeros(n, REQUEST_STATE),
            "out": np.zeros(n, OUTCOME_DTYPE),
            "roots": roots.astype(np.int64),
            "chain": np.ascontiguousarray(problem.chain_ids, dtype=np.int32) if prefix else np.zeros(1, np.int32),
            "win": np.ascontiguousarray(win),
            **layout(problem.tables, win),
            "wk": np.zeros(w, WORKER_STATE),
            "wout": np.zeros(w, WORKER_OUTCOME_DTYPE),
            "grp": np.zeros(groups, GROUP_STATE),
            "members": np.argsort(win["group"], kind="stable").astype(np.int64),
            "run": np.zeros((w, seqs), np.int64),
            "fin": np.zeros((w, seqs), np.int64),
            "grow": np.zeros((w, int(win["block_tokens"].max())), np.int64),
            "nodes": np.zeros((w, node_cap), NODE),
            "lookup": np.zeros((w, ids if prefix else 1), np.int32),
            "pairs": np.zeros((w, w), np.int64),
            "flows": np.zeros(n, np.int64),
            "heap": np.zeros(4096 + 64 * groups, EVENT),
            "ctr": np.zeros((r, w), COUNTERS),
            "by_class": np.zeros((r, w, classes), np.int64),
            "class_tpot": np.full(classes, np.inf),
            "sess": np.zeros(max(1, problem.n_sessions), SESSION),
            "rep": np.zeros(r, REPLICA),
            "approx": np.full((r, w, ids), -1, np.int64) if approximate else np.zeros((1, 1, 1), np.int64),
            "index": np.zeros((w, ids), np.uint8) if delayed else np.zeros((1, 1), np.uint8),
            "kv_log": np.zeros(4096 + 8 * node_cap * w if delayed else 1, KV_EVENT),
            "log": np.zeros(1, LOG),
            "tbt": np.zeros(TBT_BINS, np.int64),
            "reqv": np.zeros(1, REQUEST_DTYPE),
            "board": np.ascontiguousarray(problem.predictor_rows),
            "params": param_bytes if len(param_bytes) else np.zeros(1, np.uint8),
            "memory": np.repeat((memory_row if len(memory_row) else np.zeros(8, np.uint8))[None, :], r, axis=0),
            "ans": np.zeros(1, ANSWER),
            "sc": np.zeros(1, SCALARS),
        }
        self._start(problem, prefix, delayed, groups)
        self.addresses = np.zeros(ADDRESS_WORDS, np.int64)
        self.table = int(self.addresses.ctypes.data)
        self.pack()

    def _start(self, problem: Problem, prefix: bool, delayed: bool, groups: int) -> None:
        a = self.arrays
        inp, out, wk, win, sc = a["inp"], a["out"], a["wk"], a["win"], a["sc"]
        for name in OUTCOME_DTYPE.names or ():
            if name.endswith("_ps") or name.endswith("_worker"):
                out[name] = -1
        for name in ("prefill_worker", "decode_worker", "q_prev", "q_next"):
            a["req"][name] = -1
        for name in ("q_head", "q_tail", "r_head", "r_tail", "lru_head", "lru_tail"):
            wk[name] = -1
        wk["free_blocks"] = win["total_blocks"]
        wk["share"] = win["prefill_share_permille"]
        wk["snap_ps"] = -1
        wk["last_emit_ps"] = wk["last_decode_ps"] = -1
        a["grp"]["end_ps"] = -1
        counts = np.bincount(win["group"], minlength=groups)
        a["grp"]["count"] = counts
        a["grp"]["first"] = np.concatenate([[0], np.cumsum(counts)[:-1]])
        nodes = a["nodes"]
        nodes["next"] = np.arange(1, nodes.shape[1] + 1)
        nodes["next"][:, -1] = -1
        a["ctr"]["last_tbt_ps"] = -1
        a["sess"]["last_prefill"] = a["sess"]["last_decode"] = a["sess"]["last_end_ps"] = -1
        np.minimum.at(a["class_tpot"], inp["class_id"], inp["slo_tpot_s"])
        if not prefix:
            inp = a["inp"] = inp.copy()
            inp["chain_len"] = 0
            win = a["win"] = win.copy()
            win["prefix_cache"] = 0
        h = problem.handover
        sc["n_roots"] = len(a["roots"])
        sc["flow_next_ps"] = -1
        sc["dispatch_ps"], sc["connect_ps"] = h.dispatch_ps, h.connect_ps
        sc["base_ps"], sc["per_block_ps"], sc["bytes_per_ps"] = h.base_ps, h.per_block_ps, h.bytes_per_ps
        sc["scrape_period_ps"] = problem.scrape_period_ps
        sc["prefix_view"] = problem.prefix_view if prefix else 0
        sc["kv_delay_ps"] = problem.kv_event_delay_ps if delayed else 0
        sc["approximate_ttl_ps"] = problem.approximate_ttl_ps
        sc["adjust_period_ps"] = problem.adjust_period_ps
        sc["prefix_tokens"] = max(1, problem.prefix_block_tokens)
        sc["seed"] = problem.seed

    def pack(self) -> None:
        """Write the addresses and shapes of all arrays; needed again after an array was replaced."""
        at = 0
        for name, (dtype, ndim) in FIELD_DTYPES.items():
            array = self.arrays[name]
            if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
                raise AssertionError(f"state array {name}: {array.dtype} {array.shape}")
            self.addresses[at] = array.ctypes.data
            self.addresses[at + 1 : at + 1 + ndim] = array.shape
            at += 1 + ndim

    def enable_log(self) -> None:
        """Record what the router sees on its streams, for hooks and rewards."""
        self.arrays["log"] = np.zeros(4096 + 2 * self.log_slack, LOG)
        self.arrays["sc"]["logging"] = 1
        self.pack()

    def grow(self) -> None:
        """Double what ran full (event heap, KV event log, stream log)."""
        a, sc = self.arrays, self.arrays["sc"]
        a["heap"] = np.concatenate([a["heap"], np.zeros_like(a["heap"])])
        applied = int(sc["kv_applied"][0])
        if len(a["kv_log"]) > 1:
            kept = a["kv_log"][applied : int(sc["n_kv_log"][0])]
            bigger = np.zeros(2 * len(a["kv_log"]), KV_EVENT)
            bigger[: len(kept)] = kept
            a["kv_log"] = bigger
            sc["n_kv_log"], sc["kv_applied"] = len(kept), 0
        if len(a["log"]) > 1:
            a["log"] = np.concatenate([a["log"], np.zeros_like(a["log"])])
        self.pack()
