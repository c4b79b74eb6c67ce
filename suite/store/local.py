"""A folder of results, one record for each unit, that survives being killed at any moment.

A record is a JSON file, with a safetensors file for its weights or maps. Each is written under a
temporary name and renamed; the JSON file comes last, and holds the checksums of both.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor

from suite.errors import RunFailed, UsageError
from suite.paths import store_folder, suggest_variable

TEMPORARY = ".writing-"
MOMENT = 0.1  # seconds, much longer than the time between writing the two files of a record
DAY = 86400.0
DAMAGED = "does not agree with its checksum"
FORMAT = b"torch"  # of checkpoints, in their checksum: those of another format count as damaged


@dataclass(frozen=True)
class Record:
    """The stored result of a unit.

    Args:
        unit: its identity.
        status: "done" or "diverged".
        values: numbers and lists of numbers; None stands for a number that is not finite.
        provenance: seconds, device, threads, memory, versions, commit, time.
        tensors: checksum of the file with its tensors, if it has one.
    """

    unit: Mapping[str, Any]
    status: str
    values: Mapping[str, Any]
    provenance: Mapping[str, Any]
    tensors: str | None = None

    @property
    def value(self) -> float:
        """The mean of a measurement, or the last loss of a training; NaN for none."""
        losses = self.values.get("losses") or [None]
        value = self.values.get("mean") if "metric" in self.unit else losses[-1]
        return math.nan if value is None else float(value)


class Reader(Protocol):
    """A source of results."""

    def read(self, key: str) -> Record | None:
        """Return the record of a key, or None."""

    def read_all(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records of the keys that have one."""
        return {key: record for key in keys if (record := self.read(key)) is not None}

    def read_tensors(self, key: str) -> dict[str, Tensor] | None:
        """Return the tensors of a key, or None."""


class Store(Reader):
    """Results by key.

    A file that does not agree with its checksum is moved to the folder `set_aside`, listed in
    `reports`, and treated as missing.

    Raises:
        UsageError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder or store_folder())
        self.reports: list[str] = []
        check_folder(self.folder, "store folder", "REGLIB_STORE")

    def read(self, key: str) -> Record | None:
        """Return the record of a key, or None if it or the file of its tensors is damaged."""
        return self._read(key)[0]

    def glance(self, keys: Iterable[str]) -> dict[str, Record]:
        """Return the records of the keys that have one, without checking their tensors."""
        stored = {path.stem for path in self.folder.glob("??/*.json")}
        records = {key: self._read_json(key) for key in stored.intersection(keys)}
        return {key: record for key, record in records.items() if record is not None}

    def read_tensors(self, key: str) -> dict[str, Tensor] | None:
        """Return the tensors of a key, or None if there are none or they are damaged."""
        packed = self._read(key)[1]
        return safetensors.torch.load(packed) if packed else None

    def write(self, key: str, record: Record, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Store a record in place of any with the same key.

        Raises:
            RunFailed: the file cannot be written, for example because the disk is full.
        """
        contents = asdict(record)
        if tensors:
            whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            packed = safetensors.torch.save(whole)
            contents["tensors"] = checksum(packed)
            replace_file(self._path(key, "safetensors"), packed)
        contents["checksum"] = checksum(dump(contents))
        replace_file(self._path(key, "json"), dump(contents))

    def read_checkpoint(self, key: str) -> dict[str, Any] | None:
        """Return the last checkpoint of an unfinished training, or None."""
        path = self._path(key, "checkpoint")
        if (contents := _contents(path)) is None:
            return None
        if contents[:64] == checksum(FORMAT + contents[64:]).encode():
            return torch.load(io.BytesIO(contents[64:]), map_location="cpu", weights_only=True)
        self._set_aside(path, DAMAGED)
        return None

    def write_checkpoint(self, key: str, state: Mapping[str, Any]) -> None:
        """Store the state of an unfinished training."""
        torch.save(state, file := io.BytesIO())
        digest = checksum(FORMAT + file.getvalue()).encode()
        replace_file(self._path(key, "checkpoint"), digest + file.getvalue())

    def drop_checkpoint(self, key: str) -> None:
        """Remove the checkpoint of a finished training."""
        self._path(key, "checkpoint").unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what killed processes left: checkpoints of finished trainings, partial files."""
        for path in self.folder.glob("??/*.checkpoint"):
            if path.with_name(path.stem.partition("-")[0] + ".json").exists():
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f"??/{TEMPORARY}*"):
            with contextlib.suppress(FileNotFoundError):  # renamed in the meantime
                if time.time() - path.stat().st_mtime > DAY:
                    path.unlink()

    def _read(self, key: str) -> tuple[Record | None, bytes]:
        path = self._path(key, "safetensors")
        for moment in (MOMENT, 0.0):
            record = self._read_json(key)
            if record is None or record.tensors is None:
                return record, b""
            packed = _contents(path) or b""
            if checksum(packed) == record.tensors:
                return record, packed
            # Another process may have replaced one file, and be about to replace the other.
            time.sleep(moment)
        self._set_aside(path, DAMAGED)
        self._set_aside(self._path(key, "json"), "belongs to a file that is missing or damaged")
        return None, b""

    def _path(self, key: str, ending: str) -> Path:
        return self.folder / key[:2] / f"{key}.{ending}"

    def _read_json(self, key: str) -> Record | None:
        path = self._path(key, "json")
        if (text := _contents(path)) is None:
            return None
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            contents = json.loads(text)
            dumped = dump(contents)
            if text == dumped and contents.pop("checksum") == checksum(dump(contents)):
                return Record(**contents)
        self._set_aside(path, DAMAGED)
        return None

    def _set_aside(self, path: Path, why: str) -> None:
        target = self.folder / "set_aside" / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
        except FileNotFoundError:  # missing, or moved by another process
            return
        except OSError as error:
            why = f"{path} {why}, and cannot be moved to {target} ({error.strerror}); remove it"
            raise RunFailed(why) from error
        self.reports.append(f"{path.name} {why}: moved to {target}, to be computed anew")


def check_folder(folder: Path, what: str, variable: str) -> None:
    """Make a folder if necessary, and check that it can be written.

    Args:
        folder: to check.
        what: name of the folder in the message.
        variable: of the environment, which moves the folder.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
    except OSError as error:
        why = f"{what} {folder}: expected a folder that can be written, got: {error.strerror}; "
        raise UsageError(f"{why}make room or set {variable} to another folder") from error


def replace_file(path: Path, contents: bytes) -> None:
    """Write a file atomically, and make its folder if necessary.

    Raises:
        RunFailed: the file cannot be written.
    """
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        why = f"{path}: cannot be written ({error.strerror}); what was stored before is sound, "
        raise RunFailed(f"{why}make room{suggest_variable(path)} and run again") from error


def _contents(path: Path) -> bytes | None:
    """Return the contents of a file: None if it is missing, b"" if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def checksum(contents: bytes) -> str:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(contents).hexdigest()


def dump(contents: Any) -> bytes:
    """Return JSON with sorted names, and null for numbers that are not finite."""
    finite = json.loads(json.dumps(contents), parse_constant=lambda name: None)
    return json.dumps(finite, sort_keys=True, separators=(",", ":")).encode()
