"""The errors that a user can act on. Programming errors are not here.

`cli` turns each class into one message and an exit code; everything else that is
raised is a defect of the program and keeps its traceback.
"""

LONGEST_QUOTE = 80  # characters


class InputError(Exception):
    """Something the user gave or set up is wrong; the program exits with 2.

    Parameters
    ----------
    where
        What is wrong: a file, a key of a config, an environment variable, a rank.
    problem
        What was found and what was expected, without a full stop.
    remedy
        What to do about it, as a whole sentence.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)
        self.where, self.problem, self.remedy = where, problem, remedy

    def __str__(self) -> str:
        """One line that any terminal can show, whatever is in the names that it holds."""
        text = f"{self.where}: {self.problem}. {self.remedy}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Stopped(Exception):
    """The run was asked to stop, and has saved a checkpoint; the program exits with 3."""


class InversionFailure(Exception):
    """The inversion cannot go on (a misfit that is not finite, replicas that differ); exit 1.

    The state on disk is that of the last good step.
    """


def quote(value: object) -> str:
    """A value that was found, as Python writes it, for a message: cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."
