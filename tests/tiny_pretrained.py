"""A small pretrained network with a file of weights, and photographs for it."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from suite import data
from suite.data import Source, Split
from suite.networks import pretrained
from suite.networks.pretrained import Weights
from suite.runs.execute import load_model
from suite.training.evaluated import EvaluatedModel
from suite.units import Pretrained

SIDE, CLASSES, PHOTOGRAPHS = 16, 6, 8
UNIT = Pretrained(data="tiny-photographs", network="tiny")


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU6(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, CLASSES),
    )


def register(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Register the network and the photographs, and return the file of weights."""
    patch.setenv("REGLIB_DATA", str(folder))
    file = folder / "weights" / "tiny.pth"
    file.parent.mkdir(parents=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build()
        nn.init.normal_(network[5].weight, std=0.5)
    torch.save(network.state_dict(), file)
    weights = Weights(
        build=build,
        file="tiny.pth",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest()[:8],
        mean=(0.5, 0.4, 0.3),
        std=(0.5, 0.25, 0.2),
        about="for tests",
        licence="none",
        how_to_get="look into DATA/weights",
        size=SIDE,
        classes=CLASSES,
    )
    patch.setitem(pretrained.PRETRAINED, "tiny", weights)
    shape = (PHOTOGRAPHS, 3, SIDE, SIDE)
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.arange(PHOTOGRAPHS) % CLASSES
    names = [str(index) for index in range(CLASSES)]
    source = Source(
        lambda root: (Split(pixels[:0], labels[:0]), Split(pixels, labels), names),
        "nowhere",
        shape[1:],
        to_train=False,
    )
    patch.setitem(data.SOURCES, "tiny-photographs", source)
    return file


def subject_of(unit: Pretrained = UNIT) -> EvaluatedModel:
    return load_model(unit, {}, torch.device("cpu"))
