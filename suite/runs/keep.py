"""Moving a finished run into the kept results of the project."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite import store
from suite.errors import UsageError
from suite.evidence.results import load_results, save_tables
from suite.papers.design import Plan, select_tensors
from suite.runs.code import changes, git
from suite.runs.compute import table
from suite.runs.execute import fingerprints_of, keys_of
from suite.store.kept import check_agreement, without_images

SURROUNDINGS = ("device", "threads", "python", "torch", "reglib", "commit")


def keep(
    chapter: str,
    parameters: Mapping[str, Any],
    plan: Plan,
    paper: Any,
    *,
    stores: Sequence[store.Store],
    folder: Path | None = None,
) -> Path:
    """Write the archive of a finished run, and its tables for people.

    Units that the stores lack are taken from kept results, so a run may be done in parts.

    Args:
        chapter, parameters, plan: of the run; the parameters include its profile. Values of single
            images are kept only if the plan reads them.
        paper: the module of the chapter; its `shrink` reduces the tensors to keep.
        stores: hold the units; the first that has a unit is used.
        folder: of the kept results; default: that of the project.

    Returns:
        The path of the archive.

    Raises:
        UsageError: the working tree has changes, units are missing or were computed by code
            outside this history, or other kept results disagree.
    """
    profile, kept = parameters["profile"], store.Kept(folder)
    path = store.archive_path(chapter, profile, folder)
    if changed := changes():
        why = f"the working tree has changes ({'; '.join(map(str.strip, changed[:3]))}): commit "
        raise UsageError(f"{why}them first, so that the commit of kept results is the code")
    units, layers = plan.units(), store.Layers(*stores, kept)
    keys = keys_of(units, kept.fingerprints)
    records = layers.read_all(dict.fromkeys(keys))
    if absent := [unit for key, unit in zip(keys, units) if key not in records]:
        why = f"{chapter}, profile {profile}: {len(absent)} of {len(units)} units are not "
        why += f"computed: run 'python -m suite run {chapter} --profile {profile}' first"
        raise UsageError(why)
    _check_commits({r.provenance["commit"] for s in stores for r in s.read_all(keys).values()})
    if not any(item.per_image for item in plan):
        records = {k: replace(r, values=without_images(r.values)) for k, r in records.items()}
    for key, record in records.items():
        for other, archive in kept.archives.items():
            if other != path and key in archive.records:
                check_agreement(key, {other: archive.records[key], path: record})
    rows, arrays = plan.collect(paper, parameters, table(units, keys, records), layers)
    by_key = dict(zip(keys, units))
    tensors = {
        f"{key}/{name}": tensor
        for key, named in layers.tensors_read.items()
        for name, tensor in select_tensors(paper, parameters, by_key[key], named).items()
    }
    provenance = provenance_of(chapter, parameters, records.values())
    provenance["fingerprints"] = fingerprints_of(units, kept.fingerprints)
    store.Archive(records, tensors, rows, arrays, provenance).write(path)
    results = load_results(chapter, profile, path.parents[1])
    save_tables(chapter, profile, results, path.parents[1])
    return path


def provenance_of(
    chapter: str, parameters: Mapping[str, Any], records: Collection[store.Record]
) -> dict[str, Any]:
    """Summarise the provenance of a run.

    Args:
        chapter, parameters: of the run.
        records: of its units, each once.

    Returns:
        The number of units, total seconds, the times at which the first and the last ended, peak
        memory, and all devices, versions and commits.
    """
    ended = sorted(record.provenance["ended"] for record in records)
    return {
        "chapter": chapter,
        "profile": parameters["profile"],
        "parameters": dict(parameters),
        "units": len(records),
        "seconds": round(sum(record.provenance["seconds"] for record in records), 1),
        "ended": {"first": ended[0], "last": ended[-1]} if ended else {},
        "peak_bytes": max((record.provenance["peak_bytes"] for record in records), default=0),
        **{name: sorted({record.provenance[name] for record in records}) for name in SURROUNDINGS},
    }


def _check_commits(commits: Collection[str]) -> None:
    for commit in sorted(commits):
        if commit.endswith("+changes") or commit == "unknown":
            why = f"units were computed by uncommitted code ({commit}): commit the changes, or see "
            raise UsageError(f"{why}'git status' if git refuses this folder; then run with --force")
        if not git("merge-base", "HEAD", commit).startswith(commit):
            why = f"units were computed at commit {commit}, which is not in the history of HEAD"
            raise UsageError(f"{why}; after 'git clone --depth 1' try 'git fetch --unshallow'")
