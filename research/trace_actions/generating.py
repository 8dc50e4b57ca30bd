"""``action=generate``: a trace of any length and rate from a fitted generator."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.errors import ResearchError

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS: tuple[str, ...] = ("path", "duration_s", "rate_per_s", "requests", "seed")
OFF = 0.1
"""Share by which what is drawn may miss what is asked for without a warning."""


def run(config: DictConfig, out: Path) -> dict[str, Any]:
    """Draw, and write ``trace.parquet``."""
    from rich.console import Console

    from traces.generators.draw import asked, draw_trace
    from traces.generators.spec import read_generator
    from traces.readers import canonical

    if config.path is None:
        raise ResearchError("path: expected path=FIT.yaml, a file that action=fit has written")
    made = read_generator(str(config.path))
    sizes = {key: config[key] for key in ("duration_s", "rate_per_s", "requests")}
    duration_s, rate_per_s = asked(made, **sizes)
    console = Console(highlight=False, soft_wrap=True)
    path = out / "trace.parquet"
    with console.status("drawing") if console.is_terminal else nullcontext():
        trace = draw_trace(made, **sizes, seed=0 if config.seed is None else config.seed)
        canonical.write(trace, path)
    console.print(f"{trace}\nsha256 {trace.sha256}")
    for line in trace.provenance:
        console.print(line)
    off = trace.rate_per_s / rate_per_s - 1
    console.print(
        f"\nasked for {duration_s * rate_per_s:,.0f} requests in {duration_s:g} s, {rate_per_s:.4g}/s; "
        f"drawn {len(trace):,}, {trace.rate_per_s:.4g}/s ({off:+.1%})"
    )
    if abs(off) > OFF:
        console.print(
            "warning: as bursty as the source is, traces of this length differ that much; a longer one is nearer, "
            "or another seed"
        )
    console.print(f"written to {path}")
    console.print(f"next: python -m research.compare trace.path={path} windows=20")
    return {
        "path": str(path),
        "sha256": trace.sha256,
        "fit": made.sha256,
        "asked_requests": duration_s * rate_per_s,
        "asked_rate_per_s": rate_per_s,
        "requests": len(trace),
        "sessions": trace.n_sessions,
        "duration_s": trace.duration_s,
        "rate_per_s": trace.rate_per_s,
        "replay": trace.replay,
        "provenance": list(trace.provenance),
    }
