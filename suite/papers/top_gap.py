"""Top-GAP: eight variants of a network, their class maps, attacks on them, and its tables."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from suite.evidence import tables
from suite.evidence.names import name_of
from suite.methods import TOP_GAP, penalty, scheduled
from suite.networks.pretrained import PRETRAINED
from suite.papers import design
from suite.papers.design import Item, Plan, Wanted, changed, grid, measurement, panels_of, wanted
from suite.papers.names import NAMES
from suite.training.folds import data_of
from suite.units import Training, Values, identity

METHODS = {method.name: method for method in TOP_GAP}
TITLES = {name: method.title for name, method in METHODS.items()}
VARIANTS = list(TITLES)[:8]
ALL_THREE = "fpn+l1+pool"
COMPARED = ["none", "l1", "fpn+l1", ALL_THREE]  # by headlines
FIELDS_OF = [*VARIANTS, "last", "all"]  # whose receptive fields are measured
FIELDS_AT = [{"part": part} for part in ("centre", "corner", "distance")]
MEASURES: Values = NAMES["top_gap"]["measures"]  # but for attacks
# Locations of the class maps whose receptive fields are drawn, as shares of the last row, column.
LOCATIONS = {"corner": (0.0, 0.0), "quarter": (0.25, 0.25), "centre": (0.5, 0.5)}
# What rows are selected by, where a measurement says nothing else.
DEFAULTS = {"battery": "none", "test": "own", "part": "", "attack": "", "parts": "", "steps": 0}
DEFAULTS |= {"epsilon": 0.0, "counts": "", "scale": 1.0}
LABELLED = ("attack", "counts", "scale", "steps")  # settings of attacks that are labels
ATTACKS = {"pgd": "PGD", "auto_attack": "AutoAttack"}
STANDARD_STEPS = 100  # of APGD and FAB in AutoAttack
LOCATIONS_OF_PAPER = 56 * 56  # of the class maps of its ResNet-18, for images of 224 pixels

Settings = dict[str, Any]


class Model(NamedTuple):
    """A training: `variant` names the parts that are switched on, or what takes their place."""

    variant: str
    k: float
    strength: float
    seed: int
    validated: bool = False  # tested on a fifth of the training images


def panels(parameters: Values) -> list[SimpleNamespace]:
    """Return the parameters of each panel: its own before those of the chapter.

    Raises:
        UsageError: a key that is not known, no data, or two panels of one data set.
    """
    never = ("network", "network_options", "n_shown")
    return panels_of(parameters, {"warm_up": 0}, ["data"], never=never, alone=True)


def choices(parameters: Values) -> dict[str, list[str]]:
    """Return the names that lists, and keys, of parameters may be."""
    of_variants = {name: [*TITLES] for name in ("attacked", "few", "seeds_of")}
    return of_variants | {"left_out": [*TITLES, "k"]}


def main_model(p: SimpleNamespace, variant: str, seed: int) -> Model:
    """Return the model of a variant at the main k and strength."""
    k = p.k if "pool" in variant else 1.0
    return Model(variant, k, p.strength * ("l1" in variant), seed)


def _is_main(p: SimpleNamespace, model: Model) -> bool:
    return model == main_model(p, model.variant, model.seed)


def _chosen_from(p: SimpleNamespace) -> list[Model]:
    """Return the models among which k and the strength of Top-GAP are chosen."""
    of_k = [(k, p.strength) for k in p.k_values]
    of_strength = [(p.k, strength) for strength in p.strengths + p.validation_strengths]
    return [Model(ALL_THREE, *b, s, True) for b in of_k + of_strength for s in p.validation_seeds]


def _swept(p: SimpleNamespace) -> list[Model]:
    k_values = [] if "k" in p.left_out else p.k_values
    return [Model(ALL_THREE, k, p.strength, s) for k in k_values for s in p.seeds]


def models(p: SimpleNamespace) -> list[Model]:
    """Return the models of a panel."""
    alone = p.strengths + p.l1_strengths
    penalised = {"l1": alone, "last": p.last_strengths, "all": p.all_strengths}
    penalised[ALL_THREE] = p.strengths
    result = [main_model(p, v, s) for v in VARIANTS for s in _seeds(p, v)]
    result += _chosen_from(p) + _swept(p)
    result += [main_model(p, v, s) for v in list(TITLES)[8:-2] for s in _seeds(p, v)]
    result += [
        Model(variant, p.k if variant == ALL_THREE else 1.0, strength, s)
        for variant, values in penalised.items()
        for strength in values
        for s in p.few_seeds
    ]
    return [m for m in dict.fromkeys(result) if m.variant not in p.left_out]


def _seeds(p: SimpleNamespace, variant: str) -> list[int]:
    return p.seeds_of.get(variant) or (p.few_seeds if variant in p.few else p.seeds)


def training(p: SimpleNamespace, model: Model) -> Training:
    """Return the training of a model, with all that its variant names."""
    options = {"k": model.k, "fpn": False, "width": p.fpn_width}
    if p.backbone_name == "resnet":
        options |= {"backbone_options": p.backbone}
    else:
        options |= {"backbone": p.backbone_name}
        if p.backbone_name not in PRETRAINED:
            options |= {"pretrained": p.pretrained}
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
        one = {"step_size": 1.25 * p.epsilon, "n_steps": 1}
        several = {"step_size": p.epsilon / 4, "n_steps": p.adversarial_steps}
        steps = one if model.variant.startswith("fgsm") else several
        attacked = penalty("adversarial", epsilon=p.epsilon, random_start=True, **steps)
        fields = attacked(fields, 1.0)
    fields = scheduled(fields, warm_up=p.warm_up)
    return Training(**fields, network="top_gap", seed=model.seed)


def rounded(epsilon: float) -> float:
    """Return a radius with the digits that tables of results keep."""
    return float(f"{epsilon:.6g}")


def _attack(name: str, n_images: int, epsilon: float, **attack_settings: Any) -> Settings:
    settings = {"attack_settings": attack_settings} if attack_settings else {}
    return {"attack": name, "epsilon": epsilon, "n_images": n_images} | settings


def _battery(p: SimpleNamespace, model: Model) -> Iterator[tuple[str, Settings]]:
    """Yield attacks that are harder to fool, by the names of their parts."""
    across = {"steps": p.crossing_steps, "relative_step": 2 / p.crossing_steps}
    alone = {"keep_images": False}
    for size in p.epsilons:
        yield "radii", _attack("pgd", p.n_battery, size, **across)
    yield from _auto(p)
    if not p.epsilon:
        return
    ce, targeted = ({"parts": [part], "steps": p.pgd_steps} for part in ("apgd-ce", "apgd-t"))
    square = {"parts": ["square"], "queries": p.square_queries or p.n_queries}
    for part in (ce, targeted, square):
        yield "parts", _attack("auto_attack", p.n_battery, p.epsilon, **part)
    for part in (targeted, square) if p.square_queries and model.variant == ALL_THREE else ():
        yield "small parts", _attack("auto_attack", p.n_battery, p.small_epsilon, **part)
    crossing = _attack("pgd", p.n_battery, p.epsilon, **across)
    for scale in p.scales:
        yield "scale", crossing | {"scale": scale}
    if other := {"none": ALL_THREE, ALL_THREE: "none"}.get(model.variant):
        source = identity(training(p, main_model(p, other, model.seed)))
        yield "transfer", crossing | {"source": source} | alone
    for steps in p.steps_swept:
        yield "steps", _attack("pgd", p.n_battery, p.epsilon, steps=steps)


def _auto_attack(p: SimpleNamespace, epsilon: float, **parts: Any) -> Settings:
    size = {"steps": p.auto_steps, "queries": p.n_queries}
    return _attack("auto_attack", p.n_battery, epsilon, **size, **parts)


def _auto(p: SimpleNamespace) -> Iterator[tuple[str, Settings]]:
    for size in p.auto_epsilons:
        auto = _auto_attack(p, size)
        yield "auto", auto
        yield "auto", auto | {"counts": "correct", "keep_images": False}


def _attacks(p: SimpleNamespace, model: Model) -> Iterator[Wanted]:
    """Yield the attacks on a model: those of the paper and, for some, the battery.

    With `n_fgsm` images for FGSM, which Table 7 has alone, PGD attacks what the battery attacks.
    """
    sizes = [size for size in (p.small_epsilon, p.epsilon) if size]
    many: Settings = {"n_images": p.n_fgsm, "keep_images": False} if p.n_fgsm else {}
    rows = [("none", _attack("fgsm", p.n_attacked, size) | many) for size in sizes]
    if not p.n_fgsm or model.variant in p.attacked:
        steps = dict(zip((p.small_epsilon, p.epsilon), (p.small_steps, p.pgd_steps), strict=True))
        rows += [("none", _attack("pgd", p.n_attacked, s, steps=steps[s])) for s in sizes]
    if _is_main(p, model):
        correct = {"counts": "correct", "keep_images": False}
        rows += [(part, settings | correct) for part, settings in rows]
        if model.variant in p.attacked and model.seed in (p.battery_seeds or [model.seed]):
            rows += _battery(p, model)
    elif model.strength in p.strengths + p.l1_strengths and model.variant in p.attacked:
        rows += _auto(p)
    for part, settings in rows:
        yield Wanted(_labels(part, settings), "robust_accuracy", settings)


def _labels(battery: str, settings: Settings) -> Settings:
    """Return what the rows of an attack are selected by."""
    given = settings | settings.get("attack_settings", {})
    labels = {"battery": battery, "counts": "unchanged", "steps": 1}
    labels |= {name: given[name] for name in LABELLED if name in given}
    labels |= {"parts": "+".join(given.get("parts", ())), "epsilon": rounded(given["epsilon"])}
    return labels | ({"attack": "transfer"} if "source" in settings else {})


def _measured(p: SimpleNamespace, model: Model) -> Iterator[Wanted]:
    """Yield what is measured of a model."""
    if model.validated:
        yield from wanted(MEASURES, "accuracy_validation", p)
        return
    main, p = _is_main(p, model), changed(p, fields_at=FIELDS_AT)
    names = {"accuracy": True, "accuracy_shifted": p.shifted}
    names |= {"corrupted_accuracy": p.n_corrupted and main and model.variant in COMPARED}
    names |= {"class_map_sparsity": True, "mask_iou": p.masks}
    names |= {"mask_iou_beyond_others": p.masks and p.masks_of_others}
    names |= {"erf_distance": model.variant in FIELDS_OF}
    yield from wanted(MEASURES, names, p)
    yield from _attacks(p, model)


def _labels_of(p: SimpleNamespace, model: Model) -> Settings:
    """Return what all rows of a model are selected by."""
    main, chosen = _is_main(p, model), (model.k, model.strength) == (p.k, p.strength)
    whole = model == main_model(p, "fpn+l1", model.seed)  # all locations are pooled
    smallest = model[:3] == (ALL_THREE, min(p.k_values), p.strength)
    labels = {"variant": model.variant, "k": model.k, "strength": model.strength, "main": main}
    labels |= {"sweep": model in _swept(p) or whole, "dose": rounded(model.strength * model.k)}
    sparsest = (main and model.variant == "none") or smallest
    return DEFAULTS | labels | {"chosen": chosen, "sparsest": sparsest}


def _drawn(p: SimpleNamespace) -> Iterator[Item]:
    """Yield what is drawn of a panel: class maps by variant and k, and receptive fields."""
    n, first, made = {"n_images": p.n_images}, p.few_seeds[0], models(p)
    named = {f"maps|{v}": main_model(p, v, first) for v in VARIANTS}
    named |= {f"maps_k|{m.k:g}": m for m in _swept(p) if m.seed == first}
    for name, model in named.items():
        if model in made:
            unit = measurement(training(p, model), "class_map_sparsity", **n)
            yield Item(unit, keep=f"{p.data}|{name}")
    for variant in ("none", ALL_THREE):
        network = training(p, main_model(p, variant, first))
        for name, location in LOCATIONS.items():
            settings = n | {"location": list(location)}
            unit = measurement(network, "effective_receptive_field", **settings)
            yield Item(unit, keep=f"{p.data}|erf|{variant}|{name}")


def plan(parameters: Values) -> Plan:
    """Return the units of the chapter: networks, what is measured of each, and what is drawn."""
    found = Plan()
    for p in (every := panels(parameters)):
        for model in models(p):
            common, network = _labels_of(p, model), training(p, model)
            found.append(Item(network, common))
            found += grid([(network, common)], _measured(p, model))
    return Plan([*found, *(item for p in every for item in _drawn(p))])


def derive(parameters: Values, rows: pd.DataFrame, arrays: design.Arrays) -> design.Derived:
    """Return one row a network and metric, and images, class maps and receptive fields."""
    for p in panels(parameters):
        test = data_of(training(p, main_model(p, ALL_THREE, p.few_seeds[0]))).test
        images = test.images[: parameters["n_shown"]]
        if images.shape[1] == 1:  # those in colour are photographs, and never kept
            arrays[f"{p.data}|images"] = images.expand(-1, 3, -1, -1).numpy()
        arrays[f"{p.data}|labels"] = test.labels[: len(images)].numpy()
    return rows.assign(matched=matched(rows)), arrays


def drawn(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what is drawn of the tensors of a unit: maps of the images shown, as uint8."""
    shown = {n: t if n == "field" else t[: parameters["n_shown"]] for n, t in tensors.items()}
    return {
        n: (255 * t).round().clamp(0, 255).byte() if n == "maps" and t.dtype != torch.uint8 else t
        for n, t in shown.items()
    }


