"""The misfit of a model for some shots, and its gradient: global results on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import fsum, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.effort import Times
from hpcfwi.inversion.experiment import Physics
from hpcfwi.inversion.misfit import least_squares
from hpcfwi.inversion.portions import Portions
from hpcfwi.inversion.sampler import Batch, Part, Shots
from hpcfwi.inversion.window import Window, group_shots
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import ExactSum, PlainSum, Sum
from hpcfwi.parallel.recovery import look_around

References = tuple[float, float, float]
"""Largest magnitudes of a shot's gradient, source and receiver illumination; 0 if not known."""

NO_REFERENCES: References = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Evaluation:
    """Means over the shots of a batch, the same on every rank, but for the times.

    gradient: of the misfit with respect to vp; illuminations: time sums of the squared
    forward and adjoint fields, zero where they were not asked for or the engine has none. Arrays
    have the model's shape and precision. failed: shots that are not in the means, as what they
    gave is not finite. references: for the next evaluation.
    """

    misfit: float
    gradient: Tensor
    source_illumination: Tensor
    receiver_illumination: Tensor
    failed: tuple[int, ...]
    references: References
    times: Times


@dataclass(frozen=True)
class _Shot:
    """One shot's misfit, and its gradient and illuminations in its window.

    fields: None where there is none, or it is not finite.
    """

    number: int
    window: Window
    misfit: float
    fields: tuple[Tensor | None, ...]

    @property
    def is_finite(self) -> bool:
        """Whether it counts; illuminations are only looked at."""
        return isfinite(self.misfit) and self.fields[0] is not None


