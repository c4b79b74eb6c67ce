"""Top-GAP: eight variants of a network, their class maps, attacks on them, and its tables."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.methods import TOP_GAP, penalty, schedule
from suite.networks.pretrained import PRETRAINED
from suite.papers import design
from suite.papers.design import Item, Plan, Spec, grid, measurement, panels_of, replace, specify
from suite.papers.names import NAMES
from suite.papers.second_order import as_uint8
from suite.training.folds import data_of
from suite.units import Training, Values

METHODS = {method.name: method for method in TOP_GAP}
TITLES = {name: method.title for name, method in METHODS.items()}
VARIANTS = list(TITLES)[:8]
ALL_THREE = "fpn+l1+pool"
DERIVES_FROM = "panels"  # parameter with the data sets that `derive` reads
CIFAR = "cifar10-jpeg-enlarged"  # decides claims on CIFAR-10; the kept smaller panels do not
COMPARED = ["none", "l1", "fpn+l1", ALL_THREE]  # in headlines
DEFENCES = list(TITLES)[8:-2]  # by other papers; their receptive fields are not measured
MEASURES: Values = NAMES["top_gap"]["measures"]  # except attacks
# Locations of the drawn receptive fields, as shares of the last row and column of the class maps.
LOCATIONS = {"corner": [0.0, 0.0], "quarter": [0.25, 0.25], "centre": [0.5, 0.5]}

Settings = dict[str, Any]


class Model(NamedTuple):
    """A training: `variant` names the parts that are switched on, or what replaces them."""

    variant: str
    k: float
    strength: float
    seed: int
    validated: bool = False  # tested on a fifth of the training images


def panels(parameters: Values) -> list[SimpleNamespace]:
    """Return the parameters of each panel: its own override those of the chapter.

    Raises:
        UsageError: a key is unknown, the data are missing, or two panels have the same data set.
    """
    never = ("network", "network_options", "n_shown")
    optional = {"warm_up": 0, "magnify": 1}
    return panels_of(parameters, optional, ["data"], never=never, unique_data=True)


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that may stand in the lists and keys of parameters."""
    lists = {key: [*TITLES] for key in ("attacked", "few", "seeds_of")}
    return lists | {"left_out": [*TITLES, "k"]}


def main_model(p: SimpleNamespace, variant: str, seed: int) -> Model:
    """Return the model of a variant at the main k and strength."""
    return Model(variant, p.k if "pool" in variant else 1.0, p.strength * ("l1" in variant), seed)


def _is_main(p: SimpleNamespace, model: Model) -> bool:
    return model == main_model(p, model.variant, model.seed)


def _sweep(p: SimpleNamespace) -> list[Model]:
    """Return the models of the sweep over k."""
    k_values = [] if "k" in p.left_out else p.k_values
    return [Model(ALL_THREE, k, p.strength, s) for k in k_values for s in p.seeds]


def models(p: SimpleNamespace) -> list[Model]:
    """Return the models of a panel, including the candidates for k and strength."""
    seeds = dict.fromkeys(TITLES, p.seeds) | dict.fromkeys(p.few, p.few_seeds) | p.seeds_of
    every = [main_model(p, v, s) for v in VARIANTS + DEFENCES for s in seeds[v]] + _sweep(p)
    pairs = [(k, p.strength) for k in p.k_values]
    pairs += [(p.k, strength) for strength in p.strengths + p.validation_strengths]
    every += [Model(ALL_THREE, *pair, s, True) for pair in pairs for s in p.validation_seeds]
    extra = {"l1": p.strengths + p.l1_strengths, "last": p.last_strengths, "all": p.all_strengths}
    extra[ALL_THREE] = p.strengths
    penalised = [(v, strength) for v, values in extra.items() for strength in values]
    every += [main_model(p, v, s)._replace(strength=x) for v, x in penalised for s in p.few_seeds]
    return [m for m in dict.fromkeys(every) if m.variant not in p.left_out]


