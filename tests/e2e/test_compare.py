"""compare and evaluate as a user runs them: whole, resumable after any kill, clear about mistakes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
COMMON = ("trace.format=azure", "windows=2", "rate_per_s=[6.0]", "measure.lead_in=0.5")


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    """A short log in the format of the Azure traces."""
    rng = np.random.default_rng(0)
    at = np.cumsum(rng.exponential(0.25, 600))
    path = tmp_path_factory.mktemp("data") / "my.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for t, prompt, output in zip(at, rng.integers(100, 3000, 600), rng.integers(2, 60, 600), strict=True):
        stamp = f"2023-11-16 18:{15 + int(t // 60):02d}:{t % 60:010.7f}"
        lines.append(f"{stamp},{prompt},{output}")
    path.write_text("\n".join(lines) + "\n")
    return path


def environment():
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}


def command(name, csv, *words):
    return [sys.executable, "-m", f"research.{name}", f"trace.path={csv}", *COMMON, *words]


def run(name, csv, *words, cwd):
    return subprocess.run(
        command(name, csv, *words), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def table(folder):
    """What a study found, without where and how often it ran."""
    summary = json.loads((folder / "summary.json").read_bytes())
    return {key: summary[key] for key in ("rows", "differences", "winners", "robustness", "words", "runs")}


POLICIES = ("policies=[round_robin,{name: guard, kappa: 9}]", "robustness=[0.5]")

IN_ONE_PROCESS = """
import json, sys
from research.compare import main
out = sys.argv.pop(1)
code = main()
json.dump(sorted({name.split(".")[0] for name in sys.modules}), open(out, "w"))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def study(csv, tmp_path_factory):
    """One unbroken comparison in one process, with everything on."""
    folder = tmp_path_factory.mktemp("study")
    words = [f"trace.path={csv}", *COMMON, *POLICIES, "workers=1", "out=out"]
    done = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, "modules.json", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_comparison_prints_its_table_and_says_who_wins(study):
    _, done = study
    assert "\x1b" not in done.stdout
    assert "Traceback" not in done.stderr
    for part in (
        "round_robin",
        "guard(kappa=9)",
        "guard (reference)",
        "attained",
        "6.00 requests/s",
        "Measured: requests",
    ):
        assert part in done.stdout, part
    # Nothing is known of shared prefixes here: guard is ranked, and what it cannot gain from caches is said.
    assert "6.00 requests/s: no winner is proven" in done.stdout
    assert re.search(r"guard \(reference\) ", done.stdout)
    assert "What prefix caches would give to guard" in done.stdout
    assert "This cluster was never backtested" in done.stdout
    ending = done.stdout.strip().splitlines()[-5:]
    assert [line.split()[0] for line in ending[1:]] == ["summary", "report", "tracking", "next"]


def test_it_leaves_a_summary_with_rows_and_provenance(study):
    folder, _ = study
    summary = json.loads((folder / "out" / "summary.json").read_bytes())
    for row in summary["rows"]:
        assert {"policy", "load", "slo", "metric", "estimate", "low", "high", "windows", "seeds"} <= set(row)
    policies = {r["policy"] for r in summary["rows"]}
    assert policies == {"round_robin", "guard(kappa=9)", "guard"} or policies == {"round_robin", "guard"}
    assert len(summary["provenance"]["trace"]["sha256"]) == 64
    assert summary["provenance"]["command"].startswith("python -m research.compare trace.path=")
    assert summary["config"]["windows"] == 2
    assert {r["off_by"] for r in summary["robustness"]["rows"]} == {0.5}


def test_it_leaves_a_report_pictures_and_a_tracking_store(study):
    folder, _ = study
    assert "never backtested" in (folder / "out" / "report.html").read_text()
    assert (folder / "out" / "figures" / "distributions.png").is_file()
    assert (folder / "out" / "mlflow.db").is_file()


def test_it_loads_neither_torch_nor_stable_baselines3(study):
    folder, _ = study
    modules = set(json.loads((folder / "modules.json").read_text()))
    assert "numba" in modules  # the simulation ran in there
    assert modules & {"torch", "stable_baselines3", "tensorflow", "onnxruntime"} == set()


