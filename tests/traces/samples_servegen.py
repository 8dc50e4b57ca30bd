"""A small ServeGen workload, made by hand after the published schema."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

TRACES = {
    0: "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n1200,4,2,Gamma,0.25,1\n",
    1: "0,0.5,1.5,Weibull,0.7,1.6\n600,0.5,1.5,Weibull,0.7,1.6\n1200,0.5,1.5,Weibull,0.7,1.6\n",
    2: "0,6,1,Gamma,1,0.16\n600,6,1,Gamma,1,0.16\n1200,6,1,Gamma,1,0.16\n",  # the busiest: its lengths are lost
}
DATASETS = {
    0: {
        "0": {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{10: 1.0}"},
        "600": {"input_tokens": "{}", "output_tokens": "{}"},
        "1200": {"input_tokens": "{1000: 1.0}", "output_tokens": "{20: 0.5, 40: 0.5}"},
    },
    1: {"0": {"input_tokens": "{50: 1.0}", "output_tokens": "{1: 0.5, 5: 0.5}"}},
}
MEDIA = {
    "0": {
        "text_tokens": "{50: 1.0}",
        "image_tokens": "{4: 0.5, 8: 0.5}",
        "audio_tokens": "{0: 1.0}",
        "video_tokens": "{0: 1.0}",
        "image_count": "{1: 0.5, 3: 0.5}",
        "audio_count": "{0: 1.0}",
        "video_count": "{0: 1.0}",
        "output_tokens": "{11: 1.0}",
    }
}


def archive(traces: dict[int, str], datasets: dict[int, Any], folder: str = "language/m") -> bytes:
    """A tar archive of a workload."""
    files = {f"chunk-{n}-dataset.json": json.dumps(d, indent=2) for n, d in datasets.items()}
    files |= {f"chunk-{n}-trace.csv": text for n, text in traces.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


VALID = {"servegen": [archive(TRACES, DATASETS), archive({0: TRACES[0]}, {0: MEDIA})]}
OPTIONS = {"servegen": {"missing_lengths": "drop", "duration_s": 1800.0}}
