"""What is asked of a model beside its data: one regulariser a file, named in `registry.REGULARIZERS`.

A regulariser is a function of a model and of the initial one, both of tensors, and of keys of its
own. It returns its penalty, which is added to the misfit, and the penalty's gradient, a model. It
is computed on every rank alike: what it returns must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpcfwi.model import Model
from hpcfwi.registry import REGULARIZERS, find
from hpcfwi.schema import Regularizer as Section

Regularizer = Callable[[Model], tuple[float, Model]]


def make_regularizer(section: Section | None, initial: Model) -> Regularizer | None:
    """The regulariser that an input asks for, if any."""
    if section is None:
        return None
    keys = section.model_dump(exclude={"name"}, exclude_none=True)
    return partial(find(REGULARIZERS[section.name]), initial=initial, **keys)
