"""The numbers in docs/hardware.md are those of the shipped files."""

from __future__ import annotations

import re

import pytest

from envs.hardware.estimate import profile_for
from envs.hardware.load import load_handover, load_profile, profile_names

REGIONS = (
    "all",
    "prefill short",
    "prefill long",
    "append short",
    "append long",
    "decode small batch",
    "decode large batch",
    "mixed",
)


@pytest.fixture(scope="module")
def rows(root):
    """Table rows by their first cell, in order."""
    text = (root / "docs" / "hardware.md").read_text()
    found: dict[str, list[list[str]]] = {}
    for name, rest in re.findall(r"^\| `([\w.-]+)` \|(.*)\|$", text, re.MULTILINE):
        found.setdefault(name, []).append([cell.strip() for cell in rest.split("|")])
    return found


@pytest.mark.parametrize("name", profile_names())
def test_laws_and_errors(rows, name):
    profile, (law, errors) = load_profile(name), rows[name]
    step = profile.step
    assert law == [
        f"{step.floor_s * 1e3:.2f}",
        f"{step.c0_s * 1e3:.2f}",
        f"{step.c_tok_s * 1e6:.1f}",
        f"{step.c_attn_s * 1e9:.3f}",
        f"{step.c_seq_s * 1e6:.1f}",
        f"{step.c_kv_s * 1e9:.1f}",
        f"{int(profile.kv.bytes_per_token):,}",
        f"{profile.kv.capacity_tokens:,}",
    ]
    fit = profile.fit["errors_percent"]
    assert errors == [f"{fit[r]['mape']:g} / {fit[r]['held_out_mape']:g}" if r in fit else "-" for r in REGIONS]


@pytest.mark.parametrize("name", ["nvlink", "rdma", "tcp", "nixl-published"])
def test_handovers(rows, name):
    profile = load_profile("llama-3.1-70b-fp8-h100-tp4")
    law = load_handover(name, gpus=profile.gpus)
    seconds = law.seconds(4096 * profile.kv.bytes_per_token, 4096 // 16)
    assert rows[name][0][-1] == f"{seconds * 1e3:.1f} ms"


CONFIGURATIONS = {
    "70B fp8, 4 x H100, vLLM": ("llama-3.1-70b", "h100_sxm", "vllm", None, 4, "fp8", "fp8"),
    "70B fp8, 8 x B200, TRT-LLM": ("llama-3.1-70b", "b200_sxm", "trtllm", None, 8, "fp8", "fp8"),
    "Qwen3-32B bf16, 4 x H100, SGLang": ("qwen3-32b", "h100_sxm", "sglang", None, 4, "bf16", "bf16"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_both_laws_miss_of_composed_steps(root, public_data, name):
    text = (root / "docs" / "hardware.md").read_text()
    fit = profile_for(*CONFIGURATIONS[name], public_data).fit
    for law, errors in (("tables", fit["tables_errors_percent"]), ("plane", fit["errors_percent"])):
        cells = []
        for kind in ("prefill", "append", "decode", "mixed"):
            rows = [row for region, row in errors.items() if region.startswith(kind)]
            mean = sum(row["mape"] * row["points"] for row in rows) / sum(row["points"] for row in rows)
            cells.append(f"{mean:.1f} / {max(row['max'] for row in rows):.1f}")
        assert f"| {name} | {law} | {' | '.join(cells)} |" in text
