"""A study: settings checked once, and the runs that they stand for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from research.choices import PolicyChoice, with_unique_labels
from research.errors import ResearchError, nearest
from research.evidence.backtests import look_up
from research.evidence.runs import code_version, key_of
from research.evidence.worlds import in_world
from research.settings import Settings
from research.trace_choice import ZONES, TraceChoice

if TYPE_CHECKING:
    from envs.cluster.slo import SloSpec
    from envs.cluster.spec import ClusterSpec

REPLAYS = ("open", "closed", "clients")


@dataclass(frozen=True, slots=True)
class KneeSettings:
    """How the capacity is searched; rates are multiples of the trace's own."""

    attainment: float
    lowest: float
    highest: float
    tolerance: float
    windows: int


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: a policy on one window at one rate with one seed. Picklable."""

    trace: TraceChoice
    zone: str
    windows: int
    window: int
    scale: float  # rate as a multiple of the trace's own
    cluster: ClusterSpec
    slo: SloSpec
    policy: PolicyChoice
    seed: int
    adjust_period_s: float
    lead_in: float  # windows served before this one, not counted
    skip_first: float
    skip_last: float
    requests: bool  # keep a compact table of the requests
    off_by: float  # share by which the policies' predictor is off
    world: int = 0  # 0: the nominal one; else a draw from the profiles' uncertainty


@dataclass(frozen=True, slots=True)
class Study:
    """Everything a comparison needs, checked."""

    command: str
    trace: TraceChoice
    cluster: ClusterSpec
    hardware: dict[str, Any]
    slo: SloSpec
    policies: tuple[PolicyChoice, ...]  # as asked for; the reference is among them or is added
    reference: PolicyChoice
    loads: tuple[float, ...]  # multiples of the knee; empty if rates are given
    rates_per_s: tuple[float, ...]
    knee: KneeSettings
    windows: int
    seeds: int
    seed: int
    lead_in: float
    skip_first: float
    skip_last: float
    adjust_period_s: float
    robustness: tuple[float, ...]
    worlds: int  # draws from the profiles' uncertainty
    no_shared_prefixes: bool  # the user says so of a trace without prefix information
    requests: bool
    workers: int
    out: Path
    store: Path
    report: bool
    tracking: dict[str, Any]
    config: dict[str, Any]  # as composed, for the record
    backtest: dict[str, Any] | None = None  # mark of the last backtest of this cluster

    @property
    def entrants(self) -> tuple[PolicyChoice, ...]:
        """The policies that are run: those asked for, and the reference."""
        return self.policies if self.reference in self.policies else (*self.policies, self.reference)

    def run(
        self,
        policy: PolicyChoice,
        window: int,
        scale: float,
        seed: int,
        *,
        zone: str = "test",
        windows: int | None = None,
        requests: bool | None = None,
        off_by: float = 0.0,
        world: int = 0,
    ) -> Run:
        """One run of this study."""
        return Run(
            trace=self.trace,
            zone=zone,
            windows=windows or self.windows,
            window=window,
            scale=scale,
            cluster=self.cluster,
            slo=self.slo,
            policy=policy,
            seed=seed,
            adjust_period_s=self.adjust_period_s,
            lead_in=self.lead_in,
            skip_first=self.skip_first,
            skip_last=self.skip_last,
            requests=self.requests if requests is None else requests,
            off_by=off_by,
            world=world,
        )

    def seed_list(self) -> list[int]:
        """Seeds nested in every window."""
        return list(range(self.seed, self.seed + self.seeds))

    def identity(self, run: Run, shared: Mapping[str, Any]) -> dict[str, Any]:
        """What the run's key is made from; ``shared`` is :meth:`shared_identity`."""
        return {
            **shared,
            "kind": "run",
            "zone": run.zone,
            "windows": run.windows,
            "window": run.window,
            "scale": run.scale,
            "policy": policy_identity(run.policy),
            "seed": run.seed,
            "requests": run.requests,
            "off_by": run.off_by,
            **({"world": run.world} if run.world else {}),
        }

    def shared_identity(self) -> dict[str, Any]:
        """The part of the identity that all runs of the study share."""
        trace = self.trace.load()
        return {
            "trace_sha256": trace.sha256,
            "zones_s": {name: self.trace.zone(name).duration_s for name in ZONES},
            "replay": trace.replay,
            "cluster": self.cluster.name,
            "cluster_sha256": key_of(asdict(self.cluster)),
            "slo": asdict(self.slo),
            "adjust_period_s": self.adjust_period_s,
            "measure": {"lead_in": self.lead_in, "skip_first": self.skip_first, "skip_last": self.skip_last},
            "code": code_version(),
        }