@dataclass
class _Partial:
    """What has been added up of a batch, on one rank."""

    sums: list[Sum]
    misfits: dict[int, float] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)

    def add(self, shot: _Shot) -> None:
        if not shot.is_finite:
            self.failed.append(shot.number)
            return
        self.misfits[shot.number] = shot.misfit
        for total, term in zip(self.sums, shot.fields, strict=False):
            if term is not None:
                total.add(term, shot.window.slices)

    @property
    def shots(self) -> list[int]:
        return [*self.misfits, *self.failed]

    @property
    def largest(self) -> tuple[float, ...]:
        return tuple(total.largest for total in self.sums)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on all ranks.

    reproducible: whether results have the same bits for any number of ranks and any schedule.

    Where ranks survive the death of others, it keeps what this one has added up last: an evaluation
    that was interrupted, and is called for again, only simulates what the dead had.
    """

    physics: Physics
    context: Context
    portions: Portions
    reproducible: bool = True
    _kept: dict[str, _Partial] = field(default_factory=dict, init=False, repr=False)

    def evaluate(
        self,
        vp: Tensor,
        batch: Batch,
        references: References | None = None,
        illuminate: bool = True,
    ) -> Evaluation:
        """Simulate this rank's shots, propagate their residuals back, and add up; collective.

        references: of the evaluation before, from which sums take their resolution; where there
        is none, a shot is simulated beforehand to find them. illuminate: whether illuminations are
        wanted, which make the way back a third longer.

        Raises `InversionFailure` on all ranks where memory does not suffice for one shot, or none
        gives finite numbers.
        """
        times = Times()
        if references is None:
            references = self._find_references(vp, batch, times)
        while True:
            mine = self._add_up(vp, batch, references, illuminate, times)
            with times.spent_on("wait"):
                self.portions.check()
                ranks = self.context.all_gather((mine.misfits, mine.failed, mine.largest))
            largest = [max(part) for part in zip(*(rank[2] for rank in ranks), strict=True)]
            holds = all(total.holds(most) for total, most in zip(mine.sums, largest, strict=True))
            references = _newer(references, largest)
            if holds:
                break
        misfits = [misfit for rank in ranks for misfit in rank[0].values()]
        failed = tuple(sorted(shot for rank in ranks for shot in rank[1]))
        if not misfits:
            raise InversionFailure(
                f"none of the shots {list(failed)} gives a finite misfit and gradient, and no step "
                "was made from them: check their data, and the model for velocities that the last "
                "step drove away (a smaller inversion.optimizer.lr, inversion.bounds)"
            )
        with times.spent_on("reduce"):
            means = [(total.total(self.context) / len(misfits)).to(vp.dtype) for total in mine.sums]
        gradient, *illuminations = means
        source, receiver = illuminations or (torch.zeros_like(vp), torch.zeros_like(vp))
        return Evaluation(
            fsum(misfits) / len(misfits), gradient, source, receiver, failed, references, times
        )

    def _find_references(self, vp: Tensor, batch: Batch, times: Times) -> References:
        """The largest magnitudes of the first shot that is good, which every rank simulates."""
        for shot in batch.shots:
            for tried in self._simulate(vp, batch.part(np.array([shot])), True, times):
                if tried.is_finite:
                    found = [0.0 if f is None else float(f.abs().max()) for f in tried.fields]
                    return _newer(NO_REFERENCES, found)
            self.portions.check()
        return NO_REFERENCES

    def _add_up(
        self, vp: Tensor, batch: Batch, references: References, illuminate: bool, times: Times
    ) -> _Partial:
        shape, device = tuple(vp.shape), vp.device
        sums: list[Sum] = [
            ExactSum(shape, reference, batch.shots.size, device)
            if self.reproducible
            else PlainSum(shape, device)
            for reference in references[: 3 if illuminate else 1]
        ]
        mine, left = _Partial(sums), batch.shots
        if self.context.survives:
            mine, left = self._take_up(mine, vp, batch, references)
        for part in batch.deal(left):
            for shot in self._simulate(vp, part, illuminate, times):
                with times.spent_on("reduce"):
                    mine.add(shot)
                look_around(self.context)
            if self.portions.exhausted:
                break
        return mine

    def _take_up(
        self, fresh: _Partial, vp: Tensor, batch: Batch, references: References
    ) -> tuple[_Partial, Shots]:
        """What this rank has of these sums from before a death, and the shots nobody has."""
        same = hashlib.sha256(vp.cpu().numpy().tobytes())
        same.update(repr((batch.shots.tolist(), references, len(fresh.sums))).encode())
        mine = self._kept.get(same.hexdigest(), fresh)
        self._kept.clear()
        self._kept[same.hexdigest()] = mine
        done = [shot for shots in self.context.all_gather(mine.shots) for shot in shots]
        return mine, batch.shots[~np.isin(batch.shots, done)]

    def _simulate(self, vp: Tensor, part: Part, illuminate: bool, times: Times) -> Iterator[_Shot]:
        work = partial(self._evaluate, vp, part, illuminate, times)
        for shots in self.portions.each(part.shots.size, work):
            yield from shots

    def _evaluate(
        self, vp: Tensor, part: Part, illuminate: bool, times: Times, portion: slice
    ) -> list[_Shot]:
        """Some shots of a part, those that have the same window in one simulation."""
        places = np.arange(part.shots.size)[portion]
        with times.spent_on("compute"):
            windows = list(
                self.physics.reach.find_windows(self.physics.grid, part.survey.select(places))
            )
            return [
                shot
                for group in group_shots(windows)
                for shot in self._evaluate_in(
                    windows[group[0]], vp, part, places[group], illuminate, times
                )
            ]

    def _evaluate_in(
        self,
        window: Window,
        vp: Tensor,
        part: Part,
        places: NDArray[np.int64],
        illuminate: bool,
        times: Times,
    ) -> list[_Shot]:
        """Shots of a window, given by their places in the part."""
        survey, reach = part.survey.select(places), self.physics.reach
        simulation = self.physics.simulate(vp, survey, True, illuminate, window)
        with times.spent_on("read"), self.context.pulse.waiting():
            traces = part.traces()
        observed = torch.from_numpy(traces[places][:, window.listening]).to(vp)
        heard = torch.from_numpy(reach.hears(survey.sources, survey.receivers))
        heard = heard[:, window.listening, None].to(vp.device)
        # A trace that does not count is met as it is, whatever was recorded.
        observed = torch.where(heard, observed, simulation.data)
        misfits, residual = least_squares(simulation.data, observed, survey.dt)
        residual[~misfits.isfinite().to(vp.device)] = 0.0
        found = simulation.backpropagate(residual)
        fields = (found.vp, found.source_illumination, found.receiver_illumination)
        return [
            _Shot(
                int(part.shots[place]),
                window,
                float(misfits[k]),
                tuple(None if term is None else _finite(term[k]) for term in fields),
            )
            for k, place in enumerate(places)
        ]


def _finite(term: Tensor) -> Tensor | None:
    return term if bool(term.isfinite().all()) else None


def _newer(references: References, largest: Sequence[float]) -> References:
    """The largest magnitudes, or what they were where there is nothing new."""
    newer = [*largest, *references[len(largest) :]]
    gradient, source, receiver = (new or old for new, old in zip(newer, references, strict=True))
    return gradient, source, receiver
