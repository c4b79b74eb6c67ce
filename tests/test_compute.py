import json
import math
import os
import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from suite.data import load_data
from suite.errors import DataMissing, RunFailed, UsageError
from suite.papers import measure
from suite.runs import Store, compute
from suite.runs.execute import Job, load_subject, run_job
from suite.runs.plan import Plan, _files, plan
from suite.store import Record
from suite.training.evaluated import select_test_split
from suite.training.loop import train
from suite.units import Measurement, key

SALIENT = {"saliency": "logit_gradient", "n_images": 4}


def accuracy_of(training):
    return Measurement(training=training, metric="accuracy", settings={"n_images": 50})


def refuse_to_train(*arguments, **options):
    raise AssertionError("trained")


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr("suite.runs.execute.train", refuse_to_train)
    monkeypatch.setattr("suite.runs.execute.measure", refuse_to_train)


@pytest.fixture
def trained(monkeypatch):
    units = []

    def record_unit(unit, *arguments, **options):
        units.append(unit)
        return train(unit, *arguments, **options)

    monkeypatch.setattr("suite.runs.execute.train", record_unit)
    return units


def refused_units(small):
    def measured(metric, training=small(), **settings):  # noqa: B008
        return Measurement(training=training, metric=metric, settings=settings)

    def top_gap(**options):
        return small(network="top_gap", network_options=options)

    strided = top_gap(k=0.1, fpn=False, backbone_options={"blocks": [1] * 5})
    unknown = "unknown setting of metric 'entropy' 'saliensy': did you mean 'saliency'?"
    most = "n_{0}: expected at most {2} for the {1} split of 'mnist5k', got {3}"
    pooled = "'top_gap' on data set 'mnist5k': k: expected a number of locations, an integer from 1"
    centre = "'top_gap' on data set 'mnist5k': maps_of: expected maps of at least 3 x 3, or the "
    centre += "position called the centre is the corner, got 2 x 2"
    class_maps = "expected a network with class maps, such as 'top_gap', got "
    misspelt = {"saliency": "depplift", "n_images": 4}
    maps = measured("saliency_maps", **SALIENT, data="kmnst")
    iou = measured("mask_iou", top_gap(k=0.1), n_images=3)
    return [
        (measured("acuracy"), "unknown metric 'acuracy': did you mean 'accuracy'?"),
        (measured("entropy", **misspelt), "unknown saliency 'depplift': did you mean 'deeplift'?"),
        (measured("entropy", saliensy="deeplift"), unknown),
        (measured("entropy", n_images=3), "metric 'entropy': missing a required"),
        (small(data="mnist5"), "unknown data set 'mnist5': did you mean 'mnist5k'?"),
        (maps, "unknown data set 'kmnst': did you mean 'kmnist'?"),
        (small(network_options={"widht": 3}), "network 'lenet5':"),
        (measured("accuracy", n_images=1001), most.format("images", "test", 1000, 1001)),
        (small(n_train=4001), most.format("train", "training", 4000, 4001)),
        (top_gap(k=5000), pooled),
        (iou, "mask_iou: expected a data set with masks, got 'mnist5k'"),
        (measured("erf_distance", strided, n_images=3), centre),
        (measured("class_map_sparsity", n_images=3), class_maps),
    ]


