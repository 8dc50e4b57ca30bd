"""``action=fit``: fit a generator to a trace, and say how far what it draws is from a held-out window."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.console import Console

KEYS: tuple[str, ...] = ("zone", "seed")
_WINDOWS = ("fitted", "held_out", "generated")


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Fit, print the table of distances, write ``fit.yaml``."""
    from omegaconf import OmegaConf
    from rich.console import Console

    from research.trace_choice import TraceChoice
    from traces.generators.fit import fit_generator, fit_windows
    from traces.generators.spec import write_generator

    zone = "train" if config.zone is None else str(config.zone)
    seed = 0 if config.seed is None else config.seed
    chosen: Any = OmegaConf.to_container(config.trace, resolve=True)
    choice = TraceChoice.parse(chosen, config.data_dir)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    with console.status("reading") if console.is_terminal else nullcontext() as status:

        def tell(family: str) -> None:
            if status is not None:
                status.update(f"fitting arrivals: {family}")

        fitted, held_out = fit_windows(choice.load(), zone, choice.cuts_s())
        made = fit_generator(fitted, held_out, zone=zone, seed=seed, progress=tell)
    path = out / "fit.yaml"
    write_generator(made, path)
    judge = "the validation zone" if zone == "train" else "its own last third"
    console.print(
        f"fitted on {made.source} ({made.requests:,} requests, {made.starts:,} starts, {made.duration_s:g} s), "
        f"judged on {judge} ({len(held_out):,} requests)"
    )
    arrivals = made.arrivals_fit
    console.print(f"arrivals: {arrivals['family']}. {arrivals['verdict']}")
    _show(console, made.distances)
    for line in made.not_kept:
        console.print(f"not kept: {line}")
    console.print(f"\nwritten to {path}; fit {made.sha256[:12]}")
    console.print(f"next: python -m research.traces action=generate path={path} duration_s=3600 out=DIR")
    return {"fit": made.sha256, "path": str(path), "arrivals": dict(arrivals), **made.distances}


def _show(console: Console, found: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        "distance (KS) to the held-out window", "of the fitted window", "of a drawn trace", "bound", "", "held out"
    )
    for name, row in found["ks"].items():
        word = "within" if row["within"] else "beyond"
        table.add_row(
            name, f"{row['real']:.3f}", f"{row['generated']:.3f}", f"{row['bound']:.3f}", word, f"{row['held_out']:,}"
        )
    console.print(table)
    if found["dispersion"]:
        _show_dispersion(console, found["dispersion"])
    table = Table("", "fitted window", "held-out window", "drawn trace")
    for key, words in (("ideal_hit_share", "ideal prefix hit share"), ("compacted_share", "compacted later turns")):
        if key in found:
            table.add_row(words, *(f"{found[key][window]:.3f}" for window in _WINDOWS))
    if table.row_count:
        console.print(table)


def _show_dispersion(console: Console, found: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table("dispersion of starts")
    for name in ("fitted", "held out", "its 95 % band", "drawn", "off", "bound", "band"):
        table.add_column(name, no_wrap=True)
    for scale, row in found.items():
        low, high = row["band"]
        table.add_row(
            f"in {scale} intervals",
            *(f"{row[window]:.3g}" for window in ("fitted", "held_out")),
            f"{low:.3g} to {high:.3g}",
            f"{row['generated']:.3g}",
            f"{row['off']:+.1%}",
            f"{'within' if row['within'] else 'beyond'} {row['bound']:.0%}",
            "inside" if row["in_band"] else "outside",
        )
    console.print(table)