def policy_identity(choice: PolicyChoice) -> dict[str, Any]:
    """Cached: one policy is asked for once a window."""
    if choice not in _IDENTITIES:
        _IDENTITIES[choice] = choice.identity()
    return _IDENTITIES[choice]


_IDENTITIES: dict[PolicyChoice, dict[str, Any]] = {}


def study_from(config: DictConfig, command: str) -> Study:
    """Check every setting and build the study.

    Raises:
        ResearchError, TraceError, PolicyError, ProfileError: a setting that is no good, named with what was expected.
    """
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    from research.clusters import build_cluster

    number = Settings(plain)
    policies, reference = _policies(plain, command)
    measure_first = number("measure.skip_first", low=0.0, below=1.0)
    measure_last = number("measure.skip_last", low=0.0, below=1.0)
    if measure_first + measure_last >= 1.0:
        raise ResearchError("measure.skip_first + measure.skip_last: expected a sum below 1, nothing would be measured")
    seeds = int(number("seeds", low=1, whole=True))
    rates = number.many("rate_per_s") if plain["rate_per_s"] is not None else ()
    cluster, slo = build_cluster(plain["cluster"], plain["hardware"], plain["view"]), slo_from(plain)
    trace = trace_from(plain)
    known_classes(slo, trace)
    out, store = _folders(plain, command, trace, cluster, slo)
    study = Study(
        command=command,
        trace=trace,
        cluster=cluster,
        hardware=plain["hardware"],
        slo=slo,
        policies=policies,
        reference=reference,
        loads=() if rates else number.many("load"),
        rates_per_s=rates,
        knee=KneeSettings(
            attainment=number("knee.attainment", above=0.0, high=1.0),
            lowest=number("knee.lowest", above=0.0),
            highest=number("knee.highest", above=0.0),
            tolerance=number("knee.tolerance", above=0.0, below=1.0),
            windows=int(number("knee.windows", low=1, whole=True)),
        ),
        windows=int(number("windows", low=1, whole=True)),
        seeds=seeds,
        seed=int(number("seed", low=0, whole=True)),
        lead_in=_lead_in(number, trace),
        skip_first=measure_first,
        skip_last=measure_last,
        adjust_period_s=number("adjust_period_s", low=0.0),
        robustness=number.many("robustness", below=1.0, empty=True),
        worlds=int(number("worlds", low=0, high=10_000, whole=True)),
        no_shared_prefixes=number.flag("no_shared_prefixes"),
        requests=number.flag("requests"),
        workers=int(number("workers", low=1, whole=True)) if plain["workers"] is not None else _cores(),
        out=out,
        store=store,
        report=number.flag("report"),
        tracking=dict(plain["tracking"]),
        config=plain,
        backtest=look_up(cluster, None if plain["backtest"] is None else str(plain["backtest"])),
    )
    if study.knee.lowest >= study.knee.highest:
        raise ResearchError("knee.lowest: expected less than knee.highest")
    if reference.replays:
        raise ResearchError("reference=logged: expected a router: the reference is what the capacity is searched with")
    for choice in study.entrants:
        choice.build_for(trace.load(), cluster)  # unknown names, parameters, targets and routes end here
    if study.no_shared_prefixes and trace.load().prefix_block_tokens:
        raise ResearchError(
            f"no_shared_prefixes=true: trace {trace.name} records which prefixes are shared: leave it out"
        )
    if study.worlds:
        in_world(cluster, 1)  # a profile without uncertainty ends here
    study.trace.window("test", study.windows, 0, study.lead_in)
    if study.loads:
        study.trace.window("validation", study.knee.windows, 0, study.lead_in)
    return study


