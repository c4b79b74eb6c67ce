"""The methods of the book: their names and colours, and what each changes in a training.

To compare a method of your own, add a line to the list of the chapter.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

GREY, BLUE, ORANGE, GREEN = "#767676", "#0173b2", "#de8f05", "#029e73"
RED, PINK, SKY, BROWN, BLACK = "#d55e00", "#cc78bc", "#56b4e9", "#8c5a2b", "#222222"
PURPLE, OLIVE = "#882255", "#7f7f00"

Fields = dict[str, Any]  # fields of a `suite.units.Training`, by name
Change = Callable[[Fields, float], Fields]  # changes them, by the strength of a method


def _add(fields: Fields, field: str, name: str, value: Any) -> Fields:
    """Add an entry to a field that is a mapping."""
    return fields | {field: fields.get(field, {}) | {name: value}}


def penalty(name: str, **settings: Any) -> Change:
    """Add a penalty of `suite.training.penalties`: the strength is its coefficient."""
    return lambda fields, size: _add(fields, "penalties", name, {"strength": size} | settings)


def attack(parts: int, **settings: Any) -> Change:
    """Train on attacked images, too: the strength is the radius, the sum of `parts` steps."""
    return lambda fields, radius: penalty(
        "adversarial", epsilon=radius, step_size=radius / parts, **settings
    )(fields, 0.5)


def option(name: str, value: Callable[[float], Any] = float) -> Change:
    """Set an option of the network, by default to the strength."""
    return lambda fields, strength: _add(fields, "network_options", name, value(strength))


def set_fields(**values: Any) -> Change:
    """Set fields, whatever the strength; without any, change nothing."""
    return lambda fields, strength: fields | values


def chain(first: Change, second: Change) -> Change:
    """Make two changes, one after the other."""
    return lambda fields, strength: second(first(fields, strength), strength)


def cure(fields: Fields, strength: float) -> Fields:
    """Add CURE with a radius that rises by equal steps, to 1.5 in the last epoch."""
    epochs = fields["epochs"]
    radii = [round(1.5 * (epoch + 1) / epochs, 6) for epoch in range(epochs)]
    return penalty("cure", radius=radii)(fields, strength)


def schedule(fields: Fields, **when: int | None) -> Fields:
    """Add `every` or `warm_up`, unless 0 or None, to all penalties except attacks."""
    more = {name: steps for name, steps in when.items() if steps}
    terms = fields.get("penalties", {}).items()
    return fields | {"penalties": {n: t if n == "adversarial" else t | more for n, t in terms}}


class Method(NamedTuple):
    """A method: its name in rows and in tables, its colour, its change, and a short name."""

    name: str
    title: str
    colour: str = ""
    apply: Change = set_fields()
    short: str = ""


smooth = option("softplus", lambda strength: 1 / strength)  # the smaller β, the smoother
balanced = set_fields(balance_groups=True)
group_dro = set_fields(balance_groups=True, group_dro=0.01)
several_steps = {"n_steps": 3, "random_start": True}
pgd = attack(3, **several_steps)
input_gradient, logit_gradient = penalty("input_gradient"), penalty("logit_gradient")
density, class_map_l1 = penalty("marginal_density"), penalty("class_map_l1")
stable, naive = (penalty("marginal_density", implementation=n) for n in ("stable", "naive"))

# By chapter, in the order of its tables. A chapter's own method is blue, and its baseline grey.
# Methods of one colour share no figure; methods without a colour get an unused one.
double, label_logit = "input gradient (double backpropagation)", "gradient of the label's logit"
differences, finite_difference = "input gradient, finite differences", penalty("finite_difference")
SIDE_BY_SIDE = [
    Method("none", "none", GREY),
    Method("input_gradient", double, ORANGE, input_gradient, "input gradient"),
    Method("finite_difference", differences, "", finite_difference, "finite differences"),
    Method("logit_gradient", label_logit, GREY, logit_gradient, "label's logit"),
    Method("density", "marginal density", BLUE, density),
    Method("cure", "CURE", RED, cure),
    Method("target", "PILCRO target", BLUE, penalty("landscape_target")),
    Method("curvature", "PILCRO curvature", RED, penalty("landscape_curvature")),
    Method("l1", "L1 on class maps", BROWN, class_map_l1),
    Method("top_gap", "Top-GAP with L1", "", class_map_l1),
    Method("softplus", "SoftPlus activations", BROWN, smooth, "SoftPlus"),
    Method("noise", "noise on the images", "", lambda f, std: f | {"input_noise": std}, "noise"),
    Method("adversarial", "PGD training", GREEN, attack(2, **several_steps)),
]
MARGINAL_DENSITY = [
    Method("standard", "standard", GREY, short="no penalty"),
    Method("at_fgsm", "adversarial training, FGSM", PURPLE, attack(1), "FGSM training"),
    Method("at_pgd", "adversarial training, PGD", GREEN, pgd, "PGD training"),
    Method("softplus", "SoftPlus", BROWN, option("softplus")),
    Method("hessian", "input Hessian", PINK, penalty("input_hessian", of="logit")),
    Method("group_dro", "Group DRO", BROWN, group_dro),
    Method("score_matching", "score matching", SKY, penalty("score_matching", trace="taylor")),
    Method("input_gradient", "input gradient (logit)", ORANGE, logit_gradient),
    Method("loss_gradient", "input gradient (loss)", OLIVE, input_gradient),
    Method("cure", "CURE", RED, penalty("cure", radius=[0.3, 0.6, 0.9, 1.2, 1.5])),
    Method("density", "density", BLUE, density, "marginal density"),
    Method("density_stable", "density, stable", SKY, stable),
    Method("density_naive", "density, naive", PINK, naive),
    Method("group_dro_density", "Group DRO + density", BLACK, chain(group_dro, density)),
]
BALANCED = "_balanced"  # ends the names of methods whose batches have as many images of each group
MARGINAL_DENSITY += [
    Method(f"{m.name}{BALANCED}", f"{m.title}, balanced", "", chain(balanced, m.apply))
    for m in MARGINAL_DENSITY
    if m.name in ("standard", "input_gradient", "density")
]
# Parts of a name that are joined by "+" are applied in turn; the strength of "pool" is the share k.
TOP_GAP = [
    Method("none", "unmodified", GREY),
    Method("pool", "pooling", RED, option("k")),
    Method("l1", "L1", BROWN, class_map_l1),
    Method("l1+pool", "pooling with L1", BLACK),
    Method("fpn", "pyramid", PINK, option("fpn", lambda strength: True)),
    Method("fpn+pool", "pyramid with pooling", SKY),
    Method("fpn+l1", "pyramid with L1", ORANGE),
    Method("fpn+l1+pool", "Top-GAP", BLUE),
    Method("k_wta", "k-WTA", SKY, option("k_wta")),
    Method("flc", "FLC pooling", BLACK, option("flc_pooling", lambda strength: True)),
    Method("fgsm_at", "FGSM training", PURPLE),
    Method("pgd_at", "PGD training", GREEN),
    Method("pgd_at+fpn+l1+pool", "PGD training with Top-GAP", PINK),
    Method("fgsm_at+fpn+l1+pool", "FGSM training with Top-GAP", SKY),
    Method("last", "L1 on the last activations", BROWN, penalty("activation_l1", layers="last")),
    Method("all", "L1 on all activations", PINK, penalty("activation_l1", layers="all")),
]
# Methods that explain a network and change nothing in its training.
SALIENCIES = [
    Method("logit_gradient", "gradient", GREY),
    Method("smooth_grad", "SmoothGrad", GREEN),
    Method("path_gradients", "integrated\ngradients"),
    Method("loss_gradient", "CAFO,\nλ₁ = 0"),
    Method("caso_dense", "CASO,\nλ₁ = 0", PINK),
    Method("clipped_logit_gradient", "clipped\ngradient"),
    Method("clipped_loss_gradient", "clipped loss\ngradient"),
    Method("cafo", "CAFO,\ngroups", ORANGE),
    Method("caso", "CASO,\ngroups", BLUE),
    Method("smooth_cafo", "smooth\nCAFO", BROWN),
    Method("smooth_caso", "smooth\nCASO", SKY),
    Method("random", "random"),
]
METHODS = [*SIDE_BY_SIDE, *MARGINAL_DENSITY, *TOP_GAP, *SALIENCIES]
