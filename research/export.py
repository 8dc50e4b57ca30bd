"""``python -m research.export``: write a policy as a plug-in for a real router, and check that it decides the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from research.choices import PolicyChoice
from research.cli import run_command
from research.errors import ResearchError, nearest
from research.settings import Settings
from research.trace_choice import TraceChoice

if TYPE_CHECKING:
    from rich.console import Console

    from research.recording import Plan

SUMMARY = (
    "Write a policy as a folder that a real router loads (the rule's own source, a runtime of the standard library and "
    "numpy), with recorded views and the compiled rule's answers; or replay those in a bare interpreter."
)
EXAMPLES = (
    "policy=guard target=module out=DIR",
    "policy=learned policy.path=RUN/policy.json target=module out=DIR",
    "action=verify path=DIR",
)
ACTIONS = ("export", "verify")
GOAL_P99_US = 200.0
GOAL_IMPORT_MS = 100.0


def run(config: DictConfig) -> int:
    """Carry out one export command."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    action = plain["action"]
    if action not in ACTIONS:
        raise ResearchError(f"action={action}: expected one of {', '.join(ACTIONS)}{nearest(str(action), ACTIONS)}")
    from research.evidence.runs import write_json
    from research.evidence.table import make_console

    number = Settings(plain)
    decisions = int(number("latency_decisions", low=0, whole=True))
    console = make_console()
    if action == "export":
        folder, summary = _export(plain, number, console)
        out: Path | None = folder
    else:
        if plain["path"] is None:
            raise ResearchError("action=verify: expected path=DIR, a folder that action=export wrote")
        folder, summary = Path(plain["path"]).expanduser().absolute(), {}
        out = None if plain["out"] is None else Path(plain["out"]).expanduser().absolute()
    report = verify(folder, decisions)
    _show(report, console)
    if out is None:
        out = Path("results").absolute() / f"verify-{report['policy']}"
    summary = {"action": action, "path": str(folder), **summary, "verify": report}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "summary.json", summary)
    except OSError as error:
        raise ResearchError(f"out={out}: cannot be written: {error.strerror or error}") from None
    console.print(f"results: {out / 'summary.json'}", highlight=False, soft_wrap=True)
    if not report["passed"]:
        console.print("the exported policy does NOT decide as it was simulated: do not deploy it", highlight=False)
        return 1
    then = f"pip install {folder}   (README.md there says how a router loads it)"
    if action == "export":
        then += f"\n      python -m research.export action=verify path={folder}"
    console.print(f"next: {then}", highlight=False, soft_wrap=True)
    return 0


# -- export ----------------------------------------------------------------------------------------


def _export(plain: Mapping[str, Any], number: Settings, console: Console) -> tuple[Path, dict[str, Any]]:
    from policies.export.module import Setting, check_folder, export_module
    from policies.export.targets import find_target
    from research.recording import carried_numbers, record

    find_target(str(plain["target"]))
    given = {key: value for key, value in plain["policy"].items() if value is not None}  # null: by default
    choice = PolicyChoice.parse(given, "policy")
    policy = choice.build()
    plan = _plan(plain, number)
    place = plain["out"] if plain["out"] is not None else Path("results") / f"export-{choice.label}"
    out = Path(place).expanduser().absolute()
    check_folder(out)
    started = time.perf_counter()
    profiles, roles = carried_numbers(plan)
    setting = Setting(
        profiles=profiles,
        default_profile=plan.profile.name,
        roles=roles,
        slo={
            "ttft_base_s": plan.slo.ttft_base_s,
            "ttft_per_token_s": plan.slo.ttft_per_token_s,
            "tpot_s": plan.slo.tpot_s,
        },
        prefix_block_tokens=plan.trace.prefix_block_tokens or 64,
        max_metric_age_s=number("max_metric_age_s", above=0.0),
        training=_training(choice),
    )
    lines = record(policy, plan) if hasattr(policy, "spec") else ()
    manifest = export_module(policy, out, setting, lines)
    took_s = time.perf_counter() - started
    console.print(
        f"{choice.text()} -> {out}: {manifest['package']} {manifest['version']}, {plan.views} views of "
        f"{plan.trace.name} recorded on {', '.join(plan.clusters)} in {took_s:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    return out, {
        "policy": policy.name,
        "params": dict(policy.params),
        "target": manifest["target"],
        "package": manifest["package"],
        "version": manifest["version"],
        "source_sha256": manifest["rule"]["source_sha256"],
        "trace": plan.trace.name,
        "trace_sha256": plan.trace.sha256,
        "clusters": list(plan.clusters),
        "utilisation": list(plan.utilisations),
        "export_s": round(took_s, 2),
    }


def _plan(plain: Mapping[str, Any], number: Settings) -> Plan:
    from envs.cluster.presets import parse_cluster
    from envs.cluster.slo import SloSpec
    from envs.hardware.load import load_handover, load_profile
    from research.recording import Plan

    trace, slo = plain["trace"], plain["slo"]
    chosen = TraceChoice.parse(trace, plain["data_dir"])
    profile = load_profile(plain["hardware"]["profile"])
    handover = load_handover(plain["hardware"]["link"], gpus=profile.gpus)
    clusters = plain["clusters"] if isinstance(plain["clusters"], list) else [plain["clusters"]]
    for name in clusters:
        try:
            parse_cluster(str(name), profile=profile, handover=handover)
        except ValueError as error:
            raise ResearchError(f"clusters: {error}") from None
    if not clusters:
        raise ResearchError("clusters: expected at least one")
    return Plan(
        trace=chosen.load(),
        profile=profile,
        handover=handover,
        slo=SloSpec(
            str(slo["name"]),
            number("slo.ttft_base_s", low=0.0),
            number("slo.ttft_per_token_s", low=0.0),
            number("slo.tpot_s", above=0.0),
        ),
        clusters=tuple(str(name) for name in clusters),
        utilisations=number.many("utilisation"),
        views=int(number("views", low=1, whole=True)),
        seed=int(number("seed", low=0, whole=True)),
    )