def training(p: SimpleNamespace, model: Model) -> Training:
    """Return the training of a model, with every part that its variant names."""
    options = {"k": model.k, "fpn": False, "width": p.fpn_width}
    resnet, packaged = p.backbone_name == "resnet", p.backbone_name in PRETRAINED
    options |= {"backbone_options": p.backbone} if resnet else {"backbone": p.backbone_name}
    options |= {} if resnet or packaged else {"pretrained": p.pretrained}
    options |= {"magnify": p.magnify} if p.magnify != 1 else {}
    fields = {"epochs": p.epochs, "learning_rate": p.learning_rate, "network_options": options}
    fields |= p.fields
    folds = p.validation_folds if model.validated else p.folds
    if folds:
        fields |= {"folds": folds, "fold": model.seed % folds}
    if model.validated and fields.get("n_train"):
        fields["n_train"] -= fields["n_train"] // folds
    strengths = {"pool": model.k, "k_wta": p.winners}
    for part in model.variant.split("+"):
        fields = METHODS[part].apply(fields, strengths.get(part, model.strength))
    if "_at" in model.variant:
        n_steps, share = (1, 1.25) if "fgsm" in model.variant else (p.adversarial_steps, 0.25)
        sizes = {"epsilon": p.epsilon, "step_size": share * p.epsilon, "n_steps": n_steps}
        fields = penalty("adversarial", **sizes, random_start=True)(fields, 1.0)
    fields = schedule(fields, warm_up=p.warm_up)
    return Training(**fields, network="top_gap", seed=model.seed)


def six_digits(value: float) -> float:
    """Return a radius or dose with six significant digits, as tables of results have it."""
    return float(f"{value:.6g}")


def _attacks(p: SimpleNamespace, model: Model) -> Iterator[Spec]:
    """Yield the attacks on a model: those of the paper and, for some models, the battery.

    Table 7 has FGSM alone. So where `n_fgsm` images are given for it, PGD attacks only the models
    that the battery attacks.
    """
    main, attacked = _is_main(p, model), model.variant in p.attacked
    other = {"none": ALL_THREE, ALL_THREE: "none"}.get(model.variant)
    steps = {p.small_epsilon: p.small_steps, p.epsilon: p.pgd_steps}
    values: Settings = {"sizes": [{"epsilon": e, "steps": n} for e, n in steps.items() if e]}
    values |= {"n_fgsm": p.n_fgsm or p.n_attacked, "keep_fgsm": False if p.n_fgsm else None}
    values |= {"relative_step": 2 / p.crossing_steps, "n_square": p.square_queries or p.n_queries}
    values |= {"source": other and training(p, main_model(p, other, model.seed)).identity}
    harder = main and attacked and model.seed in (p.battery_seeds or [model.seed])
    swept = not main and attacked and model.strength in p.strengths + p.l1_strengths
    names: Settings = {"fgsm": True, "pgd": attacked or not p.n_fgsm, "radii": harder}
    names |= {"auto": harder or swept, "ce targeted square scale steps": harder and p.epsilon}
    names |= {"transfer": harder and p.epsilon and other}
    small = p.small_epsilon and p.square_queries and model.variant == ALL_THREE
    names |= {"small_targeted small_square": harder and p.epsilon and small}
    for labels, _, settings in specify(NAMES["top_gap"]["attacks"], names, replace(p, **values)):
        battery = labels["battery"]
        yield _attack(battery, settings)
        if battery == "auto" or (main and battery == "none"):
            yield _attack(battery, settings | {"counts": "correct", "keep_images": False})


def _attack(battery: str, settings: Settings) -> Spec:
    """Return the spec of an attack, with the labels of its rows."""
    values: Settings = {"counts": "unchanged", "steps": 1, "scale": 1.0, "parts": ()} | settings
    values |= settings.get("attack_settings", {})
    labels: Settings = {"battery": battery, "parts": "+".join(values["parts"])}
    labels |= {name: values[name] for name in ("attack", "counts", "scale", "steps")}
    labels |= {"epsilon": six_digits(values["epsilon"])}
    labels |= {"attack": "transfer"} if "source" in settings else {}
    return Spec(labels, "robust_accuracy", settings)


