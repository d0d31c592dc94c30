"""The commands: parse, launch the ranks, call, return the exit code; no other logic."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import tomli_w
import typer

from hpcfwi import __version__
from hpcfwi.convert.command import convert
from hpcfwi.errors import InputError, Stopped
from hpcfwi.registry import DATASETS, ENGINES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from hpcfwi.parallel.context import Context

app = typer.Typer(
    help="Seismic full-waveform inversion, alone or under mpirun, srun and torchrun.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would take [migration] for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[Path, typer.Argument(help="Input file (TOML), or a run directory.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of the input file."),
]
Engine = Annotated[
    str | None, typer.Option("--engine", help=f"auto, {', '.join(ENGINES)}; wave.engine.")
]
Device = Annotated[
    Literal["auto", "cpu", "shared-gpu"],
    typer.Option(
        "--device",
        help="cpu: leave GPUs alone, or do without. shared-gpu: several ranks may have one.",
    ),
]
Output = Annotated[
    str | None, typer.Option("--output", help="The run directory; output.directory.")
]
Restarts = Annotated[
    int, typer.Option(min=0, help="Start again after a failure, at most so many times.")
]
Launch = Annotated[
    str, typer.Option(metavar="COMMAND", help="What starts the ranks: 'mpirun -n 4'.")
]
Migrate = Annotated[
    bool, typer.Option("--migrate", help="Of the section [migration], in place of [inversion].")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")]


def main() -> None:
    """The program: runs a command and exits with 0, 1, 2 (bad input) or 3 (stopped)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _outlive_readers(stream))
    if isinstance(sys.stdout, TextIOWrapper):
        # A file name may hold letters that this terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    # What torch has to say about its sockets is not for users; it looks here when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, _stop_early)
    try:
        code = app(standalone_mode=False)
    except Stopped:  # not yet among the ranks, who would have told it
        code = 3
    except typer.TyperException as error:
        code = _on_ranks(partial(_refuse, error))
    hdf5 = sys.modules.get("hpcfwi.storage.hdf5")
    if hdf5 is not None and hdf5.unclosed:
        # HDF5 would try once more to write them, and crash, or wait for other ranks for ever
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    raise SystemExit(code or 0)


class _Outlet(FileIO):
    """Output whose reader may end: what is written after that is lost, without an error."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return memoryview(data).nbytes


def _outlive_readers(stream: TextIOWrapper) -> TextIOWrapper:
    """Return the same stream for a program that goes on when nobody reads it any more."""
    return TextIOWrapper(
        BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _stop_early(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """Stop at a signal before an inversion notes them, as there is nothing to save."""
    name = signal.Signals(number).name
    raise Stopped(
        f"stopped by {name} before an epoch began; "
        "the same command goes on from the last checkpoint"
    )


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hpcfwi {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def hpcfwi(
    command: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", is_eager=True, callback=_tell_version, help="Say which it is."),
    ] = False,
) -> None:
    if command.invoked_subcommand is None:
        typer.echo(command.get_help())


@app.command()
def dataset(
    name: Annotated[str, typer.Argument(help=f"{', '.join(DATASETS)}.")],
    to: Annotated[Path, typer.Option(help="Where to write the model file.")] = Path(),
    quiet: Quiet = False,
) -> int:
    """Get a known model as a model file, with its licence beside it."""

    def work(context: Context) -> None:
        from hpcfwi.datasets.library import export_dataset

        tell = (lambda _: None) if quiet else typer.echo
        context.from_root(lambda: export_dataset(name, to, tell))

    return _on_ranks(work)


@app.command()
def forward(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Simulate into this file, .h5 or .sgy, and leave the run directory alone."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="With --to: a model file to simulate in, in place of [model]'s."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Simulate the observed data into the run directory, or into a file.

    With --to at the positions of survey.file, too, and nothing of that file is changed.
    """
    words = _all_settings(settings, engine, output)
    if to is None and model is None:
        return _run_job(config, words, quiet, device, inverts=False)

    def work(context: Context) -> None:
        from hpcfwi.run.job import simulate_into

        simulate_into(config, words, to, model, context, quiet)

    return _on_ranks(work, device, always=True)


