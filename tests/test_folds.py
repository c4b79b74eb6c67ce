import dataclasses

import pytest
import torch

from suite import data
from suite.data import ImageData, Source, Split, load_data, to_float
from suite.errors import UsageError
from suite.runs import compute
from suite.runs.execute import load_subject
from suite.training.folds import data_of, hold_out
from suite.units import Measurement, Pretrained, Training

# Classes of unequal size, of which five folds do not share all equally.
COUNTS = (50, 25, 12, 7)


def number_images():
    """Return images that hold their number, with shuffled labels."""
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    numbers = torch.arange(len(labels), dtype=torch.uint8)
    images = numbers[:, None, None, None].expand(-1, 1, 12, 12).contiguous()
    masks = (numbers % 2 == 0)[:, None, None].expand(-1, 12, 12)
    return Split(images, labels, masks, groups=numbers.long() % 3)


def numbers_of(split):
    return split.images[:, 0, 0, 0].tolist()


SPLIT = number_images()
NUMBERS = list(range(len(SPLIT.labels)))
DATA = ImageData(SPLIT, Split(SPLIT.images[:1], SPLIT.labels[:1]), tuple("abcd"), "fingerprint")


class TestFoldOf:
    def test_disjoint_and_covering(self):
        folds = [hold_out("numbered", DATA, 5, fold) for fold in range(5)]
        assert sorted(n for fold in folds for n in numbers_of(fold.test)) == NUMBERS
        for fold in folds:
            trained, tested = numbers_of(fold.train), numbers_of(fold.test)
            assert sorted(trained + tested) == NUMBERS
            assert trained == sorted(trained), "the order of the training split is kept"
            assert tested == sorted(tested)

    def test_keeps_masks_and_groups(self):
        fold = hold_out("numbered", DATA, 5, 2)
        for split in (fold.train, fold.test):
            numbers = torch.tensor(numbers_of(split))
            assert torch.equal(split.labels, SPLIT.labels[numbers])
            assert torch.equal(split.groups, numbers % 3)
            assert torch.equal(split.masks[:, 0, 0], numbers % 2 == 0)

    def test_refuses_fewer_images_than_folds(self):
        with pytest.raises(UsageError, match=r"folds: expected at most 7, .* of class 'd', got 8"):
            hold_out("numbered", DATA, 8, 0)
        lacking = dataclasses.replace(DATA, classes=tuple("abcde"))
        with pytest.raises(UsageError, match=r"folds: expected at most 0, .* of class 'e', got 2"):
            hold_out("numbered", lacking, 2, 0)


FIELDS = {"data": "numbered", "network": "mlp", "network_options": {"hidden": [4]}, "seed": 0}
UNIT = Training(**FIELDS, epochs=1, learning_rate=0.01, batch_size=16, folds=5, fold=1)
PLAIN = dataclasses.replace(UNIT, folds=None, fold=0)


@pytest.fixture(autouse=True)
def _register(monkeypatch):
    data.loading._load.cache_clear()
    entry = Source(lambda root: (SPLIT, DATA.test, "abcd"), "")
    monkeypatch.setitem(data.SOURCES, "numbered", entry)


class TestUnits:
    def test_without_folds(self):
        assert data_of(PLAIN) is load_data("numbered")
        assert data_of(Pretrained(data="numbered", network="any")) is load_data("numbered")
        assert numbers_of(data_of(UNIT).test) == numbers_of(hold_out("numbered", DATA, 5, 1).test)

    @pytest.mark.parametrize("reloaded", [False, True])
    def test_measured_on_held_out_fold(self, store, here, reloaded):
        expected = hold_out("numbered", DATA, 5, 1)
        settings = {"saliency": "logit_gradient", "n_images": 8}
        measures = [
            Measurement(training=UNIT, metric="accuracy"),
            Measurement(training=UNIT, metric="saliency_maps", settings=settings),
            Measurement(training=UNIT, metric="worst_group_accuracy"),
        ]
        if reloaded:
            compute([UNIT], store=store, resources=here)
        table = compute(measures, store=store, resources=here)
        assert table["n"][0] == len(expected.test.labels) == 19
        subject = load_subject(UNIT, store)
        images, labels = subject.test_images(None)
        assert torch.equal(images, to_float(expected.test.images, (0, 1)))
        assert torch.equal(labels, expected.test.labels)
        assert torch.equal(store.read_tensors(table["key"][1])["labels"], expected.test.labels[:8])
        correct = (subject.folded(images).argmax(1) == labels).double()
        assert table["value"][0] == pytest.approx(correct.mean().item())
        worst = min(correct[subject.data.test.groups == group].mean().item() for group in range(3))
        assert table["value"][2] == pytest.approx(worst)

    def test_trained_on_the_other_folds(self, store, here, monkeypatch):
        numbers = []

        def record_numbers(images, pixel_range):
            numbers.extend(images[:, 0, 0, 0].tolist())
            return images.float() / 255

        monkeypatch.setattr("suite.training.loop.to_float", record_numbers)
        compute([UNIT, dataclasses.replace(UNIT, n_train=30)], store=store, resources=here)
        others = numbers_of(hold_out("numbered", DATA, 5, 1).train)
        assert sorted(numbers[: len(others)]) == others
        assert sorted(numbers[len(others) :]) == others[:30]

    @pytest.mark.parametrize(
        ("changes", "n_images", "message"),
        [
            ({"folds": 8}, None, "data set 'numbered': folds: expected at most 7"),
            ({"n_train": 76}, None, "n_train: expected at most 75 for the training split"),
            ({}, 20, "n_images: expected at most 19 for the test split"),
        ],
    )
    def test_refused_before_training(self, store, here, changes, n_images, message):
        unit = dataclasses.replace(UNIT, **changes)  # type: ignore[arg-type]
        settings = {} if n_images is None else {"n_images": n_images}
        measured = Measurement(training=unit, metric="accuracy", settings=settings)
        with pytest.raises(UsageError, match=message):
            compute([measured], store=store, resources=here)
        assert list(store.folder.rglob("*.json")) == []

    def test_tables_say_the_fold(self, store, here):
        units = [PLAIN, *(dataclasses.replace(UNIT, fold=fold) for fold in (0, 3))]
        table = compute(units, store=store, resources=here)
        assert (table["fold"].tolist()[1:], table["folds"].tolist()[1:]) == ([0, 3], [5, 5])
        assert table["key"].nunique() == 3
        assert not {"fold", "folds"} & set(compute(units[:1], store=store, resources=here).columns)