def _specs(p: SimpleNamespace, model: Model) -> Iterator[Spec]:
    """Yield the specs of the measurements on a model."""
    if model.validated:
        yield from specify(MEASURES, "accuracy_validation", p)
        return
    main = _is_main(p, model)
    names = {"accuracy": True, "accuracy_shifted": p.shifted}
    names |= {"corrupted_accuracy": p.n_corrupted and main and model.variant in COMPARED}
    names |= {"class_map_sparsity": True, "mask_iou": p.masks}
    names |= {"mask_iou_beyond_others": p.masks and p.masks_of_others}
    names |= {"erf_centre erf_corner erf_distance": model.variant not in DEFENCES}
    yield from specify(MEASURES, names, p)
    yield from _attacks(p, model)


def _model_labels(p: SimpleNamespace, model: Model) -> Settings:
    """Return the labels that all rows of a model share."""
    main, chosen = _is_main(p, model), (model.k, model.strength) == (p.k, p.strength)
    dense = model == main_model(p, "fpn+l1", model.seed)  # all locations are pooled
    sparsest = model[:3] in [(ALL_THREE, min(p.k_values), p.strength), ("none", 1.0, 0.0)]
    labels = {"variant": model.variant, "k": model.k, "strength": model.strength, "main": main}
    labels |= {"sweep": model in _sweep(p) or dense, "dose": six_digits(model.strength * model.k)}
    return {**NAMES["top_gap"]["labels"], **labels, "chosen": chosen, "sparsest": sparsest}


def _figure_items(p: SimpleNamespace) -> Iterator[Item]:
    """Yield the arrays of the figures: class maps by variant and k, and receptive fields."""
    n, first, trained = {"n_images": p.n_images}, p.few_seeds[0], models(p)
    by_name = {f"maps|{v}": main_model(p, v, first) for v in VARIANTS}
    by_name |= {f"maps_k|{m.k:g}": m for m in _sweep(p) if m.seed == first}
    for name, model in by_name.items():
        if model in trained:
            unit = measurement(training(p, model), "class_map_sparsity", **n)
            yield Item(unit, keep=f"{p.data}|{name}")
    for variant, name in itertools.product(("none", ALL_THREE), LOCATIONS):
        network, at = training(p, main_model(p, variant, first)), LOCATIONS[name]
        unit = measurement(network, "effective_receptive_field", **n, location=at)
        yield Item(unit, keep=f"{p.data}|erf|{variant}|{name}")


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: networks, their measurements, and arrays of figures."""
    items = Plan()
    for p in panels(parameters):
        for model in models(p):
            common, network = _model_labels(p, model), training(p, model)
            items.append(Item(network, common))
            items += grid([(network, common)], _specs(p, model))
        items += _figure_items(p)
    return items


def derive(parameters: Values, rows: pd.DataFrame, arrays: design.Arrays) -> design.Derived:
    """Return a row for each network and metric, and images, class maps and receptive fields."""
    for p in panels(parameters):
        test = data_of(training(p, main_model(p, ALL_THREE, p.few_seeds[0]))).test
        images = test.images[: parameters["n_shown"]]
        if images.shape[1] == 1:  # images in colour are photographs, and never kept
            arrays[f"{p.data}|images"] = images.expand(-1, 3, -1, -1).numpy()
        arrays[f"{p.data}|labels"] = test.labels[: len(images)].numpy()
    return rows.assign(matched=mark_matched(rows)), arrays


def shrink(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that figures draw: maps of the images shown, as uint8."""
    drawn = {n: t if n == "field" else t[: parameters["n_shown"]] for n, t in tensors.items()}
    maps = {n: as_uint8(t) for n, t in drawn.items() if n == "maps" and t.dtype != torch.uint8}
    return drawn | maps


