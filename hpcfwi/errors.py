"""The errors that a user can act on. Programming errors are not here.

`cli` turns each class into one message and an exit code; everything else that is
raised is a defect of the program and keeps its traceback.
"""


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
        return f"{self.where}: {self.problem}. {self.remedy}"


class Stopped(BaseException):
    """The run was asked to stop, and has saved what there was to save; the program exits with 3.

    Like KeyboardInterrupt it is no `Exception`: a signal may raise it anywhere, and whoever deals
    with errors should let it pass.
    """


class InversionFailure(Exception):
    """The inversion cannot go on (a misfit that is not finite, replicas that differ); exit 1.

    The state on disk is that of the last good step.
    """
