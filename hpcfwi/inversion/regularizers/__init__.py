"""Regularizers, which are penalties of a model: one a file, named in `registry.REGULARIZERS`.

A regulariser is a function of a model and of a prior one, which is what was known before, both of
tensors, of the weights of the cells, a tensor or None where all are 1, and of keys of its own. It
returns its penalty, which is added to the misfit, and the penalty's gradient, a model. It is
computed on every rank alike: what it returns must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcfwi.model import Model

Regularizer = Callable[[Model], tuple[float, Model]]
