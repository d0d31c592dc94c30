"""Tests of the wave operator as a module, also in the data-parallel wrappers of torch."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from hpcfwi.wave import Acoustic, Snapshots, share_of_mean
from tests.ranks import long_form, run_ranks
from tests.wave.examples import relative
from tests.wave.test_transforms import DT, RECEIVERS, SOURCES, VP, WAVELET, N, simulate

OPTIONS = {"order": 4, "boundary": 4, "max_velocity": 2600.0, "boundary_frequency": 25.0}
METHOD = {**OPTIONS, "engine": "cpu", "history": Snapshots(1)}


def make_module():
    return Acoustic(VP, 10.0, DT, **METHOD)


def test_module_computes_the_operator_with_the_model_as_parameter():
    module = make_module()
    assert [name for name, _ in module.named_parameters()] == ["vp"]
    assert torch.equal(module(WAVELET, SOURCES, RECEIVERS), simulate())


def test_module_can_be_copied_saved_and_converted():
    module, file = make_module(), io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(module)
    other.vp.data += 50.0
    assert not torch.equal(other.vp, module.vp)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other.vp, module.vp)
    assert module.float()(WAVELET.float(), SOURCES, RECEIVERS).dtype == torch.float32


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_module_without_shots_gives_no_traces_and_a_zero_gradient(engine):
    module = Acoustic(VP, 10.0, DT, **{**METHOD, "engine": engine})
    data = module(WAVELET, SOURCES[:0], RECEIVERS)
    assert data.shape == (0, 3, N)
    data.sum().backward()
    assert not module.vp.grad.any()


def test_module_under_data_parallel_needs_shots_in_every_argument():
    module = make_module()
    wrapped = torch.nn.DataParallel(module)
    shots = WAVELET.expand(3, -1), SOURCES, RECEIVERS.expand(3, -1, -1)
    wrapped(*shots).square().sum().backward()
    alone = make_module()
    alone(WAVELET, SOURCES, RECEIVERS).square().sum().backward()
    assert torch.equal(module.vp.grad, alone.vp.grad)
    # DataParallel cuts the arguments like this for devices
    parts = torch.nn.parallel.scatter_gather.scatter
    assert parts is not None
    chunks = zip(*(torch.chunk(each, 2) for each in shots), strict=True)
    assert torch.equal(torch.cat([alone(*chunk) for chunk in chunks]), alone(*shots))


RANKS = """
import sys
import torch
import hpcfwi
from hpcfwi.wave import share_of_mean
from tests.wave.test_module import make_module
from tests.wave.test_transforms import RECEIVERS, WAVELET

with hpcfwi.launch() as context:
    ends = torch.linspace(20.0, 170.0, 16, dtype=torch.float64)
    sources = torch.stack([torch.full_like(ends, 20.0), ends], dim=1)
    for cut in (torch.chunk, torch.tensor_split):
        for count in (16, 2):
            module = make_module()
            wrapped = torch.nn.parallel.DistributedDataParallel(module)
            parts = cut(sources[:count], context.size)
            mine = parts[context.rank] if context.rank < len(parts) else sources[:0]
            misfits = wrapped(WAVELET, mine, RECEIVERS).square().sum()
            share_of_mean(misfits, count, context.size).backward()
            alone = make_module()
            (alone(WAVELET, sources[:count], RECEIVERS).square().sum() / count).backward()
            off = (module.vp.grad - alone.vp.grad).norm() / alone.vp.grad.norm()
            assert off < 1e-12, off
            uneven = make_module()
            wrapped = torch.nn.parallel.DistributedDataParallel(uneven)
            mean = wrapped(WAVELET, mine, RECEIVERS).square().sum() / max(1, len(mine))
            mean.backward()
            wrong = (uneven.vp.grad - alone.vp.grad).norm() / alone.vp.grad.norm()
            if context.is_root:
                print(cut.__name__, count, len(parts), float(wrong) > 1e-3)
"""


@pytest.mark.parametrize("n", [2, long_form(7)])
def test_shares_of_the_mean_give_its_gradient_under_ddp(n):
    """Means over the shots of each rank are wrong if the parts are uneven or empty."""
    done = run_ranks(n, RANKS, warm=("torch._dynamo",))
    told = {tuple(line.split()[:2]): line.split()[2:] for line in done.stdout.splitlines()}
    parts = {2: "2", 7: "6"}
    assert told["chunk", "16"] == [parts[n], str(n != 2)]
    assert told["tensor_split", "16"] == [str(n), str(n != 2)]
    assert told["chunk", "2"] == ["2", str(n != 2)]


def test_share_of_mean_is_scaled_for_an_average_over_ranks():
    total = torch.tensor(12.0)
    assert float(share_of_mean(total, shots=16, ranks=4)) == 3.0
    assert relative(share_of_mean(total, 12, 1), torch.tensor(1.0)) == 0.0


def test_module_refuses_a_model_that_is_not_a_tensor():
    with pytest.raises(TypeError, match=r"vp is a numpy.ndarray; .*torch.as_tensor\(vp\)"):
        Acoustic(np.full((40, 60), 2000.0), 10.0, 0.001)
