"""The command at toy size on a CPU: what it writes, that it goes on where it stopped, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.measure import run as runs
from envs.hardware.measure.machine import read_machine, write_machine
from envs.hardware.measure.ops import OPS
from envs.hardware.measure.plan import all_points, plan
from envs.hardware.measure.points import NotMeasuredError, Point, scope_of
from envs.hardware.measure.run import measure, open_bench, open_store
from envs.hardware.measure.store import schema
from envs.hardware.measure.timing import Timing
from envs.hardware.model_shape import load_model
from research.calibrate import main
from research.calibrating.measuring import gpu_sheet
from research.calibrating.measuring_picture import draw

torch = pytest.importorskip("torch")

TOY = Path(runs.__file__).parent / "toy.yaml"
WORDS = ["action=measure", "device=cpu", "model=toy"]


@pytest.fixture(scope="module", autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder that the whole toy run wrote."""
    folder = tmp_path_factory.mktemp("toy")
    assert main([*WORDS, "minutes=5", f"out={folder}"]) == 0
    return folder


@pytest.fixture
def bench():
    return open_bench("cpu", load_model(TOY))


def some(bench, count=6):
    """A few points of the cheapest table."""
    return [point for point in all_points(bench.lab.shape, bench.scope) if point.op == "gemm"][:count]


def silent(*_):
    pass


def test_every_table_is_written_whole(done):
    points = all_points(load_model(TOY), scope_of("cpu", fp8=False, gpus=0))
    for name, op in OPS.items():
        expected = sum(point.op == name for point in points)
        if not expected:
            assert name == "sm_share"  # needs a GPU
            continue
        frame = pl.read_parquet(done / op.file)
        assert frame.height == expected
        assert dict(frame.schema) == {column: kind() for column, kind in schema(op).items()}
        assert frame.select(list(op.keys)).is_unique().all()
        assert (frame["latency"] > 0).all()
        assert ((frame["latency_p25"] <= frame["latency"]) & (frame["latency"] <= frame["latency_p75"])).all()
        assert (frame["repeats"] >= 5).all()
        assert (frame["version"] == torch.__version__).all()
        assert frame["clock_mhz"].is_null().all()  # what is not known is not 0
    assert not list(done.glob(".*"))


def test_the_published_layout_is_what_op_adapters_read(done):
    generation = pl.read_parquet(done / OPS["generation_attention"].file)
    # As published: isl 1, step is the cached length, so the context is one more.
    assert generation["isl"].unique().to_list() == [1]
    assert set(generation["step"] + 1) == {16, 32, 64}
    heads = set(generation.select("num_heads", "num_key_value_heads", "head_dim").iter_rows())
    assert heads == {(4, 2, 32), (2, 1, 32)}
    gemm = pl.read_parquet(done / OPS["gemm"].file)
    both = set(gemm.filter(pl.col("gemm_dtype") == "bfloat16").select("n", "k").iter_rows())
    # qkv, output, gate-up, down and head on one GPU, on two, and the product that is all launch.
    assert {(256, 128), (128, 128), (512, 128), (128, 256), (128, 64), (128, 128), (256, 256)} <= both


def test_times_are_milliseconds(monkeypatch, tmp_path, bench):
    ticks = iter(range(0, 10**6))
    monkeypatch.setattr("envs.hardware.measure.timing.time.perf_counter", lambda: next(ticks) * 0.25)
    store = open_store(tmp_path, bench.machine)
    measure(bench, store, some(bench, 1), 60.0, silent)
    assert store.frames["gemm"]["latency"].to_list() == [250.0]


def test_the_summary_holds_what_was_printed(done, capsys):
    summary = json.loads((done / "summary.json").read_text())
    assert summary["machine"]["torch"] == torch.__version__
    assert summary["machine"]["power_cap_w"] is None
    assert summary["skipped"] == {}
    assert summary["measured"] == sum(summary["tables"].values())
    assert len(summary["mixed"]) == 9
    assert [(row["batch"], row["new"]) for row in summary["tpot_rise"]] == [(2, 16)]


