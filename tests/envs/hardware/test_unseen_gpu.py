"""A GPU that no rule was written for: its op tables and its data sheet are all that is asked of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envs.hardware.errors import ProfileError
from envs.hardware.estimate import profile_for
from envs.hardware.gpu import GPU_DIR, gpu_names, load_gpu
from envs.hardware.profile import Profile

OP_TABLES = "measurements/aiconfigurator/data"


@pytest.fixture
def unseen(public_data: Path, tmp_path: Path) -> tuple[Path, Path]:
    """(data folder, sheet) of a GPU with B200's tables and facts, and a name of its own."""
    data = tmp_path / "data"
    for folder in public_data.iterdir():
        if folder.name != "measurements":
            (data / folder.name).parent.mkdir(exist_ok=True)
            (data / folder.name).symlink_to(folder)
    tables = data / OP_TABLES
    tables.mkdir(parents=True)
    for folder in (public_data / "measurements").iterdir():
        if folder.name != "aiconfigurator":
            (data / "measurements" / folder.name).symlink_to(folder)
    (tables / "q900").symlink_to(public_data / OP_TABLES / "b200_sxm")
    sheet = tmp_path / "q900.yaml"
    text = (GPU_DIR / "b200-sxm.yaml").read_text().replace("name: b200-sxm", "name: q900")
    sheet.write_text(text.replace("tables: b200_sxm", "tables: q900"))
    return data, sheet


@pytest.mark.parametrize(
    ("model", "engine", "precision", "tensor_parallel", "ranks"),
    [
        ("llama-3.1-70b", "trtllm", "nvfp4", 4, 1),
        ("llama-3.1-70b", "vllm", "fp8", 8, 1),
        ("deepseek-v3", "trtllm", "nvfp4", 1, 8),
        ("deepseek-v3", "sglang", "fp8_block", 8, 1),
    ],
)
def test_it_steps_as_the_gpu_whose_facts_it_has(
    public_data: Path,
    unseen: tuple[Path, Path],
    model: str,
    engine: str,
    precision: str,
    tensor_parallel: int,
    ranks: int,
) -> None:
    data, sheet = unseen

    def made(gpu: str, home: Path) -> Profile:
        return profile_for(
            model, gpu, engine, None, tensor_parallel, precision, "fp8", home, attention_dp=ranks, expert_parallel=ranks
        )

    ours, known = made(str(sheet), data), made("b200_sxm", public_data)
    assert ours.gpu == "q900"
    assert ours.kv == known.kv
    for work in (
        (0, 0.0, 1, 2048),
        (0, 0.0, 64, 64 * 2048),
        (4096, 4096**2 / 2, 0, 0),
        (4096, 4096**2 / 2, 64, 64 * 2048),
    ):
        assert ours.seconds(*work) == pytest.approx(known.seconds(*work), rel=1e-12)
    assert all(record["path"].startswith(f"{OP_TABLES}/q900/") for record in ours.source["files"])


def test_shipped_sheets_say_what_rules_ask_for() -> None:
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.sm > 0, name
        assert gpu.blackwell == name.startswith(("b200", "gb200", "b300", "gb300")), name
        assert gpu.scale_up_gpus == (72 if name.startswith("gb") else 8), name
        assert ("nvfp4" in gpu.flop_per_s) == (gpu.sm >= 100), name
        assert ("fp8" in gpu.flop_per_s) == (gpu.sm >= 89), name


def test_a_sheet_without_these_facts_is_one_machine_and_no_blackwell(tmp_path: Path) -> None:
    text = (GPU_DIR / "b200-sxm.yaml").read_text().replace("sm: 100\n", "")
    path = tmp_path / "plain.yaml"
    path.write_text(text)
    plain = load_gpu(path)
    assert (plain.blackwell, plain.scale_up_gpus) == (False, 8)
    assert replace(plain, sm=100) == load_gpu("b200-sxm")
    path.write_text(text + "sm: 4\n")
    with pytest.raises(ProfileError, match="sm"):
        load_gpu(path)