def _lead_in(number: Settings, trace: TraceChoice) -> float:
    """Windows of lead-in. Sessions need more: their later turns come think times after, whatever the load."""
    if number.plain["measure"]["lead_in"] is not None:
        return number("measure.lead_in", low=0.0, high=100.0)
    return 1.0 if trace.load().replay == "open" else 4.0


def _policies(plain: Mapping[str, Any], command: str) -> tuple[tuple[PolicyChoice, ...], PolicyChoice]:
    """The policies asked for and the reference, labelled apart from each other."""
    if command == "evaluate":
        asked = [PolicyChoice.parse(plain["policy"], "policy")]
    else:
        items = plain["policies"]
        items = [items] if isinstance(items, str | Mapping) else items
        if not isinstance(items, list) or not items:
            raise ResearchError(
                f"policies: expected a list such as [round_robin,{{name: deflect, alpha: 1.3}}], got {items!r}"
            )
        asked = [PolicyChoice.parse(item, f"policies[{i}]") for i, item in enumerate(items)]
    reference = PolicyChoice.parse(plain["reference"], "reference")
    labelled = with_unique_labels([*asked, reference])
    at = list(dict.fromkeys([*asked, reference])).index(reference)
    return tuple(labelled[: len(dict.fromkeys(asked))]), labelled[at]


def trace_from(plain: Mapping[str, Any]) -> TraceChoice:
    """The trace of a configuration, in the replay mode asked for."""
    trace = plain["trace"]
    replay = plain["replay"]
    if replay is not None and replay not in REPLAYS:
        raise ResearchError(f"replay={replay}: expected one of {', '.join(REPLAYS)}{nearest(str(replay), REPLAYS)}")
    return TraceChoice.parse(trace, plain["data_dir"], replay)


def slo_from(plain: Mapping[str, Any]) -> SloSpec:
    """The objectives of a configuration."""
    from envs.cluster.slo import SloSpec

    def build(name: str, fields: Mapping[str, Any], base: Mapping[str, Any]) -> SloSpec:
        allowed = ("name", "ttft_base_s", "ttft_per_token_s", "tpot_s", "by_class")
        for key in fields:
            if key not in allowed:
                raise ResearchError(f"slo: unknown field {key!r}{nearest(key, allowed)}: expected {', '.join(allowed)}")
        merged = {**base, **fields}
        numbers = {}
        for key in ("ttft_base_s", "ttft_per_token_s", "tpot_s"):
            value = merged[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ResearchError(f"slo.{key}={value!r}: expected seconds, a number of at least 0")
            numbers[key] = float(value)
        classes = {str(c): build(f"{name}:{c}", f, numbers | {"by_class": {}}) for c, f in merged["by_class"].items()}
        return SloSpec(name=name, by_class=classes, **numbers)

    fields = plain["slo"]
    return build(str(fields["name"]), fields, {})


def known_classes(slo: SloSpec, trace: TraceChoice) -> None:
    """Objectives of a class that no request has would be a dead setting."""
    if not slo.by_class:
        return
    loaded = trace.load()
    if "class" not in loaded.frame.columns:
        raise ResearchError(
            f"slo.by_class: trace {trace.name} has no classes, so {', '.join(slo.by_class)} would be nobody's "
            "objectives: leave it out, or set slo.ttft_base_s, slo.tpot_s for all requests"
        )
    known = loaded.classes
    for name in slo.by_class:
        if name not in known:
            raise ResearchError(
                f"slo.by_class: trace {trace.name} has no class {name!r}{nearest(name, known)}: "
                f"expected {', '.join(known)}"
            )


def _folders(
    plain: Mapping[str, Any], command: str, trace: TraceChoice, cluster: ClusterSpec, slo: SloSpec
) -> tuple[Path, Path]:
    name = f"{command}-{Path(trace.name).name.split('.')[0]}-{Path(cluster.name).stem}-{slo.name}"
    results = Path("results")
    out = Path(plain["out"]).expanduser() if plain["out"] is not None else results / name
    if plain["store"] is not None:
        store = Path(plain["store"]).expanduser()
    else:
        store = (out if plain["out"] is not None else results) / "runs"
    return out.absolute(), store.absolute()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
