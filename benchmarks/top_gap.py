"""Top-GAP against average pooling, its network against the backbone, and attacks on it.

Pooling is timed forward and backward, alone and with the L1 penalty on the class maps. On CUDA,
where one kernel computes both, its forward pass is timed against a pass that only reads the maps.
Training steps are forward and backward, without the optimizer. Their multiply-adds are those of the
forward pass, in convolutions and products of matrices, counted without data. Their memory is the
peak above the start, on a CPU that of a separate process (on Linux). The attack is PGD with 20
steps, against the loop of Foolbox on the unfolded network.
"""

import copy
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model

from benchmarks.memory import in_process, peak, reset_peak
from benchmarks.tables import FOURIER, TOP_GAP_STEPS, WITH_L1
from benchmarks.timing import Row, median_row, ratios, time_in_turns
from reglib.top_gap import TopGAPNet, class_map_l1, top_gap, top_gap_and_l1
from suite.attacks import pgd
from suite.networks import build_network
from suite.networks.defences import with_flc_pooling
from suite.training.penalties import PENALTIES, forward

TITLE = "Top-GAP"
SHAPES = {(32, 100, 56, 56): 256, (64, 10, 32, 32): 64}
POOLING_GOAL, READING_GOAL = 5.5, 1.5
BACKBONE: dict[str, Any] = {"width": 16, "blocks": (1, 1, 1, 1)}
BASE, TOP_GAP = "backbone", "with L1"
# The paper's networks, with its numbers of classes in Table 1.
BACKBONES = {"vgg11_bn": 1000, "efficientnet_b0": 53, "densenet121": 1000}
BACKBONES |= {"resnet18": 1000, "convnext_tiny": 1000}
FIVE_STEPS = "equation 1, after five steps of SGD / before: "
RATE = 0.001  # with 0.01 two of the networks overshoot


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time pooling, training steps and an attack, and train each backbone for five steps."""
    rounds = 3 if quick else 15
    rows = [row for shape in SHAPES for row in _pooling(shape, device, rounds)]
    rows += _steps(device, rounds)
    rows += [_five_steps(name, device) for name in [*BACKBONES][: 1 if quick else None]]
    return [*rows, *_attacks(device, rounds=2 if quick else 5)]


def _pooling(shape: tuple[int, int, int, int], device: torch.device, rounds: int) -> list[Row]:
    k = SHAPES[shape]
    maps = torch.randn(shape, device=device, requires_grad=True)
    weights = torch.randn(shape[:2], device=device)

    def there_and_back(pool: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def call() -> None:
            maps.grad = None
            (pool(maps) * weights).sum().backward()

        return call

    def topk(maps: Tensor) -> Tensor:
        return maps.flatten(2).topk(k, sorted=False).values.mean(2)

    def with_l1(maps: Tensor) -> Tensor:
        pooled = top_gap_and_l1(maps, k=k)
        return pooled.logits + pooled.l1[:, None]

    seconds = time_in_turns(
        {
            "average": there_and_back(lambda m: m.mean((2, 3))),
            "topk": there_and_back(topk),
            "topk and L1": there_and_back(lambda m: topk(m) + class_map_l1(m)[:, None]),
            "Top-GAP": there_and_back(lambda m: top_gap(m, k=k)),
            "Top-GAP and L1": there_and_back(with_l1),
        },
        rounds=rounds,
    )
    case, base = f"{list(shape)}, k = {k}", seconds.pop("average")
    goal = {"at_most": POOLING_GOAL} if device.type == "cpu" and shape[-1] == 56 else {}
    rows = [median_row(TITLE, f"{case}: average pooling", [1000 * s for s in base], "ms")]
    for name, values in seconds.items():
        limit = goal if name == "Top-GAP and L1" else {}
        words = f"{case}: {name} / average pooling"
        rows.append(median_row(TITLE, words, ratios(values, base), "x", **limit))
    return rows if device.type == "cpu" else [*rows, _against_reading(maps.detach(), k, rounds)]


def _against_reading(maps: Tensor, k: int, rounds: int) -> Row:
    passes = {"reading": maps.sum, "kernel": lambda: top_gap_and_l1(maps, k=k)}
    repeated = {name: lambda f=f: [f() for _ in range(20)] for name, f in passes.items()}
    seconds = time_in_turns(repeated, rounds=rounds)
    values = ratios(seconds["kernel"], seconds["reading"])
    case = f"{list(maps.shape)}, k = {k}: Top-GAP and L1, forward / sum of the maps"
    return median_row(TITLE, case, values, "x", at_most=READING_GOAL)


def _of_chapter(options: dict[str, Any], width: int) -> dict[str, nn.Module]:
    """Return a ResNet for ten classes and images of 32 pixels, and with it the Top-GAP network."""
    with_maps = {"k": 64, "width": width, "backbone_options": options}
    networks = {"resnet": options, "top_gap": with_maps}
    built = [
        build_network(name, (3, 32, 32), 10, options=values, seed=0)
        for name, values in networks.items()
    ]
    return dict(zip((BASE, TOP_GAP), built, strict=True))


def _of_paper(name: str) -> dict[str, nn.Module]:
    """Return a network and the paper's Top-GAP network for CUB: 200 classes, 256 filters."""
    plain = get_model(name, num_classes=200)
    networks = {BASE: plain, TOP_GAP: TopGAPNet(plain, 200, k=256)}
    return networks | ({"Fourier pooling": with_flc_pooling(plain)} if name == "resnet18" else {})


