"""How far predictions from op tables were off measured serving runs, by class: the width of the worlds that are drawn.

``prediction_errors.yaml`` is made by ``python -m research.validating.widths`` from a finished validation of all runs.
A class is an engine, the bits of the weights, dense or with experts, and the link of a handover; where a class has too
few strata of measured runs, another one stands for it (:func:`standing_for`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).with_name("prediction_errors.yaml")
ANY = "any"
AXES = ("engine", "bits", "kind", "link")
"""What makes a class."""
NO_LINK = "none"
"""Link of runs whose requests stay on one worker."""
WIRES = ("nvlink", "rdma")
"""Wires of the measured handovers; a link's name holds its wire (``nixl-rdma``, ``rdma-from-runs``)."""


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Errors of one class of predictions.

    Attributes:
        engine: ``vllm``, ``sglang``, ``trtllm`` or :data:`ANY`.
        bits: of the weights, ``4``, ``8``, ``16`` or :data:`ANY`.
        kind: ``dense``, ``experts`` or :data:`ANY`.
        link: wire of the handover, ``none``, ``nvlink``, ``rdma`` or :data:`ANY`.
        strata: models, GPUs, precisions and lengths.
        runs: in them.
        tpot_relative_sd: of the logarithm of predicted over measured TPOT: 1.96 of them hold 95 % of the runs, strata
            weighing the same; a bias is in it.
    """

    engine: str
    bits: str
    kind: str
    link: str
    strata: int
    runs: int
    tpot_relative_sd: float

    @property
    def words(self) -> str:
        """``trtllm, 8 bit, dense, no handover: 12 strata, 340 runs``."""
        link = {NO_LINK: "no handover", ANY: "any link"}.get(self.link, f"handover by {self.link}")
        named = (self.engine, f"{self.bits} bit", self.kind)
        parts = [part for part in named if not part.startswith(ANY)]
        return f"{', '.join([*parts, link])}: {self.strata} strata, {self.runs} runs"


def bits_of(precision: str) -> str:
    """Bits of weights in a precision: ``fp8_block`` -> 8, ``nvfp4`` -> 4; :data:`ANY` if it does not say."""
    found = [bits for bits in ("16", "8", "4") if precision.split("_")[0].endswith(bits)]
    return found[0] if found else ANY


def wider(key: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """A class and those that hold it: without its bits, without its engine, without its kind, without all."""
    engine, _, kind, link = key
    yield key
    yield engine, ANY, kind, link
    yield ANY, ANY, kind, link
    yield ANY, ANY, ANY, link
    yield ANY, ANY, ANY, NO_LINK if link == NO_LINK else ANY
    yield ANY, ANY, ANY, ANY


def standing_for(key: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """A class and those that stand for it, the nearest first; what a model is like is given up last.

    TPOT is decode steps, which hang on the kind of model far more than on the wire that its KV came by. So the classes
    of the same kind and wire are followed by those of the same kind whose requests stay on one worker, and only then
    by those of any kind. (Nearly all measured handovers are of models with experts.)
    """
    kind = key[2]
    yield from (held for held in wider(key) if held[2] == kind)
    yield from (held for held in wider((*key[:3], NO_LINK)) if held[2] == kind)
    yield from wider(key)


def error_class(engine: str, precision: str, kind: str, link: str) -> ErrorClass:
    """The nearest class of the table to predictions of this kind (:func:`standing_for`).

    Args:
        engine: of the profile.
        precision: of its weights.
        kind: ``dense``, ``experts`` or :data:`ANY` where it is not known.
        link: name of the handover, :data:`NO_LINK` where requests stay on one worker.
    """
    table = classes()
    return next(table[key] for key in standing_for((engine, bits_of(precision), kind, wire_of(link))) if key in table)


def wire_of(link: str) -> str:
    """The wire that a link's name holds, else the name."""
    return next((wire for wire in WIRES if wire in link), link)


def handover_excess_s(link: str, base_s: float) -> float:
    """Median time that requests spent on a handover beyond what a link's law says, in seconds, 0 at least.

    Of runs with few users by the same wire; of all where it has too few.

    Args:
        link: the link's name.
        base_s: constant term of its law. The runs were predicted with the published work around a pull in that term
            (``nixl-nvlink``, ``nixl-rdma``): what this law lacks of it is excess, too.
    """
    found = record()["handover"]
    of = found.get(wire_of(link), found[ANY])
    return max(0.0, float(of["median_excess_s"]) + float(of["predicted_base_s"]) - base_s)


@cache
def classes() -> Mapping[tuple[str, ...], ErrorClass]:
    """The committed table, by engine, bits, kind and link."""
    rows = [ErrorClass(**row) for row in record()["classes"]]
    return {(row.engine, row.bits, row.kind, row.link): row for row in rows}


@cache
def record() -> Mapping[str, Any]:
    """The file: ``source``, ``method``, ``classes`` and ``handover``."""
    found: Mapping[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return found
