"""``action=factors``: what measurements say that the step law has no term for, with its held-out error.

Attention of a chunk of a prompt and decodes in one kernel against both apart (LLMServingSim's profiles), and a phase on
a share of a GPU's SMs against all of them (MuxServe).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.calibrating.writing import write_record, write_text

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from omegaconf import DictConfig

    from envs.hardware.sources.files import Origin
    from envs.hardware.sources.sm_share import Slowdown

FILE, PICTURE = "factors.yaml", "factors.png"
PAYERS = (
    "vLLM on GPUs where it runs FlashAttention 2 (A100, RTX), both phases in one kernel; not by SGLang, TRT-LLM and "
    "vLLM on B200 (a kernel each), nor by vLLM on H100 (FlashAttention 3 packs heads whatever the step holds)"
)
NO_TERM = "the step law sums both: where it is paid, mixed steps with many decodes come out too fast"

Profiles = Mapping[str, "tuple[pl.DataFrame, tuple[str, str]]"]


def run(config: DictConfig) -> int:
    """Print both factors, write ``factors.yaml``, ``summary.json`` and the picture; returns the exit code.

    Raises:
        ResearchError: a folder that cannot be written.
        MeasurementError: measurements missing or impossible.
    """
    from envs.hardware.sources.sm_share import read_slowdowns, slowdowns
    from envs.hardware.write import to_yaml
    from research.evidence.figures import save
    from traces.catalog import default_data_dir

    data_dir = Path(config.data_dir).expanduser() if config.data_dir is not None else default_data_dir()
    out = (Path("results") / "calibrate-factors" if config.out is None else Path(config.out).expanduser()).absolute()
    profiles = _profiles(data_dir)
    table = read_slowdowns(data_dir)
    shares = slowdowns(table)
    record = {
        "mixed_attention": _mixed(profiles),
        "sm_share": _shares(shares, [(table.relative, table.sha256)]),
    }
    write_text(out / FILE, to_yaml(record, "python -m research.calibrate action=factors"))
    write_record(out / "summary.json", record)
    save(lambda: _figure(profiles, shares), out / PICTURE)
    print(f"\npicture: {out / PICTURE}")
    print(f"results: {out}")
    print("next: python -m research.calibrate action=fit profile=llama-3.1-8b-bf16-rtx-pro-6000-tp1")
    return 0


def _profiles(data_dir: Path) -> Profiles:
    """Ratios of every profile in the data folder, and its attention table's (path, sha256)."""
    from envs.hardware.errors import MeasurementError
    from envs.hardware.sources.llmservingsim import ROOT, read_profile
    from envs.hardware.sources.profiled import mixed_ratios

    base = data_dir / ROOT / "profiler" / "perf"
    found = {}
    for path in sorted(base.glob("*/*/*/bf16/tp*/attention.csv.gz")):
        gpu, maker, model, _, degree = path.relative_to(base).parts[:5]
        profile = read_profile(data_dir, gpu, f"{maker}/{model}", tensor_parallel=int(degree.removeprefix("tp")))
        held = (profile.attention.relative, profile.attention.sha256)
        found[f"{gpu} {model.removesuffix('-Instruct-2507')} {degree}"] = (mixed_ratios(profile), held)
    if len(found) < 2:
        raise MeasurementError(
            f"{base}: {len(found)} profiles with attention.csv.gz: expected at least 2, so that one can be held out "
            "(set data_dir=DIR or $PDGYM_DATA to a folder that holds measurements/)"
        )
    return found


def _mixed(profiles: Profiles) -> dict[str, Any]:
    import numpy as np

    from envs.hardware.sources.llmservingsim import LLMSERVINGSIM
    from envs.hardware.sources.profiled import REGIONS, mixed_by_region

    print("attention of a chunk (128 tokens or more) and decodes in one kernel, over the sum of a kernel for each;")
    print("medians (90th percentile) by decodes, where the chunk is most of the sum / where the decodes are:")
    titles = [f"{low}-{high}" if low < high else f"{low}" for low, high in REGIONS]
    width = max(map(len, profiles))
    print(f"  {'profile':<{width}}" + "".join(f"{title:>25}" for title in titles))
    rows, medians = [], {}
    for name, (ratios, _) in profiles.items():
        regions = mixed_by_region(ratios)
        medians[name] = {(region.decodes, region.heavy): region.median for region in regions}
        rows += [{"profile": name, **asdict(region), "decodes": list(region.decodes)} for region in regions]
        cells = []
        for decodes in REGIONS:
            pair = [region for region in regions if region.decodes == decodes]
            cells.append(" / ".join(f"{region.median:.2f} ({region.p90:.1f})" for region in pair))
        print(f"  {name:<{width}}" + "".join(f"{cell:>25}" for cell in cells))
    errors, ones = [], []
    for name in profiles:
        for key, median in medians[name].items():
            others = [held[key] for other, held in medians.items() if other != name and key in held]
            if others:
                errors.append(abs(float(np.median(others)) / median - 1.0) * 100)
                ones.append(abs(1.0 / median - 1.0) * 100)
    held_out, no_factor = float(np.mean(errors)), float(np.mean(ones))
    print(f"  held out: another profile's median errs by {held_out:.0f} % on the mean, no factor at all by ", end="")
    print(f"{no_factor:.0f} % ({len(errors)} regions)")
    print(f"  paid by {PAYERS}")
    print(f"  {NO_TERM}")
    return {
        "source": _origin(LLMSERVINGSIM, [held for _, held in profiles.values()]),
        "who_pays": PAYERS,
        "range": {"chunk_tokens": [128, 2048], "decodes": [1, 128], "cached_tokens": [0, 16384], "gpus": "RTX only"},
        "regions": rows,
        "held_out_mape_percent": round(held_out, 1),
        "without_factor_mape_percent": round(no_factor, 1),
    }