def test_the_picture_is_drawn_of_whatever_was_measured(done, tmp_path):
    assert (done / "measured.png").stat().st_size > 20_000
    shape = load_model(TOY)
    gemm = pl.read_parquet(done / OPS["gemm"].file)
    assert draw(shape, {"gemm": gemm}, [], "products only", tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 20_000
    assert not draw(shape, {}, [], "nothing", tmp_path / "none.png")


def test_a_second_run_measures_nothing_again(done, capsys):
    before = {path.name: path.read_bytes() for path in done.glob("*.parquet")}
    assert main([*WORDS, "minutes=5", f"out={done}"]) == 0
    assert "0 points measured" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in done.glob("*.parquet")} == before


def test_a_run_that_stopped_goes_on(tmp_path, bench):
    points = some(bench)
    first = measure(bench, open_store(tmp_path, bench.machine), points[:2], 60.0, silent)
    looked_at = []
    second = measure(
        bench, open_store(tmp_path, bench.machine), points, 60.0, lambda index, count, point: looked_at.append(point)
    )
    assert (first.measured, second.kept, second.measured) == (2, 2, 4)
    assert looked_at == points[2:]
    assert pl.read_parquet(tmp_path / OPS["gemm"].file).height == 6


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path, bench):
    def stop(index, count, point):
        if index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(bench, open_store(tmp_path, bench.machine), some(bench), 60.0, stop)
    assert pl.read_parquet(tmp_path / OPS["gemm"].file).height == 3


def test_minutes_bound_the_run(tmp_path, bench):
    outcome = measure(bench, open_store(tmp_path, bench.machine), some(bench), 1e-6, silent)
    assert (outcome.measured, outcome.left) == (0, 6)


def test_a_point_that_cannot_be_measured_is_told_and_not_written(tmp_path, bench, monkeypatch):
    points = some(bench, 3)

    def broken(point: Point, lab: object) -> Timing:
        if point == points[1]:
            raise NotMeasuredError("needs 99 GB")
        return Timing(1.0, 1.0, 1.0, 5, 1, False, "made up")

    op = OPS["gemm"]
    changed = type(op)(op.file, op.keys, op.constants, op.points, broken, op.meaning)
    monkeypatch.setitem(OPS, "gemm", changed)
    outcome = measure(bench, open_store(tmp_path, bench.machine), points, 60.0, silent)
    assert outcome.skipped == {points[1].label(): "needs 99 GB"}
    assert pl.read_parquet(tmp_path / op.file).height == 2


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_not_kept(tmp_path, bench, latency):
    store = open_store(tmp_path, bench.machine)
    with pytest.raises(MeasurementError, match=r"latency = .* expected a finite time above 0"):
        store.add(some(bench, 1)[0], Timing(latency, latency, latency, 5, 1, False))


def test_two_machines_do_not_share_a_folder(tmp_path, bench):
    write_machine(tmp_path, bench.machine)
    assert read_machine(tmp_path) == bench.machine
    text = (tmp_path / "machine.json").read_text()
    (tmp_path / "machine.json").write_text(text.replace('"driver": "none"', '"driver": "570.1"'))
    with pytest.raises(MeasurementError, match=r"driver = '570.1': expected 'none'.*another out=DIR"):
        open_store(tmp_path, bench.machine)


def test_tables_without_their_machine_are_refused(tmp_path, bench):
    measure(bench, open_store(tmp_path, bench.machine), some(bench, 1), 60.0, silent)
    (tmp_path / "machine.json").unlink()
    with pytest.raises(MeasurementError, match=r"tables without machine.json"):
        open_store(tmp_path, bench.machine)
    (tmp_path / "machine.json").write_text('{"device": "cpu"}')
    with pytest.raises(MeasurementError, match="expected a record with the fields device, name"):
        open_store(tmp_path, bench.machine)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("power_cap_w", "700 W", "power_cap_w = '700 W': expected a number or null"),
        ("gpus", 1.5, "gpus = 1.5: expected a whole number"),
        ("sms", True, "sms = True: expected a whole number"),
        ("driver", None, "driver = None: expected words"),
        ("shape", [], r"shape = \[\]: expected a mapping"),
    ],
)
def test_a_machine_whose_fields_are_none_is_refused(tmp_path, bench, key, value, words):
    write_machine(tmp_path, bench.machine)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(MeasurementError, match=words):
        read_machine(tmp_path)