def _training(choice: PolicyChoice) -> dict[str, Any]:
    """What the policy file says of its training."""
    if choice.name != "learned" or "weights" in dict(choice.params):
        return {}
    from policies.learned import DEFAULT_FILE, read_policy_file

    path = dict(choice.params).get("path")
    return dict(read_policy_file(Path(path) if path is not None else DEFAULT_FILE).get("training") or {})


# -- verify ----------------------------------------------------------------------------------------

# What the bare interpreter runs: only the standard library, numpy and the exported package can be imported.
BARE = """
import sys, time
folder, numpy_home, package, decisions = sys.argv[1:5]
sys.path += [folder, numpy_home]

class Nothing:
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", package) and not top.startswith("_pdgym_rule_"):
            raise ImportError(f"{name} is not there in a router")

sys.meta_path.insert(0, Nothing)
started = time.perf_counter()
import numpy
numpy_s = time.perf_counter() - started
from importlib import import_module
router = import_module(package)
router.Router(folder)
own_s = time.perf_counter() - started - numpy_s
if decisions == "import":
    print(numpy_s * 1e3, own_s * 1e3)
else:
    sys.exit(import_module(package + ".verify").main([folder + "/golden.jsonl", decisions]))
"""


def verify(folder: Path, decisions: int) -> dict[str, Any]:
    """Replay the golden file of an exported folder in a bare interpreter.

    Args:
        folder: the export.
        decisions: how many decisions to time at 64 workers, besides.

    Raises:
        ResearchError: no export, or the interpreter cannot run it.
    """
    from policies.export.runtime.rulebook import ExportError, read_manifest

    try:
        package = str(read_manifest(folder)["package"])
    except ExportError as error:
        raise ResearchError(f"path={folder}: {error}") from None
    with tempfile.TemporaryDirectory() as scratch:
        home = _numpy_alone(Path(scratch))
        words = [sys.executable, "-I", "-S", "-X", f"pycache_prefix={scratch}/cache", "-c", BARE]
        words += [str(folder), str(home), package]
        done = subprocess.run([*words, str(decisions)], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not done.stdout.strip():
            told = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ResearchError(f"path={folder}: {told.removeprefix('error: ')}")
        report: dict[str, Any] = json.loads(done.stdout)
        # Once more, with byte code in place, as after an install.
        timed = subprocess.run([*words, "import"], capture_output=True, text=True, check=False)
    try:
        report["numpy_import_ms"], report["import_ms"] = (round(float(x), 1) for x in timed.stdout.split())
    except ValueError:
        raise ResearchError(f"path={folder}: importing {package} failed: {timed.stderr.strip()}") from None
    report["passed"] = done.returncode == 0 and not report["foreign_modules"]
    return report


def _numpy_alone(scratch: Path) -> Path:
    """A folder from which numpy can be imported and nothing else."""
    import numpy

    home = Path(numpy.__file__).parent
    place = scratch / "only"
    place.mkdir()
    for item in (home, home.with_name("numpy.libs")):
        if item.is_dir():
            (place / item.name).symlink_to(item, target_is_directory=True)
    return place


def _show(report: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    table = Table(title=f"{report['policy']}: replay in a bare interpreter (Python {report['python']}, numpy only)")
    for name, justify in (("what", "left"), ("found", "right"), ("goal", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    wrong = report["mismatches"] + report["mismatches_verbatim"]
    agreement = 100.0 * (1.0 - max(report["mismatches"], report["mismatches_verbatim"]) / max(1, report["views"]))
    table.add_row("recorded views", f"{report['views']:,}", "")
    table.add_row("equal decisions", f"{agreement:.2f} %", "100 %")
    table.add_row("illegal answers", str(report["illegal_answers"]), "0")
    table.add_row("foreign packages loaded", ", ".join(report["foreign_modules"]) or "none", "none")
    if report["decide_us"]:
        row = report["decide_us"]
        table.add_row(f"decide at {row['workers']} workers, p50", f"{row['wall_p50_us']:.0f} us", "")
        table.add_row(
            f"decide at {row['workers']} workers, p99", f"{row['wall_p99_us']:.0f} us", f"{GOAL_P99_US:.0f} us"
        )
        table.add_row("  in CPU time, p99", f"{row['cpu_p99_us']:.0f} us", "")
        if row["preempted"] is not None:
            kept = row["decisions"] - row["preempted"]
            table.add_row(f"  the {kept:,} not preempted, p99", f"{row['undisturbed_p99_us']:.0f} us", "")
    table.add_row("import, besides numpy", f"{report['import_ms']:.0f} ms", f"{GOAL_IMPORT_MS:.0f} ms")
    table.add_row("import of numpy", f"{report['numpy_import_ms']:.0f} ms", "")
    console.print(table)
    if report["load_average"] is not None:
        console.print(f"load average {report['load_average']:.1f} (times are of this machine, now)", highlight=False)
    if wrong:
        for line in report["first_mismatches"]:
            console.print(f"  {line}", highlight=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run_command("export", run, summary=SUMMARY, examples=EXAMPLES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
