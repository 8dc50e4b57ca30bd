"""``action=describe``: a trace's statistics, printed and drawn."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

    from research.trace_choice import TraceChoice

KEYS: tuple[str, ...] = ("zone",)


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Print the statistics of one trace (of one zone of it with ``zone``) and draw them into ``out``."""
    from omegaconf import OmegaConf
    from rich.console import Console

    from research.trace_choice import ZONES, TraceChoice
    from traces.describe import describe

    zone = config.zone
    if zone is not None and zone not in ZONES:
        raise ResearchError(f"zone={zone}: expected one of {', '.join(ZONES)}{nearest(str(zone), ZONES)}")
    chosen: Any = OmegaConf.to_container(config.trace, resolve=True)
    choice = TraceChoice.parse(chosen, config.data_dir)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)  # numbers are not to be cut
    with console.status("reading and counting") if console.is_terminal else _nothing():
        trace = choice.load() if zone is None else choice.zone(zone)
        stats = describe(trace)
        if zone is None:
            stats["zones"] = _zones(choice)
    _show(console, stats)
    with console.status("drawing") if console.is_terminal else _nothing():
        from research.trace_actions.drawing import draw_all

        pictures = draw_all(trace, stats, out)
    stats["pictures"] = [path.name for path in pictures]
    console.print(f"\ndrawn: {', '.join(str(path) for path in pictures)}", markup=False)
    if isinstance(stats.get("zones"), str):
        console.print("next: research.compare needs zones, which this trace does not give as it is (above)")
    else:
        console.print(f"next: python -m research.compare {shlex.join(choice.words())}", markup=False)
    return stats


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _zones(choice: TraceChoice) -> Any:
    """What each zone has and lost, or why there are none."""
    from traces.errors import TraceError
    from traces.transform import losses, zone_cuts

    trace = choice.load()
    cuts_s = choice.cuts_s() or zone_cuts(trace)
    try:
        parts = {zone: choice.zone(zone) for zone in ("train", "validation", "test")}
    except TraceError as error:  # too short to cut
        return str(error)
    counts = losses(trace, cuts_s)
    return {
        zone: {
            "requests": len(part),
            "duration_s": part.duration_s,
            "first_turns_share": float((part.frame["turn"] == 1).to_numpy().mean()),
            "sessions_across_the_cut": "apart" if trace.replay == "open" else "whole",
            **(counts[zone] if trace.replay == "open" else {}),
        }
        for zone, part in parts.items()
    }


def _show(console: Console, stats: Mapping[str, Any]) -> None:
    from rich.table import Table

    from traces.describe import LEVELS

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for i, column in enumerate(columns):
            made.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        return made

    console.print(f"[bold]{stats['name']}[/bold]  {stats['sha256'][:16]}")
    sessions = f", {stats['sessions']:,} sessions" if stats["sessions"] else ""
    rate = "all at once" if stats["rate_per_s"] is None else f"{stats['rate_per_s']:.4g}/s"
    console.print(
        f"{stats['requests']:,} requests{sessions} in {stats['duration_s']:,.1f} s ({rate}), replay {stats['replay']}"
    )
    what = "requests" if stats["replay"] == "open" else "session starts"
    load = table(f"\narrivals of {what}", "statistic", "value")
    for key in ("arrival_gap_mean_s", "arrival_gap_cv", *(k for k in stats if k.startswith("arrival_dispersion_"))):
        if isinstance(stats.get(key), float):
            load.add_row(key, f"{stats[key]:.4g}")
    if load.row_count:
        console.print(load)

    sizes = table("\nquantiles", "", "mean", *LEVELS)
    for column in ("prompt_tokens", "output_tokens", "turns", "think_s"):
        if f"{column}_mean" in stats:
            sizes.add_row(column, *(_number(stats[f"{column}_{label}"]) for label in ("mean", *LEVELS)))
    console.print(sizes)

    rest = table("\nsessions, prefixes and the rest", "statistic", "value")
    for key, value in stats.items():
        if key.endswith("_share") or key in _PLAIN:
            rest.add_row(key, f"{value:.4f}" if isinstance(value, float) else f"{value:,}")
    console.print(rest)
    for key, value in stats.items():
        if isinstance(value, dict) and key.endswith("_requests"):
            console.print(f"{key}: " + ", ".join(f"{name} {count:,}" for name, count in value.items()), markup=False)
    _show_zones(console, stats, table)
    for title, key in (("lacks", "lacks"), ("what was done to it", "provenance")):
        if stats[key]:
            console.print(f"\n[bold]{title}[/bold]")
            for line in stats[key]:
                console.print(f"  {line}", markup=False)


_PLAIN = (
    "prompt_tokens_total",
    "output_tokens_total",
    "prompt_output_rank_correlation",
    "shrinking_prompts_share_of_later_turns",
    "prefix_block_tokens",
    "prefix_ids",
    "ideal_block_hit_share_with_outputs",
    "cache_tokens_for_half_of_the_hits",
    "cache_tokens_for_nine_in_ten_hits",
)


def _show_zones(console: Console, stats: Mapping[str, Any], table: Any) -> None:
    zones = stats.get("zones")
    if zones is None:
        return
    if isinstance(zones, str):
        console.print(f"\n[bold]zones[/bold]  {zones}")
        return
    crossing = any(zone.get("crossing") for zone in zones.values())
    more = ("by their stamps", "begun before", "left out") if crossing else ()
    shown = table("\nzones", "", "requests", "seconds", "first turns", *more)
    for name, zone in zones.items():
        extra = [f"{zone[key]:,}" for key in ("inside", "crossing", "lost_by_apart")] if crossing else []
        shown.add_row(
            name, f"{zone['requests']:,}", f"{zone['duration_s']:,.0f}", f"{zone['first_turns_share']:.1%}", *extra
        )
    console.print(shown)
    if crossing:
        console.print(
            "  A session that crosses a cut goes on as another one in the next zone; none has turns in train and in "
            "test (docs/traces/transforms.md)."
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
