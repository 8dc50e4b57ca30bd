"""Read profiles and links from YAML, strictly: a typing error must never become a default.

``load_profile("llama-3.1-8b-bf16-h100-tp1")`` reads ``envs/hardware/profiles/<name>.yaml``;
``load_profile("my/profile.yaml")`` reads a file of your own in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.hardware.errors import ProfileError
from envs.hardware.profile import RANGE_AXES, HandoverLaw, KvLaw, Profile, StepLaw
from envs.hardware.schema import Count, Free, Many, Number, Record, Text, Words, find_file, read_record, read_yaml
from envs.hardware.tables import StepTables

PROFILE_DIR = Path(__file__).parent / "profiles"
LINK_DIR = PROFILE_DIR / "links"

# Upper bounds are plausibility bounds: no GPU that serves a model is slower, so a value beyond them is in
# the wrong unit (milliseconds or microseconds where seconds are meant).
STEP = Record(
    {
        "floor_s": Number("seconds", high=10.0),
        "c0_s": Number("seconds", high=10.0),
        "c_tok_s": Number("seconds per new token", high=0.05),
        "c_attn_s": Number("seconds per token * context token", high=1e-4),
        "c_seq_s": Number("seconds per decoding sequence", high=0.1),
        "c_kv_s": Number("seconds per KV token", high=1e-4),
    }
)
TABLES = Record(
    {
        "tokens": Many(Count("tokens of a step", low=1)),
        "w_s": Many(Number("seconds", high=60.0)),
        "seqs": Many(Count("decoding sequences", low=1)),
        "d0_s": Many(Number("seconds", high=10.0)),
        "d1_s": Many(Number("seconds per KV token", high=1e-4)),
        "c_attn_s": Number("seconds per token * context token", high=1e-4),
        "a0_s": Number("seconds", high=10.0),
        "h0_s": Number("seconds", high=10.0),
        "h1_s": Number("seconds per decoding sequence", high=0.1),
    }
)
KV = Record(
    {
        "bytes_per_token": Number("bytes", low=1.0, high=1e8),
        "capacity_tokens": Count("tokens", low=1),
        "block_tokens": Count("tokens", low=1),
    }
)
PROFILE = Record(
    {
        "name": Text(),
        "model": Text(),
        "gpu": Text(),
        "tensor_parallel": Count("GPUs", low=1),
        "engine": Text(),
        "engine_version": Text(),
        "precision": Text(),
        "step": STEP,
        "tables": TABLES,
        "kv": KV,
        "source": Free(required=("kind", "name")),
        "fit": Free(),
    },
    optional=("tables",),
)
RANGE = Record({axis: Many(Count("of the points of the fit")) for axis in RANGE_AXES}, optional=RANGE_AXES)
LINK = Record(
    {
        "name": Text(),
        "dispatch_s": Number("seconds", high=10.0),
        "connect_s": Number("seconds", high=60.0),
        "base_s": Number("seconds", high=10.0),
        "per_block_s": Number("seconds per KV block", high=0.1),
        "bandwidth_bytes_per_s": Number("bytes per second", low=1e6, high=1e13),
        "gpus": Count("GPUs"),
        "source": Free(required=("kind", "name")),
    }
)
KINDS = Words("measured", "estimated", "assumption")


def profile_names() -> list[str]:
    """Names of the profiles that ship with the project."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.yaml"))


def handover_names() -> list[str]:
    """Names of the links that ship with the project."""
    return sorted(path.stem for path in LINK_DIR.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """A profile by name, or from a YAML file.

    Raises:
        ProfileError: unknown name, unreadable file, unknown or missing key, wrong type, value out of range.
    """
    path = find_file(name_or_path, PROFILE_DIR, profile_names(), "profile")
    data = read_record(path, read_yaml(path), PROFILE)
    _check_name(path, data)
    KINDS.read(path, "source.kind", data["source"]["kind"])
    _check_range(path, data["fit"].get("range", {}))
    if data["step"]["c0_s"] == data["step"]["floor_s"] == 0.0:
        raise ProfileError(f"{path}: step.c0_s and step.floor_s are both 0: expected one above 0 (a step takes time)")
    return Profile(
        name=data["name"],
        model=data["model"],
        gpu=data["gpu"],
        tensor_parallel=data["tensor_parallel"],
        engine=data["engine"],
        precision=data["precision"],
        step=StepLaw(**data["step"]),
        kv=KvLaw(**data["kv"]),
        source=data["source"],
        fit=data["fit"],
        engine_version=data["engine_version"],
        tables=_tables(path, data["tables"]) if "tables" in data else None,
    )


def _check_range(path: Path, given: Any) -> None:
    for axis, ends in RANGE.read(path, "fit.range", given).items():
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ProfileError(f"{path}: fit.range.{axis} = {ends}: expected the smallest and the largest value")


def _tables(path: Path, data: Mapping[str, Any]) -> StepTables:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    try:
        return StepTables(**values)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def load_handover(name_or_path: str | Path, gpus: int | None = None) -> HandoverLaw:
    """A link's handover law by name (``nvlink``, ``rdma``, ``tcp``), or from a YAML file.

    Args:
        name_or_path: a name of :func:`handover_names`, or the path of a YAML file.
        gpus: GPUs of the workers it joins, to which its bandwidth is scaled; None: as measured.

    Raises:
        ProfileError: as for :func:`load_profile`.
    """
    path = find_file(name_or_path, LINK_DIR, handover_names(), "link")
    data = read_record(path, read_yaml(path), LINK)
    _check_name(path, data)
    KINDS.read(path, "source.kind", data["source"]["kind"])
    law = HandoverLaw(**data)
    return law if gpus is None else law.for_gpus(gpus)


def _check_name(path: Path, data: Mapping[str, Any]) -> None:
    """A shipped file is found by its file name, so the name inside must agree."""
    if path.parent in (PROFILE_DIR, LINK_DIR) and data["name"] != path.stem:
        raise ProfileError(f"{path}: name = {data['name']!r}: expected {path.stem!r}, as the file is called")
