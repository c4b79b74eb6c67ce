"""Results of a chapter at a profile: a table, verdicts, provenance, and a few maps."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from suite.errors import UsageError
from suite.evidence.claims import judge, load_claims, load_settings
from suite.evidence.scale import Trainings, trainings_of
from suite.paths import checked_name, executed_folder
from suite.store import Record, archive_path, read_archive, replace_file

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Results:
    """What a chapter found at a profile; `frame` and `verdicts` are empty where there is nothing.

    Args:
        frame: one row a model and metric.
        verdicts: one row a claim, data set and network; see `suite.evidence.claims.judge`.
        arrays: images and maps by name.
        provenance: profile, parameters, seconds, device, versions, commit.
        trainings: the networks, each once; see `suite.evidence.scale.trainings_of`.
    """

    frame: pd.DataFrame
    verdicts: pd.DataFrame
    arrays: Arrays
    provenance: Mapping[str, Any]
    trainings: Trainings = ()


def judged(
    chapter: str,
    profile: str,
    rows: pd.DataFrame,
    arrays: Arrays,
    provenance: Mapping[str, Any],
    records: Iterable[Record] = (),
) -> Results:
    """Return results with the verdicts on the claims of a chapter.

    Args:
        chapter, profile: which.
        rows, arrays, provenance: of the results.
        records: of their units, from which the scale of each verdict is taken.
    """
    rows, trainings = rows.assign(profile=profile), trainings_of(records)
    verdicts = judge(load_claims(chapter), rows, load_settings(chapter), trainings)
    return Results(rows, verdicts.assign(profile=profile), arrays, provenance, trainings)


def save_tables(chapter: str, profile: str, results: Results, folder: Path | None = None) -> Path:
    """Write rows and verdicts, for people, to `FOLDER/PROFILE/CHAPTER*.csv`.

    Args:
        folder: default: `results` in the folder of executed chapters, which has the provenance too.

    Returns:
        The CSV file of the rows.

    Raises:
        RunFailed: a file cannot be written.
    """
    stem = (folder or executed_folder() / "results") / checked_name(profile) / chapter
    files = {
        ".csv": results.frame.to_csv(index=False, float_format="%.6g"),
        ".verdicts.csv": results.verdicts.to_csv(index=False, float_format="%.10g"),
    }
    if folder is None:
        files[".provenance.json"] = json.dumps(results.provenance, indent=1, sort_keys=True) + "\n"
    for suffix, text in files.items():
        replace_file(stem.with_suffix(suffix), text.encode())
    return stem.with_suffix(".csv")


def load_results(chapter: str, profile: str, folder: Path | None = None) -> Results:
    """Read kept results and judge them; all is empty where there are none, or damaged ones.

    A file that is not sound is named on the terminal.
    """
    path = archive_path(chapter, profile, folder)
    try:
        archive = read_archive(path) if path.exists() else None
    except UsageError as error:
        print(f"{error}: ignored, its results are not shown")
        archive = None
    if archive is None:
        return Results(pd.DataFrame(), pd.DataFrame(), {}, {})
    parts = archive.rows, archive.arrays, archive.provenance, archive.records.values()
    return judged(chapter, profile, *parts)
