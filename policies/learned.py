"""Learned routing: one small scorer with shared weights rates every candidate, the least score wins.

Rule::

    argmin over the candidates k of policies.features of
      score(x_k) = w . x_k + sum over hidden units h of  v_h * tanh(b_h + u_h . x_k)

with the features ``x_k`` of candidate k (shares of the request's objectives). The weights do not know how many workers
there are, so a policy trained on one cluster runs on any other; each decision costs one pass over the workers and six
evaluations of the scorer.

Parameters:
    weights: N_WEIGHTS numbers: w (16), v (8), b (8), u (8 x 16, row by row). All of order one, no normalisation.
        Without a file they are those of a hand-made start that prices TTFT, harm and the decode step as ``guard`` does.

Source: this project; trained by ``python -m research.train``, whose command is in the policy file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from policies.contract import LOCAL, Action, better, reject, route, rule, tie_hash
from policies.errors import PolicyError
from policies.features import FEATURES, N_FEATURES, SLOTS, candidate_features, shortlist, slot
from policies.rulepolicy import RulePolicy

HIDDEN = 8
N_WEIGHTS = 16 + 8 + 8 + 8 * 16
SCHEMA = "pdgym.learned"
VERSION = 1
DEFAULT_FILE = Path(__file__).parent / "data" / "learned.json"

# ttft 1, harm 4, step 0.3: guard's kappa, and its mu at the tight objectives.
GUARD_LIKE = (1.0, 0.0, 0.0, 0.0, 4.0, 0.3, *(0.0,) * 10, *(0.0,) * 8, *(0.0,) * 8, *(0.0,) * 128)


def score(x: Any, weights: Any) -> float:
    """The scorer: linear part plus eight tanh units; lower is better."""
    total = 0.0
    for i in range(N_FEATURES):
        total += weights[i] * x[i]
    at = 32
    for h in range(HIDDEN):
        if weights[16 + h] != 0.0:
            inner = weights[24 + h]
            for i in range(N_FEATURES):
                inner += weights[at + i] * x[i]
            total += weights[16 + h] * math.tanh(inner)
        at += 16
    return total


@rule(
    name="learned",
    params={"weights": GUARD_LIKE},
    needs=(
        "local_prefill",
        "prefill_requests",
        "prefill_tokens",
        "streams",
        "decode_tokens",
        "decode_requests",
        "transfers",
        "cached_tokens",
        "last_tbt_s",
        "kv_capacity_tokens",
        "last_decode",
        "slo_ttft_s",
        "slo_tpot_s",
        "id",
    ),
    reasons=("remote", "local", "no worker can serve it"),
)
def decide(request: Any, view: Any, params: Any, memory: Any, seed: int) -> Action:
    """Route to the candidate of least score."""
    p1, p2, d1, d2, l1, l2, backlog_s = shortlist(request, view, seed)
    best_p, best_d, best_hash, best_score = -1, -1, 0, math.inf
    for k in range(SLOTS):
        p, d = slot(k, p1, p2, d1, d2, l1, l2)
        if d >= 0:
            x = candidate_features(request, view[p], view[d], p == d, backlog_s)
            value = score(x, params.weights)
            h = tie_hash(seed, request.id, view[p].id * 65536 + view[d].id)
            if better(value, h, best_score, best_hash):
                best_p, best_d, best_hash, best_score = p, d, h, value
    if best_d < 0:
        return reject(2)
    if best_p == best_d:
        return route(LOCAL, view[best_d].id, 0.0, 0, 1)
    return route(view[best_p].id, view[best_d].id, 0.0, 0, 0)


def learned_policy(path: str | Path | None = None, **params: Any) -> RulePolicy:
    """The learned policy with the weights of a policy file.

    Args:
        path: a ``policy.json`` as ``research.train`` writes it; None takes the one that ships with the project.
        **params: ``weights`` replaces those of the file.

    Raises:
        PolicyError: no such file, no policy file of this version, other features than this code's, wrong numbers.
    """
    if "weights" not in params:
        params["weights"] = read_policy_file(Path(path) if path is not None else DEFAULT_FILE)["weights"]
    policy = RulePolicy.of(decide, **params)
    check_weights(policy.params["weights"], "weights")
    return policy


def read_policy_file(path: Path) -> dict[str, Any]:
    """The content of a policy file, checked; ``weights`` as a tuple of floats.

    Raises:
        PolicyError: names file, field, value and what was expected.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PolicyError(f"{path}: cannot read the policy file: {error.strerror or error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PolicyError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise PolicyError(f"{path}: expected an object with schema {SCHEMA!r}, got {type(found).__name__}")
    for key, expected in (("schema", SCHEMA), ("version", VERSION), ("features", list(FEATURES)), ("hidden", HIDDEN)):
        if found.get(key) != expected:
            raise PolicyError(f"{path}: {key} = {found.get(key)!r}: expected {expected!r}; train the policy again")
    found["weights"] = check_weights(found.get("weights"), str(path))
    return found


def check_weights(weights: Any, where: str) -> tuple[float, ...]:
    """The weights as floats.

    Raises:
        PolicyError: not N_WEIGHTS finite numbers.
    """
    fine = isinstance(weights, list | tuple) and len(weights) == N_WEIGHTS
    if not fine or not all(type(x) in (int, float) and math.isfinite(x) for x in weights):
        size = len(weights) if isinstance(weights, list | tuple) else type(weights).__name__
        raise PolicyError(f"{where}: weights: expected {N_WEIGHTS} finite numbers, got {size}")
    return tuple(float(x) for x in weights)


make = learned_policy
"""What ``policies.registry.load("learned", ...)`` calls."""
