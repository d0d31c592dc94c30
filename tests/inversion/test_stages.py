"""What a stage keeps from one epoch to the next."""

from __future__ import annotations

from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.parallel.context import Context
from tests.inversion.examples import write_input


def test_a_stage_that_is_ready_has_a_taper_and_the_draws_that_it_had(tmp_path):
    path = write_input(tmp_path, {"inversion.precondition": {"taper": 100.0}})
    alone = Context.alone()
    (stage,) = make_stages(prepare(load_config(path), alone), alone)
    ready = stage.ready(alone)
    assert stage.taper is None
    assert ready.preconditioner.taper is ready.taper is not None
    assert ready.draws() is stage.draws()
