"""The configuration group offers every policy with every parameter at its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.registry import load, names

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "conf" / "policy"


@pytest.mark.parametrize("name", names())
def test_a_file_per_policy_with_its_defaults(name):
    text = (FOLDER / f"{name}.yaml").read_text()
    values = yaml.safe_load(text)
    assert values.pop("name") == name
    if name == "learned":  # its parameters come from a file
        assert values == {"path": None}
        return
    assert {k: float(v) for k, v in values.items()} == dict(load(name).params)
    assert text.startswith("# python -m research.evaluate")
    assert f"policy={name}" in text.splitlines()[0]


def test_custom_asks_for_a_target():
    assert yaml.safe_load((FOLDER / "custom.yaml").read_text()) == {"name": "custom", "target": "???", "params": {}}
