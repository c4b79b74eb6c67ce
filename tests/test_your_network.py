import pickle

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn
from torchvision import models

from suite import notebooks
from suite.book import compared
from suite.data import load_data
from suite.errors import UsageError
from suite.evidence import html
from suite.networks.yours import load_weights, own_network
from suite.papers import your_measures as measures
from suite.papers import your_network as paper
from suite.paths import resolve_paths
from suite.runs import compute
from suite.runs.execute import keys_of, load_model
from suite.runs.plan import plan
from suite.store.kept import Archive, Kept, pack_arrays
from suite.units import Pretrained

SIDE = 28
ADVICE = paper.NAMES["advice"]
NET = f"""
import torch
from torch import nn
from tests.test_autodiff import Square

class Odd(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result
        self.weight = nn.Parameter(torch.ones(1))
    def forward(self, images):
        return self.result(images)

def build():
    first = nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
def linear():
    layer = nn.Linear(3 * {SIDE}**2, 2)
    nn.init.zeros_(layer.weight).data[0, 0] = 2.0
    return nn.Sequential(nn.Flatten(), layer)
def fails():
    raise KeyError("no such thing")
no_network = lambda: 3
a_dict = lambda: Odd(lambda x: {{"logits": x.flatten(1)}})
one_class = lambda: Odd(lambda x: x.mean((1, 2, 3))[:, None])
nan = lambda: Odd(lambda x: x.flatten(1)[:, :3] * float("nan"))
nan_where_dark = lambda: Odd(lambda x: x.flatten(1)[:, :3] / (x.mean((1, 2, 3)) > 0.4)[:, None] * 0)
of_all_images = lambda: Odd(lambda x: x.flatten(1)[0, :3])
wants_64_pixels = lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5))
once = lambda: nn.Sequential(Odd(Square.apply), nn.Flatten(), nn.Linear(3 * {SIDE}**2, 3))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


@pytest.fixture
def photos(tmp_path):
    """Six images in two class folders, 40 x 30 pixels, whose brightness is that of their class."""
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for n in range(3):
            noise = np.random.default_rng(n).integers(0, 40, (30, 40, 3))
            picture = Image.fromarray((level + noise).astype(np.uint8))
            picture.save(tmp_path / "photos" / name / f"{n}.png")
    return tmp_path / "photos"


@pytest.fixture
def parameters(file, photos):
    values = notebooks.resolve("your_network", "smoke", {})
    changes = {"network": f"{file}:build", "images": str(photos), "size": SIDE, "n_images": 4}
    return values | changes | {"n_few": 2, "n_shown": 2, "epsilon": 0.05}


def model_of(file, name="build", **options):
    return own_network(f"{file}:{name}", size=SIDE, **options)


def subject_of(parameters, function):
    network = parameters["network"].replace(":build", f":{function}")
    return paper.subject_of(parameters | {"network": network})


def evaluated(parameters, function="build"):
    return load_model(subject_of(parameters, function).predicted, {}, torch.device("cpu"))


REFUSED = {  # of a network
    "timm:resnet81": "did you mean .*resnet18",
    "torchvision:resnet15": "did you mean .*resnet152",
    "timm:mobilenetv3_small_050": r"not on this machine.*random_weights true",
    "torchvision:resnet18": r"not on this machine.*random_weights true",
    "none.py:build": "there is no such file of Python",
    "net.py:no_network": r"no_network\(\): expected a PyTorch Module, got int",
    "net.py:a_dict": "output of model: expected a PyTorch Tensor, got dict",
    "net.py:one_class": r"with at least 2 classes, got \(1, 1\)",
    "net.py:nan": "logits: expected finite values",
    "net.py:of_all_images": r"classes\) with at least 2 classes, got \(3,\)",
    "net.py:wants_64_pixels": "expected a network of images .*see '-p size'",
    "net.py:fails": "KeyError: 'no such thing'",
    "net.py:biuld": "unknown network .* did you mean build",
}
UNFIT = r'Missing .* "0.bias"\. Unexpected .* "other"\. size mismatch for 4.weight'


class TestNetworks:
    @pytest.mark.parametrize("name", [*REFUSED])
    def test_that_are_refused(self, name, file, monkeypatch):
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(file.parent))
        monkeypatch.chdir(file.parent)
        with pytest.raises(UsageError, match=REFUSED[name]) as error:
            own_network(name, size=SIDE)
        assert len(str(error.value)) < 250
        assert "\n" not in str(error.value)

    def test_downloaded_weights_are_taken(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        network = models.squeezenet1_1(weights=None)
        url = models.get_model_weights("squeezenet1_1").DEFAULT.url
        (tmp_path / "checkpoints").mkdir()
        torch.save(network.state_dict(), tmp_path / "checkpoints" / url.rpartition("/")[2])
        loaded = own_network("torchvision:squeezenet1_1")
        assert torch.equal(loaded.network[1].features[0].weight, network.features[0].weight)
        assert (loaded.options["size"], loaded.options["mean"]) == (224, [0.485, 0.456, 0.406])

    def test_configuration_of_timm(self):
        with pytest.raises(UsageError, match="mean, std: expected three numbers"):
            own_network("timm:test_vit", random_weights=True, mean=[0.5])
        vit = own_network("timm:test_vit", random_weights=True)
        assert (vit.options["size"], vit.options["mean"], vit.classes) == (160, [0.5] * 3, 1000)
        options = {"size": 64, "mean": [0, 0, 0], "std": [0.5] * 3}
        network = own_network("timm:test_resnet", random_weights=True, **options).network
        images = torch.rand(2, 3, 64, 64)
        assert torch.allclose(network(images), network[1](images / 0.5), atol=1e-5)

    def test_weights_of_a_file(self, file, tmp_path):
        layers = model_of(file).network[1].state_dict()
        state = {name: torch.randn_like(value) for name, value in layers.items()}
        wrapped = {"state_dict": {f"module.{name}": value for name, value in state.items()}}
        torch.save(wrapped, tmp_path / "w.pt")
        safetensors.torch.save_file(state, tmp_path / "w.safetensors")
        for path in (tmp_path / "w.pt", tmp_path / "w.safetensors"):
            loaded = model_of(file, weights=str(path)).network[1].state_dict()
            assert all(torch.equal(loaded[name], value) for name, value in state.items())
        del state["0.bias"]
        unfit = state | {"other": torch.ones(1), "4.weight": torch.ones(2, 4)}
        torch.save(unfit, tmp_path / "w.pt")
        with pytest.raises(UsageError, match=UNFIT):
            model_of(file, weights=str(tmp_path / "w.pt"))

    def test_pickled_code_is_not_run(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (open, (str(tmp_path / "sprung"), "w"))

        files = {"w.pt": pickle.dumps({"weight": Trap()}), "x.pt": b"text", "y.safetensors": b"z"}
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(UsageError, match="expected weights alone"):
                load_weights(nn.Linear(1, 1), tmp_path / name)
        assert not (tmp_path / "sprung").exists()
        with pytest.raises(UsageError, match="got no such file"):
            load_weights(nn.Linear(1, 1), tmp_path / "none.safetensors")

    def test_keys_follow_content(self, file, parameters, tmp_path):
        def key():
            return keys_of(paper.plan(parameters).units()[:1])[0]

        keys = [key(), key()]
        changed = {n: v + 1 for n, v in model_of(file).network[1].state_dict().items()}
        unit = paper.subject_of(parameters).predicted
        file.write_text(NET.replace("stride=2", "stride=3"))
        with pytest.raises(UsageError, match="changed while it was measured"):
            load_model(unit, {}, torch.device("cpu"))
        keys.append(key())
        parameters["weights"] = str(tmp_path / "w.pt")
        for n in range(2):
            torch.save({name: v + n for name, v in changed.items()}, tmp_path / "w.pt")
            keys.append(key())
        assert (keys[0], len({*keys})) == (keys[1], 4)


REFUSED_IMAGES = [
    ({"images": "/nowhere/at/all"}, "images: expected a folder"),
    ({"images": "phtos"}, "unknown data set"),
    ({"images": "photos"}, "expected imagefolder:photos for a folder"),
    ({"images": "PHOTOS/empty"}, "no photographs"),
    ({"labels": "folders"}, "labels: expected folders named as classes"),
    ({"network": "efficientnet_lite0"}, "size: expected none for the packaged"),
]
ODD_IMAGES = [("RGB", "żółw.jpg"), ("CMYK", "a.jpg"), ("RGBA", "a.png"), ("RGB", "animated.webp")]


class TestImages:
    def test_labels_of_folders_or_table(self, photos, tmp_path):
        data = load_data(f"shown:20|3||imagefolder:{photos}")
        assert data.test.images.shape == (3, 3, 20, 20)
        assert (data.test.labels.tolist(), data.classes) == ([0, 1, 0], ("dark", "light"))
        assert data.test.images[1].float().mean() > 150 > data.test.images[0].float().mean()
        table = tmp_path / "labels.csv"
        table.write_text("image,label\n0.png,4\n1.png,2\n2.png,4\n")
        data = load_data(f"shown:20|9|{table}|imagefolder:{photos / 'dark'}")
        assert sorted(data.classes[n] for n in data.test.labels) == ["2", "4", "4"]
        table.write_text("image,label\n0.png,4\n")
        with pytest.raises(UsageError, match=r"a label for each image, got none for 1.png"):
            load_data(f"shown:21|9|{table}|imagefolder:{photos / 'dark'}")

    @pytest.mark.parametrize(("changes", "message"), REFUSED_IMAGES)
    def test_that_are_refused(self, parameters, photos, monkeypatch, changes, message):
        monkeypatch.chdir(photos.parent)
        (photos / "empty").mkdir()
        changes = {name: value.replace("PHOTOS", str(photos)) for name, value in changes.items()}
        with pytest.raises(UsageError, match=message):
            paper.subject_of(parameters | changes)

    @pytest.mark.parametrize("size", [(20, 30), (1200, 900)])
    @pytest.mark.parametrize(("mode", "name"), ODD_IMAGES)
    def test_that_are_odd(self, parameters, tmp_path, mode, name, size):
        path = tmp_path / "odd" / name
        path.parent.mkdir()
        exif = Image.Exif()
        exif[0x0112] = 6  # it lies on its side
        frames = {"save_all": True, "append_images": [Image.new("RGB", size, "red")]}
        Image.new(mode, size).save(path, **frames if "animated" in name else {"exif": exif})
        subject = paper.subject_of(parameters | {"images": str(path.parent)})
        assert load_data(subject.predicted.data).test.images.shape == (1, 3, SIDE, SIDE)

    def test_absolute_paths(self, file, photos, monkeypatch):
        monkeypatch.chdir(file.parent)
        values = {"network": "net.py:build", "images": "photos/", "labels": "auto", "x": "a/b"}
        paths = {"network": f"{file}:build", "images": str(photos)}
        assert resolve_paths(values) == values | paths


class TestLabels:
    def test_classes_of_the_network(self):
        for choice, names, classes, labels in (
            ("auto", ("a", "b"), 2, []),
            ("auto", ("3", "0"), 5, [3, 0]),
            ("auto", ("0", "1", "10", *"23456789"), 11, [0, 1, 10, *range(2, 10)]),
            ("folders", ("n01440764", "goldfish"), 1000, [0, 1]),
            ("auto", ("a", "b"), 5, None),
            ("none", ("a", "b"), 2, None),
        ):
            assert paper._labels(choice, names, classes)[0] == labels

    def test_given_or_predicted(self, parameters):
        model = evaluated(parameters)
        images, labels = model.test_images(None)
        assert len(images) == 4
        assert torch.equal(labels, model.network(images).argmax(1))
        unit = subject_of(parameters, "linear").labelled
        for labels, expected in ((None, [0, 1, 0, 1]), ([1, 0], [1, 0, 1, 0])):
            relabelled = Pretrained(**{**vars(unit), "labels": labels})
            model = load_model(relabelled, {}, torch.device("cpu"))
            assert model.test_images(None)[1].tolist() == expected


class TestMeasures:
    def test_class_maps_of_last_layer(self, parameters):
        subject = evaluated(parameters)
        images, labels = subject.test_images(2)
        layers = subject.network[1]
        features = layers[:2](subject.network[0](images))
        weights, bias = layers[4].weight[labels], layers[4].bias[labels]
        expected = (features * weights[:, :, None, None]).sum(1) + bias[:, None, None]
        maps = measures.class_maps(subject.network, images, labels)
        assert torch.allclose(maps[:, 0], expected.clamp_min(0), atol=1e-6)
        between = nn.Sequential(*layers[:4], nn.LayerNorm(4), layers[4]).eval()
        assert measures.class_maps(between, images, labels) is None
        assert measures.class_maps(layers[:3], images, labels) is None

    def test_curvature_and_overconfidence(self, parameters):
        model = evaluated(parameters, "linear")
        probs = model.network(model.test_images(4)[0]).double().softmax(1)
        p, confidence = probs[:, 0], probs.amax(1)
        result = measures.loss_curvature(model, n_images=4)
        assert torch.allclose(result.per_image, 4 * p * (1 - p), rtol=1e-4)
        assert torch.allclose(result.tensors["confidence"], confidence)
        right = torch.tensor([0, 0, 1, 1])
        model.data.test.labels[:] = torch.where(right > 0, probs.argmax(1), probs.argmin(1))
        result = measures.overconfidence(model, n_images=4).per_image
        assert torch.allclose(result, confidence - right)

    def test_nan_or_one_derivative(self, parameters):
        with pytest.raises(UsageError, match="finite logits of each image, got infinity or NaN"):
            evaluated(parameters, "nan_where_dark")
        model = evaluated(parameters, "once")
        assert measures.loss_curvature(model, n_images=2).per_image.isnan().all()
        drawn = measures.drawn_maps(model, saliency="caso", n_images=2)
        assert (bool(drawn.per_image.isnan().all()), drawn.tensors) == (True, {})
        gradient = measures.drawn_maps(model, saliency="logit_gradient", n_images=2)
        assert gradient.per_image.isfinite().all()


class TestPlan:
    def test_from_units_to_card(self, parameters, store, here):
        units = paper.plan(parameters)
        computed = compute(units.units(), store=store, resources=here)
        rows, arrays = units.collect(paper, parameters, computed, store)
        assert set(rows["dial"]) == paper.DIALS.keys() - {"calibrated", "accuracy"}
        row = rows.set_index("dial").loc["steady"]
        assert (row["value"], row["n"]) == (pytest.approx(np.mean(arrays["steady"])), 4)
        assert arrays["maps|class map"].shape == (2, SIDE, SIDE)
        assert arrays["landscape|its paths"].shape == (SIDE, SIDE)
        subject = paper.subject_of(parameters)
        entries = paper.card(rows.assign(profile="mine"), "mine", subject.why)
        reasons = {entry["name"]: entry["reason"] for entry in entries}
        assert "no labels" in reasons["calibrated"]
        assert "sure" in reasons["curved_sure"]
        assert reasons["steady"] == "no other network was measured"
        pictures, words = paper.page(subject, entries, arrays)
        assert [len(row) for row in pictures["steady"]["rows"]] == [2, 2]
        assert "4 images of photos at 28 pixels (the middle" in words["tested"]
        assert "CASO, class map." in words["maps"]
        assert html.dials(entries).count("<svg") == sum(entry["n"] > 0 for entry in entries)

    def test_only_what_can_be_measured(self, parameters):
        def labels(name, **changes):
            return {item.labels[name] for item in paper.plan(parameters | changes) if item.labels}

        yours, other = parameters["network"], "efficientnet_lite1"
        assert labels("name", references=other, n_images=4) == {yours, other}
        assert labels("name", references=other, n_images=21) == {yours}  # there are fewer images
        assert "steady" in labels("dial", size=31)
        assert "faithful_size" not in labels("dial", size=31)  # no square divides 31 pixels

    def test_time_by_kept_units(self, parameters, store, here, tmp_path):
        seconds = {"entropy": 20.0, "map_centre_to_rim": 30.0}
        units = [u for u in paper.plan(parameters).units() if u.metric in seconds]
        compute(units, store=store, resources=here)
        records = store.read_all(keys_of(units))
        for record in records.values():
            record.provenance["seconds"] = seconds[record.unit["metric"]]
        archive = Archive(records, {}, pd.DataFrame({"a": [1]}), {}, {"fingerprints": {}})
        archive.write(tmp_path / "kept" / "desktop" / "your_network.zip")
        fewer = paper.plan(parameters | {"n_images": 2}).units()
        for metrics, is_known in ((seconds, True), ({*seconds, "paths_landscape"}, False)):
            units = [unit for unit in fewer if unit.metric in metrics]
            text = str(plan(units, store, Kept(tmp_path / "kept")))
            assert ("take about 25 s on one core, by kept" in text) == is_known  # half the images


def rows_of(values, alike="n images 4"):
    """Return rows of a dial: yours first, with its interval, then other networks."""
    names = ["mine", *map(str, range(len(values) - 1))]
    rows = [v if isinstance(v, tuple) else (v, v - 0.05, v + 0.05) for v in values]
    table = pd.DataFrame(rows, columns=paper.ENDS).assign(name=names, dial="steady", n=4)
    table["who"] = [paper.YOURS, *[paper.REFERENCE] * (len(values) - 1)]
    settings = ['{"n_images": 4}', *[f'{{"n_images": {alike[-1]}}}'] * (len(values) - 1)]
    return table.assign(alike=settings, undefined=0, profile="run")


class TestCard:
    def test_word_where_all_differ(self):
        for interval, word, kind in (
            ((0.5, 0.4, 0.6), "steadier maps", "good"),
            ((1.5, 1.3, 1.7), "less steady maps", "part"),
            ((1.0, 0.9, 1.1), paper.LIKE, "none"),
            ((0.7, 0.61, 0.79), paper.LIKE, "none"),
            ((0.7, 0.67, 0.73), "steadier maps", "good"),
        ):
            entry = paper.card(rows_of([interval, 0.8, 1.2]), "run", "")[0]
            assert (entry["word"], entry["kind"]) == (word, kind), interval
            assert [dot[3] for dot in entry["dots"]] == [True, True]

    def test_no_word_without_comparison(self):
        for interval, alike, reason, grey in (
            ((0.5, 0.4, 0.6), "n images 9", "n images 9, yours 4", 2),
            ((0.5, np.nan, np.nan), "n images 4", "one image has no interval", 0),
            ((np.nan, np.nan, np.nan), "n images 4", "no finite value", 0),
        ):
            entry = paper.card(rows_of([interval, 0.8, 1.2], alike), "run", "")[0]
            assert (entry["word"], entry["reason"]) == ("", reason)
            page = html.dials([entry])
            assert (reason in page, page.count('class="grey" cx')) == (True, grey)

    def test_summary_and_advice(self, parameters):
        for values, words, method in (
            (((1.5, 1.3, 1.7), 0.8, 1.2), "it has less steady maps.", "SoftPlus"),
            (((1.0, 0.9, 1.1), 0.8, 1.2), "On no dial does it differ", "PGD training"),
            (((1.0, 0.9, 1.1),), "No dial compares", "PGD training"),
        ):
            entries = paper.card(rows_of(values), "run", "")
            subject = paper.subject_of(parameters)
            assert words in paper.write("answer", subject=subject, entries=entries)
            assert method in paper.write("advice", entries=entries)

    @pytest.mark.parametrize("name", list(ADVICE))
    def test_advice_runs(self, name, file):
        network = model_of(file).network.requires_grad_(True)
        batch = torch.rand(2, 3, SIDE, SIDE), torch.tensor([0, 1])
        names = {"network": network, "loader": [batch], "torch": torch}
        names["cross_entropy"] = nn.functional.cross_entropy
        before = network[1][4].weight.clone()
        exec(ADVICE[name]["code"], names)
        assert not torch.equal(names.get("smooth", network)[1][4].weight, before)
        assert len(ADVICE[name]["code"].splitlines()) < 15

    def test_compare(self, tmp_path):
        for n, run in enumerate(("a", "b")):
            (tmp_path / run).mkdir()
            rows = rows_of([(n + 1.5, 1.0, 3.0), 0.8]).assign(data="foolbox-imagenet")
            rows.to_csv(tmp_path / run / "your_network.csv", index=False)
            maps = {"maps|CAFO": np.full((1 + n, 9, 9), 9 * n, np.uint8)}
            file = tmp_path / run / "your_network.safetensors"
            file.write_bytes(pack_arrays(maps)["arrays.safetensors"])
        assert "1.5" in compared.compare(["a", "b"], tmp_path)
        saved = pd.read_csv(tmp_path / "your_network.compared.csv", index_col=0)
        assert saved.loc["Steady"].astype(str).tolist() == ["1.50", "2.50"]
        with Image.open(tmp_path / "your_network.compared.png") as picture:
            assert picture.width > 500
        both = {"a": maps, "b": {"maps|CAFO": maps["maps|CAFO"] - 9, "maps|caso": np.eye(2)[None]}}
        figure = compared._draw_maps(both, np.zeros((2, 3, 9, 9), np.uint8), ["caso", "CAFO"])
        shown = [axis.images[0].get_array().max() for axis in figure.axes]
        assert (shown, figure.axes[4].get_ylabel()) == ([0, 0, 0, 0, 9, 0, 9, 0], "CAFO")
        with pytest.raises(UsageError, match="unknown run 'c'"):
            compared.compare(["c"], tmp_path)
        (tmp_path / "a" / "your_network.safetensors").unlink()
        with pytest.raises(UsageError, match=r"a: expected .*safetensors; run it again"):
            compared.compare(["a", "b"], tmp_path)


def test_page_of_your_network(file, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
    changes = {"network": f"{file}:build", "images": str(photos), "size": SIDE}
    values = notebooks.resolve("your_network", "smoke", changes)
    assert "table class" in notebooks.run("your_network", values, bar=False).read_text()
    results = tmp_path / "executed" / "results" / values["profile"] / "your_network.csv"
    assert set(pd.read_csv(results)["who"]) == {paper.YOURS}