def class_maps(results: Sequence[Results]) -> dict[str, list[Any]]:
    """Return images and their maps by the eight variants, for `suite.plots.pictures`: Figure 5.

    Data sets of photographs are left out, since photographs are not kept.
    """
    rows, labels = [], []
    for data, arrays in _by_data(results).items():
        maps = [arrays.get(f"maps|{variant}") for variant in VARIANTS]
        for n, image in enumerate(arrays.get("images", ())):
            rows.append([image, *(None if array is None else array[n] for array in maps)])
            labels.append(name_of(data))
    titles = ["image", *(TITLES[variant] for variant in VARIANTS)]
    return {"rows": rows or [[None]], "titles": titles, "labels": labels}


def receptive_fields(results: Sequence[Results], variant: str) -> dict[str, Any]:
    """Return receptive fields of a variant, for `suite.plots.pictures`: Figures A1 and A2.

    A row is a location, a column a data set. The note of a picture is its `half_share`.
    """
    fields = {d: a for d, a in _by_data(results).items() if f"erf|{variant}|centre" in a}
    rows = [[arrays[f"erf|{variant}|{at}"] for arrays in fields.values()] for at in LOCATIONS]
    notes = [[f"half in {half_share(field):.0%}" for field in row] for row in rows]
    return {"rows": rows, "notes": notes, "titles": [*map(name_of, fields)], "labels": [*LOCATIONS]}


def half_share(field: NDArray[Any]) -> float:
    """Return the smallest share of the pixels that holds half of a nonnegative field."""
    sums = np.sort(field, axis=None)[::-1].cumsum()  # of the largest values
    return (int(np.searchsorted(sums, sums[-1] / 2)) + 1) / field.size


def _by_data(results: Sequence[Results]) -> dict[str, design.Arrays]:
    """Return the arrays of each data set, from the first results that have some."""
    by_data: dict[str, design.Arrays] = {}
    for arrays in (result.arrays for result in reversed(results)):
        for data, names in itertools.groupby(sorted(arrays), lambda name: name.partition("|")[0]):
            by_data[data] = {name.partition("|")[2]: arrays[name] for name in names}
    return dict(sorted(by_data.items()))