class Case(NamedTuple):
    """Networks by name, and their images."""

    networks: Callable[[], dict[str, nn.Module]]
    batch: int
    pixels: int


# In the order of `TOP_GAP_STEPS`, which has their names.
STEPS = [
    Case(partial(_of_chapter, BACKBONE, 64), 64, 32),
    Case(partial(_of_chapter, {"pre_activation": True}, 256), 64, 32),
    Case(partial(_of_paper, "resnet18"), 16, 224),
    Case(partial(_of_paper, "efficientnet_b0"), 16, 224),
]
CASES = dict(zip(TOP_GAP_STEPS, STEPS, strict=True))


def _steps(device: torch.device, rounds: int) -> list[Row]:
    return [row for name, case in CASES.items() for row in _costs(name, case, device, rounds)]


def _costs(name: str, case: Case, device: torch.device, rounds: int) -> list[Row]:
    """Compare the time, the multiply-adds and the memory of the steps of a case."""
    networks = case.networks()
    steps = {way: step_of(network, case, device) for way, network in networks.items()}
    seconds = time_in_turns(steps, rounds=rounds)
    counts: dict[str, float] = {
        way: _multiply_adds(network, case) for way, network in networks.items()
    }
    for network in networks.values():
        network.zero_grad()
    used = {way: _memory(name, way, steps[way], device) for way in networks}
    rows = []
    for over in (WITH_L1, *(FOURIER if "Fourier pooling" in networks else ())):
        way, base = over.split(" / ")
        times = ratios(seconds[way], seconds[base])
        rows.append(median_row(TITLE, f"training step, {name}: {over}", times, "x"))
        for what, costs in {"multiply-adds": counts, "memory": used}.items():
            if costs[base]:
                ratio = costs[way] / costs[base]
                rows.append(Row(TITLE, f"{what}, {name}: {over}", ratio, "x"))
    return rows


def step_of(network: nn.Module, case: Case, device: torch.device) -> Callable[[], None]:
    """Return a step of a network, moved to a device; with the L1 penalty if it has class maps."""
    layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
    network = network.to(device).to(memory_format=layout)
    images = torch.rand(case.batch, 3, case.pixels, case.pixels, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (case.batch,), device=device)

    def step() -> None:
        loss = _loss(network, images, labels)
        torch.autograd.backward(loss, inputs=list(network.parameters()))

    return step


def _loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return equation 1 with strength 1, or the cross-entropy of a network without class maps."""
    outputs = forward(network, images, labels, torch.Generator())
    loss = F.cross_entropy(outputs.logits, labels)
    if outputs.class_maps is not None:
        loss = loss + PENALTIES["class_map_l1"](outputs).mean()
    return loss


def _multiply_adds(network: nn.Module, case: Case) -> int:
    """Count the multiply-adds of a forward pass, on PyTorch's device `meta`.

    PyTorch overcounts the backward pass of convolutions in groups, as in EfficientNet.
    """
    image = torch.empty(1, 3, case.pixels, case.pixels, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copy.deepcopy(network).to("meta")(image.expand(case.batch, -1, -1, -1))
    return counter.get_total_flops() // 2


def _memory(name: str, way: str, step: Callable[[], None], device: torch.device) -> float:
    """Return the memory that a step adds to the peak, in MiB; 0 where it cannot be measured."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return float(in_process(__name__, name, way)) if sys.platform == "linux" else 0.0