def matched(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Mark Top-GAP and, of each way of L1 alone, the strength of nearest clean accuracy."""
    clean = rows[(rows["metric"] == "accuracy") & (rows["test"] == "own")]
    clean = clean[clean["status"] == "done"]
    result = (rows["variant"] == ALL_THREE) & rows["main"]
    for data, of in clean.groupby("data"):
        goal = of[of["main"] & (of["variant"] == ALL_THREE)].set_index("seed")["value"]
        for variant in ("l1", "last", "all"):
            by_seed = of[of["variant"] == variant].set_index("seed").groupby("strength")["value"]
            gaps = {strength: abs((values - goal).mean()) for strength, values in by_seed}
            if known := {strength: gap for strength, gap in gaps.items() if gap == gap}:
                here = (rows["data"] == data) & (rows["variant"] == variant)
                result |= here & (rows["strength"] == min(known, key=lambda s: known[s]))
    return result


def attacks(table: pd.DataFrame, battery: str | list[str], **values: Any) -> pd.DataFrame:
    """Return clean accuracies and what attacks leave of predictions, with the `name` of each.

    Robust accuracy is the paper's (unchanged predictions), unless `values` say.
    """
    of = {"status": "done", "metric": ["accuracy", "robust_accuracy"], "test": "own"}
    rows = tables.select(table, **of, battery=battery, **values)
    # Empty texts are missing in kept rows.
    rows = rows.assign(**rows[["attack", "parts", "counts"]].astype(object).fillna(""))
    rows = rows[rows["counts"].isin([values.get("counts", "unchanged"), ""])]
    numbers = rows[["steps", "scale", "epsilon"]].astype(object)  # text where there are none, too
    names = rows["attack"].str.replace("_", " ") + " " + numbers["steps"].map("{:.0f}".format)
    names = names.mask(rows["attack"] == "transfer", "transfer")
    fewer = numbers["steps"].map(" of {:.0f} steps".format)
    fewer = fewer.mask(rows["steps"] == STANDARD_STEPS, "")
    names = names.mask(rows["attack"] == "auto_attack", "AutoAttack" + fewer)
    names = names.mask(rows["parts"] != "", rows["parts"])
    names = names.mask(rows["scale"] != 1, "logits × " + numbers["scale"].map("{:g}".format))
    names += ", ε " + (255 * numbers["epsilon"]).map("{:.3g}/255".format)
    return rows.assign(name=names.mask(rows["metric"] == "accuracy", "clean"))


def sizes(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return the means of class maps by k, and `who` measured them: the paper in its Table A8."""
    rows = tables.select(table, metric="class_map_sparsity", sweep=True, status="done")
    rows = rows.assign(who=rows["data"].map(name_of) + ", " + rows["profile"])
    _, frame = printed(published, "A8")
    frame = frame[frame["penalty on"].str.startswith("Top-GAP")]
    k = frame["penalty on"].str.extract(r"k = (\d+)")[0].astype(float) / LOCATIONS_OF_PAPER
    value = frame["mean of the map"].astype(float)
    of_paper = pd.DataFrame({"k": k, "value": value, "who": "published: CUB, ResNet-18"})
    return pd.concat([rows, of_paper], ignore_index=True)


def printed(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return a table of the paper and its title."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def on_cifar(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return what the paper's Table 4 has, with AutoAttack, of CIFAR-10 here and there."""
    rows = attacks(table, ["none", "steps", "auto"], data="cifar10-jpeg", main=True)
    rows = rows[(rows["battery"] != "steps") | (rows["steps"] == 50)]
    names = {"clean": "clean", "pgd 20": "PGD-20", "pgd 50": "PGD-50", "AutoAttack": "AutoAttack"}
    attack = rows["name"].str.replace(r"( of \d+ steps)?, ε 8/255", "", regex=True)
    rows = rows.assign(name=attack.map(names)).dropna(subset="name")
    rows = rows.sort_values("name", key=lambda heads: heads.map([*names.values()].index))
    _, frame = printed(published, "4")
    paper = {
        f"paper: {row['method']}, {row['network']}": {
            name: float(row[name]) for name in ("PGD-20", "PGD-50", "clean") if row[name] != "–"
        }
        for _, row in frame.iterrows()
    }
    return tables.wide(rows, "variant", "name", TITLES, printed=paper)


def elsewhere(table: pd.DataFrame) -> pd.DataFrame:
    """Return what PGD and AutoAttack leave of three kinds of networks on other data."""
    kinds = ["none", "l1", "fpn+l1+pool"]
    rows = attacks(table, ["none", "auto"], main=True, variant=kinds, profile="workstation")
    rows = rows[(rows["attack"] == "auto_attack") | (rows["name"].str.startswith("pgd 20"))]
    rows = rows.sort_values("attack", ascending=False, kind="stable")
    radius = (255 * rows["epsilon"]).map(", {:.3g}/255".format)
    names = rows["data"].map(name_of) + ", " + rows["attack"].map(ATTACKS) + radius
    rows = rows.assign(name=names, head=rows["variant"].map(TITLES))
    return tables.wide(rows, "name", "head", dict(zip(names, names)))


def printed_parts(published: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy under FGSM by variant, of the paper's Table 7."""
    entry = next(table for table in published["tables"] if table["number"] == "7")
    names = ("fpn", "l1", "pool")
    return {
        "+".join(n for n, on in zip(names, row[:3]) if on) or "none": row[4]
        for row in entry["rows"]
    }
