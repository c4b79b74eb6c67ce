import dataclasses
import hashlib
import io
import json
import zipfile
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from suite import notebooks
from suite.errors import DataMissing, UsageError
from suite.paths import KEPT_RESULTS
from suite.runs import Store, compute
from suite.runs.compute import table
from suite.runs.execute import keys_of
from suite.runs.plan import plan
from suite.store import Archive, Kept, Layers, Record, archive_path, read_archive
from suite.units import Measurement
from tests.test_store import flip

ABOUT = {"seconds": 1.5, "peak_bytes": 10, "ended": "2026-01-02T03:04:05Z", "device": "a CPU"}
ABOUT |= {"threads": 1, "python": "3.11.7", "torch": "2.15.0", "reglib": "0.1.0", "commit": "abc"}
KEY = "a" * 32


def record(mean=1 / 3, metric="entropy", seed=0, **changes):
    training = {"unit": "training", "network": "mlp", "data": "mnist5k", "seed": seed}
    unit = {"unit": "measurement", "metric": metric, "training": training}
    values = {"mean": mean, "std": 0.1, "n": 3, "per_image": [0.1, 0.2, 0.7]}
    return Record(unit, "done", values, ABOUT, **changes)


def archive(records=None, tensors=None):
    return Archive(
        {KEY: record(tensors="sum")} if records is None else records,
        {f"{KEY}/maps": torch.arange(6.0).view(2, 3)} if tensors is None else tensors,
        pd.DataFrame({"metric": ["entropy"], "value": [1 / 3]}),
        {"maps": np.eye(2, dtype=np.uint8), "titles": np.array(["a", "bc"])},
        {"chapter": "one", "profile": "laptop", "fingerprints": {"mnist5k": "f"}},
    )


@pytest.fixture
def folder(tmp_path):
    archive().write(archive_path("one", "laptop", tmp_path))
    return tmp_path


class TestArchive:
    def test_is_read_as_written(self, folder):
        read = read_archive(archive_path("one", "laptop", folder))
        assert read.records == {KEY: record(tensors="sum")}
        assert torch.equal(read.tensors[f"{KEY}/maps"], torch.arange(6.0).view(2, 3))
        assert (read.rows["value"].tolist(), read.arrays["maps"].dtype) == ([1 / 3], np.uint8)
        assert read.arrays["titles"].tolist() == ["a", "bc"]

    def test_same_results_same_bytes(self, folder, tmp_path):
        path = archive_path("one", "laptop", folder)
        again = archive_path("two", "laptop", tmp_path)
        archive().write(again)
        assert path.read_bytes() == again.read_bytes()
        assert not [name for name in zipfile.ZipFile(path).namelist() if "pkl" in name]


def side_file(path):
    return path.with_suffix(".provenance.json")


def state(path, **changes):
    side_file(path).write_text(json.dumps(json.loads(side_file(path).read_text()) | changes))


def replace_zip(path, contents=None):
    """Put something else in its place, with a checksum that agrees: by default another zip."""
    if contents is None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("holiday.txt", "sun")
    else:
        path.write_bytes(contents)
    state(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


CHECKSUM = "does not agree with the checksum in one.provenance.json"
DAMAGE = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-20]), CHECKSUM),
    "a bit": (lambda path: flip(path, 99), CHECKSUM),
    "format": (lambda path: state(path, format=99), "expected format 1, got 99"),
    "foreign": (replace_zip, "is no archive of results .KeyError"),
    "no zip": (lambda path: replace_zip(path, b"no zip"), "is no archive of results .BadZipFile"),
    "alone": (lambda path: side_file(path).unlink(), "one.provenance.json cannot be read .FileNo"),
    "half": (lambda path: side_file(path).write_text("{"), "json cannot be read .JSONDecodeError"),
    "list": (lambda path: side_file(path).write_text("[]"), "json cannot be read .TypeError"),
}


