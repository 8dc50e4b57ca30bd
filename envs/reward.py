"""The reward of one request when it ends: goodput, with a soft part that tells near misses from far ones.

::

    reward = 0.7 * [both objectives met] + 0.3 * (slack(TTFT / objective) + slack(TPOT / objective)) / 2
    slack(x) = 1 for x <= 1, falling linearly to 0 at x = 2

A request that meets its objectives earns 1, one that misses both by a factor of two or more earns 0, as does one that
is rejected, cancelled or failed. The reward falls due when the request *ends*: a decision is credited with what happens
after it, also to requests that arrived before it and are still decoding. (Crediting by arrival hides the harm that a
local prefill does to them.)

Example: objectives 0.4 s and 25 ms, served in 0.5 s and 20 ms: not met, slacks 0.75 and 1, reward 0.3 * 0.875 = 0.2625.
"""

from __future__ import annotations

HARD_SHARE = 0.7
SOFT_SHARE = 0.3


def slack(share: float) -> float:
    """1 within the objective, 0 at twice the objective and beyond, linear between."""
    if share <= 1.0:
        return 1.0
    return 2.0 - share if share < 2.0 else 0.0


def request_reward(met: bool, ttft_share: float, tpot_share: float) -> float:
    """Reward of a served request.

    Args:
        met: whether both objectives are met.
        ttft_share: TTFT over its objective.
        tpot_share: TPOT over its objective, 0 for a request of one token.
    """
    soft = 0.5 * (slack(ttft_share) + slack(tpot_share))
    return 0.7 * met + 0.3 * soft