def test_a_table_that_lost_a_column_is_refused_on_resume(tmp_path, bench):
    measure(bench, open_store(tmp_path, bench.machine), some(bench, 1), 60.0, silent)
    path = tmp_path / OPS["gemm"].file
    pl.read_parquet(path).drop("latency").write_parquet(path)
    with pytest.raises(MeasurementError, match="column 'latency' is missing"):
        open_store(tmp_path, bench.machine)


def test_the_most_telling_points_come_first_and_every_table_has_some():
    shape, scope = load_model("llama-3.1-8b"), scope_of("cuda", fp8=True, gpus=2)
    points = all_points(shape, scope)
    assert [point.priority for point in points] == sorted(point.priority for point in points)
    assert len({(point.op, point.key) for point in points}) == len(points)
    rows = plan(points, set(), "cuda", 10.0)
    assert {row.op for row in rows if row.points} == set(OPS)
    assert sum(row.seconds for row in rows) < 600.0  # the whole of it fits into the ten minutes of its documents
    # Bounded to a minute, whole steps and products come before anything of lesser urgency.
    short = {row.op: row.within for row in plan(points, set(), "cuda", 1.0)}
    assert short["steps"] > 0
    assert short["sm_share"] == 0
    done = set(points[:40])
    assert sum(row.kept for row in plan(points, done, "cuda", 10.0)) == 40


def test_a_plan_needs_no_gpu(tmp_path, capsys):
    assert main(["action=measure", "device=cuda", "model=llama-3.1-8b", "plan=true", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "minutes for all of it on cuda" in printed
    command = f"python -m research.calibrate action=measure device=cuda model=llama-3.1-8b minutes=10 out={tmp_path}"
    assert f"next: {command}\n" in printed
    record = json.loads((tmp_path / "plan.json").read_text())
    assert {row["op"] for row in record["plan"]} == set(OPS)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("name", "gib", "sheet"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", 79.1, "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", 93.1, None),
        ("NVIDIA A100-SXM4-80GB", 79.3, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", 39.4, None),
        ("NVIDIA A100 80GB PCIe", 79.3, "a100-pcie-80gb"),
        ("NVIDIA B200", 178.4, "b200-sxm"),
        ("NVIDIA GB200", 184.0, "gb200"),
        ("NVIDIA L4", 22.5, "l4"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.9, "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.9, None),
        ("NVIDIA GeForce RTX 4090", 23.5, None),
    ],
)
def test_the_data_sheet_of_a_gpu(name, gib, sheet):
    assert gpu_sheet(name, round(gib * 2**30)) == sheet


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["device=gpu", "model=toy"], "device=gpu: expected one of cuda, cpu"),
        (["device=cpu"], "expected model=NAME"),
        (["device=cpu", "model=llama-3.1-8b"], "expected model=toy"),
        (["device=cpu", "model=toy", "minutes=0"], "minutes=0: expected minutes, a number above 0"),
        (["device=cpu", "model=toy", "plan=maybe"], "plan=maybe: expected true or false"),
        (["device=cuda", "model=llama-3.1-9b", "plan=true"], "did you mean 'llama-3.1-8b'"),
        (["device=cuda", "model=qwen3-30b-a3b", "plan=true"], "has layers with experts: expected a dense model"),
        (["device=cuda", "model=qwen3-next-80b-a3b", "plan=true"], "expected a dense model"),
        (["device=cpu", "model=toy", "minute=3"], "did you mean 'minutes'"),
        (["device=cpu", "model=toy", "out=/dev/null/x"], "out=/dev/null/x: cannot be written"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["action=measure", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert expected in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(tmp_path, capsys):
    assert main(["action=measure", "device=cuda", "model=llama-3.1-8b", f"out={tmp_path}"]) == 2
    assert "sees no NVIDIA GPU" in capsys.readouterr().err


def test_the_documented_run_is_the_plan(root):
    text = (root / "docs" / "measure.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+ \| \d+ s) \|", text, re.MULTILINE))
    planned = plan(all_points(load_model("llama-3.1-8b"), scope_of("cuda", fp8=True, gpus=1)), set(), "cuda", 10.0)
    assert rows == {row.op: f"{row.points} | {row.seconds:.0f} s" for row in planned}
    assert f"({sum(row.seconds for row in planned) / 60:.1f} minutes)" in text
    assert all(row.within == row.points for row in planned)  # ten minutes are enough