@app.command()
def run(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    quiet: Quiet = False,
    restarts: Restarts = 0,
    launch: Launch = "",
) -> int:
    """Invert, from the last checkpoint if there is one; simulates missing observed data first.

    --restarts is for a command that no launcher has started: it launches its ranks by itself, as
    --launch says, or one.
    """
    words = _all_settings(settings, engine, output)
    if not restarts and not launch:
        return _run_job(config, words, quiet, device, inverts=True)

    def work(_: Context) -> int:
        from hpcfwi.run.restarts import run_with_restarts

        return run_with_restarts(config, words, launch, restarts, device, quiet)

    command = f"hpcfwi run {config} --restarts {restarts} --launch '{launch or 'mpirun -n 4'}'"
    return _on_one_rank(work, f"Start it by itself, and it launches the ranks: `{command}`.")


@app.command()
def migrate(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    quiet: Quiet = False,
) -> int:
    """Make an image of reflectors in the initial model, as [migration] says; it goes on as run."""
    words = _all_settings(settings, engine, output)
    return _run_job(config, words, quiet, device, migrates=True)


@app.command()
def resolve(
    config: ConfigFile,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model file; else where CONFIG starts, or the result of a run directory."
        ),
    ] = None,
    points: Annotated[
        float | None, typer.Option(help="Distance of points, m; one wavelength if not given.")
    ] = None,
    checkerboard: Annotated[
        float | None, typer.Option(help="In place of points, a checkerboard of cells so large, m.")
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="Of the input's stages, from 1; the last if not given.")
    ] = None,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    quiet: Quiet = False,
) -> int:
    """Show what an inversion can see: point spread functions, or what is left of a checkerboard."""

    def work(context: Context) -> None:
        from hpcfwi.run.resolving import resolve_job

        resolve_job(
            config,
            _all_settings(settings, engine, output),
            context,
            model=model,
            points=points,
            checkerboard=checkerboard,
            stage=stage,
            quiet=quiet,
        )

    return _on_ranks(work, device, always=True)


@app.command()
def status(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",  # noqa: ARG001
    output: Output = None,
    quiet: Quiet = False,
    restarts: Restarts = 0,  # noqa: ARG001
    launch: Launch = "",  # noqa: ARG001
) -> int:
    """Say how far a run is; ends with 0 only if all its epochs are done and on disk.

    It takes the options of `run`, so that a script can ask with the same words; --device,
    --restarts and --launch change nothing here.
    """

    def work(_: Context) -> int:
        from hpcfwi.run.restarts import tell_status

        return tell_status(config, _all_settings(settings, engine, output), quiet)

    return _on_one_rank(work, "Start the command by itself.")


@app.command()
def plan(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    quiet: Quiet = False,
    migrate: Migrate = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure no times.")] = False,
) -> int:
    """Check without running: stability, dispersion, memory, time, and what to change."""

    def work(context: Context) -> None:
        from hpcfwi.run.commands import plan_job

        plan_job(config, _all_settings(settings, engine, output), context, quiet, migrate, quick)

    return _on_ranks(work, device)


@app.command()
def check(
    config: ConfigFile,
    settings: Settings = None,
    engine: Engine = None,
    device: Device = "auto",
    output: Output = None,
    quiet: Quiet = False,
    migrate: Migrate = False,
) -> int:
    """Compare the observed data with those of the starting model, told and drawn (check.png)."""

    def work(context: Context) -> None:
        from hpcfwi.run.commands import check_job

        check_job(config, _all_settings(settings, engine, output), context, quiet, migrate)

    return _on_ranks(work, device)


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    report: Annotated[
        bool, typer.Option("--report", help="And write report.html, a page with all of it.")
    ] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="And write each figure as PDF.")] = False,
    quiet: Quiet = False,
) -> int:
    """Draw the figures of a run again."""

    def work(context: Context) -> None:
        from hpcfwi.run.commands import write_report
        from hpcfwi.run.records import show as draw_again

        def draw() -> list[Path]:
            return [write_report(directory, pdf)] if report else draw_again(directory, pdf)

        for figure in context.from_root(draw):
            if context.is_root and not quiet:
                typer.echo(figure)

    return _on_ranks(work)


