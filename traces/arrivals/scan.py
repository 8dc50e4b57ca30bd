"""Products of many small non-negative matrices with a vector, from the left and from the right, scaled.

What a hidden Markov model's forward and backward passes are. The matrices are cut into blocks that run side by
side: about two square roots of n numpy calls instead of n.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def forward(matrices: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Row vectors ``start @ M[0] @ ... @ M[k]`` for every k, each scaled to sum 1, and the logs of the scales.

    Args:
        matrices: (n, s, s), not negative.
        start: (s,) sums to 1.

    Returns:
        (n, s) vectors and (n,) logs: the log of the whole product's sum is the sum of these.
    """
    n, states = matrices.shape[:2]
    blocks = _blocks(matrices)
    width = blocks.shape[1]
    whole = blocks[:, 0]
    for step in range(1, width):
        whole = whole @ blocks[:, step]
        whole = whole / np.maximum(whole.max(axis=(1, 2), keepdims=True), 1e-300)
    begin = np.empty((blocks.shape[0], states))
    vector = start
    for block in range(blocks.shape[0]):
        begin[block] = vector
        vector = vector @ whole[block]
        vector = vector / max(vector.sum(), 1e-300)
    vectors, scales = np.empty((blocks.shape[0], width, states)), np.empty((blocks.shape[0], width))
    at = begin[:, None, :]
    for step in range(width):
        at = at @ blocks[:, step]
        total = np.maximum(at.sum(axis=2, keepdims=True), 1e-300)
        at = at / total
        vectors[:, step], scales[:, step] = at[:, 0], total[:, 0, 0]
    return vectors.reshape(-1, states)[:n], np.log(scales.reshape(-1)[:n])


def backward(matrices: Floats, end: Floats) -> Floats:
    """Column vectors ``M[k+1] @ ... @ M[n-1] @ end`` for every k, each scaled to sum 1: (n, s)."""
    turned = np.ascontiguousarray(matrices[::-1].transpose(0, 2, 1))
    vectors, _ = forward(turned, end / end.sum())
    return np.concatenate([vectors[-2::-1], (end / end.sum())[None]]) if len(matrices) > 1 else (end / end.sum())[None]


def _blocks(matrices: Floats) -> Floats:
    """(blocks, width, s, s), filled up with identities."""
    n, states = matrices.shape[:2]
    width = max(1, math.isqrt(n))
    count = -(-n // width)
    filled = np.empty((count * width, states, states))
    filled[:n] = matrices
    filled[n:] = np.eye(states)
    return filled.reshape(count, width, states, states)
