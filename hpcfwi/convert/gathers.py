"""SEG-Y to gathers: shot by shot, every rank its part, in as much memory as some shots take.

What is to be written, and from where, is found in `contents`.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.contents import Contents, look_into
from hpcfwi.convert.request import Request
from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.report.progress import Progress
from hpcfwi.storage.gathers import create_gathers

# Bytes of traces that a rank holds at a time
PART = 2**26

log = logging.getLogger("hpcfwi")


def convert_to_gathers(request: Request, context: Context, quiet: bool) -> None:
    """Write the gathers of SEG-Y files; collective. Raises `InputError` on all ranks."""
    contents = context.from_root(lambda: look_into(request))
    survey = contents.survey
    strange = []
    with create_gathers(request.target, survey, context, contents.extras) as writer:
        mine = np.array_split(writer.left, context.size)[context.rank]
        shot_bytes = 4 * survey.n_receivers * survey.n_samples
        n_rounds = -(-mine.size // max(1, PART // shot_bytes))
        parts = np.array_split(mine, max(1, n_rounds))
        done = survey.n_shots - writer.left.size
        with Progress(
            survey.n_shots, "shot", done=done, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            for number in range(max(context.all_gather(len(parts)))):
                part = parts[number] if number < len(parts) else mine[:0]
                data = _read_part(part, contents, context)
                strange += part[~np.isfinite(data).all(axis=(1, 2))].tolist()
                writer.write(part, data)
                progress.advance(sum(context.all_gather(int(part.size))))
    strange = sorted(shot for shots in context.all_gather(strange) for shot in shots)
    if strange and context.is_root:
        log.warning(
            "%d of %d shots have traces that are not finite, the first is shot %d",
            len(strange),
            survey.n_shots,
            strange[0],
        )


def _read_part(
    part: NDArray[np.int64], contents: Contents, context: Context
) -> NDArray[np.float32]:
    """The gathers (shot, receiver, time) of some shots; an error of any rank is raised on all."""
    survey, failure, data = contents.survey, None, None
    try:
        data = np.zeros((part.size, *survey.shape[1:]), dtype=np.float32)
        for gather, shot in zip(data, part, strict=True):
            start, end = contents.gathering.starts[shot : shot + 2]
            traces = contents.gathering.traces[start:end]
            _place(gather[: end - start], contents.files.read(traces), contents.delays[traces])
    except InputError as error:
        failure = error
    for found in context.all_gather(failure):
        if found is not None:
            context.raise_alike(found)
    assert data is not None
    return data


def _place(
    target: NDArray[np.float32], traces: NDArray[np.float32], delays: NDArray[np.int64]
) -> None:
    """Copy traces (trace, time) to where they belong in time; the rest stays as it is."""
    length = target.shape[1]
    for delay in np.unique(delays):
        these, begin = delays == delay, max(0, int(delay))
        end = max(begin, min(length, traces.shape[1] + int(delay)))
        target[these, begin:end] = traces[these, begin - delay : end - delay]
