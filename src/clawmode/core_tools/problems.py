"""What a core tool cannot do, in words for the program that called it."""

from clawmode.exceptions import ClawmodeError


class ToolProblem(ClawmodeError):
    """A call that cannot be served. Its message is for the caller, and says what to do.

    Attributes:
        code: What kind of trouble it is, such as `outside` or `not_found`; for tests and logs.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
