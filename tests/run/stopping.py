"""An inversion of which rank 1 is stopped: `python -m tests.run.stopping CONFIG WAIT`.

It is stopped at the beginning of the second stage. WAIT: time after which other ranks end, s.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from hpcfwi.inversion.stages import Stage
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import run_guarded
from hpcfwi.parallel.launch import launch
from hpcfwi.parallel.watch import Watch
from hpcfwi.run import session
from hpcfwi.run.job import run_job
from tests.undrawn import draw_nothing


def stop_rank_1(config: Path, wait: float, context: Context) -> int:
    ready = Stage.ready

    def stop(stage: Stage, ranks: Context) -> Stage:
        if stage.number == 1 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return ready(stage, ranks)

    with (
        mock.patch.object(Stage, "ready", stop),
        mock.patch.object(session, "Watch", partial(Watch, wait=wait)),
    ):
        run_job(config, (), context, inverts=True)
    return 0


if __name__ == "__main__":
    draw_nothing()
    started = launch()
    given = Path(sys.argv[1]), float(sys.argv[2])
    sys.exit(run_guarded(started, lambda: stop_rank_1(*given, started)))