class TestKept:
    def test_read_by_key(self, folder):
        kept = Kept(folder)
        assert kept.read(KEY).values["per_image"] == [0.1, 0.2, 0.7]
        assert kept.read("b" * 32) is None
        assert set(kept.read_all([KEY, "b" * 32])) == {KEY}
        assert list(kept.read_tensors(KEY)) == ["maps"]
        assert kept.read_tensors("b" * 32) is None
        assert (kept.fingerprints, kept.reports) == ({"mnist5k": "f"}, [])

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_files_are_ignored(self, folder, damage):
        path = archive_path("one", "laptop", folder)
        DAMAGE[damage][0](path)
        kept = Kept(folder)
        assert kept.read(KEY) is None
        assert len(kept.reports) == 1
        assert str(path) in kept.reports[0]
        with pytest.raises(UsageError, match=DAMAGE[damage][1]):
            read_archive(path)

    def test_damaged_results_are_computed(self, folder, store, here, small, capsys):
        flip(archive_path("one", "laptop", folder), 99)
        table = compute([small()], store=store, kept=Kept(folder), resources=here)
        assert table["status"].tolist() == ["done"]
        assert "ignored, its units are computed instead" in capsys.readouterr().out

    def test_disagreement_names_both(self, folder):
        other = archive_path("two", "workstation", folder)
        archive({KEY: record()}, {}).write(other)
        assert Kept(folder).read(KEY) is not None  # they agree
        archive({KEY: record(mean=0.25)}, {}).write(other)
        with pytest.raises(UsageError, match=r"one\.zip and .*two\.zip disagree .*entropy"):
            Kept(folder).read(KEY)

    def test_single_images_in_one_archive(self, folder):
        values = {name: value for name, value in record().values.items() if name != "per_image"}
        assert values != record().values
        short = dataclasses.replace(record(), values=values)
        archive({KEY: short}, {}).write(archive_path("another", "laptop", folder))
        assert Kept(folder).read(KEY).values == record().values
        values["mean"] += 1
        archive({KEY: short}, {}).write(archive_path("another", "laptop", folder))
        with pytest.raises(UsageError, match="disagree"):
            Kept(folder).read(KEY)

    def test_prefers_archive_with_tensors(self, folder):
        for name in ("another", "two"):  # before and behind it
            archive({KEY: record()}, {}).write(archive_path(name, "laptop", folder))
        assert Kept(folder).read_tensors(KEY) is not None

    def test_local_store_goes_first(self, folder, store):
        layers = Layers(store, Kept(folder))
        assert layers.read(KEY).values["mean"] == 1 / 3
        assert layers.read_tensors(KEY).keys() == {"maps"}
        store.write(KEY, record(mean=9.0))
        assert layers.read(KEY).values["mean"] == 9.0
        assert layers.read_all([KEY])[KEY].values["mean"] == 9.0
        assert layers.read_tensors(KEY) is None
        assert Layers(store, None).read("b" * 32) is None


@pytest.fixture
def kept_unit(tmp_path, store, here, small):
    units = [small(), Measurement(training=small(), metric="accuracy", settings={"n_images": 9})]
    table = compute(units, store=store, resources=here)
    records = store.read_all(table["key"])
    kept = Archive(records, {}, table, {}, {"fingerprints": {"mnist5k": "of data that are here"}})
    kept.write(archive_path("one", "laptop", tmp_path / "kept"))
    return units, table, Kept(tmp_path / "kept")


class TestCompute:
    def test_reads_kept_units(self, kept_unit, tmp_path, here, monkeypatch):
        units, table, kept = kept_unit
        empty = Store(tmp_path / "empty")
        pd.testing.assert_frame_equal(compute(units, store=empty, kept=kept, resources=here), table)
        assert list(empty.folder.iterdir()) == []
        anew = compute(units[:1], store=empty, kept=kept, resources=here, force=True)
        assert anew["value"].tolist() == table["value"][:1].tolist()
        assert list(empty.folder.iterdir()) != []

    def test_further_measurement_trains_again(self, kept_unit, tmp_path, here, small):
        units, _, kept = kept_unit
        further = Measurement(training=small(), metric="accuracy", settings={"n_images": 5})
        empty = Store(tmp_path / "empty")
        table = compute([*units, further], store=empty, kept=kept, resources=here)
        assert table["status"].tolist() == ["done"] * 3

    def test_needs_no_data(self, tmp_path, store, here, small, monkeypatch):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path / "no_data"))
        unit = small(data="fashion_mnist")
        (key,) = keys_of([unit], {"fashion_mnist": "its fingerprint"})
        losses, rows = {"losses": [2.0, 1.5]}, pd.DataFrame({"value": [1.5]})
        kept_record = Record({"unit": "training", "seed": 0}, "done", losses, ABOUT)
        about = {"fingerprints": {"fashion_mnist": "its fingerprint"}}
        path = archive_path("one", "workstation", tmp_path / "kept")
        Archive({key: kept_record}, {}, rows, {}, about).write(path)
        kept = Kept(tmp_path / "kept")
        assert compute([unit], store=Store(tmp_path / "s"), kept=kept)["value"].tolist() == [1.5]
        for page_data in ([], ["fashion_mnist"]):
            assert [*plan([unit], store, kept, page_data=page_data).missing_data] == page_data
        with pytest.raises(DataMissing, match="fashion_mnist"):
            compute([small(data="fashion_mnist", seed=1)], store=store, kept=kept)


