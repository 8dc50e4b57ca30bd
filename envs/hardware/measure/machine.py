"""Which machine was measured: what must be the same for rows to stand in one table."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from envs.hardware.errors import MeasurementError

FILE = "machine.json"
EVERY_S = 2.0
_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "words"),
    "int": (int, "a whole number"),
    "float | None": ((int, float, type(None)), "a number or null"),
    "dict[str, Any]": (dict, "a mapping"),
}
"""Type of a field -> what JSON may hold for it, and that in words."""
_QUERY = ("driver_version", "power.limit", "power.max_limit", "clocks.max.sm", "clocks.max.mem")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the software on it.

    Attributes:
        device: ``cuda`` or ``cpu``.
        name: of the GPU (or of the processor).
        gpus: GPUs that the process sees.
        sms: streaming multiprocessors of one GPU, 0 on a CPU.
        memory_bytes: of one GPU, 0 on a CPU.
        l2_bytes: its last cache.
        capability: compute capability such as ``9.0``, empty on a CPU.
        driver: version, ``unknown`` where it cannot be read.
        torch: version.
        cuda: version that torch was built for.
        power_cap_w: power limit in force, None where it cannot be read.
        power_max_w: the largest it can be set to.
        clock_max_mhz: highest SM clock.
        memory_clock_max_mhz: highest memory clock.
        threads: CPU threads of torch.
        mps_percent: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of the process, empty where it is not set.
        model: name of the measured shape.
        shape: its sizes.
    """

    device: str
    name: str
    gpus: int
    sms: int
    memory_bytes: int
    l2_bytes: int
    capability: str
    driver: str
    torch: str
    cuda: str
    power_cap_w: float | None
    power_max_w: float | None
    clock_max_mhz: float | None
    memory_clock_max_mhz: float | None
    threads: int
    mps_percent: str
    model: str
    shape: dict[str, Any]

    def check_same(self, other: Machine, folder: Path) -> None:
        """Rows of ``folder``, measured on ``other``, may stand beside rows of this machine.

        Raises:
            MeasurementError: names the first field that differs.
        """
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine != theirs:
                raise MeasurementError(
                    f"{folder / FILE}: {field.name} = {theirs!r}: expected {mine!r}, as on this machine; "
                    f"measurements of two set-ups do not mix: give another out=DIR"
                )


def write_machine(folder: Path, machine: Machine) -> None:
    """Write the record whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{FILE}.{os.getpid()}"
    part.write_text(json.dumps(asdict(machine), indent=2) + "\n", encoding="utf-8")
    part.replace(folder / FILE)


def read_machine(folder: Path) -> Machine | None:
    """The record of ``folder``; None where there is none.

    Raises:
        MeasurementError: a record that cannot be read, or whose fields are not those of :class:`Machine`.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{path}: cannot be read: {error}") from None
    known = [field.name for field in fields(Machine)]
    if not isinstance(data, dict) or sorted(data) != sorted(known):
        raise MeasurementError(f"{path}: expected a record with the fields {', '.join(known)}")
    for field in fields(Machine):
        value, (kinds, expected) = data[field.name], _KINDS[str(field.type)]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise MeasurementError(f"{path}: {field.name} = {value!r}: expected {expected}")
    return Machine(**data)


def this_machine(torch: Any, device: str, model: str, shape: dict[str, Any]) -> Machine:
    """What torch and the driver say of the machine."""
    common = {"torch": torch.__version__, "cuda": torch.version.cuda or "none", "threads": torch.get_num_threads()}
    common |= {"mps_percent": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""), "model": model, "shape": shape}
    if device == "cpu":
        return Machine(
            device, _processor(), 0, 0, 0, 2**25, "", "none", power_cap_w=None, power_max_w=None, clock_max_mhz=None,
            memory_clock_max_mhz=None, **common,
        )  # fmt: skip
    properties = torch.cuda.get_device_properties(0)
    said = nvidia_smi(str(getattr(properties, "uuid", "")), _QUERY)
    return Machine(
        device=device,
        name=properties.name,
        gpus=torch.cuda.device_count(),
        sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or 2**26,
        capability=f"{properties.major}.{properties.minor}",
        driver=said.get("driver_version", "unknown"),
        power_cap_w=number(said.get("power.limit")),
        power_max_w=number(said.get("power.max_limit")),
        clock_max_mhz=number(said.get("clocks.max.sm")),
        memory_clock_max_mhz=number(said.get("clocks.max.mem")),
        **common,
    )


class Clocks:
    """The SM clock while kernels run: read beside the measurement, since a GPU that has come to rest clocks otherwise.

    A context manager; on a CPU, and where the driver does not say, there is no clock.
    """

    def __init__(self, torch: Any, device: str) -> None:
        """Remember which GPU is read."""
        self.uuid = "" if device == "cpu" else str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
        self.thread = None if device == "cpu" else threading.Thread(target=self._read, daemon=True)
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.seen: list[float] = []

    def __enter__(self) -> Clocks:
        """Begin to read, every EVERY_S seconds."""
        if self.thread is not None:
            self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop reading."""
        self.done.set()
        if self.thread is not None:
            self.thread.join(timeout=2 * EVERY_S)

    def take(self) -> float | None:
        """Median in MHz of what was read since this was last asked; None where nothing was."""
        with self.lock:
            seen, self.seen = self.seen, []
        return statistics.median(seen) if seen else None

    def _read(self) -> None:
        while not self.done.wait(EVERY_S):
            mhz = number(nvidia_smi(self.uuid, ("clocks.sm",)).get("clocks.sm"))
            if mhz is not None:
                with self.lock:
                    self.seen.append(mhz)


def nvidia_smi(uuid: str, query: tuple[str, ...]) -> dict[str, str]:
    """What the driver's tool says of one GPU; empty where there is no such tool."""
    which = ["-i", uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"] if uuid else []
    words = ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader,nounits", *which]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_csv(done.stdout, query)


def parse_csv(text: str, query: tuple[str, ...]) -> dict[str, str]:
    """First line of the tool's answer by query; empty where it does not have as many values as were asked."""
    values = [value.strip() for value in text.strip().splitlines()[0].split(",")] if text.strip() else []
    return dict(zip(query, values, strict=True)) if len(values) == len(query) else {}


def number(text: str | None) -> float | None:
    """A number, or None for ``[N/A]``: what is not known is not 0."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
