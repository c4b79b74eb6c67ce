"""Results of a chapter at a profile: a table, verdicts, provenance, and a few maps."""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.errors import RunFailed
from suite.paths import KEPT_RESULTS, executed_folder

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Results:
    """What a chapter found at a profile; `frame` and `verdicts` are empty where there is nothing.

    Args:
        frame: one row a model and metric.
        verdicts: one row a claim, data set and network.
        arrays: images and maps by name.
        provenance: profile, parameters, seconds, device, versions, commit.
    """

    frame: pd.DataFrame
    verdicts: pd.DataFrame
    arrays: Arrays
    provenance: Mapping[str, Any]


def save_results(chapter: str, profile: str, results: Results, folder: Path | None = None) -> Path:
    """Write results to `FOLDER/PROFILE/CHAPTER.*`, each file complete or not at all.

    Args:
        folder: default: `results` in the folder of executed chapters.

    Returns:
        The CSV file.

    Raises:
        RunFailed: a file cannot be written.
    """
    target = (folder or executed_folder() / "results") / profile
    stem = target / chapter
    provenance = json.dumps(results.provenance, indent=1, sort_keys=True)
    files = {
        ".csv": results.frame.to_csv(index=False, float_format="%.6g").encode(),
        ".verdicts.csv": results.verdicts.to_csv(index=False, float_format="%.4g").encode(),
        ".provenance.json": f"{provenance}\n".encode(),
    }
    if results.arrays:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **results.arrays)  # type: ignore[arg-type]
        files[".npz"] = buffer.getvalue()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for suffix, contents in files.items():
            temporary = stem.with_suffix(f"{suffix}.writing")
            temporary.write_bytes(contents)
            os.replace(temporary, stem.with_suffix(suffix))
    except OSError as error:
        raise RunFailed(f"{target}: results cannot be written ({error.strerror})") from error
    return stem.with_suffix(".csv")


def load_results(chapter: str, profile: str, folder: Path = KEPT_RESULTS) -> Results:
    """Read results; all is empty where there are none."""
    stem = folder / profile / chapter
    if not stem.with_suffix(".csv").exists():
        return Results(pd.DataFrame(), pd.DataFrame(), {}, {})
    arrays: Arrays = {}
    if stem.with_suffix(".npz").exists():
        with np.load(stem.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = dict(file)
    return Results(
        pd.read_csv(stem.with_suffix(".csv")),
        pd.read_csv(stem.with_suffix(".verdicts.csv")),
        arrays,
        json.loads(stem.with_suffix(".provenance.json").read_text()),
    )