class TestArchivesOfTheProject:
    @pytest.mark.parametrize("path", sorted(KEPT_RESULTS.glob("*/*.zip")), ids=str)
    def test_are_sound_and_small(self, path):
        assert path.stat().st_size < 2_000_000
        assert len(read_archive(path).rows)

    def test_hold_no_photographs(self):
        photographs = ("imagenet", "cifar")
        for archive in Kept(None).archives.values():
            keys = [name.partition("/")[0] for name in archive.tensors if name.endswith("/images")]
            units = [archive.records[key].unit for key in keys]
            units = [unit for unit in units if unit["metric"] != "activation_ascent"]  # from noise
            names = [str(unit["training"]["data"]) for unit in units]
            names += [n for n in archive.arrays if n.endswith("|images") and "ascent" not in n]
            assert not [name for name in names if any(word in name for word in photographs)]


# Top-GAP: workstation draws images of data of no package, laptop keeps an array more than it makes.
CHAPTERS = ["gradient_regularisation", "high_order_saliency", "marginal_density", "side_by_side"]
RUNS = [(c, p) for c in CHAPTERS for p in ("laptop", "desktop", "workstation")]
RUNS.append(("top_gap", "desktop"))
# Columns that results kept earlier have, and rows no longer.
SETTINGS = "learning_rate pixel_range n_train optimizer input_gradient_strength".split()
SETTINGS += "n_images patch n_samples blocks width stem crop_padding flip cosine_epochs".split()
SETTINGS += ["metric_data"]
# Measures that results of high-order saliency kept earlier have, besides random true losses.
GONE = "moved norm deletion faithfulness entropy ten_cosine ten_norm".split()


def reader(archive):
    """Return the records and tensors of an archive, as `collect` asks for them."""
    tensors = defaultdict(dict)
    for path, tensor in archive.tensors.items():
        key, _, name = path.partition("/")
        tensors[key][name] = tensor
    return SimpleNamespace(read=archive.records.get, read_tensors=tensors.get)


def tidy(frame, columns):
    """Return the rows in one order, whatever theirs, read from text as kept rows are."""
    read = pd.read_csv(io.StringIO(frame.to_csv(index=False)), low_memory=False)
    read = read.astype(dict.fromkeys(read.select_dtypes("number"), float))[columns]
    settings = [name for name in columns if name != "value"]
    return read.sort_values([*settings, "value"], key=lambda c: c.astype(str), ignore_index=True)


@pytest.mark.parametrize(("chapter", "profile"), RUNS)
def test_collected_as_they_were_kept(chapter, profile):
    """Chapters derive the kept rows and arrays again from kept records."""
    archive = read_archive(archive_path(chapter, profile))
    parameters = notebooks.resolve(chapter, profile, {})
    plan = notebooks.plan_of(chapter, parameters)
    units = plan.units()
    keys = keys_of(units, archive.provenance["fingerprints"])
    computed, paper = table(units, keys, archive.records), notebooks.paper(chapter)
    rows, arrays = plan.collect(paper, parameters, computed, reader(archive))
    columns = [name for name in archive.rows if name in rows or name not in SETTINGS]
    kept = archive.rows
    if chapter == "high_order_saliency":
        gone = (kept["metric"] == "true_loss") & (kept["saliency"] == "random")
        kept = kept[~gone & ~kept["metric"].isin(GONE)]
    # Another processor sums in another order.
    pd.testing.assert_frame_equal(tidy(rows, columns), tidy(kept, columns), rtol=1e-12, atol=0)
    assert arrays.keys() == archive.arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, archive.arrays[name])
