"""Top-GAP against average pooling, its network against the backbone, and attacks on it.

Pooling is timed forward and backward, alone and with the L1 penalty on the class maps. On CUDA,
where one kernel computes both, its forward pass is timed against a pass that only reads the maps.
Training steps are forward and backward, without the optimizer. The attack is PGD with 20 steps,
against the loop of Foolbox on the unfolded network.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_model

from benchmarks.timing import Row, median_row, ratios, time_in_turns
from reglib.top_gap import TopGAPNet, class_map_l1, top_gap, top_gap_and_l1
from suite.attacks import pgd
from suite.networks import build_network
from suite.training.penalties import PENALTIES, forward

TITLE = "Top-GAP"
SHAPES = {(32, 100, 56, 56): 256, (64, 10, 32, 32): 64}
POOLING_GOAL, READING_GOAL = 5.5, 1.5
BACKBONE: dict[str, Any] = {"width": 16, "blocks": (1, 1, 1, 1)}


def run(device: torch.device, *, quick: bool) -> list[Row]:
    """Time pooling, training steps and an attack."""
    rounds = 3 if quick else 15
    rows = [row for shape in SHAPES for row in _pooling(shape, device, rounds)]
    return [*rows, *_steps(device, rounds), *_attacks(device, rounds=2 if quick else 5)]


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


def _small(device: torch.device) -> dict[str, nn.Module]:
    options = {"k": 64, "width": 64, "backbone_options": BACKBONE}
    networks = {
        "backbone": build_network("resnet", (3, 32, 32), 10, options=BACKBONE, seed=0),
        "Top-GAP": build_network("top_gap", (3, 32, 32), 10, options=options, seed=0),
    }
    return _lay_out(networks, device)


def _of_paper(device: torch.device) -> dict[str, nn.Module]:
    """Return ResNet-18, and the paper's Top-GAP network for CUB: 200 classes, 256 filters."""
    plain = get_model("resnet18", num_classes=200)
    return _lay_out({"backbone": plain, "Top-GAP": TopGAPNet(plain, 200, k=256)}, device)


def _lay_out(networks: dict[str, nn.Module], device: torch.device) -> dict[str, nn.Module]:
    layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
    return {name: net.to(device).to(memory_format=layout) for name, net in networks.items()}


def _steps(device: torch.device, rounds: int) -> list[Row]:
    cases: dict[str, tuple[dict[str, nn.Module], int, int]] = {
        "ResNet of width 16, pyramid of 64 filters, 32 pixels": (_small(device), 64, 32),
        "ResNet-18, pyramid of 256 filters, 224 pixels": (_of_paper(device), 16, 224),
    }
    return [_step(case, *options, device, rounds) for case, options in cases.items()]


def _step(
    case: str,
    networks: dict[str, nn.Module],
    batch: int,
    size: int,
    device: torch.device,
    rounds: int,
) -> Row:
    images = torch.rand(batch, 3, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)
    generator = torch.Generator(device)

    def step(network: nn.Module) -> Callable[[], None]:
        def call() -> None:
            outputs = forward(network, images, labels, generator)
            loss = F.cross_entropy(outputs.logits, labels)
            if outputs.class_maps is not None:
                loss = loss + PENALTIES["class_map_l1"](outputs).mean()
            torch.autograd.backward(loss, inputs=list(network.parameters()))

        return call

    seconds = time_in_turns({name: step(net) for name, net in networks.items()}, rounds=rounds)
    name = f"training step, {case}, batch {batch}: with L1 / backbone"
    return median_row(TITLE, name, ratios(seconds["Top-GAP"], seconds["backbone"]), "x")


def _attacks(device: torch.device, rounds: int) -> list[Row]:
    network = _small(device)["Top-GAP"].eval()
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
