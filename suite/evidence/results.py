"""Results of a chapter at a profile: a table, verdicts, provenance, and a few maps."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from suite.errors import UsageError, expected
from suite.evidence.claims import COLUMNS, judge, load_claims, load_settings
from suite.evidence.scale import Trainings, trainings_of
from suite.paths import NOTEBOOKS, check_run_name, executed_folder
from suite.store import Record, archive_path, checksum, pack_arrays, read_archive, replace_file

Arrays = Mapping[str, NDArray[Any]]
ARRAYS = ".safetensors"  # how the file of those of a run ends
TEXTS = ("detail", "statistic", "scale")  # columns of verdicts that may be empty


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


def judge_run(
    chapter: str,
    profile: str,
    rows: pd.DataFrame,
    arrays: Arrays,
    provenance: Mapping[str, Any],
    records: Iterable[Record] = (),
    *,
    known: Results | None = None,
) -> Results:
    """Return results with the verdicts on the claims of a chapter.

    Args:
        chapter, profile: which.
        rows, arrays, provenance: of the results.
        records: of their units, from which the scale of each verdict is taken.
        known: results of the same units; where their rows are the same, in the columns that both
            have, so are the verdicts.
    """
    rows, trainings = rows.assign(profile=profile), trainings_of(records)
    shared = [] if known is None else [name for name in known.frame if name in rows]
    if known is not None and _as_text(rows[shared]) == _as_text(known.frame[shared]):
        verdicts = known.verdicts
    else:
        verdicts = judge(load_claims(chapter), rows, load_settings(chapter), trainings)
    return Results(rows, verdicts.assign(profile=profile), arrays, provenance, trainings)


def _as_text(rows: pd.DataFrame) -> str:
    return rows.to_csv(index=False, float_format="%.9g")


def save_tables(chapter: str, profile: str, results: Results, folder: Path | None = None) -> Path:
    """Write verdicts and rows, for people, to `FOLDER/PROFILE/CHAPTER*.csv`, and arrays beside.

    Args:
        folder: of kept results, whose rows are in their archive, and whose provenance says by which
            claims they were judged; default: `results` in the folder of executed chapters.

    Returns:
        The CSV file of the verdicts.

    Raises:
        RunFailed: a file cannot be written.
    """
    stem = (folder or executed_folder() / "results") / check_run_name(profile) / chapter
    files = {".verdicts.csv": results.verdicts.to_csv(index=False, float_format="%.10g")}
    if folder is None:
        files[".csv"] = results.frame.to_csv(index=False, float_format="%.6g")
        replace_file(stem.with_suffix(ARRAYS), pack_arrays(results.arrays)["arrays.safetensors"])
    about = dict(results.provenance)
    about |= {"judged": _claims_checksum(chapter, about)} if folder else {}
    files[".provenance.json"] = json.dumps(about, indent=1, sort_keys=True) + "\n"
    for suffix, text in files.items():
        replace_file(stem.with_suffix(suffix), text.encode())
    return stem.with_suffix(".verdicts.csv")


def read_verdicts(file: Path) -> pd.DataFrame:
    """Read the verdicts that `save_tables` has written to `PROFILE/CHAPTER.verdicts.csv`.

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
    if wrong := sorted({*map(str, verdicts["profile"])} - {file.parent.name}):  # a cut line
        raise expected(f"{file}: profile", file.parent.name, wrong[0])
    return verdicts.fillna(dict.fromkeys(TEXTS, ""))


def load_results(
    chapter: str, profile: str, folder: Path | None = None, *, anew: bool = False
) -> Results:
    """Read kept results; all is empty where there are none, or damaged ones.

    Their verdicts are read, too, where they are of these results and of the claims as they are now,
    and judged anew else. A file that is not sound is named on the terminal.

    Args:
        chapter, profile: which.
        folder: of the kept results; default: that of the project.
        anew: judge in any case.
    """
    path = archive_path(chapter, profile, folder)
    try:
        archive = read_archive(path)
    except UsageError as error:
        if path.exists():
            print(f"{error}: ignored, its results are not shown")
        return Results(pd.DataFrame(), pd.DataFrame(), {}, {})
    about, records = archive.provenance, archive.records.values()
    file = path.with_suffix(".verdicts.csv")
    if not anew and file.exists() and about.get("judged") == _claims_checksum(chapter, about):
        with contextlib.suppress(UsageError):
            rows, verdicts = archive.rows.assign(profile=profile), read_verdicts(file)
            return Results(rows, verdicts, archive.arrays, about, trainings_of(records))
    return judge_run(chapter, profile, archive.rows, archive.arrays, about, records)


def _claims_checksum(chapter: str, provenance: Mapping[str, Any]) -> str:
    """Return the checksum of what verdicts depend on: an archive, and what the paper claims."""
    files = [NOTEBOOKS / part / f"{chapter}.yml" for part in ("claims", "published")]
    texts = [file.read_bytes() for file in files if file.exists()]
    return checksum(b"".join([str(provenance.get("sha256")).encode(), *texts]))