def measure(name: str, way: str) -> float:
    """Return the memory that the steps of a network add to the peak of this process, in MiB."""
    case = CASES[name]
    step = step_of(case.networks()[way], case, torch.device("cpu"))
    before = reset_peak()
    for _ in range(3):
        step()
    return peak() - before


def _five_steps(name: str, device: torch.device) -> Row:
    """Return equation 1 after five steps of SGD on four random images, over that before."""
    torch.manual_seed(0)
    network = TopGAPNet(get_model(name, num_classes=10), 10, k=256).to(device)
    images, labels = torch.rand(4, 3, 224, 224, device=device), torch.arange(4, device=device)
    sgd = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = []
    for _ in range(6):
        loss = _loss(network, images, labels)
        losses.append(float(loss.detach()))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return Row(TITLE, f"{FIVE_STEPS}{name}", losses[-1] / losses[0], "x")


def tabulate_backbones(published: pd.DataFrame, results: Mapping[str, Any] | None) -> pd.DataFrame:
    """Add to Table 1 of the paper what Top-GAP with 256 filters makes of five networks.

    All but the loss is counted here, without data, for images of 224 pixels.

    Args:
        published: Table 1, whose first networks are those of `BACKBONES`.
        results: of this benchmark, see `benchmarks.tables.load`; with the loss after five steps.
    """
    losses = {row["case"]: f"{row['value']:.2f}" for row in (results or {"rows": []})["rows"]}
    table = published.reindex(range(len(BACKBONES))).astype(object)
    for row, (name, classes) in enumerate(BACKBONES.items()):
        with torch.device("meta"):
            plain = get_model(name, num_classes=classes)
            top = TopGAPNet(plain, classes, k=256)
            maps = top.class_maps(torch.zeros(2, 3, 224, 224))
        top.pool(maps).sum().backward()
        counts = [sum(p.numel() for p in network.parameters()) for network in (plain, top)]
        cells = {"network": published["network"].get(row, name)}
        cells |= {"counted, unmodified": f"{counts[0] / 1e6:.2f}"}
        cells |= {"counted, Top-GAP": f"{counts[1] / 1e6:.2f}"}
        cells |= {"feature maps": str(len(top.lateral))}
        cells |= {"class maps": "{} × {}".format(*maps.shape[2:])}
        cells |= {"without gradient": str(sum(p.grad is None for p in top.parameters()))}
        cells |= {"loss, five steps / before": losses.get(f"{FIVE_STEPS}{name}", "not run")}
        for column, cell in cells.items():
            table.loc[row, column] = cell
    return table.fillna("–")


def _attacks(device: torch.device, rounds: int) -> list[Row]:
    network = STEPS[0].networks()[TOP_GAP].to(device).eval()
    images = torch.rand(64, 3, 32, 32, device=device)
    labels = torch.randint(10, (64,), device=device)
    foolbox: Any = importlib.import_module("foolbox")
    by_foolbox = foolbox.PyTorchModel(network, bounds=(0, 1), device=device)
    attack = foolbox.attacks.LinfProjectedGradientDescentAttack(steps=20)
    generator = torch.Generator(device)
    functions = {
        "suite": lambda: pgd(network, images, epsilon=8 / 255, steps=20, generator=generator),
        "Foolbox": lambda: attack(by_foolbox, images, labels, epsilons=8 / 255),
    }
    seconds = time_in_turns(functions, rounds=rounds)
    case = "PGD, 20 steps, 64 images of 32 x 32"
    speed = ratios(seconds["Foolbox"], seconds["suite"])
    return [
        median_row(TITLE, f"{case}: images", [64 / s for s in seconds["suite"]], "/s"),
        median_row(TITLE, f"{case}: Foolbox's loop / ours", speed, "x"),
    ]


if __name__ == "__main__":
    print(measure(*sys.argv[1:]))
