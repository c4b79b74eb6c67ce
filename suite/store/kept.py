"""The kept results of the project: a read-only archive for each chapter and profile.

`PROFILE/CHAPTER.zip` holds

- `records.jsonl`: the record of each unit, one a line, in the order of their keys,
- `tensors.safetensors`: the tensors of units that figures need, as `KEY/NAME`,
- `rows.csv`, `arrays.safetensors` and `text.json`: the rows and arrays of the chapter, which can be
  read without data.

`PROFILE/CHAPTER.provenance.json` holds the provenance of the archive, its checksum and format, and
the fingerprints of the data that the keys depend on.
"""

import functools
import io
import json
import os
import zipfile
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors
import safetensors.numpy
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from suite.errors import UsageError
from suite.paths import KEPT_RESULTS, ROOT, check_run_name
from suite.store.local import Reader, Record, checksum, dump, replace_file

FORMAT = 1
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same contents give the same bytes


class Lines(UserDict[str, Any]):
    """Records by key, from lines of JSON that begin with the key and are parsed on access."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        start = len(b'{"key":"')
        super().__init__({line[start : start + 32].decode(): line for line in lines})

    def __getitem__(self, key: str) -> Record:
        return Record(**{n: v for n, v in json.loads(self.data[key]).items() if n != "key"})


@dataclass(frozen=True)
class Archive:
    """The kept results of a chapter and profile.

    Args:
        records: by key; empty in old archives.
        tensors: by KEY/NAME.
        rows, arrays: of the chapter, made of the records and tensors.
        provenance: of the run, with the `fingerprints` of data sets by name.
    """

    records: Mapping[str, Record]
    tensors: Mapping[str, Tensor]
    rows: pd.DataFrame
    arrays: Mapping[str, NDArray[Any]]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the archive and its provenance; each replaces its old file atomically.

        Raises:
            RunFailed: a file cannot be written.
        """
        lines = [dump({"key": key, **asdict(self.records[key])}) for key in sorted(self.records)]
        members = {
            "records.jsonl": b"\n".join(lines),
            "tensors.safetensors": safetensors.torch.save(dict(sorted(self.tensors.items()))),
            "rows.csv": self.rows.to_csv(index=False).encode(),
            **pack_arrays(self.arrays),
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            for name, contents in members.items():
                file.writestr(zipfile.ZipInfo(name, EPOCH), contents, zipfile.ZIP_LZMA)
        packed = buffer.getvalue()
        about = {**self.provenance, "format": FORMAT, "sha256": checksum(packed)}
        text = json.dumps(about, indent=1, sort_keys=True) + "\n"
        replace_file(path, packed)
        replace_file(path.with_suffix(".provenance.json"), text.encode())


def kept_layer() -> "Kept | None":
    """Return the kept results of the project, or None if REGLIB_FRESH is set."""
    return None if os.environ.get("REGLIB_FRESH", "") not in ("", "0") else Kept()


def archive_path(chapter: str, profile: str, folder: Path | None = None) -> Path:
    """Return the path of the archive of a chapter and profile."""
    return (folder or KEPT_RESULTS) / check_run_name(profile) / f"{chapter}.zip"


def name_of_archive(path: Path) -> str:
    """Return the path of an archive for messages, relative to the project."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def read_archive(path: Path) -> Archive:
    """Read an archive, from a cache while its files do not change.

    Raises:
        UsageError: the archive is missing, damaged, of another format, or no archive of results.
    """
    files = (file for file in (path, path.with_suffix(".provenance.json")) if file.exists())
    return _read_archive(path, tuple((f.stat().st_mtime_ns, f.stat().st_size) for f in files))


@functools.lru_cache
def _read_archive(path: Path, state: tuple[tuple[int, int], ...]) -> Archive:
    name, side_file = name_of_archive(path), path.with_suffix(".provenance.json")
    try:
        packed, about = path.read_bytes(), json.loads(side_file.read_text(encoding="utf-8"))
        archive_format, sha256 = about["format"], about["sha256"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{name}: it or {side_file.name} cannot be read ({error!r})") from error
    if archive_format != FORMAT:
        raise UsageError(f"{name}: expected format {FORMAT}, got {archive_format!r}")
    if checksum(packed) != sha256:
        raise UsageError(f"{name}: does not agree with the checksum in {side_file.name}")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as file:
            text = json.loads(file.read("text.json"))
            arrays = safetensors.numpy.load(file.read("arrays.safetensors"))
            return Archive(
                Lines(file.read("records.jsonl").splitlines()),
                safetensors.torch.load(file.read("tensors.safetensors")),
                pd.read_csv(io.BytesIO(file.read("rows.csv")), low_memory=False),
                arrays | {name: np.array(values) for name, values in text.items()},
                about,
            )
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, safetensors.SafetensorError) as e:
        raise UsageError(f"{name}: is no archive of results ({e!r})") from e


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    """Pack arrays: numbers as safetensors, text as JSON."""
    text = {name: array.tolist() for name, array in arrays.items() if array.dtype.kind == "U"}
    names = sorted(arrays.keys() - text.keys())
    numbers = {name: np.ascontiguousarray(arrays[name]) for name in names}
    return {"arrays.safetensors": safetensors.numpy.save(numbers), "text.json": dump(text)}


class Kept(Reader):
    """The kept results of the project, by key.

    Archives that cannot be read are ignored, and listed in `reports`.

    Args:
        folder: of the archives, in folders of profiles.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or KEPT_RESULTS
        self.reports: list[str] = []

    @functools.cached_property
    def archives(self) -> dict[Path, Archive]:
        """All archives that can be read."""
        archives = {}
        for path in sorted(self.folder.glob("*/*.zip")):
            try:
                archives[path] = read_archive(path)
            except UsageError as error:
                self.reports.append(f"{error}: ignored, its units are computed instead")
        return archives

    @functools.cached_property
    def archive_of(self) -> dict[str, Path]:
        """The archive of each key; an archive with tensors or single images is preferred.

        Raises:
            UsageError: two archives disagree about a unit.
        """
        paths: dict[str, Path] = {}
        for path, archive in self.archives.items():
            with_tensors = {name.partition("/")[0] for name in archive.tensors}
            for key in archive.records:
                if (other := paths.setdefault(key, path)) is not path:
                    first, record = self.archives[other].records[key], archive.records[key]
                    check_agreement(key, {other: first, path: record})
                    has_more = "per_image" in record.values and "per_image" not in first.values
                    paths[key] = path if has_more or key in with_tensors else other
        return paths

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the data that the keys depend on, by name."""
        parts = [a.provenance.get("fingerprints", {}) for a in self.archives.values()]
        return {name: text for part in parts for name, text in part.items()}

    def read(self, key: str) -> Record | None:
        """Return the record of a key, or None."""
        path = self.archive_of.get(key)
        return None if path is None else self.archives[path].records[key]

    def read_tensors(self, key: str) -> dict[str, Tensor] | None:
        """Return the kept tensors of a key, or None."""
        path, start = self.archive_of.get(key), f"{key}/"
        tensors = {} if path is None else self.archives[path].tensors
        return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)} or None


def without_images(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record except those of single images."""
    return {name: value for name, value in values.items() if name != "per_image"}


def check_agreement(key: str, records: Mapping[Path, Record]) -> None:
    """Check that records of one key agree.

    A chapter may keep a value for each image where another chapter keeps only their mean.

    Raises:
        UsageError: the records disagree; the message names all files.
    """
    contents = [dict(record.values, status=record.status) for record in records.values()]
    if not all("per_image" in values for values in contents):
        contents = [without_images(values) for values in contents]
    first = next(iter(records.values()))
    if any(values != contents[0] for values in contents):
        names = " and ".join(map(name_of_archive, records))
        why = f"{names} disagree about unit {key} ({first.unit.get('metric', 'training')}): "
        raise UsageError(f"{why}remove the wrong file, or compute both profiles anew and keep them")


class Layers(Reader):
    """Several layers as one: a unit is read from the first layer that has it.

    Args:
        layers: the local store, then the kept results; None is skipped.
    """

    def __init__(self, *layers: Reader | None) -> None:
        self.layers = [layer for layer in layers if layer]
        self.tensors_read: dict[str, Mapping[str, Tensor]] = {}  # by key

    def read(self, key: str) -> Record | None:
        """Return the record of a key."""
        return next((r for layer in self.layers if (r := layer.read(key)) is not None), None)

    def read_tensors(self, key: str) -> dict[str, Tensor] | None:
        """Return the tensors of a key."""
        layer = next((layer for layer in self.layers if layer.read(key) is not None), None)
        tensors = layer.read_tensors(key) if layer else None
        self.tensors_read[key] = tensors or {}
        return tensors
