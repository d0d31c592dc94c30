"""The experiment that a config describes: models, survey, and the simulation of its shots.

Properties of all shots that every rank needs are found once, collectively: each rank examines a
part of the shots, or one rank of each host examines all of them. Settings of the updates stay in
the config. `preparation` reads and checks an experiment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.read import HistorySection, WaveSection
from hpcfwi.config.survey import Points, Receivers, Sources
from hpcfwi.config.values import count_bytes, module_files
from hpcfwi.errors import InputError, StepFailure, quote
from hpcfwi.inversion.conditioning import (
    Band,
    Conditioning,
    Picks,
    Preprocess,
    find_preprocessing,
)
from hpcfwi.inversion.parameters import POWERS, Limits, Medium, PriorKnowledge, Unknowns
from hpcfwi.inversion.preconditioning import rise_from, thin_out
from hpcfwi.inversion.regularizers import Regularizer
from hpcfwi.inversion.resolution import correlate, make_images, reflectivity
from hpcfwi.model import PARAMETERS, Grid, Model
from hpcfwi.operators.shots import Shots
from hpcfwi.operators.simulator import Aperture, Simulator
from hpcfwi.operators.vectors import Coarsening
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.registry import PARAMETRIZATIONS, find
from hpcfwi.storage.gathers import digest_data
from hpcfwi.storage.unfinished import describe_kinds
from hpcfwi.survey import (
    EXPLOSIVE,
    PRESSURE,
    STRAIN,
    Components,
    SourceKinds,
    Spectrum,
    Survey,
    moment_kinds,
)
from hpcfwi.wave import Attenuation, Auto, Method
from hpcfwi.wave.engines import Leader
from hpcfwi.wave.equation import Equation, find_equation
from hpcfwi.wave.history import History, from_table, parse

# Largest number of sources, or of receivers, that a config places.
MOST_POINTS = 10**6


def place_points(points: Points, grid: Grid, key: str) -> NDArray[np.float64]:
    """Return positions (point, ndim) in m, x varying fastest; raise `InputError` with the key."""
    counts = np.atleast_1d(points.count).tolist()
    if len(counts) != grid.ndim - 1:
        axes = "one number, along x" if grid.ndim == 2 else "a pair, along y and x"
        raise InputError(
            key,
            f"found {quote(points.count)}, but the model has {grid.ndim} axes "
            f"({', '.join(grid.axes)}); expected {axes}",
            f"Give the numbers of points as {'count = 24' if grid.ndim == 2 else 'count = [4, 6]'}"
            ", and first and last likewise.",
        )
    if prod(counts) > MOST_POINTS:
        raise InputError(
            key,
            f"found {points.count}, expected at most {MOST_POINTS} points in all",
            "Give fewer points.",
        )
    places = [np.array([points.depth])]
    for axis, n in enumerate(counts, start=1):
        first, last = (
            end[axis] if given is None else np.atleast_1d(given)[axis - 1]
            for given, end in ((points.first, grid.origin), (points.last, grid.last))
        )
        places.append(np.linspace(first, last, n) if n > 1 else np.array([(first + last) / 2]))
    return np.stack(np.meshgrid(*places, indexing="ij"), axis=-1).reshape(-1, grid.ndim)


def place_spread(
    receivers: Receivers, sources: NDArray[np.float64], grid: Grid
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Return positions (m) of receivers that move with the sources (shot, ndim), and a mask.

    Positions are (shot, receiver, ndim), along x at the y of each source. The mask (shot, receiver)
    is False for receivers and gauges beyond an end of the model, which have the position of the
    nearest existing receiver of their shot; it is None if all exist. Raises `InputError` if a shot
    has none.
    """
    assert isinstance(receivers.count, int)
    assert receivers.offset is not None
    assert receivers.spacing is not None
    n_shots, count = len(sources), receivers.count
    x = sources[:, -1:] + receivers.offset + receivers.spacing * np.arange(count)
    line = Grid(grid.shape[-1:], grid.spacing[-1:], grid.origin[-1:])
    mask = line.contains(x[..., None])
    if receivers.direction is not None and receivers.gauge is not None:
        direction = np.array(receivers.direction)
        half = 0.5 * receivers.gauge * direction[-1] / np.linalg.norm(direction)
        mask &= line.contains((x - half)[..., None]) & line.contains((x + half)[..., None])
    dead = np.flatnonzero(~mask.any(axis=1))
    if dead.size:
        shot = dead[0]
        raise InputError(
            "survey.receivers.offset",
            f"{dead.size} of {n_shots} shots have no receiver within the model, which goes from "
            f"x = {line.origin[0]:g} to {line.last[0]:g} m; the first is shot {shot} at "
            f"x = {sources[shot, -1]:g} m, with receivers from {x[shot, 0]:g} to "
            f"{x[shot, -1]:g} m",
            "Leave these shots out with first and last of survey.sources, or give another offset "
            "or spacing; both are negative for receivers towards smaller x.",
        )
    first, last = mask.argmax(axis=1), count - 1 - mask[:, ::-1].argmax(axis=1)
    there = np.clip(np.arange(count), first[:, None], last[:, None])
    positions = np.repeat(sources[:, None], count, axis=1)
    positions[..., 0] = receivers.depth
    positions[..., -1] = np.take_along_axis(x, there, axis=1)
    return positions, None if mask.all() else mask


