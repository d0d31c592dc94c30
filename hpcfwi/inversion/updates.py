"""What makes the updates of a stage: its optimiser, and what is put around it.

Each of these is in `optimizers`; the loop sees one `Optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from hpcfwi.config import Config
from hpcfwi.config.own import find_own
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.networks.represented import Represented
from hpcfwi.inversion.optimizers import Optimizer, Price
from hpcfwi.inversion.optimizers.denoised import Denoised
from hpcfwi.inversion.optimizers.reparametrized import Reparametrized
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.state import State
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import WHOLE, Slabs
from hpcfwi.registry import DENOISERS


def make_optimizer(
    experiment: Experiment, context: Context, before: Mapping[str, Any] | None = None
) -> Optimizer:
    """The optimiser of an experiment, which begins anew.

    before: the state of that of the stage before, of which a network's weights are kept.
    """
    config, initial = experiment.config, experiment.initial.as_tensors(context.device)
    section, limits = config.inversion, experiment.limits(initial)
    make = section.optimizer.make()
    if section.optimizer.sharded:
        make = partial(make, slabs=find_slabs(config, context))
    if config.model.network is not None:
        represented = Represented(config.model.network, limits, context, section.reproducible)
        return Reparametrized(represented, make, before and before["weights"])
    if section.prior is not None:
        key, prior = "inversion.prior.denoiser", section.prior
        denoiser = find_own(key, prior.denoiser, DENOISERS, prior.folder)
        inner = make(initial, limits)
        return Denoised(inner, limits, prior, denoiser, context, section.reproducible)
    optimizer: Optimizer = make(initial, limits)
    return optimizer


def find_price(experiment: Experiment) -> Callable[[int], Price]:
    """What its optimiser asks for in an epoch of so many shots.

    Asked of one that begins with a single cell: a price is that of each.
    """
    section, grid = experiment.config.inversion, experiment.initial.grid
    first = (slice(1),) * grid.ndim
    cell = replace(grid, shape=(1,) * grid.ndim)
    initial = Model(cell, {n: torch.tensor(a[first]) for n, a in experiment.initial.arrays.items()})
    fixed = dict.fromkeys(initial.arrays, torch.tensor(experiment.fixed[first]))
    limits = Limits(initial, fixed, section.bounds_by_name)
    return cast(Optimizer, section.optimizer.make()(initial, limits)).price


def size_unknowns(experiment: Experiment) -> list[int]:
    """Of each array that the optimiser steps: cells of the model, or a network's weights."""
    initial, network = experiment.initial, experiment.config.model.network
    if network is None:
        return [array.size for array in initial.arrays.values()]
    limits = experiment.limits(initial.as_tensors(torch.device("cpu")))
    return Represented(network, limits, Context.alone(), reproducible=True).sizes


def find_slabs(config: Config, context: Context) -> Slabs:
    """In which the optimiser's state is kept."""
    return Slabs(context) if config.inversion.optimizer.sharded else WHOLE


def divide(state: Mapping[str, Any], config: Config, context: Context) -> Mapping[str, Any]:
    """The state of an optimiser, whole as a checkpoint has it, as this rank keeps it.

    Every rank has all weights of a network, of which models are made.
    """
    slabs = find_slabs(config, context)
    if config.model.network is not None:
        return {**state, "optimizer": slabs.divide(state["optimizer"])}
    divided: Mapping[str, Any] = slabs.divide(state)
    return divided


def first_state(experiment: Experiment, context: Context) -> State:
    """The state before the first epoch, in an experiment as its first stage has it; collective."""
    optimizer, initial = make_optimizer(experiment, context), experiment.initial
    model = initial.as_tensors(context.device)
    if isinstance(optimizer, Reparametrized):
        model = optimizer.make_model()
    return State(0, model, optimizer.state())
