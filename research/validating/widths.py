"""The table of prediction errors that worlds are drawn with: ``python -m research.validating.widths FOLDER [FILE]``.

``FOLDER`` is what ``python -m research.validate part=all`` left. Runs that cannot be what they are called
(:func:`research.validating.layouts.plausible`) are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from numpy.typing import NDArray

from envs.hardware.gpu import load_gpu
from envs.hardware.load import load_handover
from envs.hardware.prediction_errors import ANY, AXES, NO_LINK, PATH, bits_of, wider
from research.errors import ResearchError
from research.validating.doubt import FEWEST_STRATA
from research.validating.layouts import plausible
from research.validating.parts import STRATUM
from research.validating.profiles import instance_of

NORMAL_95 = 1.96
METHOD = (
    "95th percentile of the absolute logarithm of predicted over measured, each stratum (model, GPU, precision, "
    "lengths) weighing the same, over 1.96, times sqrt((m + 1) / (m - 1)) for m strata, which show less than all there "
    f"are; a bias counts as width; classes of fewer than {FEWEST_STRATA} strata are left to wider ones"
)
FEW_USERS = 4
"""Users a prefill rank up to which a TTFT is taken to be prefill and handover rather than a queue."""
HANDOVER_METHOD = (
    f"median of measured less predicted TTFT of disaggregated runs with at most {FEW_USERS} users a prefill rank, each "
    "stratum weighing the same: what orchestration takes beyond the link's law"
)


def table(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of :class:`envs.hardware.prediction_errors.ErrorClass`, widest first.

    Args:
        frame: runs of a validation (``runs.parquet``).
    """
    known = plausible(frame).filter(pl.col("predicted_tpot_s").is_not_null())
    keys = [_key(run) for run in known.iter_rows(named=True)]
    errors = np.abs((known["predicted_tpot_s"] / known["measured_tpot_s"]).log().to_numpy())
    strata = _strata(known)
    rows = []
    for key in sorted({wide for own in keys for wide in wider(own)}, key=lambda k: (-k.count(ANY), k)):
        inside = np.array([key in wider(own) for own in keys])
        m = len(set(strata[inside].tolist()))
        if m < FEWEST_STRATA and key.count(ANY) < len(AXES):
            continue
        widened = np.sqrt((m + 1) / (m - 1)) if m > 1 else 1.0
        sd = _quantile(errors[inside], strata[inside], 0.95) / NORMAL_95 * widened
        counts = {"strata": m, "runs": int(inside.sum())}
        rows.append(dict(zip(AXES, key, strict=True)) | counts | {"tpot_relative_sd": round(float(sd), 3)})
    return rows


def handover(frame: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """``strata, runs, median_excess_s, predicted_base_s`` by wire, and of all as ``any``; few strata: left out."""
    ranks = pl.col("prefill_workers") * pl.col("prefill_dp").fill_null(1)
    few = (pl.col("layout") == "disaggregated") & (pl.col("users") <= FEW_USERS * ranks)
    known = plausible(frame).filter(few & pl.col("predicted_ttft_s").is_not_null())
    excess, strata = (known["measured_ttft_s"] - known["predicted_ttft_s"]).to_numpy(), _strata(known)
    links = np.array([_link(run) for run in known.iter_rows(named=True)])
    out = {}
    for link in (ANY, *sorted(set(links.tolist()))):
        inside = links == link if link != ANY else np.ones(links.size, dtype=bool)
        m = len(set(strata[inside].tolist()))
        if m >= FEWEST_STRATA or link == ANY:
            median = round(_quantile(excess[inside], strata[inside], 0.5), 4) if m else 0.0
            bases = [load_handover(f"nixl-{wire}").base_s for wire in links[inside]]
            out[link] = {"strata": m, "runs": int(inside.sum()), "median_excess_s": median}
            out[link]["predicted_base_s"] = round(float(np.median(bases)), 4) if bases else 0.0
    return out


def _strata(frame: pl.DataFrame) -> NDArray[Any]:
    return frame.select(pl.struct(STRATUM).rank("dense")).to_series().to_numpy()


def _link(run: dict[str, Any]) -> str:
    if run["layout"] == "colocated":
        return NO_LINK
    return "nvlink" if load_gpu(run["gpu"]).joins_machines else "rdma"


def _key(run: dict[str, Any]) -> tuple[str, str, str, str]:
    phase = "" if run["layout"] == "colocated" else "decode_"
    kind = "dense" if run["dense"] else "experts"
    return run["engine"], bits_of(instance_of(run, phase).precision), kind, _link(run)


def _quantile(values: NDArray[np.float64], strata: NDArray[Any], share: float) -> float:
    """The value that this share of the weight does not exceed, each stratum weighing the same."""
    order = np.argsort(values)
    _, which, counts = np.unique(strata, return_inverse=True, return_counts=True)
    weights = np.cumsum(1.0 / counts[which][order])
    return float(values[order][np.searchsorted(weights, share * weights[-1] * (1.0 - 1e-12))])


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table from a finished validation of all runs."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not 1 <= len(words) <= 2:
        print(__doc__)
        return 2
    folder, target = Path(words[0]), Path(words[1]) if len(words) == 2 else PATH
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
        frame = pl.read_parquet(folder / "runs.parquet")
    except OSError as error:
        raise ResearchError(f"{folder}: expected summary.json and runs.parquet of a validation ({error})") from None
    source = {
        "command": f"python -m research.validate part={summary['part']}",
        "git_sha": summary["git_sha"],
        "runs": f"{summary['predicted']} of {summary['runs']} predicted",
        "table": summary["table"],
    }
    made = {
        "source": source,
        "method": METHOD,
        "classes": table(frame),
        "handover_method": HANDOVER_METHOD,
        "handover": handover(frame),
    }
    target.write_text(
        "# Made by python -m research.validating.widths; not by hand.\n"
        + yaml.safe_dump(made, sort_keys=False, width=120, default_flow_style=None),
        encoding="utf-8",
    )
    print(f"wrote {target}: {len(made['classes'])} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
