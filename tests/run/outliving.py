"""An inversion in which ranks are killed: `python -m tests.run.outliving CONFIG DEATHS`.

DEATHS is a list "rank:epoch:seconds ...": each rank is killed so many seconds after the evaluation
of that epoch has begun. In the end, rank 0 prints "left" and the number of ranks that are left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from hpcfwi.inversion.objective import Evaluation, Objective
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import run_guarded
from hpcfwi.parallel.launch import launch
from hpcfwi.run.job import run_job
from tests.undrawn import draw_nothing


def outlive(config: Path, deaths: str, context: Context) -> int:
    mine = {}
    for death in deaths.split():
        rank, epoch, seconds = death.split(":")
        if int(rank) == context.rank:
            mine[f"epoch {epoch}"] = float(seconds)
    evaluate = Objective.evaluate

    def mortal(evaluator: Objective, *given: Any, **options: Any) -> Evaluation:
        seconds = mine.get(context.heartbeat.work)
        if seconds is not None:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return evaluate(evaluator, *given, **options)

    with mock.patch.object(Objective, "evaluate", mortal):
        run_job(config, (), context, inverts=True)
    if context.is_root:
        print("left", context.size, flush=True)
    return 0


if __name__ == "__main__":
    draw_nothing()
    started = launch()
    sys.exit(run_guarded(started, lambda: outlive(Path(sys.argv[1]), sys.argv[2], started)))