def test_a_rerun_makes_nothing_new_and_says_the_same(study, csv):
    folder, _ = study
    before = table(folder / "out")
    again = run("compare", csv, *POLICIES, "workers=1", "out=out", "tracking.enabled=false", "report=false", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "0 runs made, " in again.stdout
    assert table(folder / "out") == before


def test_tracking_that_is_down_costs_one_line_and_no_result(study, csv):
    folder, _ = study
    before = table(folder / "out")
    words = ["workers=1", "out=out", "report=false", "tracking.uri=sqlite:////dev/null/none.db"]
    done = run("compare", csv, *POLICIES, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.count("tracking failed, results are kept: ") == 1
    assert table(folder / "out") == before


def finished(store):
    """When each finished run was written; looks while others write, so a folder may be gone before it is read."""
    results = (run / "result.json" for shelf in names(store) for run in names(shelf))
    return {result.parent.name: result.stat().st_mtime_ns for result in results if result.is_file()}


def names(folder):
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


@contextlib.contextmanager
def started(csv, words, cwd):
    """A comparison in a process group of its own, which does not outlive the block."""
    child = subprocess.Popen(
        command("compare", csv, *words),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_killed_three_times_it_goes_on_and_says_the_same(study, csv, tmp_path):
    folder, _ = study
    words = [*POLICIES, "workers=2", "out=out", "tracking.enabled=false", "report=false"]
    kept: dict[str, int] = {}
    for more in (1, 3, 2):
        with started(csv, words, tmp_path) as child:
            deadline = time.monotonic() + 240
            while len(finished(tmp_path / "out" / "runs")) < len(kept) + more and child.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        now = finished(tmp_path / "out" / "runs")
        assert kept.items() <= now.items()  # nothing that was finished is lost or made again
        kept = now
    last = run("compare", csv, *words, cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert kept.items() <= finished(tmp_path / "out" / "runs").items()
    assert table(tmp_path / "out") == table(folder / "out")
    assert not list((tmp_path / "out" / "runs").glob(".tmp-*"))


ROUTER = """
from policies.contract import LOCAL, route

class MyPolicy:
    def __init__(self, fail_at=-1):
        self.fail_at = fail_at
    def route(self, request, view):
        if request.id == self.fail_at:
            raise KeyError("my own bug")
        decoders = [w for w in view if w.can_decode]
        best = min(decoders, key=lambda w: (w.decode_requests, w.id))
        return route(LOCAL, best.id)
"""


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab" / "router.py").write_text(ROUTER)
    return tmp_path


CUSTOM = (
    "policy=custom",
    "policy.target=my_lab.router:MyPolicy",
    "tracking.enabled=false",
    "report=false",
    "robustness=[]",
)


def test_a_policy_of_ones_own_is_evaluated_in_detail(csv, lab):
    done = run("evaluate", csv, "cluster=1p2d", *CUSTOM, "out=out", cwd=lab)
    assert done.returncode == 0, done.stderr
    for part in ("MyPolicy: mean over windows", "ttft_p99_s", "utilisation_decode", "local_share"):
        assert part in done.stdout
    rows = json.loads((lab / "out" / "summary.json").read_bytes())["rows"]
    share = next(r for r in rows if (r["policy"], r["metric"]) == ("MyPolicy", "deflected_share"))
    assert share["estimate"] == 1.0


def test_a_policy_that_raises_is_one_line_and_a_file_and_keeps_the_others(csv, lab):
    done = run("evaluate", csv, *CUSTOM, "policy.params={fail_at: 3}", "workers=1", "out=out", cwd=lab)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.match(r"error: 2 of \d runs failed; the first: policy MyPolicy .*KeyError: 'my own bug'", done.stderr)
    assert "router.py" in (lab / "out" / "failures.txt").read_text()
    assert len(finished(lab / "out" / "runs")) == 2  # the reference's


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace.path=none.csv",), "none.csv"),
        (("out=/dev/null/here",), "cannot write to /dev/null/here"),
        (("policies=[roundrobin]",), "did you mean 'round_robin'"),
        (("windows=5000",), "does not fill 5000 windows"),
        (("slo=strict",), "unknown slo 'strict'"),
    ],
)
def test_mistakes_end_in_one_line(csv, tmp_path, words, message):
    done = run("compare", csv, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_the_knee_sets_the_load_of_the_shipped_trace(tmp_path):
    words = [
        "policies=[round_robin]",
        "load=[1.0]",
        "windows=2",
        "knee.windows=1",
        "knee.lowest=1",
        "knee.tolerance=0.2",
    ]
    quiet = ["robustness=[]", "tracking.enabled=false", "report=false", "out=out", "slo=loose", "cluster=1p1d"]
    done = subprocess.run(
        [sys.executable, "-m", "research.compare", "trace=default", *words, *quiet],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    knee = summary["knee"]
    assert knee["outcome"] == "found"
    assert f"knee: {knee['rate_per_s']:.4g} sessions/s" in done.stdout
    assert summary["rows"][0]["rate_per_s"] == pytest.approx(knee["rate_per_s"])
    at_knee = [p for p in knee["curve"] if p["rate_per_s"] <= knee["rate_per_s"]]
    assert all(p["feasible_attainment"] >= 0.9 for p in at_knee)
    assert all(p["feasible_attainment"] < 0.9 for p in knee["curve"] if p["rate_per_s"] > knee["rate_per_s"] * 1.01)
