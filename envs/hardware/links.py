"""The links that ship: each term of a handover law with where it comes from, measured or assumed and why.

A published example to hold against them (vllm-project/vllm#50913; vLLM 0.14, NIXL, one node, prompts of about 5,000
tokens): the median handover takes 197 ms with KV blocks of 64 tokens, of which the transfer itself is 29 ms; with
blocks of 16 tokens it takes 263 ms, of which the transfer window is 105 ms instead of 47 ms. The link
``nixl-published`` reproduces it. ``nvlink``, ``rdma`` and ``tcp`` hold what was measured of their parts, and so promise
a handover that is faster than that engine's: they leave out its waits for engine steps around the pull.
``nixl-nvlink`` and ``nixl-rdma`` have both: the example's work around a pull and the measured wire. SGLang users saw
the same size (sgl-project/sglang#22853: TTFT 200 ms longer than without a handover, of which the transfer is 6 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from envs.hardware.errors import ProfileError, nearest
from envs.hardware.sources.files import Origin
from envs.hardware.sources.network import TransferFit, fit_mooncake, fit_send_recv

# The published example (issue and the comment with its connector metrics of 2026-08-28).
PUBLISHED = "vllm-project/vllm#50913"
PROMPT_TOKENS = 5000
HANDOVER_64_S, HANDOVER_16_S = 0.197, 0.263
WINDOW_16_S, WINDOW_SAVED_S = 0.105, 0.058
TRANSFER_S = 0.029
BYTES_PER_REQUEST = 2 * 167e6  # two ranks
TPOT_S = 0.0302  # one decode step there
ADMISSION_S = 0.032  # HTTP, tokenising and admission on the decode worker, vllm-project/router#207

BLOCKS_16, BLOCKS_64 = PROMPT_TOKENS / 16, PROMPT_TOKENS / 64
PER_BLOCK_S = WINDOW_SAVED_S / (BLOCKS_16 - BLOCKS_64)
PUBLISHED_DISPATCH_S = ADMISSION_S - TPOT_S / 2

PUBLISHED_DISPATCH = (
    "estimated: 32 ms until admission on the decode worker (vllm-project/router#207) less half a decode step"
)

DISPATCH_S = 0.010
DISPATCH = (
    "assumption: HTTP, tokenising and queueing of one hop; between 0.017 (the published 32 ms less half a decode step, "
    "loaded, 5,000-token prompts) and a few ms (an idle front end)"
)
CONNECT_S = 0.4
CONNECT = (
    "assumption: memory registration and handshake of a pair's first pull; first requests were seen at 0.2 to 0.4 s "
    "(vllm-project/vllm#55157), in older versions at 2 s (neuralmagic/vllm#63)"
)


def published_handover_s(law: Any, block_tokens: int) -> float:
    """What ``law`` makes of the published example, the simulator's own waits included.

    Two half steps of waiting for a step boundary and one decode step come on top of the law's terms.
    """
    blocks = round(PROMPT_TOKENS / block_tokens)
    return float(law.seconds(BYTES_PER_REQUEST, blocks)) + 2 * TPOT_S / 2 + TPOT_S


def build_link(name: str, data_dir: Path) -> dict[str, Any]:
    """A link as it is written.

    Args:
        name: one of LINKS.
        data_dir: the data folder.

    Raises:
        ProfileError: an unknown link.
        MeasurementError: measurements missing or implausible.
    """
    if name not in LINKS:
        raise ProfileError(f"unknown link {name!r}{nearest(name, LINKS)}: expected one of {', '.join(LINKS)}")
    return LINKS[name](data_dir)


def _nvlink(data_dir: Path) -> dict[str, Any]:
    fit = fit_send_recv(data_dir, "h100_dgx", same_node=True)
    return _record(
        "nvlink",
        fit.base_s,
        0.0,
        fit.bandwidth_bytes_per_s,
        gpus=1,
        source=_measured(fit),
        terms={
            "base_s": "measured: NCCL between two GPUs of one H100 node",
            "per_block_s": (
                "assumption: a prompt's blocks are posted together at no cost of their own; NIXL with blocks of 16 "
                f"tokens was seen to take {PER_BLOCK_S * 1e3:.2f} ms a block (link nixl-published)"
            ),
            "bandwidth_bytes_per_s": "measured: as base_s, one pair of GPUs; pairs of ranks work side by side",
        },
    )


def _rdma(data_dir: Path) -> dict[str, Any]:
    fit = fit_mooncake(data_dir)
    raw = fit_send_recv(data_dir, "h100_dgx", same_node=False)
    return _record(
        "rdma",
        fit.base_s,
        0.0,
        fit.bandwidth_bytes_per_s,
        gpus=8,
        source=_measured(fit)
        | {
            "cross_check": (
                f"{raw.origin.name}, two H100 nodes: base {raw.base_s * 1e6:.1f} us, "
                f"{raw.bandwidth_bytes_per_s / 1e9:.1f} GB/s a pair of GPUs, against "
                f"{fit.bandwidth_bytes_per_s / 8e9:.1f} GB/s a GPU through the connector"
            )
        },
        terms={
            "base_s": "measured: start of a whole prompt's transfer through the connector",
            "per_block_s": "measured with the bandwidth: bytes and blocks grow together in the source",
            "bandwidth_bytes_per_s": "measured: worker of 8 GPUs, each with its own port",
        },
    )


def _tcp(data_dir: Path) -> dict[str, Any]:
    return _record(
        "tcp",
        0.001,
        0.0,
        10e9,
        gpus=0,
        source={"kind": "assumption", "name": "10 GB/s class: one 100 Gbit/s port a worker at 80 % of line rate"},
        terms={
            "base_s": "assumption: a round trip and two copies through host memory",
            "per_block_s": "assumption: hidden behind the bytes at this bandwidth",
            "bandwidth_bytes_per_s": (
                "assumption: as named above; an unintended fallback to TCP was seen at 0.5 GB/s "
                "(vllm-project/vllm#52607)"
            ),
        },
    )


def _nixl_published(data_dir: Path) -> dict[str, Any]:
    record = _record(
        "nixl-published",
        _published_base_s(),
        PER_BLOCK_S,
        BYTES_PER_REQUEST / TRANSFER_S,
        gpus=0,
        source={"kind": "estimated", "name": f"{PUBLISHED}, medians of a loaded 3P1D on one node, vLLM 0.14, NIXL"},
        terms={
            "base_s": (
                "estimated: what is left of the 197 ms median after the other terms, two half steps of waiting and one "
                "decode step of 30.2 ms: the engine's own waits around a pull, as constant as the example's step times"
            ),
            "per_block_s": "estimated: 58 ms between 313 and 78 blocks",
            "bandwidth_bytes_per_s": "estimated: 2 x 167 MB in 29 ms",
        },
    )
    record["dispatch_s"] = _digits(PUBLISHED_DISPATCH_S)
    record["source"]["terms"]["dispatch_s"] = PUBLISHED_DISPATCH
    return record


def _published_base_s() -> float:
    """What is left of the published median after dispatch, two half steps, a decode step, blocks and bytes."""
    steps_s = 2 * TPOT_S / 2 + TPOT_S
    return HANDOVER_64_S - PUBLISHED_DISPATCH_S - steps_s - PER_BLOCK_S * BLOCKS_64 - TRANSFER_S


def _around(wire: Callable[[Path], dict[str, Any]], data_dir: Path) -> dict[str, Any]:
    """A measured wire with the published example's work around a pull."""
    record = wire(data_dir)
    name = record["name"]
    terms = record["source"]["terms"]
    terms |= {
        "dispatch_s": PUBLISHED_DISPATCH,
        "base_s": f"estimated: that of nixl-published, on top of {name}'s own",
        "per_block_s": "estimated: that of nixl-published",
    }
    return record | {
        "name": f"nixl-{name}",
        "dispatch_s": _digits(PUBLISHED_DISPATCH_S),
        "base_s": _digits(_published_base_s() + record["base_s"]),
        "per_block_s": _digits(PER_BLOCK_S),
        "source": record["source"] | {"around_the_pull": PUBLISHED},
    }


LINKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "nvlink": _nvlink,
    "rdma": _rdma,
    "tcp": _tcp,
    "nixl-published": _nixl_published,
    "nixl-nvlink": partial(_around, _nvlink),
    "nixl-rdma": partial(_around, _rdma),
}


def _record(
    name: str,
    base_s: float,
    per_block_s: float,
    bandwidth: float,
    gpus: int,
    source: dict[str, Any],
    terms: dict[str, str],
) -> dict[str, Any]:
    return {
        "name": name,
        "dispatch_s": DISPATCH_S,
        "connect_s": CONNECT_S,
        "base_s": _digits(base_s),
        "per_block_s": _digits(per_block_s),
        "bandwidth_bytes_per_s": _digits(bandwidth),
        "gpus": gpus,
        "source": source | {"terms": {"dispatch_s": DISPATCH, "connect_s": CONNECT, **terms}},
    }


def _measured(fit: TransferFit) -> dict[str, Any]:
    origin: Origin = fit.origin
    return {
        "kind": "measured",
        "name": origin.name,
        "repository": origin.repository,
        "commit": origin.commit,
        "licence": origin.licence,
        "attribution": origin.attribution,
        "files": [{"path": path, "sha256": digest} for path, digest in fit.files],
        "fit": {
            "method": "non-negative least squares of relative error",
            "points": fit.points,
            "range_bytes": [int(value) for value in fit.bytes_range],
            "mape_percent": round(fit.mape, 1),
            "median_percent": round(fit.median, 1),
            "max_percent": round(fit.worst, 1),
            "held_out_mape_percent": round(fit.held_out_mape, 1),
        },
    }


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
