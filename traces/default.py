"""The default trace: synthetic, from numbers fitted on public traces, so that it works without any download.

* Session starts: a renewal process; first turns: prompt and output lengths with their joint ranks. Both fitted
  on the *train* window of Azure conversation 2023; the family of the gaps by likelihood on the validation window.
* Later turns: number of turns, think times and new prompt tokens, fitted on the *train* window of the Mooncake
  conversation trace, whose sessions are inferred (:mod:`traces.sessions`) and cut short by the window: long
  sessions are under-represented. Mooncake's prompts are ten times Azure's, so new tokens beyond a short question
  (64 tokens) and the shared system prompt are scaled by the ratio of mean first prompts. Think times are scaled
  by 0.1, which is chosen, not fitted: their mean is 15 s instead of 155 s, so that later turns fall into
  comparison windows of a minute.
* A later prompt is all of the turn before, prompt and output, and the new tokens; its output length is drawn
  from Azure's law. Replay is closed.

What it does not have: the slow swings of the rate (Azure's index of dispersion at 60 s is about 5, a renewal
process has about its squared CV), any link between first prompt and number of turns, any diurnal shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.arrivals.gaps import Gaps, choose_gaps
from traces.errors import TraceError
from traces.generators.chains import longest, resolve
from traces.laws import Copula, Quantiles
from traces.trace import Trace

FIT_FILE = Path(__file__).parent / "data" / "default_fit.yaml"
TRACE_FILE = Path(__file__).parent / "data" / "default.parquet"
SEED = 20231116
REQUESTS = 12_000
BLOCK_TOKENS = 64
THINK_SCALE = 0.1
_QUESTION_TOKENS = 64.0
_NOMINAL_SERVICE = (0.5, 0.03)  # s, s an output token: for nominal arrivals of later turns only
_MAX_TURNS = 12


@dataclass(frozen=True, slots=True)
class DefaultFit:
    """The fitted numbers.

    Attributes:
        arrivals: gaps between session starts, at the request rate of the source.
        log_likelihood: held-out, by family, nats a gap.
        prompt_tokens: first prompts.
        output_tokens: outputs of any turn.
        lengths: joint ranks of the two.
        turns: share of sessions with 1, 2, ... turns.
        think_s: think times, as in the source, unscaled.
        think_scale: what they are multiplied by (chosen).
        new_tokens: new prompt tokens of a later turn, as in the source, unscaled.
        scale: what new tokens beyond a short question are multiplied by.
        shared_prompt_tokens: system prompt that every session starts with, scaled.
        sources: where each part comes from.
    """

    arrivals: Gaps
    log_likelihood: Mapping[str, float]
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    lengths: Copula
    turns: tuple[float, ...]
    think_s: Quantiles
    think_scale: float
    new_tokens: Quantiles
    scale: float
    shared_prompt_tokens: int
    sources: tuple[str, ...]


def fit_default(data_dir: str | Path | None = None) -> DefaultFit:
    """Fit the numbers anew; needs the Azure and Mooncake conversation traces.

    Raises:
        TraceError: the data are absent.
    """
    from traces.catalog import ENTRIES, load_trace, zones

    azure = zones(load_trace("azure_conv", data_dir=data_dir))
    mooncake = zones(load_trace("mooncake_conversation", data_dir=data_dir))["train"]
    train, held_out = (np.diff(azure[zone].frame["arrival_s"].to_numpy()) for zone in ("train", "validation"))
    arrivals, scores = choose_gaps(train, held_out)
    frame = azure["train"].frame
    prompt, output = frame["prompt_tokens"].to_numpy(), frame["output_tokens"].to_numpy()

    turns = mooncake.frame.group_by("session").len()["len"].to_numpy()
    counts = np.bincount(np.minimum(turns, _MAX_TURNS))[1:]
    before = pl.col("prompt_tokens") + pl.col("output_tokens")
    later = (
        mooncake.frame.sort("session", "turn")
        .with_columns(new=pl.col("prompt_tokens") - before.shift(1).over("session"))
        .filter(pl.col("turn") > 1)
    )
    first = mooncake.frame.filter(pl.col("turn") == 1)["prompt_tokens"]
    scale = float(prompt.mean() / first.to_numpy().mean())
    return DefaultFit(
        arrivals=Gaps(arrivals.family, round(arrivals.mean_s, 6), round(arrivals.shape, 4)),
        log_likelihood={family: round(score, 4) for family, score in scores.items()},
        prompt_tokens=Quantiles.fit(prompt),
        output_tokens=Quantiles.fit(output),
        lengths=Copula.fit(prompt, output),
        turns=tuple(round(float(share), 6) for share in counts / counts.sum()),
        think_s=Quantiles.fit(later["think_s"].to_numpy(), 2),
        think_scale=THINK_SCALE,
        new_tokens=Quantiles.fit(np.maximum(later["new"].to_numpy(), 1)),
        scale=round(scale, 4),
        shared_prompt_tokens=max(1, round(mooncake.prefix_block_tokens * scale / BLOCK_TOKENS)) * BLOCK_TOKENS,
        sources=tuple(
            f"{what}: {ENTRIES[name].source}, train window [0, {ENTRIES[name].cuts_s[0]:g}) s"  # type: ignore[index]
            for what, name in (("arrivals, lengths", "azure_conv"), ("turns, think times", "mooncake_conversation"))
        ),
    )


def default_trace(fit: DefaultFit, n_requests: int = REQUESTS, seed: int = SEED) -> Trace:
    """Draw a trace from fitted numbers.

    Args:
        fit: the numbers.
        n_requests: about how many requests; whole sessions are drawn.
        seed: of every draw.
    """
    rng = np.random.default_rng(seed)
    shares = np.asarray(fit.turns) / sum(fit.turns)
    mean_turns = float(shares @ np.arange(1, shares.size + 1))
    n = max(1, round(n_requests / mean_turns))
    starts = np.cumsum(fit.arrivals.draw(n, rng)) * mean_turns  # the request rate is the source's
    turns = 1 + np.minimum(np.searchsorted(np.cumsum(shares), rng.random(n), side="right"), shares.size - 1)
    u, v = fit.lengths.draw(n, rng)
    total = int(turns.sum())
    session = np.repeat(np.arange(n), turns)
    first = np.r_[0, np.cumsum(turns)[:-1]]
    turn = np.arange(total) - first[session] + 1
    head = turn == 1

    new = fit.new_tokens.at(rng.random(total))
    new = np.minimum(new, _QUESTION_TOKENS) + fit.scale * np.maximum(new - _QUESTION_TOKENS, 0.0)
    new[head] = fit.prompt_tokens.at(u)
    new = np.maximum(np.rint(new), 1).astype(np.int64)
    out = fit.output_tokens.at(rng.random(total))
    out[head] = fit.output_tokens.at(v)
    out = np.maximum(np.rint(out), 1).astype(np.int64)
    think = np.round(
        fit.think_s.at(rng.random(total)) * fit.think_scale, 3
    )  # rounded: equal bits whatever the maths library

    grown = np.cumsum(new + out)
    before = np.r_[0, grown[:-1]]
    context = before - before[first][session]  # tokens of the turns before
    base, per_token = _NOMINAL_SERVICE
    gone = np.cumsum(np.where(head, 0.0, think) + base + per_token * out) - (base + per_token * out)
    nominal = np.round(starts, 6)[session] + gone - gone[first][session]

    offsets, ids = _chains(session, turns, context + new, context + new + out, fit.shared_prompt_tokens)
    return Trace.build(
        "default",
        {
            "arrival_s": np.round(nominal - starts[0], 6).clip(min=0),
            "session": session,
            "turn": turn,
            "think_s": pl.Series(np.where(head, np.nan, think)).fill_nan(None),
            "prompt_tokens": context + new,
            "output_tokens": out,
        },
        chain_offsets=offsets,
        chain_ids=ids,
        prefix_block_tokens=BLOCK_TOKENS,
        replay="closed",
        provenance=(f"generated by traces.default, seed {seed}, {n} sessions", *fit.sources),
    )


def _chains(
    session: NDArray[np.int64],
    turns: NDArray[np.int64],
    prompt: NDArray[np.int64],
    total: NDArray[np.int64],
    shared: int,
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """CSR chains: the shared system prompt's blocks, then blocks of the session's own.

    The last output of a session is not part of any later prompt, so its blocks are left out.
    """
    last = np.cumsum(turns) - 1
    known = total.copy()
    known[last] = prompt[last]
    length = known // BLOCK_TOKENS
    # Text 0 is the system prompt; a session whose first prompt is shorter cannot hold it.
    system = shared // BLOCK_TOKENS
    cut = np.r_[0, np.where(prompt[last - turns + 1] >= shared, system, 0)]
    extent = longest(session + 1, length, turns.size + 1)
    extent[0] = system
    return resolve(session + 1, length, np.r_[-1, np.zeros(turns.size, np.int64)], cut, extent)


def write_fit(fit: DefaultFit, path: str | Path) -> None:
    """Write the numbers as YAML."""
    import yaml

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = (
        "# Numbers of the default trace. Made by: python -m research.traces action=default refit=true out=DIR\n"
        "# Quantile tables are at the levels of traces.laws.LEVELS.\n"
    )
    path.write_text(head + yaml.safe_dump(_plain(asdict(fit)), sort_keys=False, width=118), encoding="utf-8")


def read_fit(path: str | Path = FIT_FILE) -> DefaultFit:
    """Read the numbers.

    Raises:
        TraceError: a missing or incomplete file.
    """
    import yaml

    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return DefaultFit(
            arrivals=Gaps(**raw["arrivals"]),
            log_likelihood=dict(raw["log_likelihood"]),
            lengths=Copula(tuple(map(tuple, raw["lengths"]["counts"]))),
            turns=tuple(raw["turns"]),
            scale=float(raw["scale"]),
            think_scale=float(raw["think_scale"]),
            shared_prompt_tokens=int(raw["shared_prompt_tokens"]),
            sources=tuple(raw["sources"]),
            **{
                name: Quantiles(tuple(raw[name]["values"]))
                for name in ("prompt_tokens", "output_tokens", "think_s", "new_tokens")
            },
        )
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        expected = f"the fitted numbers of the default trace ({type(error).__name__}: {error})"
        raise TraceError(file=path, expected=expected) from error


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