def _shares(shares: Sequence[Slowdown], files: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from envs.hardware.sources.sm_share import MUXSERVE, PHASES

    print("\na phase on a share of the SMs, its time over that on all of them (least to greatest configuration):")
    kinds = list(dict.fromkeys((row.phase, row.tokens) for row in shares))
    print(f"  {'SMs':<5}" + "".join(f"{phase + ' ' + tokens:>27}" for phase, tokens in kinds))
    for share in sorted({row.share for row in shares}, reverse=True):
        cells = []
        for kind in kinds:
            row = next((r for r in shares if (r.phase, r.tokens) == kind and r.share == share), None)
            cells.append("-" if row is None else f"{row.median:.2f} ({row.low:.2f}-{row.high:.2f})")
        print(f"  {share:<5.0%}" + "".join(f"{cell:>27}" for cell in cells))
    held_out = {
        phase: sum(row.held_out_percent for row in shares if row.phase == phase)
        / sum(row.phase == phase for row in shares)
        for phase in PHASES
    }
    told = ", ".join(f"{phase} {error:.1f} %" for phase, error in held_out.items())
    print(f"  held out (the other configurations' median stands for each): {told} on the mean")
    print("  each phase alone under a cap; split workers of the simulator slice time instead (1 / share for both)")
    return {
        "source": _origin(MUXSERVE, files),
        "range": {"sm_share": [min(r.share for r in shares), 1.0], "gpus": "A100 only"},
        "rows": [asdict(row) for row in shares],
        "held_out_mape_percent": {phase: round(error, 1) for phase, error in held_out.items()},
    }


def _origin(origin: Origin, files: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from envs.hardware.records import origin_record

    return {**origin_record(origin), "files": [{"path": path, "sha256": digest} for path, digest in files]}


def _figure(profiles: Profiles, shares: Sequence[Slowdown]) -> Figure:
    import numpy as np
    import polars as pl
    from matplotlib import pyplot as plt

    from research.evidence.figures import COLOURS, MARKERS

    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.4))
    for i, (name, (ratios, _)) in enumerate(profiles.items()):
        by = ratios.group_by("n_decode").agg(
            median=pl.col("ratio").median(), low=pl.col("ratio").quantile(0.1), high=pl.col("ratio").quantile(0.9)
        )
        by = by.sort("n_decode")
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        left.plot(by["n_decode"], by["median"], color=colour, marker=marker, ms=4, label=name)
        left.fill_between(by["n_decode"], by["low"], by["high"], color=colour, alpha=0.07, lw=0)
    left.axhline(1.0, color="#444444", lw=0.9)
    left.set(
        xscale="log", yscale="log", xlabel="decodes beside the chunk", ylabel="one kernel over the sum of two",
        title="Mixed attention: lines medians, bands 10 to 90 %",
    )  # fmt: skip
    left.set_yticks(times := [0.5, 1, 2, 4, 8], [f"{value:g}" for value in times])
    left.set_xticks(decodes := [1, 2, 4, 8, 16, 32, 64, 128], [str(n) for n in decodes])
    left.minorticks_off()
    left.legend(fontsize=7)
    for i, kind in enumerate(dict.fromkeys((row.phase, row.tokens) for row in shares)):
        rows = [row for row in shares if (row.phase, row.tokens) == kind]
        style = "-" if kind[0] == "prefill" else "--"
        shown = ([row.share * 100 for row in rows], [row.median for row in rows])
        right.plot(
            *shown, style, color=COLOURS[i % len(COLOURS)], marker="o", ms=4, label=f"{kind[0]}, {_tokens(kind[1])}"
        )
    x = np.linspace(30, 100, 50)
    right.plot(x, 100 / x, color="#444444", lw=0.9, ls=":", label="a slice of time: 1 / share")
    right.set(xlabel="share of the SMs, %", ylabel="time over that on all SMs", title="A phase on a part of a GPU")
    right.legend(fontsize=7)
    return figure


def _tokens(kind: str) -> str:
    """A range of prompt lengths as the source names it ("lt1k"), in words."""
    return f"{kind.replace('lt', '< ').replace('-', ' to ').replace('k', 'K')} tokens"
