"""The policy file: weights with what they were trained on, plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.features import FEATURES, SLOTS
from policies.learned import HIDDEN, SCHEMA, VERSION, check_weights
from research.evidence.runs import write_json


def write_policy_file(path: Path, weights: tuple[float, ...], training: Mapping[str, Any]) -> None:
    """Write ``policy.json``; ``policies.learned.read_policy_file`` reads it.

    Args:
        path: file.
        weights: of the scorer; written with nine digits, which is more than they were trained with.
        training: command, trace and its hash, cluster, objectives, rate, results on validation.
    """
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "features": list(FEATURES),
        "slots": SLOTS,
        "hidden": HIDDEN,
        "weights": [float(f"{x:.9g}") for x in check_weights(weights, str(path))],
        "training": json.loads(json.dumps(training)),
    }
    write_json(path, content)