def mark_matched(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Mark Top-GAP and, for each form of L1 alone, the strength of nearest clean accuracy."""
    setting, pair = ["data", "variant", "strength"], ["data", "seed"]
    clean = tables.select(rows, metric="accuracy", test="own", status="done").set_index(pair)
    goal = tables.select(clean, main=True, variant=ALL_THREE)["value"].rename("goal")
    alone = tables.select(clean, variant=["l1", "last", "all"]).join(goal).reset_index()
    gaps = alone.assign(gap=alone["value"] - alone["goal"]).groupby(setting)["gap"].mean().abs()
    nearest = gaps.dropna().sort_values(kind="stable").groupby(setting[:2]).head(1)
    is_nearest = pd.MultiIndex.from_frame(rows[setting]).isin(nearest.index)
    return (rows["variant"] == ALL_THREE) & rows["main"] | is_nearest


def attacks(table: pd.DataFrame, battery: str | list[str], **values: Any) -> pd.DataFrame:
    """Return the rows of clean and of robust accuracy, with a `name` for each attack.

    Robust accuracy is the paper's, the share of unchanged predictions, unless `values` name
    another.
    """
    metrics = {"status": "done", "metric": ["accuracy", "robust_accuracy"], "test": "own"}
    rows = tables.select(table, **metrics, battery=battery, **values)
    # Kept rows have missing values for empty texts.
    rows = rows.assign(**rows[["attack", "parts", "counts"]].astype(object).fillna(""))
    rows = rows[rows["counts"].isin([values.get("counts", "unchanged"), ""])]
    return rows.assign(name=[*map(_name_attack, rows.itertuples())])


def _name_attack(row: Any) -> str:
    """Name the attack of a row; the steps of AutoAttack are those of APGD and FAB, by default 100.

    >>> _name_attack(SimpleNamespace(metric="accuracy"))
    'clean'
    """
    if row.metric == "accuracy":
        return "clean"
    steps = "" if row.steps == 100 else f" of {row.steps:.0f} steps"
    names = {"transfer": "transfer", "auto_attack": row.parts or f"AutoAttack{steps}"}
    name = names.get(row.attack, f"{row.attack} {row.steps:.0f}")
    name = name if row.scale == 1 else f"logits × {row.scale:g}"
    return f"{name}, ε {255 * row.epsilon:.3g}/255"


def map_means(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return the means of class maps by k, here and in the paper's Table A8; `who` says which."""
    rows = tables.select(table, metric="class_map_sparsity", sweep=True, status="done")
    rows = rows.assign(who=rows["data"].map(name_of) + ", " + rows["profile"])
    _, frame = read_table(published, "A8")
    k = frame["penalty on"].str.extract(r"Top-GAP, k = (\d+)")[0].astype(float)
    # Its class maps have 56 x 56 locations, for images of 224 pixels.
    columns = {"k": k / 56**2, "value": frame["mean of the map"].astype(float)}
    of_paper = pd.DataFrame(columns | {"who": "published: CUB, ResNet-18"}).dropna()
    return pd.concat([rows, of_paper], ignore_index=True)


def read_table(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return the title and the cells of a table of the paper."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def tabulate_cifar(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate the columns of Table 4, and AutoAttack, for CIFAR-10: measured and published."""
    rows = attacks(table, ["none", "steps", "auto"], data=CIFAR, main=True)
    rows = rows[(rows["battery"] != "steps") | (rows["steps"] == 50)]
    names = {"clean": "clean", "pgd 20": "PGD-20", "pgd 50": "PGD-50", "AutoAttack": "AutoAttack"}
    attack = rows["name"].str.replace(r"( of \d+ steps)?, ε 8/255", "", regex=True)
    rows = rows.assign(name=attack.map(names)).dropna(subset="name")
    rows = rows.sort_values("name", key=lambda heads: heads.map([*names.values()].index))
    _, frame = read_table(published, "4")
    frame = frame.set_index("paper: " + frame["method"] + ", " + frame["network"])
    numbers = frame[["PGD-20", "PGD-50", "clean"]].apply(pd.to_numeric, errors="coerce")
    paper = {str(name): row.dropna().to_dict() for name, row in numbers.iterrows()}
    return tables.wide(rows, "variant", "name", TITLES, printed=paper)


def tabulate_other_data(table: pd.DataFrame) -> pd.DataFrame:
    """Return the robust accuracy of three variants under PGD and AutoAttack on other data."""
    variants, titles = ["none", "l1", ALL_THREE], {"pgd": "PGD", "auto_attack": "AutoAttack"}
    rows = attacks(table, ["none", "auto"], main=True, variant=variants, profile="workstation")
    rows = rows[(rows["attack"] == "auto_attack") | (rows["name"].str.startswith("pgd 20"))]
    rows = rows.sort_values("attack", ascending=False, kind="stable")
    radius = (255 * rows["epsilon"]).map(", {:.3g}/255".format)
    names = rows["data"].map(name_of) + ", " + rows["attack"].map(titles) + radius
    rows = rows.assign(name=names, head=rows["variant"].map(TITLES))
    return tables.wide(rows, "name", "head", dict(zip(names, names)))


def read_fgsm(published: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy under FGSM by variant, from the paper's Table 7."""
    _, frame = read_table(published, "7")
    are_on = (frame[["FPN", "L1", "Top-GAP"]] == "yes").to_numpy()
    names = ["+".join(itertools.compress(("fpn", "l1", "pool"), row)) or "none" for row in are_on]
    return dict(zip(names, frame["FGSM"].astype(float)))
