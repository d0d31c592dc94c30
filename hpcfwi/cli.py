"""The commands: parse, launch the ranks, call, return the exit code; no other logic."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Signature, signature
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

import tomli_w
import typer

from hpcfwi import __version__
from hpcfwi.convert.request import Request
from hpcfwi.errors import WRITE_REMEDIES, InputError, Stopped
from hpcfwi.registry import DATASETS, ENGINES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from hpcfwi.parallel.context import Context

app = typer.Typer(
    help="Seismic full-waveform inversion, on one process or under mpirun, srun or torchrun.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would interpret [migration] as markup
    context_settings={"help_option_names": ["-h", "--help"]},
)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print warnings and errors only.")]
Restarts = Annotated[
    int, typer.Option(min=0, help="Restart after a failure, at most this many times.")
]
Launch = Annotated[
    str, typer.Option(metavar="COMMAND", help="Command that starts the ranks: 'mpirun -n 4'.")
]
Migrate = Annotated[
    bool, typer.Option("--migrate", help="Use the section [migration] instead of [inversion].")
]


@dataclass(frozen=True)
class Job:
    """The arguments that all commands with an input file have."""

    config: Annotated[Path, typer.Argument(help="Input file (TOML), or a run directory.")]
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of the input file."),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option("--engine", help=f"auto, {', '.join(ENGINES)}; sets wave.engine."),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "shared-gpu"],
        typer.Option(
            "--device",
            help="cpu: do not use GPUs. shared-gpu: several ranks may share a GPU.",
        ),
    ] = "auto"
    output: Annotated[
        str | None, typer.Option("--output", help="Run directory; sets output.directory.")
    ] = None
    quiet: Quiet = False

    @property
    def changes(self) -> list[str]:
        """The changes of keys that the arguments ask for, as --set takes them."""
        named = {"wave.engine": self.engine, "output.directory": self.output}
        return (self.settings or []) + [
            key + tomli_w.dumps({"": value}).removeprefix('""').rstrip()
            for key, value in named.items()
            if value is not None
        ]

    def run(self, **what: bool) -> int:
        """Run the job on all ranks; what: the options `inverts` and `migrates` of `run_job`."""

        def work(context: Context) -> None:
            from hpcfwi.run.job import run_job

            run_job(self.config, self.changes, context, quiet=self.quiet, **what)

        return _on_ranks(work, self.device, always=True)


def _command(function: Callable[..., int]) -> Callable[..., int]:
    """Make a command of a function that takes a dataclass of options and further options."""
    given, *own = signature(function, eval_str=True).parameters.values()
    shared = signature(given.annotation, eval_str=True).parameters
    parameters = [*shared.values(), *own]

    @wraps(function)
    def command(**options: Any) -> int:
        first = given.annotation(**{name: options.pop(name) for name in shared})
        return function(first, **options)

    # Typer takes a command's parameters from its signature, and their types from its annotations.
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return app.command()(command)


def main() -> None:
    """Run the command that the arguments name and exit with 0, 1, 2 (bad input) or 3 (stopped)."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed; the next file would get its descriptor
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, TextIOWrapper(FileIO(os.devnull, mode), "utf-8"))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _outlive_readers(stream))
    # Torch's messages about sockets are not for users; it reads this variable when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    for number in numbers:
        signal.signal(number, _stop_early)

    def ignore_signals() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # `__main__` has blocked them
        code = app(prog_name="hpcfwi", standalone_mode=False)
        ignore_signals()  # which would only change the exit code while the process ends
    except Stopped as error:  # it came before the ranks started, or after their work was done
        ignore_signals()
        from hpcfwi.parallel.launch import end_launch

        code = end_launch(error)
    except typer.TyperException as error:
        refuse = partial(_refuse, error)
        code = _on_ranks(lambda context: context.from_root(refuse))
    hdf5 = sys.modules.get("hpcfwi.storage.hdf5")
    if hdf5 is not None and hdf5.unclosed:
        # At exit HDF5 would try to write these files again, and crash or wait for other ranks
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    raise SystemExit(code or 0)


STDOUT = 1  # file descriptor

# The reader or the terminal has ended.
_UNREAD = (errno.EPIPE, errno.EIO)


class _Outlet(FileIO):
    """An output whose reader may end or whose disk may be full; text is then lost without an error.

    A run does not end with its output, because its directory and its log may be on another disk.
    stderr says once that the disk is full.

    full: descriptors of the outputs that a full disk could not hold.
    """

    full: ClassVar[set[int]] = set()

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            remedy = WRITE_REMEDIES.get(error.errno or 0)
            if remedy is None and error.errno not in _UNREAD:
                raise
            if remedy is not None:
                if not _Outlet.full:
                    text = f"hpcfwi: the output cannot be written ({error.strerror}) and is lost."
                    with suppress(OSError):
                        os.write(2, f"{text} {remedy}.\n".encode())
                _Outlet.full.add(self.fileno())
            return memoryview(data).nbytes