def find_source_kinds(sources: Sources, grid: Grid) -> SourceKinds:
    """Return the kinds of the sources that the input describes."""
    if sources.moment is not None:
        return moment_kinds(np.array(sources.moment), grid.axes)
    return EXPLOSIVE if sources.kind == "explosive" else {sources.kind: np.ones(())}


def record_components(survey: Survey, receivers: Receivers) -> Survey:
    """Return a survey of pressure with traces of all components of its receivers.

    Its traces are those of all receivers for the first component, then those for the next one.
    """
    names, count, ndim = receivers.components, survey.n_receivers, survey.sources.shape[-1]
    if names == PRESSURE.names:
        return survey
    kinds = np.repeat(np.arange(len(names), dtype=np.int8), count)
    directions = None
    if receivers.direction is not None:
        direction = np.array(receivers.direction)
        if direction.size != ndim:
            raise InputError(
                "survey.receivers.direction",
                f"found {direction.tolist()}, but the model has {ndim} axes",
                "Give a number for each axis, in the order z, y, x.",
            )
        along = direction / np.linalg.norm(direction)
        directions = np.where(kinds[:, None] == names.index(STRAIN), along, 0.0)

    def repeat(values: NDArray[Any], axis: int) -> NDArray[Any]:
        return np.concatenate([values] * len(names), axis=axis)

    return replace(
        survey,
        receivers=repeat(survey.receivers, -2),
        mask=None if survey.mask is None else repeat(survey.mask, -1),
        components=Components(
            names, kinds if len(names) > 1 else None, receivers.gauge, directions
        ),
    )


def know_spectrum(survey: Survey, context: Context) -> Survey:
    """Return the survey with the spectrum of its wavelets, on every rank; collective."""
    if survey.wavelet.ndim == 1:
        return survey
    parts = context.all_gather(_part_of(survey, context).spectrum)
    return survey.knowing(Spectrum.together(parts))


def limit_survey(survey: Survey, band: Band, context: Context) -> Survey:
    """Return the survey with wavelets in a band, which the ranks of a host share; collective."""
    if survey.wavelet.ndim == 1:
        return band.survey(survey, band.filter(survey.wavelet))
    wavelets = once_per_host(partial(band.filter_each, survey.wavelet), context)
    return know_spectrum(band.survey(survey, wavelets), context)


def find_costs(
    aperture: Aperture, grid: Grid, survey: Survey, context: Context
) -> NDArray[np.float64]:
    """Return the cost of each shot of a survey, see `Aperture.costs`; collective."""
    if aperture.margin is None:
        return aperture.costs(grid, survey)
    parts = context.all_gather(aperture.costs(grid, _part_of(survey, context)))
    return np.concatenate(parts)


