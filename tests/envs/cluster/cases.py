"""Small random clusters and traces that reach every corner of the modelled engine."""

from __future__ import annotations

import numpy as np

from envs.cluster.problem import LAW_DTYPE, REQUEST_INPUT_DTYPE, WORKER_INPUT_DTYPE, HandoverPs, Problem, TablePs
from policies.contract import DECODE, MIXED, PREFILL, SPLIT, WORKER_DTYPE

US = 1_000_000  # picoseconds in a microsecond: the scale of these tiny clusters


def law(floor=0, c0=US, c_seq=0, c_kv=0, c_tok=0.0, c_attn=0.0):
    """A step law, in picoseconds."""
    return np.array([(floor, c0, c_seq, c_kv, c_tok, c_attn)], LAW_DTYPE)[0]


def worker(role=MIXED, group=0, **changes):
    """One worker row: 64 blocks of 4 tokens, a budget of 32 tokens, steps of 1 us."""
    row = np.zeros(1, WORKER_INPUT_DTYPE)[0]
    fields = {
        "group": group,
        "role": role,
        "can_prefill": int(role != DECODE),
        "can_decode": int(role != PREFILL),
        "prefix_cache": 1,
        "total_blocks": 64,
        "block_tokens": 4,
        "node_blocks": 1,
        "max_batched_tokens": 32,
        "max_num_seqs": 8,
        "prefill_share_permille": 500,
        "kv_bytes_per_token": 100.0,
        "law": law(),
    }
    for name, value in (fields | changes).items():
        row[name] = value
    return row


def requests(*rows, **common):
    """Request rows; each a dict of what differs from a lone request of 8 prompt and 4 output tokens at time 0."""
    out = np.zeros(len(rows), REQUEST_INPUT_DTYPE)
    for name in ("next_turn", "max_output_tokens", "output_hint_tokens", "session", "tenant", "model", "lora"):
        out[name] = -1
    out["turn"], out["prompt_tokens"], out["output_tokens"] = 1, 8, 4
    out["slo_ttft_s"] = out["slo_tpot_s"] = 1.0
    for i, row in enumerate(rows):
        for name, value in (common | row).items():
            out[name][i] = value
        if "view_prompt_tokens" not in row:
            out["view_prompt_tokens"][i] = out["prompt_tokens"][i]
    return out


def predictor_rows(workers, rng=None):
    """What policies are told of the workers; with ``rng`` their laws are off."""
    rows = np.zeros(len(workers), WORKER_DTYPE)
    for i, w in enumerate(workers):
        off = 1.0 if rng is None else rng.uniform(0.5, 1.5)
        rows["id"][i] = i
        for name in (
            "group", "role", "can_prefill", "can_decode", "prefix_cache", "rack", "max_batched_tokens",
            "max_num_seqs", "kv_bytes_per_token",
        ):  # fmt: skip
            rows[name][i] = w[name]
        rows["kv_capacity_tokens"][i] = w["total_blocks"] * w["block_tokens"]
        for name in ("floor", "c0", "c_seq", "c_kv", "c_tok", "c_attn"):
            rows[f"{name}_s"][i] = float(w["law"][f"{name}_ps"]) * 1e-12 * off
        rows["handover_s"][i] = 2e-6 * off
        rows["link_bytes_per_s"][i] = 1e9 * off
    return rows


def problem(reqs, workers, *, chains=None, prefix_block_tokens=0, handover=None, rng=None, **changes):
    """A problem from rows; ``chains`` is one list of prefix ids a request."""
    chain_ids = [node for chain in chains or [] for node in chain]
    if chains:
        lengths = [len(chain) for chain in chains]
        reqs["chain_len"] = lengths
        reqs["chain_start"] = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    workers = np.array(workers, WORKER_INPUT_DTYPE)
    fields = {
        "requests": reqs,
        "chain_ids": np.array(chain_ids, np.int32),
        "n_prefix_ids": max(chain_ids, default=-1) + 1,
        "prefix_block_tokens": prefix_block_tokens,
        "workers": workers,
        "handover": handover or HandoverPs(0, 0, 0, 0, 1e-4),
        "predictor_rows": predictor_rows(workers, rng),
        "n_sessions": int(reqs["session"].max()) + 1,
        "n_classes": int(reqs["class_id"].max()) + 1,
        "replicas": int(reqs["replica"].max()) + 1,
        "scrape_period_ps": 0,
        "prefix_view": 1,
        "kv_event_delay_ps": 0,
        "approximate_ttl_ps": 100 * US,
        "adjust_period_ps": 0,
        "seed": 7,
    }
    return Problem(**(fields | changes))


