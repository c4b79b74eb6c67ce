"""Processes that share a batch get the gradients of one process that has it whole."""

import dataclasses
import multiprocessing

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from reglib.data import load_data
from reglib.errors import UsageError
from reglib.networks import build_network
from reglib.parallel import (
    SharedBatchNorm,
    check_batches,
    is_first,
    n_processes,
    share_of,
    sum_gradients,
    summed,
)
from reglib.regularizers import PENALTIES, Constants, take_step
from reglib.training import train
from reglib.units import Training
from tests.double_backward import randn

BATCH = 7
NAMES = ("landscape_curvature", "landscape_target")
UNIT = Training(
    data="mnist5k", network="convnet", network_options={"width": 4}, n_train=90, batch_size=35,
    epochs=2, seed=3, learning_rate=0.01, optimizer="sgd", optimizer_options={"momentum": 0.9},
    cosine_epochs=2, crop_padding=4, flip=True, zoom=1.5,
    penalties={"landscape_target": {"strength": 1.0, "every": 2}},
)  # fmt: skip


def gradients_in_float64(name):
    """Return logits' loss, gradients and running statistics of a step with a penalty."""
    network = build_network("convnet", (3, 16, 16), 4, options={"width": 4}, seed=1).double()
    images, labels = randn(BATCH, 3, 16, 16), torch.arange(BATCH) % 4
    share = share_of(BATCH)
    rows = slice(None) if share is None else share.rows
    constants = Constants(network, lambda: [images])
    step = take_step(
        network.train(), images[rows], labels[rows], torch.Generator().manual_seed(5),
        constants=constants, share=share,
    )  # fmt: skip
    loss = F.cross_entropy(step.logits, step.labels) + 10 * PENALTIES[name](step).mean()
    loss = loss if share is None else loss * share.part
    loss.backward()
    parameters = list(network.parameters())
    if share is not None:
        sum_gradients(parameters)
    whole = loss.detach() if share is None else summed(loss.detach())
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    return [whole, *(p.grad for p in parameters), *buffers]


def trained():
    return train(UNIT, load_data("mnist5k"), device=torch.device("cpu"))


def refusals():
    """Return what training says to units that several processes cannot share."""
    said = []
    for changes in (
        {"penalties": {"input_gradient": {"strength": 1.0}}},
        {"batch_size": 89},
        {"group_dro": 0.1, "penalties": {}},
    ):
        unit = dataclasses.replace(UNIT, **changes)
        with pytest.raises(UsageError) as caught:
            train(unit, load_data("mnist5k"), device=torch.device("cpu"))
        said.append(str(caught.value))
    return said


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    with SharedBatchNorm():
        found = {name: gradients_in_float64(name) for name in NAMES}
    result = trained()
    found |= {"weights": result.network.state_dict(), "losses": result.losses}
    found |= {"first": is_first(), "refusals": refusals()}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what each of two processes finds."""
    folder = tmp_path_factory.mktemp("parallel")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=worker, args=(rank, str(folder))) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_loss_gradients_and_running_statistics_are_those_of_one_process(found, name):
    for values in found:
        for got, expected in zip(values[name], gradients_in_float64(name), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_a_training_with_crops_is_that_of_one_process_up_to_rounding(found):
    expected = trained()
    for values in found:
        assert values["losses"] == pytest.approx(expected.losses, rel=1e-4)
        for name, weight in expected.network.state_dict().items():
            torch.testing.assert_close(values["weights"][name], weight, rtol=1e-3, atol=1e-4)


def test_processes_stay_bit_equal_and_one_of_them_is_the_first(found):
    first, second = found
    assert all(torch.equal(w, second["weights"][name]) for name, w in first["weights"].items())
    assert first["losses"] == second["losses"]
    assert [values["first"] for values in found] == [True, False]


def test_what_processes_cannot_share_is_refused(found):
    for values in found:
        penalty, batch, groups = values["refusals"]
        assert penalty.startswith("penalty 'input_gradient': expected one of landscape_curvature")
        assert "batches of at least 2 images, one for each process, got a batch of 1" in batch
        assert groups.startswith("group_dro: expected one process")


def test_one_process_has_the_whole_batch():
    assert n_processes() == 1
    assert is_first()
    assert share_of(7) is None
    check_batches(n_images=1, batch_size=1)
