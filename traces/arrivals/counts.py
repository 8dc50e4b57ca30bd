"""Coarse stamps: the likelihood of counts per bucket, where gaps below the bucket mean nothing.

Approximation: the rate is constant in a bucket, and its state moves at the edges. Only laws of a rate (Poisson,
modulated, multiscale, and these by period) have counts of this kind; laws of gaps are not offered.
"""

from __future__ import annotations

import numpy as np

from traces.arrivals.chain import stationary
from traces.arrivals.diurnal import Diurnal
from traces.arrivals.law import ArrivalLaw, Floats
from traces.arrivals.modulated import Modulated
from traces.arrivals.scan import forward
from traces.arrivals.swings import Multiscale


def bucket_edges(duration_s: float, width_s: float) -> Floats:
    """Edges of the buckets from 0; the last may be shorter."""
    edges = np.arange(int(np.ceil(duration_s / width_s - 1e-9)) + 1) * width_s
    edges[-1] = duration_s
    return np.asarray(edges)


def bucket_scores(law: ArrivalLaw, arrivals_s: Floats, duration_s: float, width_s: float) -> tuple[Floats, Floats]:
    """Of each bucket, given all before: log probability of its count, and an even residual.

    The residual is the probability of a smaller count and a fixed random share of the count's own: even in [0, 1]
    if the law is right.
    """
    from scipy import linalg, stats

    edges = bucket_edges(duration_s, width_s)
    counts = np.histogram(arrivals_s, edges)[0]
    exposure = np.diff(law.operational_s(edges) if isinstance(law, Diurnal) else edges)
    inner = law.steady if isinstance(law, Diurnal) else law
    if isinstance(inner, Modulated | Multiscale):
        chain = inner.chain
        rates, switch = chain.rates, chain.switch
    else:
        rates, switch = np.array([inner.rate_per_s]), np.zeros((1, 1))
    mean = exposure[:, None] * rates
    density = stats.poisson.pmf(counts[:, None], mean)
    lengths, which = np.unique(np.round(exposure, 9), return_inverse=True)
    moves = np.array([linalg.expm(switch * length) for length in lengths])[which]
    start = stationary(switch)
    after, logs = forward(np.maximum(density, 1e-300)[:, :, None] * moves, start)
    before = np.concatenate([start[None], after[:-1]])
    below = (before * stats.poisson.cdf(counts[:, None] - 1, mean)).sum(axis=1)
    own = (before * density).sum(axis=1)
    return logs, np.clip(below + own * np.random.default_rng(0).random(counts.size), 0.0, 1.0)
