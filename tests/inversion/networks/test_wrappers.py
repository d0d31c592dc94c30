"""Networks in torch's wrappers for several ranks, together with distributed shots.

As in docs/networks.md, the gradient with respect to the model is the same on every rank, and each
rank evaluates the network at a part of the coordinates.
"""

from __future__ import annotations

import pytest
import torch

from hpcfwi.inversion.networks import Siren
from hpcfwi.model import Model
from hpcfwi.operators import Shots
from tests.operators.examples import GRID, METHOD, make_model, make_survey
from tests.ranks import run_ranks

RANKS = """
import torch
import hpcfwi
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from hpcfwi.operators import distribute
from hpcfwi.parallel.context import Context
from tests.inversion.networks.test_wrappers import make_network, make_shots, step

with hpcfwi.launch() as context:
    def adam(network):
        return torch.optim.Adam(network.parameters(), lr=1e-3)

    def replicate():
        network = DistributedDataParallel(make_network())
        return network, adam(network)

    def shard_the_optimizer():
        network = DistributedDataParallel(make_network())
        return network, ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=1e-3)

    def shard():
        network, mesh = make_network(), init_device_mesh("cpu", (context.size,))
        for layer in network.hidden:
            fully_shard(layer, mesh=mesh)
        fully_shard(network, mesh=mesh)
        return network, adam(network)

    alone = make_network()
    optimizer = adam(alone)
    serial = [step(alone, optimizer, make_shots(), Context.alone()) for _ in range(3)]
    for make in (replicate, shard_the_optimizer, shard):
        network, optimizer = make()
        shots = distribute(make_shots(), context)
        found = [step(network, optimizer, shots, context) for _ in range(3)]
        off = max(float((a - b).norm() / b.norm()) for a, b in zip(found, serial))
        moved = float((serial[-1] - serial[0]).norm() / serial[0].norm())
        kept = sum(
            getattr(p, "to_local", lambda p=p: p)().numel() for p in network.parameters()
        )
        if context.is_root:
            print(make.__name__, off < 1e-12, moved > 1e-4, kept, flush=True)
"""


def make_network():
    """Return a network in double precision with the same weights each time."""
    torch.manual_seed(3)
    return Siren(GRID.shape, 1, width=12, omega=8.0).double()


def make_shots():
    return Shots(make_survey(shots=3), GRID, **METHOD)


def step(network, optimizer, shots, context):
    """Update the weights, each rank by a part of the points, and return the model before."""
    axes = [torch.linspace(-1.0, 1.0, n, dtype=torch.float64) for n in GRID.shape]
    points = torch.cartesian_prod(*axes)
    mine = slice(context.rank, None, context.size)
    values = network(points[mine])
    whole = torch.zeros(len(points), 1, dtype=torch.float64)
    whole[mine] = values.detach()
    model = Model(GRID, {"vp": 2000.0 + 100.0 * context.sum(whole).reshape(GRID.shape)})
    residual = shots(model) - make_shots()(make_model())
    gradient = 100.0 * shots.vjp(model, residual)["vp"].reshape(-1, 1)
    # The wrappers average over ranks
    (values * gradient[mine]).sum().mul(context.size).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model["vp"]


@pytest.mark.parametrize("n", [3])
def test_replicas_and_shards_of_a_network_take_steps_of_one_process(n):
    done = run_ranks(n, RANKS, warm=("torch._dynamo",))
    printed = {name: words for name, *words in map(str.split, done.stdout.splitlines())}
    assert set(printed) == {"replicate", "shard_the_optimizer", "shard"}
    assert all(words[:2] == ["True", "True"] for words in printed.values()), printed
    whole = sum(p.numel() for p in make_network().parameters())
    assert int(printed["replicate"][2]) == whole
    assert whole / n <= int(printed["shard"][2]) <= whole / n + 16
