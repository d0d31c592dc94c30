"""The program: `hpcfwi` and `python -m hpcfwi`."""

# No module from here on may come from the current directory, where others may have put some
import os
import sys


def main() -> None:
    """Run the command, with the current directory left out of the path of imports."""
    _leave_out_current_directory()
    import signal

    # Signals wait for the command line, which handles them; before, they would kill the program
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT))
    from hpcfwi.cli import main as run_command

    run_command()


def _leave_out_current_directory() -> None:
    if __name__ == "__main__" and not sys.flags.safe_path:
        del sys.path[0]  # where `python -m` looks first
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "" not in named or len(named) == 1:
        return
    # An empty entry stands for the current directory, unless it is all that there is; neither are
    # processes that this one starts to look there
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, named))
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:
        return
    sys.path[:] = [entry for entry in sys.path if entry != here or here in named]


if __name__ == "__main__":
    main()
