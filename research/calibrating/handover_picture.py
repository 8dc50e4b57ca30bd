"""The picture of ``action=handover``: time against the length of the prompt, and against handovers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.hardware.model_shape import ModelShape
from envs.hardware.profile import HandoverLaw, Profile
from research.calibrating.handover import FLOWS, LONGEST_TOKENS, crossover_tokens, moving_s, pull, recompute_s
from research.evidence.figures import COLOURS, MARKERS, save


def draw(
    shape: ModelShape, laws: Sequence[HandoverLaw], tokens: int, block: int, profile: Profile | None, path: Path
) -> bool:
    """Write the picture.

    Args:
        shape: the model.
        laws: links, scaled to the workers that they join.
        tokens: prompt of the right panel.
        block: tokens of a KV block.
        profile: whose cache is moved and whose steps compute the prompt again; None: a bf16 cache, and no such line.
        path: PNG.
    """
    return save(lambda: _figure(shape, laws, tokens, block, profile), path)


def _figure(shape: ModelShape, laws: Sequence[HandoverLaw], tokens: int, block: int, profile: Profile | None) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.4), width_ratios=(1.5, 1.0))
    lengths = np.unique(np.geomspace(64, LONGEST_TOKENS, 120).round().astype(int))
    for i, law in enumerate(laws):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        left.plot(lengths, [_ms(shape, law, int(n), block, profile) for n in lengths], color=colour, label=law.name)
        _crossing(left, law, profile, colour, marker)
        size = profile.kv.bytes_per_token * tokens if profile else shape.kv_bytes(tokens, "bf16")
        one = pull(law, size, -(-tokens // block))
        times = [one.total_s(n) * 1e3 for n in FLOWS]
        right.plot(FLOWS, times, color=colour, marker=marker, ms=5, label=law.name)
    if profile is not None:
        again = [recompute_s(profile, int(n)) * 1e3 for n in lengths]
        left.plot(lengths, again, color="#222222", ls="--", label="computing again, idle worker")
    left.axvline(tokens, color="#888888", lw=0.8)
    cache = f"cache of {profile.name}" if profile else "bf16 cache"
    left.set(
        xscale="log", yscale="log", xlabel="prompt, tokens", ylabel="ms", title=f"Moving a prompt's KV: {shape.name}"
    )
    left.text(0.99, 0.02, cache, transform=left.transAxes, ha="right", va="bottom", fontsize=8)
    right.set(
        xscale="log", yscale="log", xlabel="handovers at once into one worker", ylabel="ms until each has arrived",
        title=f"{tokens:,} tokens, shared link", xticks=FLOWS, xticklabels=[str(n) for n in FLOWS],
    )  # fmt: skip
    right.minorticks_off()
    left.legend(loc="upper left", fontsize=8)
    return figure


def _ms(shape: ModelShape, law: HandoverLaw, tokens: int, block: int, profile: Profile | None) -> float:
    if profile is not None:
        return moving_s(profile, law, tokens) * 1e3
    return law.seconds(shape.kv_bytes(tokens, "bf16"), -(-tokens // block)) * 1e3


def _crossing(axes: Axes, law: HandoverLaw, profile: Profile | None, colour: str, marker: str) -> None:
    """Mark where moving begins to pay."""
    at = crossover_tokens(profile, law) if profile is not None else None
    if profile is not None and at is not None and at > 64:
        axes.plot([at], [moving_s(profile, law, at) * 1e3], marker=marker, color=colour, ms=7, ls="none")
        axes.annotate(f"{at:,}", (at, moving_s(profile, law, at) * 1e3), xytext=(6, -11), textcoords="offset points")
