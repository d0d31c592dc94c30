"""Warm ranks: ranks that are forked from a process that has imported the slow modules.

`run_ranks` lets mpirun start this file in place of Python. It sends its arguments, environment,
folder and standard streams to a server, which forks the rank. Then it stands in for the rank: it
forwards signals, ends with the same exit code, and if it is killed, the rank is killed, too. There
is one server for each process that runs tests, and it ends with that process. Tests of the start of
ranks must not use warm ranks. Each rank imports MPI and h5py, which loads MPI, itself.

Usage: `python -IS warm.py SOCKET ARGUMENTS...`, with ARGUMENTS of python: -c CODE or -m MODULE and
its arguments. This part of the file imports little, as it runs for each rank.
"""

import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

# The slowest imports of ranks and their programs, and the modules of hpcfwi that use them
BEFOREHAND = (
    *("torch.distributed", "numba.np.arrayobj", "scipy.ndimage", "scipy.linalg"),
    *("matplotlib.backends.backend_agg", "pytest"),
    *("hpcfwi.cli", "hpcfwi.config", "hpcfwi.inversion.stages", "hpcfwi.parallel.launch"),
    *("hpcfwi.report.figures", "hpcfwi.report.text", "hpcfwi.wave.engines.cpu.engine"),
)
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
LENGTH, STATUS = struct.Struct("I"), struct.Struct("i")


def stand_for_a_rank(path: str, arguments: list[str]) -> int:
    """Let the server fork a rank, wait for its end, and end in the same way."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    variables = [f"{name}={value}" for name, value in os.environ.items()]
    words = ([os.getcwd()], arguments, variables)  # noqa: PTH109
    text = b"\1".join(b"\0".join(map(os.fsencode, part)) for part in words)
    socket.send_fds(server, [LENGTH.pack(len(text))], [0, 1, 2])
    server.sendall(text)

    def pass_on(number: int, _: object) -> None:
        with suppress(OSError):  # the rank has just ended
            server.sendall(bytes([number]))

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    answer = server.recv(STATUS.size, socket.MSG_WAITALL)
    if not answer:
        sys.exit("the process that forks warm ranks has died")
    code: int = STATUS.unpack(answer)[0]
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


class Server:
    """A server that forks a rank for each client and sends the exit code of the rank."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = DefaultSelector()
        self._selector.register(self._listener, EVENT_READ, self._accept)
        self._selector.register(0, EVENT_READ, self._end)
        self._ranks: set[int] = set()

    def serve(self) -> list[str]:
        """Serve until standard input is closed; return the arguments in each forked rank."""
        arguments = None
        while arguments is None:
            # Handle one event at a time, since it may remove the source of the next
            key, _ = self._selector.select()[0]
            arguments = key.data()
        return arguments

    def _end(self) -> None:
        for rank in self._ranks:
            os.kill(rank, signal.SIGKILL)
        os._exit(0)

    def _accept(self) -> list[str] | None:
        client, _ = self._listener.accept()
        head, streams, *_ = socket.recv_fds(client, LENGTH.size, 3)
        text = client.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
        folder, arguments, variables = (
            [os.fsdecode(word) for word in part.split(b"\0")] for part in text.split(b"\1")
        )
        rank = os.fork()
        if rank == 0:
            for key in list(self._selector.get_map().values()):
                if key.fd != 0:
                    os.close(key.fd)
            self._selector.close()
            client.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.environ.clear()
            os.environ.update(variable.split("=", 1) for variable in variables)
            os.chdir(folder[0])
            return arguments
        for stream in streams:
            os.close(stream)
        self._ranks.add(rank)
        end = os.pidfd_open(rank)
        self._selector.register(client, EVENT_READ, self._pass_on(client, end))
        self._selector.register(end, EVENT_READ, self._tell(client, end, rank))
        return None

    def _pass_on(self, client: socket.socket, end: int) -> Callable[[], None]:
        def pass_on() -> None:
            numbers = b""
            with suppress(ConnectionResetError):
                numbers = client.recv(16)
            for number in numbers or [signal.SIGKILL]:
                signal.pidfd_send_signal(end, number)
            if not numbers:
                self._selector.unregister(client)

        return pass_on

    def _tell(self, client: socket.socket, end: int, rank: int) -> Callable[[], None]:
        def tell() -> None:
            code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
            self._ranks.remove(rank)
            self._selector.unregister(end)
            os.close(end)
            if client in self._selector.get_map():
                self._selector.unregister(client)
                with suppress(OSError):  # the client was just killed
                    client.sendall(STATUS.pack(code))
            client.close()

        return tell


def leave_shared_memory(modules: dict[str, object]) -> None:
    """Let this process end without taking apart these modules and the libraries of C++.

    That would write to most of the memory that is shared with the server, which takes longer than
    the start of a rank. MPI, which Python finalizes before, ends as in other processes.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    for name in modules:
        sys.modules.pop(name, None)
    library = ctypes.CDLL(None)
    library.on_exit(library._exit, None)


def run_as_python_does(arguments: list[str]) -> None:
    """Run -c CODE or -m MODULE with its arguments."""
    kind, what, *words = arguments
    sys.path.insert(0, os.getcwd() if kind == "-m" else "")  # noqa: PTH109
    sys.argv = [what, *words]
    if kind == "-m":
        run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__" and not sys.flags.isolated:
    import atexit
    import ctypes
    import gc
    from importlib import import_module
    from runpy import run_module
    from selectors import EVENT_READ, DefaultSelector

    shared: dict[str, object] = {}
    atexit.register(leave_shared_memory, shared)  # before imports, so that it is called last
    # Like `hpcfwi`: ranks do not search the objects of imported modules for garbage.
    gc.disable()
    for name in (*BEFOREHAND, *sys.argv[2:]):
        import_module(name)
    gc.freeze()
    gc.enable()
    own = ("__main__", "builtins", "sys")
    shared |= {name: module for name, module in sys.modules.items() if name not in own}
    server = Server(sys.argv[1])
    print("ready", flush=True)
    run_as_python_does(server.serve())
elif __name__ == "__main__":
    sys.exit(stand_for_a_rank(sys.argv[1], sys.argv[2:]))