@app.command()
def bench(
    output: Annotated[Path, typer.Option(help="Where to write bench.json.")] = Path("runs/bench"),
    quiet: Quiet = False,
) -> int:
    """Measure this machine: engines, histories, ranks, reading; about two minutes."""

    def work(context: Context) -> None:
        from hpcfwi.bench.run import run_bench, show_numbers

        tell = (lambda _: None) if quiet else typer.echo
        numbers = run_bench(output, context.threads, tell)
        if not quiet:
            show_numbers(numbers)

    return _on_one_rank(work, "Start the command by itself.")


def _offer(ask: Callable[..., Callable[[Context], None]]) -> Callable[..., int]:
    """A command whose options are those of a function that returns what is to be done."""

    @wraps(ask)
    def command(**options: object) -> int:
        return _on_ranks(ask(**options))

    return command


app.command()(_offer(convert))


def _run_job(config: Path, settings: Sequence[str], quiet: bool, device: str, **what: bool) -> int:
    """what: as `run_job` has it, `inverts` or `migrates`."""

    def work(context: Context) -> None:
        from hpcfwi.run.job import run_job

        run_job(config, settings, context, quiet=quiet, **what)

    return _on_ranks(work, device, always=True)


def _all_settings(settings: list[str] | None, engine: str | None, output: str | None) -> list[str]:
    named = {"wave.engine": engine, "output.directory": output}
    short = [
        key + tomli_w.dumps({"": value}).removeprefix('""').rstrip()
        for key, value in named.items()
        if value is not None
    ]
    return [*(settings or []), *short]


def _refuse(error: typer.TyperException, context: Context) -> None:
    def refuse() -> None:
        raise InputError("command line", error.format_message().rstrip("."), "See hpcfwi --help.")

    context.from_root(refuse)


def _on_ranks(
    work: Callable[[Context], int | None],
    device: str = "cpu",
    join: Callable[[], Context] | None = None,
    always: bool = False,
) -> int:
    """The exit code of `work` on all ranks; None is 0.

    device: as the command has it, "cpu" for those that simulate nothing; join: how this process
    becomes one of them, `launch_if_asked` if None, or `launch` if always. What both need is
    imported only then: parallel HDF5 starts MPI when it is imported, and where that fails, `launch`
    is the one that knows why.
    """
    with _keeping_all():
        from hpcfwi.parallel.failure import end_launch, run_guarded
        from hpcfwi.parallel.launch import launch, launch_if_asked
        from hpcfwi.parallel.watch import SIGNALS
        from hpcfwi.system import refuse_settings_of_others

    # A rank that left while they find each other would keep the others waiting for ever.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    release = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)

    def begin() -> int:
        release()
        return work(context) or 0

    try:
        refuse_settings_of_others()
        if join is None:
            find_ranks = launch if always else launch_if_asked
            join = partial(find_ranks, device != "cpu", device == "shared-gpu")
        context = join()
        return run_guarded(context, begin)
    except InputError as error:
        return end_launch(error)
    finally:
        release()


@contextmanager
def _keeping_all() -> Iterator[None]:
    """While modules are imported: what they make stays, and is not looked through for garbage.

    Nor is it later, which takes a tenth off the start of a rank. A process that has imported them
    before, as one of tests, may have garbage by now, which must not stay.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _on_one_rank(work: Callable[[Context], int | None], remedy: str) -> int:
    """The exit code of `work` in this process, which must be the only one and does not join MPI."""
    from hpcfwi.parallel.launch import stay_alone

    return _on_ranks(work, join=partial(stay_alone, remedy))
