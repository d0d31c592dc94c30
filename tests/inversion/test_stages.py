"""Stages."""

from __future__ import annotations

from hpcfwi.config import load_config
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.parallel.context import Context
from tests.inversion.examples import write_input


def test_ready_stage_has_a_taper(tmp_path):
    path = write_input(tmp_path, {"inversion.precondition": {"taper": 100.0}})
    alone = Context.alone()
    (stage,) = make_stages(prepare(load_config(path), alone), alone)
    ready = stage.ready(alone)
    assert stage.taper is None
    assert ready.preconditioner.taper is ready.taper is not None
