"""Work on the leaders of crews: ranks that simulate shots together, as the input asks for.

`inversion.layers` chooses and checks the number of ranks of a crew, `parallel.crew` makes crews of
ranks, and `wave.leader` describes what the others do for a leader.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcfwi.config import Config
from hpcfwi.errors import Stopped
from hpcfwi.inversion.layers import choose_crew_size
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.crew import form_crews
from hpcfwi.parallel.watch import handling
from hpcfwi.wave.leader import Leader, dismiss, serve


def run_in_crews(
    load: Callable[[], Config],
    context: Context,
    work: Callable[[Config, Context], None],
    needs_crews: bool = True,
    target: Path | None = None,
) -> None:
    """Run `work` on the leaders of the crews that a config asks for; the others serve them.

    Without crews, all ranks run it. `work` gets the config, which `load` reads on rank 0, and the
    context of the ranks that run it. needs_crews: False if a single rank may run it alone; target:
    see `prepare`. Collective.

    Raises
    ------
    InputError
        On all ranks, if the config cannot be read, or the ranks cannot be divided.
    """
    config = context.from_root(load)
    size = config.wave.ranks_per_shot
    if context.size == 1 and (size == "auto" or not needs_crews):
        size = 1
    elif size == "auto":
        experiments = [prepare(config, context, target)]
        if target is None:
            experiments = [stage.experiment for stage in make_stages(experiments[0], context)]
        size = choose_crew_size(experiments, context)
    run_on_leaders(size, context, partial(work, config))


def run_on_leaders(size: int, context: Context, work: Callable[[Context], None]) -> None:
    """Run `work` on the leaders of crews of this size, which the other ranks serve; collective.

    Raises
    ------
    InputError
        On all ranks, if they cannot be divided.
    """
    if size == 1:
        work(context)
        return
    context, crew = form_crews(context, size)
    with closing(crew):
        if crew.number == 0:
            try:
                work(replace(context, leader=Leader(crew)))
            except (Exception, Stopped) as error:
                dismiss(crew, portable(error))
                raise
            dismiss(crew)
        else:
            # The leaders agree on how to stop after a signal
            with handling(lambda *_: None):
                serve(crew, context.device)