# --------------------------------------------------------------------------------------------------
# Random ones
# --------------------------------------------------------------------------------------------------


class Prefixes:
    """A tree of prefix blocks: an id names a whole path, so requests that share a path share its ids."""

    def __init__(self, rng, branches):
        self.rng, self.branches, self.ids = rng, branches, {}

    def extend(self, path, length):
        """``path`` with children chosen at random (the first child most often) until it has ``length`` ids."""
        path = list(path)
        while len(path) < length:
            branch = int(self.rng.integers(self.branches)) if self.rng.random() < 0.4 else 0
            path.append(self.ids.setdefault((path[-1] if path else -1, branch), len(self.ids)))
        return path


def random_law(rng, grid):
    """Laws on a grid of whole microseconds make ties; others have none."""
    if grid:
        return law(
            floor=int(rng.choice([0, 0, US, 3 * US])),
            c0=int(rng.choice([US, 2 * US])),
            c_seq=int(rng.choice([0, 0, US // 2])),
            c_kv=0,
            c_tok=float(rng.choice([0.0, US / 4])),
        )
    return law(
        floor=int(rng.integers(0, 4 * US)),
        c0=int(rng.integers(1000, 3 * US)),
        c_seq=int(rng.integers(0, US // 2)),
        c_kv=int(rng.integers(0, US // 20)),
        c_tok=float(rng.uniform(0, US / 2)),
        c_attn=float(rng.uniform(0, US / 100)),
    )


def random_table(rng, grid):
    """A table law: whole microseconds make ties; knots end within reach of the steps, so that some lie beyond."""

    def knots(last):
        inner = rng.choice(np.arange(2, last), int(rng.integers(0, min(5, last - 2) + 1)), replace=False)
        return (1, *sorted(int(x) for x in inner), last)

    def rising(n, first, most):
        unit = US if grid else 1
        return tuple(int(x) * unit for x in np.cumsum([first // unit, *rng.integers(0, most // unit + 1, n - 1)]))

    tokens, seqs = knots(int(rng.choice([2, 4, 9, 40, 250]))), knots(int(rng.choice([2, 3, 6])))
    d0 = rising(len(seqs), 0, US)
    return TablePs(
        tokens=tokens,
        w_ps=rising(len(tokens), int(rng.integers(1, 3 * US)) if not grid else US, 3 * US),
        seqs=seqs,
        d0_ps=d0 if grid or rng.random() < 0.5 else d0[::-1],  # the second may fall: it goes on level
        kv_ps=tuple(0 for _ in seqs) if grid else rising(len(seqs), int(rng.integers(0, US // 20)), US // 10),
        a0_ps=int(rng.choice([0, US // 2])),
        h0_ps=int(rng.choice([0, US])),
        h1_ps=0 if grid else int(rng.integers(0, US // 10)),
        c_attn_ps=0.0 if grid else float(rng.uniform(0, US / 100)),
    )


def with_tables(rng, grid, workers):
    """Table laws for some of the workers, and a range for each outside which its law counts as extrapolated."""
    tables = tuple(random_table(rng, grid) for _ in range(int(rng.choice([0, 1, 1, 2]))))
    for w in workers:
        w["table"] = int(rng.integers(0, len(tables) + 1))
        for name, values in (
            ("fit_tokens", [0, 5, 30]), ("fit_context", [0, 6, 20]), ("fit_seqs", [0, 1, 2]), ("fit_kv", [0, 20, 150]),
        ):  # fmt: skip
            w[name] = int(rng.choice(values))
    return tables


def random_workers(rng, grid, block_sizes, prefix_block_tokens, largest):
    """1-6 workers in groups of 1-3, some with too little memory for the largest request."""
    n = int(rng.integers(1, 7))
    sizes, left = [], n
    while left:
        sizes.append(min(left, int(rng.choice([1, 1, 1, 2, 3]))))
        left -= sizes[-1]
    groups = [g for g, size in enumerate(sizes) for _ in range(size)]
    if rng.random() < 0.2:
        rng.shuffle(groups)
    pool = [[MIXED], [SPLIT], [PREFILL, DECODE], [PREFILL, DECODE, MIXED], [PREFILL, DECODE, MIXED, SPLIT]]
    roles = rng.choice(pool[rng.integers(len(pool))], n)
    caches = rng.random() < 0.85
    tight = rng.random() < 0.7
    budget = [int(rng.choice([1, 3, 8, 32, 200])) for _ in range(n)]
    rows = []
    for i in range(n):
        block = int(rng.choice(block_sizes))
        need = -(-largest // block)
        role = int(roles[i])
        rows.append(
            worker(
                role,
                groups[i],
                can_prefill=int(role != DECODE or rng.random() < 0.6),
                can_decode=int(role != PREFILL or rng.random() < 0.2),
                prefix_cache=int(caches and rng.random() < 0.9),
                rack=int(rng.integers(2)),
                total_blocks=max(1, int(need * (rng.choice([0.7, 1.0, 1.1, 1.4]) if tight else rng.uniform(1.0, 6.0)))),
                block_tokens=block,
                node_blocks=max(1, prefix_block_tokens // block),
                max_batched_tokens=budget[i],
                max_num_seqs=int(rng.choice([1, 2, 3, 8])),
                prefill_share_permille=int(rng.choice([1, 250, 500, 900])),
                kv_bytes_per_token=float(rng.choice([100.0, 100.0, 37.5, 0.0])),
                law=random_law(rng, grid),
            )
        )
    if not any(w["can_prefill"] for w in rows):
        rows[0]["can_prefill"] = 1
    if not any(w["can_decode"] for w in rows):
        rows[-1]["can_decode"] = 1
    return rows


def random_problem(seed):
    """A small cluster and trace; the same seed gives the same problem."""
    rng = np.random.default_rng(seed)
    grid = rng.random() < 0.5
    block_sizes = [[1], [4], [2, 4], [1, 2, 4, 8]][rng.integers(4)]
    prefix_block_tokens = int(rng.choice([0, 1, 2, 4])) * max(block_sizes)
    prefixes = Prefixes(rng, int(rng.integers(1, 4)))
    longest = int(rng.choice([6, 30, 90]))
    longest_output = int(rng.choice([1, longest, 3 * longest, 3 * longest]))
    closed = rng.random() < 0.7
    replicas = int(rng.integers(1, 4))
    n_classes = int(rng.integers(1, 4))
    spacing = float(rng.choice([0.0, 1.0, 5.0, 30.0])) * US
    roots, sessions, clock = int(rng.choice([2, 8, 16, 40])), 0, 0.0
    rows, chains = [], []
    for _ in range(roots):
        clock += spacing * rng.exponential() if rng.random() < 0.8 else 0.0
        stamp = round(clock / US) * US if grid else int(clock)
        turns = int(rng.choice([1, 1, 2, 4]))
        session = sessions if turns > 1 or rng.random() < 0.5 else -1
        sessions += session >= 0
        replica, prompt, path = int(rng.integers(replicas)), 0, []
        for turn in range(1, turns + 1):
            prompt = min(prompt + int(rng.integers(1, longest + 1)), 3 * longest)
            output = int(rng.choice([1, 2, 5, *rng.integers(1, longest_output + 1, 3)]))
            think = int(rng.choice([0, 0, US, int(rng.integers(0, 20 * US))]))
            if turn > 1 and not closed:
                stamp += think
            known = (prompt + output) // prefix_block_tokens if prefix_block_tokens else 0
            path = prefixes.extend(path, known)
            chains.append(path[: known - int(rng.integers(0, 3)) if rng.random() < 0.2 else known])
            class_id = int(rng.integers(n_classes))
            rows.append(
                {
                    "nominal": stamp,
                    "arrival_ps": -1 if turn > 1 and closed else stamp,
                    "think_ps": think if turn > 1 and closed else 0,
                    "next_turn": 1 if closed and turn < turns else -1,  # made an index below
                    "prompt_tokens": prompt,
                    "view_prompt_tokens": max(1, prompt + int(rng.integers(-4, 5)) * int(rng.random() < 0.3)),
                    "output_tokens": output,
                    "max_output_tokens": int(rng.choice([-1, output + 3])),
                    "output_hint_tokens": int(rng.choice([-1, output])),
                    "session": session,
                    "turn": turn,
                    "class_id": class_id,
                    "priority": int(rng.integers(3)),
                    "tenant": int(rng.integers(-1, 2)),
                    "model": int(rng.integers(-1, 1)),
                    "lora": int(rng.integers(-1, 2)),
                    "replica": replica,
                    "slo_ttft_s": float(rng.uniform(1e-5, 1e-4)),
                    "slo_tpot_s": 1e-6 * (1 + class_id),
                }
            )
            prompt += output
    order = sorted(range(len(rows)), key=lambda i: rows[i].pop("nominal"))
    place = {old: new for new, old in enumerate(order)}
    for old, row in enumerate(rows):
        if row["next_turn"] >= 0:
            row["next_turn"] = place[old + 1]
    workers = random_workers(
        rng, grid, block_sizes, prefix_block_tokens, max(r["prompt_tokens"] + r["output_tokens"] for r in rows)
    )
    tables = with_tables(np.random.default_rng((seed, 1)), grid, workers)
    unit = US if grid else 700_001
    handover = HandoverPs(
        dispatch_ps=int(rng.choice([0, 0, unit])),
        connect_ps=int(rng.choice([0, 5 * unit])),
        base_ps=int(rng.choice([0, 2 * unit])),
        per_block_ps=int(rng.choice([0, unit // 10])),
        bytes_per_ps=float(rng.choice([1e-2, 1e-3, 1e-4, 3.7e-4])),
    )
    return problem(
        requests(*[rows[i] for i in order]),
        workers,
        chains=[chains[i] for i in order],
        prefix_block_tokens=prefix_block_tokens,
        handover=handover,
        rng=rng if rng.random() < 0.5 else None,
        n_sessions=sessions,
        n_classes=n_classes,
        replicas=replicas,
        scrape_period_ps=int(rng.choice([0, US, 7 * US + 1, 50 * US])),
        prefix_view=int(rng.choice([0, 1, 1, 1, 2, 2])),
        kv_event_delay_ps=int(rng.choice([0, 0, US, 9 * US])),
        approximate_ttl_ps=int(rng.choice([0, 10 * US, 60 * US, 1000 * US])),
        seed=int(rng.integers(1 << 31)),
        tables=tables,
    )


# --------------------------------------------------------------------------------------------------
# Real scales
# --------------------------------------------------------------------------------------------------

MS = 1000 * US


def realistic_problem(seed, roles=(PREFILL, PREFILL, DECODE, DECODE), sessions=120, gap_ms=80.0, kv_tokens=40_000):
    """Steps of about 11 ms with a floor that binds at small batches, prompts of thousands of tokens, RDMA links."""
    rng = np.random.default_rng(seed)
    rows, chains, prefixes, clock = [], [], Prefixes(rng, 2), 0.0
    for session in range(sessions):
        clock += gap_ms * MS * rng.exponential()
        prompt, path = 0, []
        turns = int(rng.integers(1, 4))
        for turn in range(1, turns + 1):
            prompt += int(min(8000, 20 + rng.lognormal(6.5, 1.0)))
            output = int(min(600, 1 + rng.lognormal(4.5, 0.8)))
            path = prefixes.extend(path, (prompt + output) // 512)
            chains.append(path)
            rows.append(
                {
                    "arrival_ps": int(clock) if turn == 1 else -1,
                    "think_ps": int(rng.exponential(500 * MS)) if turn > 1 else 0,
                    "next_turn": len(rows) + 1 if turn < turns else -1,
                    "prompt_tokens": prompt,
                    "output_tokens": output,
                    "session": session,
                    "turn": turn,
                    "slo_ttft_s": 0.25 + 1e-4 * prompt,
                    "slo_tpot_s": 0.025,
                }
            )
            prompt += output
    laws = law(11_107 * US, 10_371 * US, 42_965_000, 15_844, 52_074_000.0, 828.58)
    workers = [
        worker(
            role,
            group,
            can_prefill=1,
            total_blocks=kv_tokens // 16,
            block_tokens=16,
            node_blocks=32,
            max_batched_tokens=2048,
            max_num_seqs=64,
            kv_bytes_per_token=163_840.0,
            law=laws,
        )
        for group, role in enumerate(roles)
    ]
    return problem(
        requests(*rows),
        workers,
        chains=chains,
        prefix_block_tokens=512,
        handover=HandoverPs(MS, 100 * MS, 2 * MS, 3 * US, 0.02),
        scrape_period_ps=1000 * MS,
        kv_event_delay_ps=int(rng.choice([0, 100 * MS])),
        prefix_view=int(rng.choice([1, 2])),
        seed=seed,
    )