@pytest.mark.usefixtures("no_training")
class TestPlan:
    def test_counts_without_computing(self, store, small):
        units = [small(seed=seed) for seed in range(3)]
        measured = [accuracy_of(unit) for unit in units]
        nothing = {"stored": 0, "kept": 0, "missing_data": {}, "spent": 0}
        assert plan([*units, *measured, units[0]], store) == Plan(total=6, **nothing)
        assert list(store.folder.iterdir()) == []

    def test_missing_data_and_unknown_names(self, store, small, tmp_path, monkeypatch):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
        absent = small(data="kmnist")
        result = plan([small(), absent, accuracy_of(absent), absent], store)
        assert result.total == 3
        assert result.missing_data.keys() == {"kmnist"}
        assert "download=True" in result.missing_data["kmnist"]
        with pytest.raises(UsageError, match="did you mean 'lenet5'"):
            plan([small(data="kmnist", network="lenet")], store)

    def test_only_changed_data_are_read_again(self, store, small, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
        read = mock.Mock(return_value=mock.Mock(fingerprint="of what was read"))
        monkeypatch.setattr("suite.runs.plan.load_data", read)
        images, counts = tmp_path / "images", []
        for text in ("first", "first", "another"):
            images.write_text(text)
            os.utime(images, (1, 1))
            _files.cache_clear()
            plan([small()], store)
            counts.append(capsys.readouterr().out.count("looking for "))
        assert (counts, read.call_count) == ([1, 0, 1], 2)


def test_plan_counts_stored_units(store, here, small):
    measured = accuracy_of(small())
    seconds = compute([small(), measured], store=store, resources=here).seconds
    todo = [small(), measured, small(seed=2), accuracy_of(small(seed=2)), small(epochs=9)]
    result = plan(todo, store)
    assert (result.total, result.stored) == (5, 2)
    assert result.spent == pytest.approx(seconds.sum(), abs=1e-9)


class TestTable:
    def test_rows_are_units_in_order(self, store, here, small, trained):
        first, second = small(), small(seed=1, penalties={})
        entropy = Measurement(training=first, metric="entropy", settings=SALIENT)
        units = [accuracy_of(second), first, entropy, accuracy_of(second), second, entropy]
        frame = compute(units, store=store, resources=here)
        assert frame.metric.tolist() == ["accuracy", "training_loss", "entropy"] * 2
        assert frame.seed.tolist() == [1, 0, 0, 1, 1, 0]
        columns = """data network epochs learning_rate seed pixel_range n_train batch_size optimizer
    input_gradient_strength metric saliency n_images value std n undefined status seconds key"""
        assert set(frame.columns) == set(columns.split())
        assert frame.input_gradient_strength.tolist()[1:3] == [0.1, 0.1]
        assert math.isnan(frame.input_gradient_strength[0])
        assert set(frame.status) == {"done"}
        assert frame.n.tolist() == [50, 128, 4, 50, 128, 4]
        assert frame.undefined.tolist() == [0] * 6
        assert frame.loc[0].equals(frame.loc[3])
        assert frame.key.nunique() == 4
        assert len(trained) == 2
        for column in ("value", "std", "seconds"):
            assert frame[column].dtype == np.float64
        assert (frame.seconds > 0).all()
        of_images = store.read(frame.key[2]).values["per_image"]
        assert len(of_images) == 4
        assert frame.value[2] == pytest.approx(np.mean(of_images), rel=1e-15)
        assert frame["std"][2] == pytest.approx(np.std(of_images, ddof=1), rel=1e-12)

    def test_setting_of_metric_and_training(self, store, here, small):
        settings = SALIENT | {"n_samples": 2, "seed": 9}
        unit = Measurement(training=small(), metric="max_sensitivity", settings=settings)
        row = compute([unit], store=store, resources=here).loc[0]
        assert (row.seed, row.metric_seed) == (0, 9)

    def test_grid_has_no_duplicate_rows(self, store, here, small):
        grid = [(rate, epochs) for rate in (1e-3, 1e-2) for epochs in (1, 2)]
        units = [small(learning_rate=rate, epochs=epochs) for rate, epochs in grid]
        frame = compute(units, store=store, resources=here)
        assert not frame.drop(columns=["key", "value", "seconds"]).duplicated().any()
        unit = small(data="mnist5k", network="convnet", network_options={"width": 2}, penalties={})
        assert compute([unit], store=store, resources=here).width.tolist() == [2]

    def test_provenance(self, store, here, small):
        record = store.read(compute([small()], store=store, resources=here).key[0])
        provenance = record.provenance
        names = "seconds peak_bytes ended device threads python torch reglib commit code"
        assert provenance.keys() == {*names.split(), "resumed", "double_backward"}
        assert provenance["device"].endswith("CPU")
        assert provenance["resumed"] is False
        assert provenance["double_backward"] == "fast"
        assert 10**8 < provenance["peak_bytes"] < 10**11
        assert json.dumps(record.unit)


class TestCheckpoint:
    def test_is_written_and_removed(self, store, here, small, monkeypatch):
        write = Store.write_checkpoint
        written = mock.create_autospec(write, side_effect=write)
        monkeypatch.setattr(Store, "write_checkpoint", written)
        compute([small(epochs=2)], store=store, resources=here, checkpoint_seconds=1e9)
        assert written.call_count == 0
        frame = compute([small(epochs=3)], store=store, resources=here, checkpoint_seconds=0)
        assert written.call_count == 3
        assert list(store.folder.rglob("*.checkpoint")) == []
        # As it is left by a kill.
        store.write_checkpoint(frame.key[0], {"x": load_data("mnist5k").train.labels[:1]})
        compute([small(seed=1)], store=store, resources=here)
        assert list(store.folder.rglob("*.checkpoint")) == []

    def test_longer_training_gives_shorter_ones(self, store, here, small, trained, tmp_path):
        cosine = {"cosine_epochs": 3, "learning_rate": 0.01}
        lengths = [small(epochs=epochs, **cosine) for epochs in (1, 2, 3)]
        other = small(epochs=1, **cosine | {"cosine_epochs": 4})
        units = [accuracy_of(lengths[0]), lengths[1], lengths[2], other]
        frame = compute(units, store=store, resources=here)
        assert trained == [lengths[2], other]
        assert frame.status.eq("done").all()
        alone = Store(tmp_path / "alone")
        for unit in units:
            compute([unit], store=alone, resources=here)
        for name in [key(u, {u.data: load_data(u.data).fingerprint}) for u in lengths]:
            records = [s.read(name) for s in (store, alone)]
            assert records[0].values == records[1].values
            assert records[0].tensors == records[1].tensors


class TestFailure:
    def test_diverged_training_disturbs_no_other(self, store, here, small):
        wild = small(learning_rate=1e30)
        entropy = Measurement(training=wild, metric="entropy", settings=SALIENT)
        units = [accuracy_of(wild), small(), wild, entropy, accuracy_of(small())]
        frame = compute(units, store=store, resources=here)
        assert frame.status.tolist() == ["diverged", "done", "diverged", "diverged", "done"]
        assert frame.value.isna().tolist() == [True, False, True, True, False]
        alone = compute([entropy], store=store, resources=here)
        assert alone.value.dtype == alone["std"].dtype == np.float64
        with pytest.raises(RunFailed, match="diverged, so there is no network"):
            load_subject(wild, store)

    def test_comparison_with_a_diverged_training(self, store, here, small):
        def against(rate):
            settings = {"attack": "fgsm", "epsilon": 0.1, "n_images": 4, "keep_images": False}
            settings["source"] = small(learning_rate=rate).identity
            return Measurement(training=small(), metric="robust_accuracy", settings=settings)

        frame = compute([against(rate) for rate in (1e30, 1e-3)], store=store, resources=here)
        assert frame.status.tolist() == ["diverged", "done"]
        assert frame.value.isna().tolist() == [True, False]

    def test_error_of_a_unit(self, store, here, small, monkeypatch):
        def broken(subject, *, n_images):
            raise ZeroDivisionError("this metric is broken")

        monkeypatch.setitem(measure.METRICS, "broken", broken)
        wrong = Measurement(training=small(), metric="broken", settings={"n_images": 3})
        entropy = Measurement(training=small(), metric="entropy", settings=SALIENT)
        others = [accuracy_of(small()), entropy, accuracy_of(small(seed=1))]
        with pytest.raises(RunFailed) as caught:
            compute([others[0], wrong, *others[1:]], store=store, resources=here)
        message = str(caught.value)
        assert message.startswith("units that failed: 1; all others are stored. The first: ")
        assert "broken (n_images=3) of training (data=mnist5k" in message
        assert "ZeroDivisionError: this metric is broken" in message
        assert "Traceback in the worker:" in message
        assert 'raise ZeroDivisionError("this metric is broken")' in message
        monkeypatch.setattr("suite.runs.executors._submit_all", refuse_to_train)
        assert len(compute(others, store=store, resources=here)) == 3


class TestStored:
    def test_computes_nothing_twice_unless_forced(self, store, here, small, trained, monkeypatch):
        units = [small(), accuracy_of(small())]
        first = compute(units, store=store, resources=here)
        with monkeypatch.context() as patch:
            patch.setattr("suite.runs.executors._submit_all", refuse_to_train)
            again = compute(units, store=Store(store.folder), resources=here)
        pd.testing.assert_frame_equal(again, first)
        again = compute(units, store=store, resources=here, force=True)
        assert len(trained) == 2
        first, again = (frame.drop(columns="seconds") for frame in (first, again))
        pd.testing.assert_frame_equal(again, first, check_exact=True)

    def test_computes_missing_units(self, store, here, small, trained):
        two, three = small(seed=1), small(seed=2)
        for units in ([small()], [accuracy_of(small()), two], [accuracy_of(three)], [three]):
            compute(units, store=store, resources=here)
        assert [unit.seed for unit in trained] == [0, 1, 2]

    def test_load_subject_gives_the_network(self, store, here, small):
        with pytest.raises(
            RunFailed, match=r"training \(data=mnist5k.*not in the store .*compute it"
        ):
            load_subject(small(), store)
        frame = compute([small(), accuracy_of(small())], store=store, resources=here)
        subject = load_subject(small(), store)
        assert not subject.network.training
        assert float(measure.accuracy(subject, n_images=50).per_image.mean()) == frame.value[1]

    def test_default_store_from_environment(self, here, small, tmp_path, monkeypatch):
        monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "mine"))
        compute([small()], resources=here)
        assert len(list((tmp_path / "mine").glob("??/*.json"))) == 1

    def test_store_that_is_not_shared(self, store, here, small, monkeypatch):
        monkeypatch.setattr("suite.runs.execute._finish", lambda *arguments: None)
        with pytest.raises(RunFailed, match=r"not in the store: 1, .* see the same store folder"):
            compute([small()], store=store, resources=here)

    @pytest.mark.usefixtures("no_training")
    def test_retry_leaves_stored_units(self, store, small):
        job = Job([small()], str(store.folder), "cpu")
        key_of = key(small(), {"mnist5k": load_data("mnist5k").fingerprint})
        store.write(key_of, Record(small().identity, "done", {"losses": [1.0]}, {}))
        assert run_job(job).errors == []
        [(_, message, _)] = run_job(replace(job, force=True)).errors
        assert message == "AssertionError: trained"


class TestRefused:
    @pytest.mark.usefixtures("no_training")
    def test_unknown_names(self, store, here, small):
        for unit, expected in refused_units(small):
            with pytest.raises(UsageError, match="^" + re.escape(expected)):
                compute([small(), accuracy_of(small()), unit], store=store, resources=here)
        assert list(store.folder.iterdir()) == []

    @pytest.mark.usefixtures("no_training")
    def test_missing_data(self, store, here, small, tmp_path, monkeypatch):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
        with pytest.raises(DataMissing) as caught:
            compute([small(), small(data="kmnist")], store=store, resources=here)
        assert str(caught.value) == (
            f"data set 'kmnist' is not at {tmp_path}/KMNIST (Dataset not found. You can use "
            'download=True to download it). To get it: python -c "from torchvision.datasets import '
            f"KMNIST; KMNIST('{tmp_path}', download=True)\""
        )
        assert list(store.folder.iterdir()) == []

    def test_labels_beyond_those_of_network(self):
        data = load_data("mnist5k")
        more = replace(data, classes=(*data.classes, "ten"))
        with pytest.raises(UsageError, match="at most the 10 classes of the network, got 11"):
            select_test_split(data, more, "more", None)
