"""Regularizers, which are penalties of a model: one in each file, named in `registry.REGULARIZERS`.

A regularizer is a function of a model and a prior model, both of tensors, of the weights of cells,
a tensor or None if all are 1, and of its keys. It returns the penalty, which is added to the
misfit, and the gradient of the penalty, which is a model. Every rank computes it, so that its
results must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

from torch import Tensor

from hpcfwi.model import Model

Regularizer = Callable[[Model], tuple[float, Model]]

Measure = Callable[[Tensor, Tensor], tuple[float, Tensor]]
"""A function of an array and that of the prior model to the penalty and its gradient."""


def penalize(measure: Measure, model: Model, prior: Model) -> tuple[float, Model]:
    """Return the penalty, summed over the parameters, and its gradient."""
    found = model.map(measure, prior)
    gradient = found.map(lambda pair, array: pair[1].to(array.dtype), model)
    return fsum(penalty for penalty, _ in found.arrays.values()), gradient
