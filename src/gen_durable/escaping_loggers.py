"""The loggers of the library. What they log is printable, whatever its data hold and whichever handlers there are.

A filter on each logger escapes the arguments of its records before any handler gets them: a name with a line break in
it cannot forge a line, and one with an escape sequence cannot control the terminal that shows the log. The template of
a message stays, so that tools can still group by it. `tests/unit/test_escaping_loggers.py` proves that no
module gets a logger elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from gen_durable.printable_text import TextBlock, escape_to_one_line, format_exception_escaped


def get_escaping_logger(name: str) -> logging.Logger:
    """The logger of this name, with the filter that makes its records printable."""
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPING_FILTER)  # once, however often it is called
    return logger


class _EscapingFilter(logging.Filter):
    """Escapes the data of a record: its arguments, and the text of its exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.args:
            record.msg = _escape_log_argument(record.msg)
        elif isinstance(record.args, tuple):
            record.args = tuple(_escape_log_argument(argument) for argument in record.args)
        else:
            record.args = {name: _escape_log_argument(argument) for name, argument in record.args.items()}
        if record.exc_info and record.exc_info[1] is not None:
            with contextlib.suppress(Exception):  # attributes of users' classes: a log call must not raise
                record.exc_text = format_exception_escaped(record.exc_info[1])  # formatters take it as it is
        return True


def _escape_log_argument(argument: Any) -> Any:
    """The argument itself if its text is printable, else the escaped text. A `TextBlock` is escaped already."""
    if argument is None or isinstance(argument, (int, float, TextBlock)):
        return argument
    try:
        text = str(argument)
    except Exception:  # a `__str__` of users' code: a log call must not raise
        return f"<{type(argument).__name__} without a text>"
    escaped = escape_to_one_line(text)
    return argument if escaped == text else escaped


_ESCAPING_FILTER: Final = _EscapingFilter()
