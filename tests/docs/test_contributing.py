"""CONTRIBUTING.md: its table of modules, and its examples of a misfit and an optimizer."""

from __future__ import annotations

import inspect
import re

import torch

from hpcfwi.inversion import optimizers
from hpcfwi.inversion.misfits import huber
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.shards import WHOLE
from tests.inversion.optimizers.test_gradient import evaluator
from tests.inversion.test_misfits import test_huber_is_least_squares_up_to_its_width
from tests.ranks import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_each_module_is_in_the_row_of_its_package():
    rows = re.findall(r"^\| (`.+`) \| (.*) \|.*\|$", PAGE, flags=re.MULTILINE)
    named = {
        package: re.findall(r"`(\w+)/?`", contents)
        for packages, contents in rows
        for package in re.findall(r"`(\w+)`", packages)
    }
    for path in sorted((ROOT / "hpcfwi").glob("*/**/*.py")):
        package, *inner = path.relative_to(ROOT / "hpcfwi").with_suffix("").parts
        assert set(inner) & {*named[package], "__init__"}, f"{path} is not in the table"


def test_misfit_and_its_test_are_those_of_the_package():
    assert inspect.getsource(huber) in BLOCKS
    assert inspect.getsource(test_huber_is_least_squares_up_to_its_width) in BLOCKS


def test_optimizer_changes_the_steepest_cell_by_its_rate():
    (source,) = (block for block in BLOCKS if block.startswith("class Steepest(GradientOptimizer)"))
    names = {**vars(optimizers), "WHOLE": WHOLE}
    # Annotations stay text, as in the modules of the package
    exec(compile("from __future__ import annotations\n" + source, "CONTRIBUTING.md", "exec"), names)
    grid = Grid((6, 7), (10.0, 10.0), (0.0, 0.0))
    initial = Model(grid, {"vp": torch.full((6, 7), 2000.0)})
    gradient = torch.linspace(-3.0, 2.0, 42).reshape(6, 7)
    limits = Limits(initial, {"vp": torch.zeros(6, 7, dtype=torch.bool)}, {})
    optimizer = names["Steepest"](initial, limits, lr=10.0)
    found, _ = optimizer.step(initial, evaluator(gradient))
    change = found["vp"] - initial["vp"]
    torch.testing.assert_close(change, -10.0 / 3.0 * gradient, rtol=0.0, atol=1e-3)
