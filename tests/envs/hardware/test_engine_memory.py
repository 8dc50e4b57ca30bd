from __future__ import annotations

from dataclasses import replace

import pytest

from envs.hardware.gpu import load_gpu
from envs.hardware.sources.engine_memory import static_fraction, utilisation

H100, B200 = load_gpu("h100-sxm-80gb"), load_gpu("b200-sxm")
GIB = 2**30


def free_gib(engine: str, gpus: int, setting: float | None = None, weights_gib: float = 20.0) -> float:
    """What is left for the cache beside the weights and 5 GiB of reserve."""
    share = utilisation(engine, H100, gpus, weights_gib * GIB, 5 * GIB, setting)
    return share * H100.memory_bytes / GIB - weights_gib - 5


def test_what_each_engine_leaves():
    assert free_gib("vllm", 1) == pytest.approx(0.9 * 80 - 25)
    assert free_gib("trtllm", 1) == pytest.approx(0.9 * (80 - 25))
    # 512 MiB, 8,192 tokens of 1.5, 256 sequences of 2, one GPU of 128
    assert free_gib("sglang", 1) == pytest.approx(80 - 20 - (512 + 12288 + 512 + 128) / 1024, abs=0.05)


def test_the_engines_own_settings():
    assert free_gib("vllm", 1, 0.8) == pytest.approx(0.8 * 80 - 25)
    assert free_gib("trtllm", 1, 0.8) == pytest.approx(0.8 * (80 - 25))
    assert free_gib("sglang", 1, 0.8) == pytest.approx(0.8 * 80 - 20)
    assert free_gib("trtllm", 1, weights_gib=90.0) < 0.0  # kv_law says so


def test_sglang_spares_more_on_more_gpus_and_for_longer_chunks():
    assert static_fraction(H100, 1) == 0.836
    assert static_fraction(H100, 4) < static_fraction(H100, 2) < static_fraction(H100, 1)
    spared = (1 - static_fraction(B200, 8)) * B200.memory_bytes / GIB
    assert spared == pytest.approx((512 + 1.5 * 16384 + 2 * 512 + 8 * 128) / 1024, abs=0.1)
    small = replace(H100, memory_bytes=24 * GIB)
    assert (1 - static_fraction(small, 1)) * 24 == pytest.approx((512 + 1.5 * 2048 + 2 * 24 + 128) / 1024, abs=0.02)
