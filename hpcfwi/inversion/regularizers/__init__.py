"""Regularizers, which are penalties of a model: one in each file, named in `registry.REGULARIZERS`.

A regularizer is a function of a model and a prior model, both of tensors, of the weights of cells,
a tensor or None if all are 1, and of its keys. It returns the penalty, which is added to the
misfit, and the gradient of the penalty, which is a model. Every rank computes it, so that its
results must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcfwi.model import Model

Regularizer = Callable[[Model], tuple[float, Model]]