def find_taper(survey: Survey, length: float, grid: Grid, context: Context) -> NDArray[np.float64]:
    """Return factors of cells around sources and receivers, shared by a host; collective.

    length: see `rise_from`, m.
    """

    def find() -> NDArray[np.float64]:
        near = chain([survey.sources], survey.receiver_positions_by_part())
        return rise_from(thin_out(near, grid), length, grid)

    return once_per_host(find, context)


def _part_of(survey: Survey, context: Context) -> Survey:
    """Return the part of a survey that this rank examines."""
    ends = [rank * survey.n_shots // context.size for rank in (context.rank, context.rank + 1)]
    return survey.between(*ends)


def find_attenuation(wave: WaveSection) -> Attenuation | None:
    """Return the attenuation that an input asks for, or None, which stands for the default."""
    asked = wave.attenuation
    return None if asked is None else Attenuation(**asked.model_dump())


def equation_of(config: Config) -> Equation:
    """Return the equation of the waves."""
    return find_equation(config.wave.equation, find_attenuation(config.wave))


@dataclass(frozen=True)
class Experiment:
    """The models, survey and simulations that a config describes.

    true: the true model, if known; initial: the starting model; both have the arrays that the
    equation needs; known: prior knowledge, such as fixed cells; observed: the gathers file;
    is_synthetic: True if hpcfwi simulates that file; band: frequency band of the survey and the
    observed traces, None if they are not filtered; coarsening: to the grid of the waves, None if it
    is that of the models; costs: cost of each shot, see `Aperture.costs`, if known; picks: first
    breaks, by the names of their files; gains: of the components, see `Conditioning`; leader: see
    `wave.Method`; held: arrays that earlier stages have changed and this one keeps, by name.
    """

    config: Config
    true: Model | None
    initial: Model
    known: PriorKnowledge
    survey: Survey
    observed: Path
    is_synthetic: bool
    band: Band | None = None
    coarsening: Coarsening | None = None
    costs: NDArray[np.float64] | None = None
    picks: Mapping[str, Picks] = field(default_factory=dict)
    gains: tuple[float, ...] = ()
    leader: Leader | None = None
    held: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def equation(self) -> Equation:
        return equation_of(self.config)

    @cached_property
    def inverted(self) -> Model:
        """The arrays of the initial model that the inversion changes, in any of its stages."""
        return self.initial.select(self.config.changing)

    def holding(self, model: Model) -> Experiment:
        """Return the experiment of a stage in which other arrays are those of a model of tensors.

        Without this, they are those of the initial model.
        """
        others = [name for name in model.arrays if name not in self.inverted.arrays]
        return replace(self, held=model.select(others).as_arrays().arrays) if others else self

    def complete(self, model: Model) -> Model:
        """Return a model with the arrays that it lacks, as tensors if it is.

        They are those that the inversion keeps.
        """
        whole = {**self.initial.arrays, **self.held}
        others = {n: a for n, a in whole.items() if n not in model.arrays}
        if isinstance(model.any, torch.Tensor):
            others = {n: torch.tensor(a, device=model.any.device) for n, a in others.items()}
        return Model(model.grid, {**model.arrays, **others})

    @cached_property
    def fixed(self) -> NDArray[np.bool_]:
        """The cells that the inversion keeps."""
        return self.known.cells(self.config.inversion, self.initial.grid)

    def kept(self, name: str) -> NDArray[np.bool_]:
        """Return the cells in which the inversion keeps a parameter.

        A fluid has no S waves, and stays a fluid.
        """
        if PARAMETERS[name].lowest == 0.0:
            return self.fixed | (self.initial[name] == 0.0)
        return self.fixed

    def regularizer(self, device: torch.device) -> Regularizer | None:
        """Return the regularizer with its prior model and weights, None if there is none."""
        asked, known = self.config.inversion.regularize, self.known
        if asked is None:
            return None
        prior = self.initial if asked.prior is None else known.priors[asked.prior]
        weights = None
        if asked.weights is not None:
            weights = torch.tensor(known.weights[asked.weights], device=device)
        return partial(asked.bind(), prior=prior.as_tensors(device), weights=weights)

    @property
    def wave_grid(self) -> Grid:
        """The grid on which waves are simulated."""
        return self.initial.grid if self.coarsening is None else self.coarsening.coarse

    @property
    def aperture(self) -> Aperture:
        return Aperture(self.config.wave.aperture, *self.config.offset_limits)

    def simulator(self, model: Model) -> Simulator:
        """Return the simulator with the boundary tuned to the velocities of `model`."""
        wave, spectrum = self.config.wave, self.survey.spectrum
        return Simulator(
            self.wave_grid,
            Method(
                order=wave.order,
                boundary=wave.boundary,
                free_surface=wave.free_surface,
                boundary_frequency=spectrum.peak,
                max_velocity=self._fastest_within_bounds(model),
                engine=wave.engine,
                history=_history(wave.history, spectrum.highest()),
                equation=wave.equation,
                attenuation=find_attenuation(wave),
                leader=self.leader,
            ),
            self.aperture,
            self.coarsening,
        )

    def shots(self, context: Context, reserved: int = 0) -> Shots:
        """Return the simulations of the survey as an operator on models on the grid of the waves.

        reserved: bytes that each rank needs for other things at the same time.
        """
        memory = self.config.wave.memory
        return Shots(
            self.survey,
            self.wave_grid,
            aperture=self.aperture,
            memory=None if memory is None else count_bytes(memory),
            reserved=reserved,
            context=context,
            **vars(self.simulator(self.initial).method),
        )

    def make_simulator(self) -> Simulator:
        """Return the simulator for the inversion, tuned to the velocities of the initial model.

        It has the arrays that are not inverted. If the inversion is linear, traces are linearized
        at the initial model.
        """
        simulator, cpu = self.simulator(self.initial), torch.device("cpu")
        whole = self.complete(self.inverted).arrays
        fixed = {n: a for n, a in whole.items() if n not in self.inverted.arrays}
        if fixed:
            constants = simulator.restrict(Model(self.initial.grid, fixed).as_tensors(cpu))
            simulator = replace(simulator, constants=constants)
        if not self.config.inversion.linear:
            return simulator
        return replace(simulator, background=simulator.restrict(self.inverted.as_tensors(cpu)))

    def images(self, model: Model) -> Model[NDArray[np.float64]]:
        """Return the images of the reflectors in the current model of a linear inversion."""
        kept = {name: self.kept(name) for name in model.arrays}
        return make_images(model, self.initial, kept, self.survey.spectrum.peak)

    def compare_images(self, images: Model[NDArray[np.float64]]) -> dict[str, float]:
        """Return the correlation of each image with the true reflectivity, by parameter."""
        assert self.true is not None
        return {
            name: correlate(image, reflectivity(name, self.true[name]), self.kept(name))
            for name, image in images.arrays.items()
        }

    def costs_of(self, survey: Survey, simulator: Simulator) -> NDArray[np.float64]:
        """Return the costs of the shots of this or another survey, see `Aperture.costs`."""
        if self.costs is not None and survey is self.survey:
            return self.costs
        return simulator.aperture.costs(simulator.grid, survey)

    def simulated_survey(self) -> Survey:
        """Return the survey of the simulated shots: that of the experiment, or an encoded one."""
        if self.config.inversion.encoding == "none":
            return self.survey
        return self.survey.encoded(np.ones((1, self.survey.n_shots), dtype=np.int8))

    def seen_by_waves(self) -> Experiment:
        """Return the experiment with models on the grid of the waves, for estimates."""
        if self.coarsening is None:
            return self
        restrict, cpu = self.coarsening.restrict, torch.device("cpu")
        initial = restrict(self.initial.as_tensors(cpu)).as_arrays()
        true = self.true and restrict(self.true.as_tensors(cpu)).as_arrays()
        return replace(self, true=true, initial=initial, coarsening=None)

    def conditioning(self) -> Conditioning:
        """Return the conditioning of traces before they are compared."""
        return Conditioning(self.config.data, self.picks, self.gains)

    def preprocessing(self) -> Preprocess | None:
        """Return a function that corrects and filters recorded traces, None if they stay as is."""
        cells = self.initial.grid.cells_of(self.survey.sources)
        speed = float(np.median(self.initial.p_velocity[cells]))
        return find_preprocessing(self.config.data, self.survey, self.band, speed)

    def fastest(self) -> float:
        """Return the speed of the fastest waves in any model of the experiment, m/s."""
        models = [model for model in (self.initial, self.true) if model is not None]
        speeds = [float(self.equation.fastest(model.arrays).max()) for model in models]
        return max(*speeds, *map(self._fastest_within_bounds, models))

    def _fastest_within_bounds(self, model: Model) -> float:
        """Return the fastest speed within the bounds, or in the model for parameters without any.

        It is assumed to be at an end of each pair of bounds.
        """
        bounds = self.config.inversion.bounds_by_name
        ends = [dict(zip(bounds, each, strict=True)) for each in product(*bounds.values())]
        extremes = ({name: np.array(end) for name, end in each.items()} for each in ends)
        return max(float(self.equation.fastest({**model.arrays, **e}).max()) for e in extremes)

    def limits(self, model: Model) -> Limits:
        """Return the limits of an inversion from this initial model, of tensors."""
        section, equation = self.config.inversion, self.equation
        whole = self.complete(model).arrays

        def limit(arrays: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
            limited = equation.limit({**whole, **arrays}, arrays.keys())
            fault = equation.find_fault({**whole, **arrays, **limited})
            if fault is not None:
                raise StepFailure(
                    f"after the last step {fault}. Use a smaller inversion.optimizer.lr or step, "
                    "or give inversion.bounds."
                )
            return limited

        kept = {
            name: torch.tensor(self.kept(name), device=model.any.device) for name in model.arrays
        }
        return Limits(model, kept, section.bounds_by_name, section.linear, limit)

    def find_unknowns(self, initial: Model, limits: Limits) -> Unknowns:
        """Return the unknowns of an inversion from this initial model, of tensors."""
        section = self.config.inversion
        powers = {name: POWERS[relation] for name, relation in section.ties.items()}
        start = self.complete(initial).map(torch.Tensor.double).arrays
        parametrization = find(PARAMETRIZATIONS[section.parametrization])
        return Unknowns(parametrization, limits, Medium(start, powers), section.scales)

    @cached_property
    def data_digest(self) -> str:
        """A digest of the observed data in the file of the input; "" if they are simulated."""
        return "" if self.is_synthetic else digest_data(self.observed)

    @property
    def other_files(self) -> list[Path]:
        """The files of the input besides the observed data and those of the initial model."""
        known, model = self.known, self.config.model
        by_name = (known.surfaces, known.priors, known.masks, known.weights, self.picks)
        files = [*map(Path, chain(*by_name)), *([] if model.true is None else [Path(model.true)])]
        if model.network is not None:
            files += module_files(model.network.kind, model.network.folder)
        for _, stage in self.config.stages():
            prior = stage.inversion.prior
            if prior is not None:
                files += module_files(prior.denoiser, prior.folder)
        return files

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that synthetic observed data depend on."""
        assert self.true is not None
        method = vars(self.simulator(self.true).method)
        others = {"engine", "history", "leader"}
        if not method["attenuation"]:
            others.add("attenuation")
        scheme = {k: v for k, v in method.items() if k not in others}
        digest = hashlib.sha256(repr(sorted(scheme.items())).encode())
        grid, survey = self.true.grid, self.survey
        digest.update(repr((grid.spacing, grid.origin, survey.dt)).encode())
        kinds, names = describe_kinds(survey)
        if names:
            digest.update(repr(sorted(names.items())).encode())
        for array in (
            *self.true.arrays.values(),
            survey.sources,
            survey.receivers,
            survey.wavelet,
            *(() if survey.mask is None else (survey.mask,)),
            *kinds.values(),
        ):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _history(wanted: str | HistorySection, frequency: float) -> Auto | History:
    if not isinstance(wanted, HistorySection):
        return replace(cast(Auto, parse(wanted)), frequency=frequency)
    return from_table({"frequency": frequency, **wanted.model_dump(exclude_none=True)})
