"""PILCRO: importance landscapes of networks trained with and without penalties on them."""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from reglib.landscape import data_smoothness, expected_importance_landscape, total_variation
from suite import metrics
from suite.data import image_shape, load_data
from suite.errors import UsageError
from suite.metrics.saliency import integrated_gradients
from suite.papers.initialisation import squared_gradients_and_paths
from suite.store import Store
from suite.training.evaluated import EvaluatedModel, Result
from suite.units import Measurement, Training, Unit

# Images of at most so many bytes are corrupted once for all networks of a process, which takes
# longer than to show them to a network.
REMEMBERED_BYTES = 2**22
N_CORRUPTED_SETS = 15 * 5  # all corruptions and levels


def accuracy_by_location(
    subject: EvaluatedModel,
    *,
    margin: int,
    where: str = "all",
    stride: int = 1,
    n_images: int | None = None,
    data: str | None = None,
) -> Result:
    """Share of the shifts over an empty margin after which an image is classified right.

    `where` is a name in `suite.metrics.places`; the accuracy of each shift is kept. See
    `suite.metrics.correct_by_location`.
    """
    images, labels = subject.test_images(n_images, data)
    correct = metrics.correct_by_location(
        subject.logits, images, labels, margin=margin, stride=stride
    )
    chosen = metrics.places(where, correct.shape[1]).to(correct.device)
    return Result(correct[:, chosen].mean(1), {"accuracy": correct.mean(0)})


def importance_landscape(
    subject: EvaluatedModel, *, n_images: int | None = None, data: str | None = None
) -> Result:
    """Total variation of the importance landscape over test images: one value. The map is kept.

    See `reglib.landscape.expected_importance_landscape` and `reglib.landscape.total_variation`.
    """
    images, _ = subject.test_images(n_images, data)
    landscape = expected_importance_landscape(subject.folded, images.split(100))
    return Result(total_variation(landscape)[None], {"landscape": landscape})


