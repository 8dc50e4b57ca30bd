"""``python -m research.calibrate``: make hardware profiles from measurements, and show what they say.

``action=fit`` reads public measurements from the data folder and writes a profile (or a link) with its source, fit
range, errors by region, held-out error and covariance. ``action=show`` prints a profile's law, errors, KV capacity and
what a handover of its KV cache costs over each link; ``action=handover`` takes such a handover apart and says from
which length on moving a cache is faster than computing it. ``action=factors`` prints what was measured of mixed
attention and of shares of SMs, for which the law has no term. ``action=measure`` times real kernels on this machine and
writes the tables that profiles are fitted to. ``action=from_runs`` corrects a profile by five or more benchmark runs of
your own cluster, ``action=from_log`` by the request log of a live server or gateway; ``action=score_from_runs`` says
how well the former works on public runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.calibrating.handover import RATES_BYTES_PER_S, ROUND_BYTES, pull
from research.calibrating.writing import write_record, write_text
from research.cli import run_command
from research.errors import ResearchError, nearest
from research.measurements import told_where_from

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from envs.hardware.profile import HandoverLaw, Profile

ACTIONS = ("show", "fit", "handover", "factors", "measure", "from_runs", "from_log", "score_from_runs")
EXAMPLE_TOKENS = 4096


def run(config: DictConfig) -> int:
    """Carry out one calibrate command; results go to ``out``."""
    with told_where_from():
        return _run(config)


def _run(config: DictConfig) -> int:
    action = str(config.action)
    if action not in ACTIONS:
        raise ResearchError(f"action={action}: expected one of {', '.join(ACTIONS)}{nearest(action, ACTIONS)}")
    if action == "measure":
        from research.calibrating.measuring import run as measure

        return measure(config)
    if action == "handover":
        from research.calibrating.handover import run as handover

        return handover(config)
    if action == "factors":
        from research.calibrating.factors import run as factors

        return factors(config)
    if action == "from_runs":
        from research.calibrating.from_runs import run as from_runs

        return from_runs(config)
    if action == "from_log":
        from research.calibrating.from_log import run as from_log

        return from_log(config)
    if action == "score_from_runs":
        from research.calibrating.score_from_runs import run as score

        return score(config)
    summary = _fit(config) if action == "fit" else _show(config)
    out = _out(config)
    write_record(out / "summary.json", summary)
    print(f"results: {out}")
    if action == "fit":
        file = out / f"{summary['name']}.yaml"
        key = "profile" if "step_ms" in summary else "link"
        print(f"next: python -m research.compare hardware.{key}={file}")
    else:
        from envs.hardware.recipe import recipe_names

        profile = str(config.profile)
        again = f"   (or action=fit profile={profile})" if profile in recipe_names() else ""
        print(f"next: python -m research.compare hardware.profile={profile}{again}")
    return 0


def _fit(config: DictConfig) -> dict[str, Any]:
    from envs.hardware.links import build_link
    from envs.hardware.load import load_profile
    from envs.hardware.recipe import build
    from envs.hardware.records import tables_errors
    from envs.hardware.write import to_yaml
    from research.calibrating import show
    from traces.catalog import default_data_dir

    if (config.profile is None) == (config.link is None):
        raise ResearchError("action=fit: expected profile=NAME or link=NAME (one of them)")
    data_dir = Path(config.data_dir).expanduser() if config.data_dir is not None else default_data_dir()
    bound, force, out = config.bound_percent, config.force, _out(config)
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not bound > 0:
        raise ResearchError(f"bound_percent={bound}: expected percent, a number above 0")
    if not isinstance(force, bool):
        raise ResearchError(f"force={force}: expected true or false")
    if config.link is not None:
        record = build_link(str(config.link), data_dir)
        command = f"python -m research.calibrate action=fit link={record['name']}"
        write_text(out / f"{record['name']}.yaml", to_yaml(record, command))
        _print_link(record)
        return record
    built = build(str(config.profile), data_dir, float(bound), force)
    name = built.record["name"]
    write_text(out / f"{name}.yaml", to_yaml(built.record, f"python -m research.calibrate action=fit profile={name}"))
    write_text(out / "residuals.csv", show.residuals(built.fit))
    profile = load_profile(out / f"{name}.yaml")
    show.print_profile(profile)
    summary = show.summary(profile)
    if built.read is not None and built.read[2] != built.record["engine_version"]:
        folder, engine, version = built.read
        summary["tables_read"] = f"{folder}, {engine} {version}"
        print(
            f"op times read: {folder}, {engine} {version}, the measured version nearest to the recipe's "
            f"{built.record['engine_version']}"
        )
    print("\n".join(show.worst_words(built.fit)))
    if built.tables is not None:
        print("\n".join(show.beside_words(built.tables, built.fit)))
        summary["tables_errors_percent"] = tables_errors(built.tables)
    return summary


def _show(config: DictConfig) -> dict[str, Any]:
    from envs.hardware.load import handover_names, load_handover, load_profile, profile_names
    from research.calibrating import show, show_tables

    if config.profile is None:
        raise ResearchError(f"action=show: expected profile=NAME, one of {', '.join(profile_names())}")
    profile = load_profile(str(config.profile))
    names = [str(config.link)] if config.link is not None else handover_names()
    links = [load_handover(name, gpus=profile.gpus) for name in names]
    show.print_profile(profile)
    return {
        "profile": show.summary(profile),
        "tables": show_tables.summary(profile),
        "transfer": _transfer(profile),
        "handovers": [_handover(profile, link) for link in links],
    }


def _transfer(profile: Profile) -> dict[str, Any]:
    """The worked example: the KV cache of a 4K prompt over 100 GB/s and 10 GB/s."""
    kv_bytes = profile.kv.bytes_per_token * EXAMPLE_TOKENS
    print(f"\nKV cache of {EXAMPLE_TOKENS} tokens: {EXAMPLE_TOKENS} x {profile.kv.bytes_per_token:,.0f} bytes", end="")
    print(f" = {kv_bytes / 1e6:,.0f} MB; bytes over bandwidth alone:")
    rows = []
    for rate in RATES_BYTES_PER_S:
        exact_ms, round_ms = kv_bytes / rate * 1e3, ROUND_BYTES / rate * 1e3
        rows.append({"gb_per_s": rate / 1e9, "transfer_ms": exact_ms, "transfer_500mb_ms": round_ms})
        print(f"  at {rate / 1e9:>4g} GB/s: {exact_ms:6.1f} ms   (a round 500 MB: {round_ms:.0f} ms)")
    return {"tokens": EXAMPLE_TOKENS, "kv_bytes": kv_bytes, "rates": rows}


def _handover(profile: Profile, link: HandoverLaw) -> dict[str, Any]:
    kv_bytes, blocks = profile.kv.bytes_per_token * EXAMPLE_TOKENS, -(-EXAMPLE_TOKENS // profile.kv.block_tokens)
    one = pull(link, kv_bytes, blocks)
    row = {
        "link": one.link,
        "kind": one.kind,
        "bandwidth_gb_per_s": one.bandwidth_bytes_per_s / 1e9,
        "dispatch_ms": one.dispatch_s * 1e3,
        "base_ms": one.base_s * 1e3,
        "blocks_ms": one.blocks_s * 1e3,
        "bytes_ms": one.bytes_s * 1e3,
        "total_ms": one.total_s() * 1e3,
        "first_use_ms": one.first_use_s * 1e3,
    }
    print(
        f"  {link.name:<15} {row['bandwidth_gb_per_s']:7.1f} GB/s ({row['kind']}): {row['total_ms']:6.1f} ms = "
        f"dispatch {row['dispatch_ms']:.1f} + base {row['base_ms']:.2f} + blocks {row['blocks_ms']:.1f} + "
        f"bytes {row['bytes_ms']:.1f}; + {row['first_use_ms']:.0f} on a pair's first use"
    )
    return row


def _print_link(record: Mapping[str, Any]) -> None:
    print(f"{record['name']}: {record['source']['kind']}, {record['source']['name']}")
    for term, reason in record["source"]["terms"].items():
        print(f"  {term:<22} {record[term]:<12.4g} {reason}")
    fit = record["source"].get("fit")
    if fit:
        print(
            f"  fit: {fit['points']} points, mean error {fit['mape_percent']} %, max {fit['max_percent']} %, ", end=""
        )
        print(f"held out {fit['held_out_mape_percent']} %")


def _out(config: DictConfig) -> Path:
    if config.out is not None:
        return Path(config.out).expanduser().absolute()
    # A name may hold dots (llama-3.1-...): only the suffix of a file is none of it.
    name = Path(str(config.profile if config.profile is not None else config.link)).name
    name = name.removesuffix(".yaml").removesuffix(".yml")
    return Path("results").absolute() / f"calibrate-{config.action}-{name}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run_command(
        "calibrate",
        run,
        summary=__doc__ or "",
        examples=(
            "action=show profile=llama-3.1-70b-fp8-h100-tp4",
            "action=fit profile=llama-3.1-8b-bf16-a100-tp1 out=DIR",
            "action=fit link=rdma out=DIR",
            "action=handover model=llama-3.1-70b prompt_tokens=4096",
            "action=measure device=cuda model=llama-3.1-8b plan=true",
            "action=from_runs path=runs.csv profile=llama-3.1-70b-fp8-h100-tp4 out=DIR",
            "action=from_log trace=my_log.parquet cluster=2p2d hardware.profile=NAME out=DIR",
        ),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
