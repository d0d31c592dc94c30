"""The supervisor starts a program again when it has failed: the whole of it, with all its ranks.

Processes that a launcher has started cannot be started again from inside, so this happens in a
process of its own that joins no MPI. It knows nothing of inversions: functions tell what the
program has reached so far, and whether that is all. `failure` says how a failing program ends.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Hashable, Sequence
from types import FrameType

from hpcfwi.errors import InputError, say_bytes
from hpcfwi.parallel.watch import handling
from hpcfwi.system import free_on_host

FINAL = (2, 3)  # bad input, stopped on request: nothing that another try would change

KILLED = 128 + signal.SIGKILL  # what ends a program for which its control group has no memory


def supervise(
    command: Sequence[str],
    restarts: int,
    reached: Callable[[], Hashable],
    is_done: Callable[[], bool],
    say: Callable[[str], None],
    *,
    launches: bool,
) -> int:
    """Run a command, again after a failure up to `restarts` times; 0 if it is done, else its code.

    A command that ends with 0 before it is done has failed, and its code is 1: launchers do that
    which could not start anything. A program that was killed ends with 128 and the signal's number.
    A signal to this process goes on to the command, after which there is no restart. If a failure
    repeats itself where the last one was, there is no restart either.

    reached: where the program has got to, as something that prints, equal values being the same
    place; is_done: whether it has done all that it should, by whatever try; say: is called with a
    message at every decision; launches: whether the command is a launcher, which would kill its
    ranks at SIGTERM and SIGINT: it gets SIGUSR1 instead, which it passes on.
    Raises `InputError` where the command cannot be started.
    """
    relay = _Relay(launches)
    with handling(relay.pass_on):
        place: Hashable = None
        for restart in range(restarts + 1):
            code = relay.run(command)
            if code in FINAL:
                return code
            before, place = place, reached()
            if is_done():
                if code != 0:
                    say(f"It ended with {code}, but all is done ({place}).")
                return 0
            end = f"It ended with {code}" if code != 0 else "It ended with 0 and is not done"
            if code == KILLED:
                end += f" (killed, probably for memory: {say_bytes(free_on_host())} are free here)"
            code = code or 1
            if relay.has_signal:
                return code
            if restart == restarts:
                break
            if place == before:
                say(f"{end}, at the same place again ({place}): no restart.")
                return code
            say(f"{end} ({place}): restart {restart + 1} of {restarts}.")
    say(f"{end} ({place}), and there is no restart left.")
    return code


class _Relay:
    """Runs commands, and passes on to them the signals that it is told of."""

    def __init__(self, launches: bool) -> None:
        self._last = 0
        self._launches = launches
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def has_signal(self) -> bool:
        return self._last != 0

    def run(self, command: Sequence[str]) -> int:
        """The exit code of a command, with this process's input and output."""
        try:
            # A session of its own: Ctrl-C on the terminal would go to it directly as well.
            self._child = subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            raise InputError(
                f"--launch: {command[0]}",
                f"it cannot be started ({error.strerror})",
                "Give a command that starts the ranks, as in --launch 'mpirun -n 4'.",
            ) from error
        if self.has_signal:  # before there was anybody to pass it on to
            self.pass_on(self._last)
        code = self._child.wait()
        self._child = None
        return code if code >= 0 else 128 - code

    def pass_on(self, number: int, frame: FrameType | None = None) -> None:  # noqa: ARG002
        """Hand a signal to the command that runs, or to the next one."""
        self._last = number
        if self._child is not None:
            self._child.send_signal(signal.SIGUSR1 if self._launches else number)