def ablation_auc(
    subject: EvaluatedModel,
    *,
    n_images: int,
    n_baselines: int,
    n_steps: int = 50,
    stride: int = 1,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """Area under the curve of `suite.metrics.ablation_curve`, by Integrated Gradients.

    Of randomly drawn test images that are classified right, with other test images as baselines.
    The number of replaced pixels goes from none to all by `stride`; the mean curve is kept.
    """
    images, labels = subject.test_images(None, data)
    correct = subject.predict(images) == labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    order = order.to(images.device)
    chosen = order[correct[order]][:n_images]
    others = order[~torch.isin(order, chosen)][:n_baselines]
    if len(chosen) < n_images or len(others) < n_baselines:
        raise UsageError(
            f"n_images, n_baselines: expected at most the {int(correct.sum())} test images that "
            f"are classified right, and the rest of {len(images)}, got {n_images} and {n_baselines}"
        )
    images_and_labels = images[chosen], labels[chosen]
    maps = integrated_gradients(
        subject.folded, *images_and_labels, n_steps=n_steps, baselines=images[others]
    )
    n_pixels = images[0, 0].numel()
    counts = [*range(0, n_pixels, stride), n_pixels]
    curves = metrics.ablation_curve(subject.folded, *images_and_labels, maps, counts=counts)
    kept = {"counts": torch.tensor(counts), "curve": curves.mean(0)}
    return Result(metrics.area_under_curve(curves, counts), kept)


@functools.lru_cache(N_CORRUPTED_SETS)
def _corrupted(
    pixels: bytes, shape: tuple[int, ...], corruption: str, level: int, seed: int
) -> Tensor:
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(shape)
    return metrics.corrupted(images, corruption=corruption, level=level, seed=seed)


def corruption_robustness(
    subject: EvaluatedModel,
    *,
    corruption: str,
    level: int,
    n_images: int | None = None,
    seed: int = 0,
    data: str | None = None,
) -> Result:
    """See `suite.metrics.corrupted` and `suite.metrics.probability_ratio`, for the label."""
    pixels, labels = subject.test_uint8(n_images, data)
    corrupt = _corrupted if pixels.nbytes <= REMEMBERED_BYTES else _corrupted.__wrapped__
    content = pixels.cpu().numpy().tobytes(), tuple(pixels.shape)
    changed = corrupt(*content, corruption, level, seed).to(pixels.device)
    return Result(metrics.probability_ratio(subject.logits, pixels, changed, labels))


def corrupted_accuracy(
    subject: EvaluatedModel,
    *,
    level: int,
    n_images: int | None = None,
    corruption: str | None = None,
    seed: int = 0,
) -> Result:
    """Share of the corruptions under which the prediction is the label, for each test image.

    They are all of `suite.metrics.CORRUPTIONS`, or one of them: then a value is 1 or 0.
    """
    pixels, labels = subject.test_uint8(n_images)
    correct = []
    for name in [corruption] if corruption else CATEGORIES:
        changed = metrics.corrupted(pixels, corruption=name, level=level, seed=seed)
        correct.append((subject.predict(changed) == labels).double())
    return Result(torch.stack(correct).mean(0))


def top_k_accuracy(subject: EvaluatedModel, *, k: int = 5, n_images: int | None = None) -> Result:
    """1 where the label of a test image is among the `k` classes of highest logits, else 0."""
    images, labels = subject.test_images(n_images)
    if k > len(subject.data.classes):
        raise UsageError(f"k: expected 1 to {len(subject.data.classes)} classes, got {k!r}")
    first = subject.logits(images).topk(k).indices
    return Result((first == labels[:, None]).any(1).double())


def cross_entropy(subject: EvaluatedModel, *, n_images: int | None = None) -> Result:
    """Cross-entropy of each test image, in nats, without penalties."""
    images, labels = subject.test_images(n_images)
    return Result(F.cross_entropy(subject.logits(images), labels, reduction="none"))


# The category of each corruption.
CATEGORIES = {name: category for category, names in metrics.CORRUPTIONS.items() for name in names}
# Keys of a panel that are not fields of a training.
OF_PANEL = ("models", "few", "early")
# What tells the rows of one network from those of others.
NETWORK = ["data", "network", "model", "penalty", "alpha", "seed"]
SHORT_NAMES = {"importance_landscape": "tv", "ablation_auc": "ablation", "top_k_accuracy": "top_5"}


def label(panel: Mapping[str, Any]) -> str:
    """Return the name of data and cropping: in tables, RC+ stands as data of its own."""
    return panel["data"] + ("-cropped" if panel.get("crop_padding") else "")


def training(
    p: SimpleNamespace, panel: Mapping[str, Any], model: str, seed: int, **changes: Any
) -> Training:
    """Return a training of a panel; a model is "none", or a penalty and its alpha."""
    penalty, _, alpha = model.partition(" ")
    settings = {"strength": float(alpha or 0), "every": p.interval}
    penalties = {} if penalty == "none" else {f"landscape_{penalty}": settings}
    fields = {"learning_rate": p.learning_rate, "batch_size": p.batch_size, "penalties": penalties}
    fields |= {name: value for name, value in panel.items() if name not in OF_PANEL}
    return Training(**fields | changes, seed=seed)


def measurements(p: SimpleNamespace, network: Training, model: str) -> list[Measurement]:
    """Return what is measured of a fully trained network."""
    wanted: list[tuple[str, dict[str, Any]]] = [("accuracy", {}), ("top_k_accuracy", {"k": 5})]
    wanted += [("cross_entropy", {}), ("importance_landscape", {"n_images": p.n_landscape})]
    if network.data.startswith("digits"):
        shifts = {"data": "digits-centred", "margin": 6, "stride": 2, "n_images": p.n_location}
        wanted.append(("accuracy_by_location", shifts))
    if model in p.checked_models and network.data != "digits-centred":
        settings = {"n_images": p.n_ablated, "n_baselines": p.n_baselines, "n_steps": p.n_steps}
        wanted.append(("ablation_auc", settings | {"stride": p.stride}))
        wanted += [
            ("corruption_robustness", {"corruption": c, "level": at, "n_images": p.n_corrupted})
            for c in p.corruptions or CATEGORIES
            for at in p.levels
        ]
    return [Measurement(training=network, metric=m, settings=s) for m, s in wanted]


def _planned(parameters: Mapping[str, Any]) -> list[tuple[str, str, str, Unit]]:
    """Return each unit with its kind ("full", "early" or "printed"), model and label."""
    p = SimpleNamespace(**parameters)
    strengths = itertools.product(("target", "curvature"), p.alphas)
    models = ["none", *(f"{penalty} {alpha:.15g}" for penalty, alpha in strengths)]
    plan: list[tuple[str, str, str, Unit]] = []
    for panel in p.panels:
        seeds = dict.fromkeys((m for m in models if m in panel.get("models", models)), p.seeds)
        seeds |= {m: p.seeds[: p.few_seeds] for m in panel.get("few", []) if m in seeds}
        for model, seed in ((m, s) for m in seeds for s in seeds[m]):
            full = training(p, panel, model, seed)
            of_network: list[Unit] = [full, *measurements(p, full, model)]
            plan += [("full", model, label(panel), unit) for unit in of_network]
        if "models" not in panel:
            extra = [*_early(p, panel, seeds), *_printed(p, panel)]
            plan += [
                (kind, model, label(panel), Measurement(training=network, metric="accuracy"))
                for kind, model, network in extra
            ]
    return plan


def _early(
    p: SimpleNamespace, panel: Mapping[str, Any], seeds: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str, Training]]:
    """Go through the shorter trainings, for accuracy after a few epochs."""
    for model in (m for m in p.early_models if m in seeds):
        for seed, epochs in itertools.product(seeds[model], panel.get("early", p.early_epochs)):
            yield "early", model, training(p, panel, model, seed, epochs=epochs)


def _printed(p: SimpleNamespace, panel: Mapping[str, Any]) -> Iterator[tuple[str, str, Training]]:
    """Go through the trainings with equation 9 as printed: a sum, not a mean over positions."""
    n_positions = math.prod(image_shape(panel["data"])[1:])
    for alpha in p.printed_alphas if label(panel) == panel["data"] else []:
        settings = {"strength": float(alpha * n_positions), "every": p.interval}
        penalties = {"landscape_target": settings}
        model = f"target {alpha:.15g}"
        yield "printed", model, training(p, panel, model, p.seeds[0], penalties=penalties)


