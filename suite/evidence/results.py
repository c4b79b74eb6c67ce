"""Results of a chapter at a profile: a table, verdicts, provenance, and a few maps."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from suite.errors import UsageError, expected
from suite.evidence.claims import COLUMNS, judge, load_claims, load_settings
from suite.evidence.scale import Trainings, trainings_of
from suite.paths import check_run_name, executed_folder
from suite.store import Archive, archive_path, read_archive, replace_file
from suite.store.kept import pack_arrays

Arrays = Mapping[str, NDArray[Any]]
ARRAYS = ".safetensors"  # suffix of the file of a run's arrays
TEXTS = ("detail", "statistic", "scale")  # columns of verdicts that may be empty


@dataclass(frozen=True)
class Results:
    """The results of a chapter at a profile; `frame` and `verdicts` are empty where there are none.

    Args:
        frame: one row for each model and metric.
        verdicts: one row for each claim, data set and network; see `suite.evidence.claims.judge`.
        arrays: images and maps by name.
        provenance: profile, parameters, seconds, device, versions, commit.
        trainings: of the networks; see `suite.evidence.scale.trainings_of`.
    """

    frame: pd.DataFrame
    verdicts: pd.DataFrame
    arrays: Arrays
    provenance: Mapping[str, Any]
    trainings: Trainings = ()


def judge_run(chapter: str, profile: str, run: Archive) -> Results:
    """Return the results of a run with the verdicts on the claims of its chapter.

    The records of the run decide the scale of each verdict.
    """
    rows, trainings = run.rows.assign(profile=profile), trainings_of(run.records.values())
    verdicts = judge(load_claims(chapter), rows, load_settings(chapter), trainings)
    # To the digits of their file, which other pages read, so that no page rounds otherwise.
    verdicts = verdicts.map(lambda v: float(f"{v:.10g}") if isinstance(v, float) else v)
    verdicts = verdicts.assign(profile=profile)
    return Results(rows, verdicts, run.arrays, run.provenance, trainings)


def save_tables(chapter: str, profile: str, results: Results, folder: Path | None = None) -> Path:
    """Write verdicts, rows, arrays and provenance to `FOLDER/PROFILE/CHAPTER*`.

    Args:
        chapter, profile: of the run.
        results: of the run.
        folder: of kept results, whose archive has the rest: only verdicts are written; default:
            `results` in the folder of executed chapters.

    Returns:
        The CSV file of the verdicts.

    Raises:
        RunFailed: a file cannot be written.
    """
    stem = (folder or executed_folder() / "results") / check_run_name(profile) / chapter
    files = {".verdicts.csv": results.verdicts.to_csv(index=False, float_format="%.10g")}
    if folder is None:
        files[".csv"] = results.frame.to_csv(index=False, float_format="%.6g")
        files[".provenance.json"] = json.dumps(results.provenance, indent=1, sort_keys=True) + "\n"
        replace_file(stem.with_suffix(ARRAYS), pack_arrays(results.arrays)["arrays.safetensors"])
    for suffix, text in files.items():
        replace_file(stem.with_suffix(suffix), text.encode())
    return stem.with_suffix(".verdicts.csv")


def read_verdicts(file: Path) -> pd.DataFrame:
    """Read the verdicts of `PROFILE/CHAPTER.verdicts.csv`, which `save_tables` wrote.

    Raises:
        UsageError: the file is damaged or of an older version; it names the file.
    """
    try:
        verdicts = pd.read_csv(file, dtype=dict.fromkeys(TEXTS, str) | {"estimate": float})
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from error
    if missing := [name for name in (*COLUMNS, "profile") if name not in verdicts]:
        why = f"the columns {', '.join(missing)}: it is damaged or of an older version; run "
        raise UsageError(f"{file}: expected {why}'python -m suite run {file.name.split('.')[0]}'")
    if wrong := sorted({*map(str, verdicts["profile"])} - {file.parent.name}):  # a truncated line
        raise expected(f"{file}: profile", file.parent.name, wrong[0])
    return verdicts.fillna(dict.fromkeys(TEXTS, ""))


def load_results(chapter: str, profile: str, folder: Path | None = None) -> Results:
    """Read kept results, and judge them; missing or damaged ones are empty.

    A message on the terminal names a damaged file.

    Args:
        chapter, profile: of the run.
        folder: of the kept results; default: the folder of the project.
    """
    path = archive_path(chapter, profile, folder)
    try:
        archive = read_archive(path)
    except UsageError as error:
        if path.exists():
            print(f"{error}: ignored, its results are not shown")
        return Results(pd.DataFrame(), pd.DataFrame(), {}, {})
    return judge_run(chapter, profile, archive)
