from __future__ import annotations

import copy
import json

import pytest

from envs.hardware.errors import MeasurementError
from envs.hardware.load import load_profile
from envs.hardware.model_shape import load_model
from envs.hardware.sources.distserve import FOLDER, distserve_steps

FILE = "mine.json"
SHAPE = load_model("opt-66b")
LAWS = {
    "decoding_large_small_bs_threshold": 95,
    "prefill": [30.0, 0.15, 8e-6],
    "decoding_smallbs": [31.0, 4e-4, 0.06],
    "decoding_largebs": [27.0, 5e-4, 0.12],
}
GOOD = {"facebook/opt-66b": {"4": LAWS}}


def write(tmp_path, content):
    path = tmp_path / FOLDER / FILE
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


def steps(data_dir, degree=4, most=10**6):
    return distserve_steps(data_dir, FILE, SHAPE, degree, most)


def test_steps_by_hand(tmp_path):
    points, (path, _) = steps(write(tmp_path, GOOD))
    assert path == f"{FOLDER}/{FILE}"
    found = {(p.kind, p.new, p.seqs, p.kv): p.time_s for p in points}
    assert found["prefill", 1024, 0, 0] == pytest.approx((30 + 0.15 * 1024 + 8e-6 * 1024**2) * 1e-3)
    assert found["decode", 0, 94, 94 * 512] == pytest.approx((31 + 4e-4 * 94 * 512 + 0.06 * 94) * 1e-3)
    assert found["decode", 0, 128, 128 * 512] == pytest.approx((27 + 5e-4 * 128 * 512 + 0.12 * 128) * 1e-3)


def test_decodes_beyond_the_cache_are_left_out(tmp_path):
    points, _ = steps(write(tmp_path, GOOD), most=1000)
    assert max(p.kv for p in points) <= 1000


def changed(key, value):
    table = copy.deepcopy(GOOD)
    table["facebook/opt-66b"]["4"][key] = value
    return table


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"mine\.json: cannot be read"),
        ("[1]", "holds list: expected constants by model"),
        ({"facebook/opt-13b": {}}, "no constants of opt-66b: the file has facebook/opt-13b"),
        ({"facebook/opt-66b": {"2": LAWS}}, "has no tensor_parallel 4: the file has 2"),
        ({"facebook/opt-66b": 3}, "has no tensor_parallel 4: the file has 3"),
        (
            changed("prefill", [30.0, -0.15, 8e-6]),
            r"tensor_parallel 4: prefill\[1\] = -0.15: expected ms of at least 0",
        ),
        (changed("prefill", [30.0, "a", 8e-6]), r"prefill\[1\] = 'a'"),
        (changed("prefill", [30.0, 0.1]), "expected three constants in ms"),
        (changed("decoding_smallbs", None), "decoding_smallbs = None: expected three constants"),
        ('{"facebook/opt-66b": {"4": {"prefill": [NaN, 1, 1]}}}', r"prefill\[0\] = nan"),
        (changed("decoding_large_small_bs_threshold", 0), "threshold = 0: expected a number of sequences"),
    ],
)
def test_bad_constants_are_one_clear_error(tmp_path, content, words):
    with pytest.raises(MeasurementError, match=words) as error:
        steps(write(tmp_path, content))
    assert FILE in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_names_its_neighbour(tmp_path):
    write(tmp_path, GOOD)
    with pytest.raises(MeasurementError, match=r"minee\.json: not found .*did you mean 'mine\.json'"):
        distserve_steps(tmp_path, "minee.json", SHAPE, 4, 1000)


def test_the_shipped_profile_says_that_its_points_are_a_law():
    source = load_profile("opt-66b-fp16-a100-tp4").source
    assert source["kind"] == "estimated"
    assert "errors are those of one law against the other" in source["method"]