def _outlive_readers(stream: TextIOWrapper) -> TextIOWrapper:
    """Return a stream to the same output that does not fail when its reader has ended.

    Text that a full disk cannot hold is lost, too. File names with letters that the terminal's
    encoding lacks are written with backslashes.
    """
    return TextIOWrapper(
        BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        "backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


RETRY = 0.05  # s


def _stop_early(number: int, frame: FrameType | None) -> None:
    """Stop at once at a signal that comes outside an inversion, when there is nothing to save.

    Within an import the signal is only sent again a moment later, because modules in C may ignore
    an exception and fail with another one, or end the process.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # It goes to this thread, which may block signals by then.
            timer = threading.Timer(RETRY, signal.pthread_kill, (threading.get_ident(), number))
            timer.daemon = True
            timer.start()
            return
        frame = frame.f_back
    name = signal.Signals(number).name
    raise Stopped(
        f"stopped by {name} with nothing to save; the same command starts again, "
        "and a run continues from the last checkpoint"
    )


@app.callback(invoke_without_command=True)
def hpcfwi(
    command: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        typer.echo(f"hpcfwi {__version__}")
        raise typer.Exit
    if command.invoked_subcommand is None:
        typer.echo(command.get_help())


@app.command()
def dataset(
    name: Annotated[str, typer.Argument(help=f"{', '.join(DATASETS)}.")],
    to: Annotated[Path, typer.Option(help="Directory of the model file.")] = Path(),
    quiet: Quiet = False,
) -> int:
    """Write a known model to a model file, with its licence beside it."""

    def work(context: Context) -> None:
        from hpcfwi.datasets import export_dataset

        tell = (lambda _: None) if quiet else typer.echo
        context.from_root(lambda: export_dataset(name, to, tell))

    return _on_ranks(work)


@_command
def forward(
    job: Job,
    to: Annotated[
        Path | None,
        typer.Option(
            help="Write the data to this file, .h5 or .sgy, instead of the run directory."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="With --to: simulate in this model file instead of that of [model]."),
    ] = None,
) -> int:
    """Simulate observed data, in the run directory or in a file.

    With --to, this also works at the positions of survey.file; that file is not changed.
    """
    if to is None and model is None:
        return job.run(inverts=False)

    def work(context: Context) -> None:
        from hpcfwi.run.job import simulate_into

        simulate_into(job.config, job.changes, to, model, context, job.quiet)

    return _on_ranks(work, job.device, always=True)


@_command
def run(job: Job, restarts: Restarts = 0, launch: Launch = "") -> int:
    """Invert the observed data, or continue an inversion.

    An inversion continues from its last checkpoint. Observed data that are missing are simulated
    first, if the input describes their survey.

    --restarts is for a command that is not started by a launcher: it starts the ranks itself with
    the command of --launch, or one process without it.
    """
    if not restarts and not launch:
        return job.run()

    def work(_: Context) -> int:
        from hpcfwi.run.restarts import run_with_restarts

        return run_with_restarts(job.config, job.changes, launch, restarts, job.device, job.quiet)

    command = f"hpcfwi run {job.config} --restarts {restarts} --launch '{launch or 'mpirun -n 4'}'"
    remedy = f"Start it without a launcher; it starts the ranks: `{command}`."
    return _on_ranks(work, alone=remedy)


@_command
def migrate(job: Job) -> int:
    """Compute an image of the reflectors in a smooth, known model.

    The section [migration] describes the image. The same command continues an interrupted
    migration.
    """
    return job.run(migrates=True)


@_command
def resolve(
    job: Job,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model file; default: the initial model of CONFIG, or a run directory's result."
        ),
    ] = None,
    points: Annotated[
        float | None,
        typer.Option(help="Distance between the points, m; default: one wavelength."),
    ] = None,
    checkerboard: Annotated[
        float | None,
        typer.Option(help="Use a checkerboard instead of points, with cells of this size, m."),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="Stage of the input, counted from 1; default: the last.")
    ] = None,
) -> int:
    """Compute what an inversion can resolve.

    The result is point spread functions, or the response to a checkerboard.
    """

    def work(context: Context) -> None:
        from hpcfwi.run.commands import resolve_job

        resolve_job(
            job.config,
            job.changes,
            context,
            model=model,
            points=points,
            checkerboard=checkerboard,
            stage=stage,
            quiet=job.quiet,
        )

    return _on_ranks(work, job.device, always=True)


@_command
def status(
    job: Job,
    restarts: Restarts = 0,  # noqa: ARG001
    launch: Launch = "",  # noqa: ARG001
) -> int:
    """Show the progress of a run.

    The exit code is 0 only if all epochs are done and the model is on disk.

    The command takes the options of `run`, so that a script can use the same arguments; --device,
    --restarts and --launch have no effect.
    """

    def work(_: Context) -> int:
        from hpcfwi.run.restarts import tell_status

        return tell_status(job.config, job.changes, job.quiet)

    return _on_ranks(work, alone="Start the command without a launcher.", prints=True)


@_command
def plan(
    job: Job,
    migrate: Migrate = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not measure times.")] = False,
) -> int:
    """Predict the memory, time and problems of a run.

    The command checks the input, the grid and its dispersion, and writes no file. Errors and
    warnings name a remedy.
    """

    def work(context: Context) -> None:
        from hpcfwi.run.commands import plan_job

        plan_job(job.config, job.changes, context, job.quiet, migrate, quick)

    return _on_ranks(work, job.device, prints=True)


@_command
def check(job: Job, migrate: Migrate = False) -> int:
    """Compare the observed data with those of the starting model.

    The comparison is printed, and drawn as check.png in the run directory.
    """

    def work(context: Context) -> None:
        from hpcfwi.run.commands import check_job

        check_job(job.config, job.changes, context, job.quiet, migrate)

    return _on_ranks(work, job.device, prints=True)


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="Run directory.")],
    report: Annotated[
        bool, typer.Option("--report", help="Also write report.html, a page with all figures.")
    ] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write each figure as PDF.")] = False,
    quiet: Quiet = False,
) -> int:
    """Draw the figures of a run again, from the files of its directory."""

    def work(context: Context) -> None:
        from hpcfwi.run import drawing

        draw = drawing.write_report if report else drawing.show
        for figure in context.from_root(partial(draw, directory, pdf)):
            if context.is_root and not quiet:
                typer.echo(figure)

    return _on_ranks(work)


@app.command()
def bench(
    output: Annotated[Path, typer.Option(help="Directory of bench.json.")] = Path("runs/bench"),
    quiet: Quiet = False,
) -> int:
    """Measure this machine, in about two minutes.

    The command measures engines, histories, ranks and the reading of files.
    """

    def work(context: Context) -> None:
        from hpcfwi.bench import run_bench, show_numbers

        tell = (lambda _: None) if quiet else typer.echo
        numbers = run_bench(output, context.threads, tell)
        if not quiet:
            show_numbers(numbers)

    return _on_ranks(work, alone="Start the command without a launcher.")


@_command
def convert(request: Request, quiet: Quiet = False) -> int:
    """Convert SEG-Y and other files to gathers and models, and back."""

    def work(context: Context) -> None:
        from hpcfwi.convert.to_gathers import convert_file

        convert_file(request, context, quiet)

    return _on_ranks(work)


def _refuse(error: typer.TyperException) -> NoReturn:
    asked = getattr(error, "ctx", None)
    command = "hpcfwi" if asked is None else asked.command_path
    found = error.format_message().rstrip(".").replace("Value error, ", "")
    if asked is not None and found.startswith("Missing argument"):
        # A single word is taken for TO, although it may be FROM
        arguments = [p for p in asked.command.params if p.param_type_name == "argument"]
        if len(arguments) > 1:
            found = f"Missing argument: expected {' and '.join(p.metavar for p in arguments)}"
    raise InputError("command line", found, f"See {command} --help.")


def _on_ranks(
    work: Callable[[Context], int | None],
    device: str = "cpu",
    always: bool = False,
    alone: str | None = None,
    prints: bool = False,
) -> int:
    """Run `work` on all ranks and return the exit code; None is 0.

    device: option of the command, "cpu" for commands that do not simulate; always: True if MPI is
    started without a launcher, too; alone: for a command that must run in one process, the remedy
    if there are others; prints: True for a command whose result is its output, so that the code is
    1 if a full disk could not hold the output. `work` imports its modules after the launch, because
    parallel HDF5 starts MPI when it is imported, while `launch` can explain a failure of MPI.
    """
    with _keeping_all():
        from hpcfwi.parallel.failure import SIGNALS, run_guarded
        from hpcfwi.parallel.launch import end_launch, launch, launch_if_asked, stay_alone
        from hpcfwi.system import refuse_settings_of_others

    # A rank that leaves while the ranks connect would keep the others waiting for ever.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    release = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        refuse_settings_of_others()
        if alone is not None:
            context = stay_alone(alone)
        else:
            join = launch if always else launch_if_asked
            context = join(device != "cpu", device == "shared-gpu")

        def begin() -> int:
            release()
            return work(context) or 0

        code = run_guarded(context, begin)
        if prints:
            sys.stdout.flush()
            code = code or int(STDOUT in _Outlet.full)
        return code
    except InputError as error:
        return end_launch(error)
    finally:
        release()


@contextmanager
def _keeping_all() -> Iterator[None]:
    """Import modules without garbage collection, and exclude their objects from later collections.

    This shortens the start of a rank by a tenth. It does nothing in a process that has already
    imported the modules, such as a test process, whose garbage must be collected.
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
