"""The picture of ``action=handover``: time against the length of the prompt, and against handovers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from envs.hardware.model_shape import ModelShape
from envs.hardware.profile import HandoverLaw, Profile
from research.calibrating.handover import FLOWS, LONGEST_TOKENS, crossover_tokens, moving_s, pull, recompute_s
from research.evidence.figures import COLOURS, MARKERS, save
from research.evidence.ticks import plain_ticks

SHORTEST_TOKENS = 64


def draw(
    shape: ModelShape, laws: Sequence[HandoverLaw], tokens: int, block: int, profile: Profile | None, path: Path
) -> bool:
    """Write the picture.

    Args:
        shape: the model.
        laws: links, scaled to the workers that they join.
        tokens: prompt of the right panel, a line in the left one.
        block: tokens of a KV block.
        profile: whose cache is moved and whose steps compute the prompt again; None: a bf16 cache, and no such line.
        path: PNG.
    """
    return save(lambda: _figure(shape, laws, tokens, block, profile), path)


def _figure(shape: ModelShape, laws: Sequence[HandoverLaw], tokens: int, block: int, profile: Profile | None) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.6, 4.8), width_ratios=(1.5, 1.0))
    lengths = np.unique(np.geomspace(SHORTEST_TOKENS, LONGEST_TOKENS, 120).round().astype(int))
    for i, law in enumerate(laws):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        at = crossover_tokens(profile, law) if profile is not None else None
        label = law.name if profile is None else f"{law.name}: {_pays(at)}"
        # A mark is where moving begins to pay; the legend has its length, since marks may lie on one another.
        marks = [at] if at is not None and at > SHORTEST_TOKENS else []
        x = np.union1d(lengths, np.array(marks, dtype=int))
        times = [_ms(shape, law, int(n), block, profile) for n in x]
        left.plot(
            x, times, color=colour, label=label, marker=marker if marks else None, ms=7,
            markevery=np.searchsorted(x, marks).tolist(),
        )  # fmt: skip
        size = profile.kv.bytes_per_token * tokens if profile else shape.kv_bytes(tokens, "bf16")
        one = pull(law, size, -(-tokens // block))
        shared = [one.total_s(n) * 1e3 for n in FLOWS]
        right.plot(FLOWS, shared, color=colour, marker=marker, ms=5, label=law.name)
    if profile is not None:
        again = [recompute_s(profile, int(n)) * 1e3 for n in lengths]
        left.plot(lengths, again, color="#222222", ls="--", label="computing again, idle worker")
    left.axvline(tokens, color="#888888", lw=0.9, ls=":", label=f"{tokens:,} tokens, the prompt on the right")
    cache = f"cache of {profile.name}" if profile else "bf16 cache"
    left.set(
        xscale="log", yscale="log", xlabel=f"prompt, tokens ({cache})", ylabel="ms",
        title=f"Moving a prompt's KV: {shape.name}",
    )  # fmt: skip
    right.set(
        xscale="log", yscale="log", xlabel="handovers at once into one worker", ylabel="ms until each has arrived",
        title=f"{tokens:,} tokens, shared link",
    )  # fmt: skip
    plain_ticks(left)
    plain_ticks(right)
    right.set_xticks(FLOWS, [str(n) for n in FLOWS])
    right.minorticks_off()
    for axes in (left, right):  # under the axes, where it can cover no line
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=8)
    return figure


def _pays(at: int | None) -> str:
    if at is None:
        return f"does not pay up to {LONGEST_TOKENS:,} tokens"
    return f"pays from {at:,} tokens on" if at > 1 else "pays at every length"


def _ms(shape: ModelShape, law: HandoverLaw, tokens: int, block: int, profile: Profile | None) -> float:
    if profile is not None:
        return moving_s(profile, law, tokens) * 1e3
    return law.seconds(shape.kv_bytes(tokens, "bf16"), -(-tokens // block)) * 1e3
