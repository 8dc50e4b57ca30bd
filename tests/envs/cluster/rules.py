"""Rules that do everything a policy may do, at random or by what they see: for tests of the simulators only."""

from __future__ import annotations

from policies.contract import LATE, LOCAL, PER_WORKER, hold, reject, route, rule, tie_hash


def pick(view, request_id, seed, for_decode, avoid):
    """Position of a capable worker, at random; ``avoid`` only if there is no other (-1: there is none at all)."""
    best = -1
    best_hash = 0
    for i in range(len(view)):
        capable = view[i].can_decode if for_decode else view[i].can_prefill
        if capable == 0 or i == avoid:
            continue
        h = tie_hash(seed, request_id, view[i].id)
        if best < 0 or h < best_hash:
            best = i
            best_hash = h
    if best < 0 and avoid >= 0 and (view[avoid].can_decode if for_decode else view[avoid].can_prefill) != 0:
        best = avoid
    return best


def pick_local(view, request_id, seed):
    """Position of a worker that can do both, at random, or -1."""
    best = -1
    best_hash = 0
    for i in range(len(view)):
        if view[i].can_decode == 0 or view[i].can_prefill == 0:
            continue
        h = tie_hash(seed, request_id, view[i].id)
        if best < 0 or h < best_hash:
            best = i
            best_hash = h
    return best


def late_prefill(request, view, seed):
    """Position of the worker that prefills a LATE request: the same at the ASK and at the binding."""
    return pick(view, request.id, seed + 2, False, -1)


def bind_random(request, view, params, memory, seed):
    """A random decode worker other than the one that prefilled."""
    memory.count += 1.0
    return view[pick(view, request.id, seed + 5, True, late_prefill(request, view, seed))].id


@rule(
    name="chaos",
    params={"hold": 6.0, "reject": 40.0, "late": 4.0, "local": 3.0},
    memory={"count": 0.0},
    needs=("local_prefill", "late_binding", "hold", "reject", "order_key", "chunk"),
    reasons=("", "held", "refused", "late", "local", "remote"),
    bind=bind_random,
)
def chaos(request, view, params, memory, seed):
    """Anything legal, at random."""
    memory.count += 1.0
    h = tie_hash(seed, request.id, 1000 + request.holds)
    if h % int(params.hold) == 0 and request.holds < 3:
        return hold(request.now_s + 1e-6 * (1 + h % 7), 1)
    if (h >> 4) % int(params.reject) == 0:
        return reject(2)
    order_key = 0.0
    if (h >> 5) % 2 == 0:
        order_key = float((h >> 6) % 3) - 1.0
    chunk = 0
    if (h >> 8) % 2 == 0:
        chunk = 1 + (h >> 9) % 9
    local = pick_local(view, request.id, seed + 1)
    if local >= 0 and (h >> 12) % int(params.local) == 0:
        return route(LOCAL, view[local].id, order_key, chunk, 4)
    p = late_prefill(request, view, seed)
    other = pick(view, request.id, seed + 3, True, p)
    if other != p and (h >> 16) % int(params.late) == 0:
        return route(view[p].id, LATE, order_key, chunk, 3)
    return route(view[p].id, view[other].id, order_key, chunk, 5)


def bind_watchful(request, view, params, memory, seed):
    """Least score, never the prefill worker."""
    prefill = late_prefill(request, view, seed)
    best = -1
    best_score = 0.0
    for i in range(len(view)):
        if view[i].can_decode == 0 or i == prefill:
            continue
        score = see(request, view[i]) + 1e-3 * (tie_hash(seed, request.id, view[i].id) % 1000)
        if best < 0 or score < best_score:
            best = i
            best_score = score
    return view[best].id


def known(x, otherwise):
    """``x``, or ``otherwise`` where it is NaN or infinite."""
    if x - x == 0.0:
        return x
    return otherwise


def see(request, w):
    """A score that moves with nearly every field: a view that differs changes a decision."""
    score = 1.0 * w.streams + 0.7 * w.prefill_requests + 0.013 * w.prefill_tokens + 0.31 * w.local_prefills
    score += 0.53 * w.decode_requests + 0.0021 * w.decode_tokens + 0.47 * w.transfers + 0.011 * w.finished
    score += 1.0e4 * known(w.last_tbt_s, 2e-6) + known(0.01 / w.min_slo_tpot_s, 0.3) + 0.1 * w.failures
    score += 0.61 * w.scraped_running + 0.43 * w.scraped_waiting + 1.7 * w.scraped_kv_usage
    score += 0.9 * w.scraped_pinned + 1.0e4 * known(w.scrape_age_s, 1e-5) - 0.05 * w.cached_tokens
    score += 1.0e4 * (w.floor_s + w.c0_s + w.c_seq_s * w.streams + w.c_tok_s * request.prompt_tokens)
    score += 1.0e4 * (w.handover_s + w.c_kv_s * w.decode_tokens) + 1.0e-4 * w.kv_capacity_tokens + 0.01 * w.rack
    score += 1.0e-4 * (w.max_batched_tokens + w.max_num_seqs) + 0.01 * w.group + 0.01 * w.role
    return score + 10.0 * w.age_s * (w.id + 1)


@rule(
    name="watchful",
    params={"weights": (1.0, 0.25, 3.0), "spread": 0.2},
    memory={"count": 0.0, "sent": PER_WORKER},
    needs=("local_prefill", "late_binding"),
    bind=bind_watchful,
)
def watchful(request, view, params, memory, seed):
    """Least score; late, if the request's own fields say so."""
    memory.count += 1.0
    p = -1
    d = -1
    decoders = 0
    p_score = 0.0
    d_score = 0.0
    for i in range(len(view)):
        score = see(request, view[i]) + params.spread * memory.sent[i]
        score += 1e-3 * (tie_hash(seed, request.id, view[i].id) % 1000)
        if view[i].can_prefill != 0:
            own = score * params.weights[1] + params.weights[2] * view[i].prefill_requests
            if p < 0 or own < p_score:
                p = i
                p_score = own
        if view[i].can_decode != 0:
            decoders += 1
            own = score * params.weights[0]
            if i == request.last_decode:
                own -= 0.3 * known(1e5 * request.since_last_turn_s, 1.0)
            if d < 0 or own < d_score:
                d = i
                d_score = own
    own = known(request.mean_output_tokens, 3.0) + request.turn + request.priority + request.class_id
    memory.sent[p] += 1.0
    late = late_prefill(request, view, seed)
    if int(own) % 3 == 0 and decoders > view[late].can_decode:
        return route(view[late].id, LATE, own - 4.0, 0, 0)
    memory.sent[d] += 1.0
    return route(view[p].id, view[d].id, 0.0, int(own) % 5, 0)


@rule(name="all_local", needs=("local_prefill", "chunk"))
def all_local(request, view, params, memory, seed):
    """Local wherever that is possible."""
    local = pick_local(view, request.id, seed)
    if local >= 0:
        return route(LOCAL, view[local].id, 0.0, tie_hash(seed, request.id, -1) % 4, 0)
    p = pick(view, request.id, seed, False, -1)
    return route(view[p].id, view[pick(view, request.id, seed, True, p)].id, 0.0, 0, 0)


@rule(name="all_remote")
def all_remote(request, view, params, memory, seed):
    """Remote wherever that is possible."""
    p = pick(view, request.id, seed, False, -1)
    return route(view[p].id, view[pick(view, request.id, seed + 1, True, p)].id, 0.0, 0, 0)


RULES = (chaos, watchful, all_local, all_remote)
