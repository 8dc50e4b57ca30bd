"""GPU data sheets: memory, bandwidth and peak arithmetic, which bound what a measurement can plausibly say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envs.hardware.errors import ProfileError
from envs.hardware.schema import Count, Free, Number, Record, Text, find_file, read_record, read_yaml

GPU_DIR = Path(__file__).parent / "gpus"
MACHINE_GPUS = 8
"""GPUs of a machine where a file says nothing else."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU type.

    Attributes:
        flop_per_s: dense peak by precision.
        nccl_bytes: memory that NCCL keeps, by tensor-parallel degree.
        tables: folder of its op tables, also a name that it is found by; empty where there are none.
        stand_in: folder of the tables of a GPU whose op times stand in where its own are not at hand.
        sm: version of its multiprocessors, ten times CUDA's compute capability (90 H100, 100 B200); 0: not said.
        scale_up_gpus: GPUs that exchange data without a network port: those of a machine, or of a rack whose NVLink
            joins machines.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flop_per_s: Mapping[str, float]
    nccl_bytes: Mapping[int, float]
    source: Mapping[str, Any]
    tables: str = ""
    stand_in: str = ""
    sm: int = 0
    scale_up_gpus: int = MACHINE_GPUS

    @property
    def blackwell(self) -> bool:
        """Whether it is a Blackwell GPU for servers (B200, B300, their Grace versions), not one for workstations."""
        return 100 <= self.sm < 120

    @property
    def joins_machines(self) -> bool:
        """Whether its NVLink reaches further than one machine."""
        return self.scale_up_gpus > MACHINE_GPUS

    def peak(self, precision: str) -> float:
        """Dense peak in FLOP/s; how scales are found does not matter to it.

        Raises:
            ProfileError: the GPU has no such arithmetic.
        """
        precision = precision.removesuffix("_dynamic")
        if precision not in self.flop_per_s:
            raise ProfileError(f"{self.name} has no {precision}: expected one of {', '.join(self.flop_per_s)}")
        return self.flop_per_s[precision]


GPU = Record(
    {
        "name": Text(),
        "memory_bytes": Count("bytes", low=2**30),
        "memory_bytes_per_s": Number("bytes per second", low=1e10, high=1e14),
        "flop_per_s": Free(required=("bf16",)),
        "nccl_bytes": Free(required=()),
        "tables": Text(),
        "stand_in": Text(),
        "sm": Count("tenths of a compute capability", low=50),
        "scale_up_gpus": Count("GPUs", low=1),
        "source": Free(required=("name",)),
    },
    optional=("tables", "stand_in", "sm", "scale_up_gpus"),
)
_FLOPS = Number("FLOP per second", low=1e12, high=1e17)


def gpu_names() -> list[str]:
    """Names of the GPUs that ship with the project."""
    return sorted(path.stem for path in GPU_DIR.glob("*.yaml"))


@cache
def _by_tables() -> dict[str, str]:
    """Folder of op tables -> name of the shipped GPU."""
    sheets = {name: read_yaml(GPU_DIR / f"{name}.yaml") for name in gpu_names()}
    return {sheet["tables"]: name for name, sheet in sheets.items() if "tables" in sheet}


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A GPU by name, by the name of its folder of op tables, or from a YAML file.

    Raises:
        ProfileError: unknown name, unknown or missing key, wrong type, value out of range.
    """
    named = _by_tables().get(str(name_or_path), name_or_path)
    path = find_file(named, GPU_DIR, gpu_names(), "GPU")
    data = read_record(path, read_yaml(path), GPU)
    data["flop_per_s"] = {k: _FLOPS.read(path, f"flop_per_s.{k}", v) for k, v in data["flop_per_s"].items()}
    data["nccl_bytes"] = {
        Count("GPUs", low=1).read(path, "nccl_bytes", k): Number("bytes").read(path, f"nccl_bytes.{k}", v)
        for k, v in data["nccl_bytes"].items()
    }
    return Gpu(**data)