def units(parameters: Mapping[str, Any]) -> list[Unit]:
    """Return the units of the chapter."""
    return [unit for *_, unit in _planned(parameters)]


def collect(
    parameters: Mapping[str, Any], computed: pd.DataFrame, store: Store
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row a network and metric, with TV, and landscapes, targets and curves.

    Further rows are means over early epochs and over the corruptions of a category, accuracy at the
    edge and in the middle, what claims compare (`_compared`), and correlations of the theory.
    """
    p = SimpleNamespace(**parameters)
    kinds, models, labels, _ = zip(*_planned(parameters))
    computed = computed.assign(kind=kinds, model=models, data=labels)
    computed["penalty"] = [model.split()[0] for model in models]
    computed["alpha"] = [float(f"{model} 0".split()[1]) for model in models]
    full = computed[(computed["kind"] == "full") & (computed["metric"] != "corruption_robustness")]
    full = full.assign(metric=full["metric"].replace(SHORT_NAMES), epochs=0)
    tv = full[full["metric"] == "tv"].set_index(NETWORK)["value"].rename("tv")
    full = full.join(tv, on=NETWORK)
    arrays, by_location = _maps(full, store, p.seeds[0])
    for panel in p.panels:
        images = load_data(panel["data"]).train.images[: panel.get("n_train")]
        arrays[f"{label(panel)}|target"] = data_smoothness(images.split(500)).numpy()
    theory, of_theory = squared_gradients_and_paths(p.n_draws, p.theory_seeds)
    derived = [part for part in (_means(computed), by_location) if len(part)]
    derived = [part.assign(n=1, status="done", epochs=0) for part in derived]
    rows = pd.concat([full, *derived, theory], ignore_index=True)
    other = computed[computed["kind"] != "full"]
    other = other.assign(metric="accuracy_" + other["kind"])
    columns = [*NETWORK, "epochs", "metric", "category", "tv", "value", "std", "n", "status"]
    rows = pd.concat([rows, *_compared(rows), other], ignore_index=True)
    return rows.reindex(columns=columns), arrays | of_theory


def _means(computed: pd.DataFrame) -> pd.DataFrame:
    """Return mean accuracy after early epochs, and mean robustness to a category."""
    done = computed[computed["status"] == "done"]
    early = done[done["kind"] == "early"].assign(metric="early_accuracy")
    robust = done[done["metric"] == "corruption_robustness"].assign(metric="robustness")
    rows = pd.concat([early, robust]).reindex(columns=list({*computed, "corruption"}))
    by = [*NETWORK, "metric", rows["corruption"].map(CATEGORIES).rename("category")]
    return rows.groupby(by, dropna=False)["value"].mean().reset_index()


def _maps(full: pd.DataFrame, store: Store, first_seed: int) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return landscapes of the first seed, curves and maps of accuracy, and rows of the latter."""
    arrays: dict[str, Any] = {}
    rows = []
    for row in full[full["metric"].isin(["tv", "accuracy_by_location", "ablation"])].itertuples():
        tensors = store.read_tensors(str(row.key)) or {}
        if row.seed == first_seed or row.metric != "tv":
            start = f"{row.data}|{row.model}|{row.seed}"
            arrays |= {f"{start}|{name}": tensor.numpy() for name, tensor in tensors.items()}
        if row.metric == "accuracy_by_location" and tensors:
            accuracy = tensors["accuracy"]
            n = len(accuracy)
            edge = float(accuracy[metrics.places("edge", n)].mean())
            middle = float(accuracy[n // 2, n // 2])
            values = {"at_edge": edge, "in_the_middle": middle}
            values = {f"accuracy_{where}": value for where, value in values.items()}
            network = {name: getattr(row, name) for name in NETWORK}
            for metric, value in (values | {"lost_at_edge": middle - edge}).items():
                rows.append(network | {"metric": metric, "value": value})
    return arrays, pd.DataFrame(rows)


def _compared(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return rows of networks trained otherwise, beside those that claims compare them with.

    On digits, "translated" is no penalty on digits anywhere; beside RC-, "cropped" is RC+.
    """
    moved = rows[(rows["data"] == "digits-anywhere") & (rows["model"] == "none")]
    moved = moved[moved["metric"].isin(["tv", "accuracy_at_edge", "accuracy_in_the_middle"])]
    names = {"none": "cropped", "target 10": "target 10 cropped"}
    cropped = rows[rows["data"].str.endswith("-cropped") & rows["model"].isin(names)]
    cropped = cropped[cropped["metric"].isin(["tv", "accuracy", "accuracy_at_edge"])]
    return [
        moved.assign(data="digits-centred", model="translated", penalty="translated"),
        cropped.assign(
            data=cropped["data"].str.removesuffix("-cropped"),
            model=cropped["model"].map(names),
            penalty="cropped",
        ),
    ]
