"""The bench that points are measured on: torch, one device, one model's sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envs.hardware.measure.points import NotMeasuredError
from envs.hardware.model_shape import ModelShape

SLACK_BYTES = 2**30
"""Memory that is left alone on the device."""
COPIES = 64
"""Most copies of an operand that calls go round."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Where kernels run.

    Attributes:
        torch: the module, imported when measuring starts.
        device: ``cuda`` or ``cpu``.
        shape: the model.
        l2_bytes: the device's last cache: calls go round copies of more than twice as much, so operands come cold.
        sms: multiprocessors of the device.
    """

    torch: Any
    device: str
    shape: ModelShape
    l2_bytes: int
    sms: int

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    def random(self, *sizes: int, dtype: str = "bfloat16") -> Any:
        """Normal values, shape ``sizes``: zeros would draw less power and clock higher."""
        torch = self.torch
        if dtype == "fp8":
            return torch.randn(*sizes, device=self.device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
        return torch.randn(*sizes, device=self.device, dtype=getattr(torch, dtype))

    def copies(self, size_bytes: float) -> int:
        """How many copies of an operand of ``size_bytes`` the calls go round."""
        return 1 if not self.cuda else max(1, min(COPIES, -(-2 * self.l2_bytes // max(1, int(size_bytes)))))

    def need(self, size_bytes: float) -> None:
        """Refuse what does not fit.

        Raises:
            NotMeasuredError: too little memory is free on the device.
        """
        if not self.cuda:
            return
        free, _ = self.torch.cuda.mem_get_info()
        free += self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
        if size_bytes + SLACK_BYTES > free:
            raise NotMeasuredError(f"needs {size_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
