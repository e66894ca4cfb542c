"""The loggers: every line of a log is printable, whatever its arguments are, and no module has another logger."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.hostile import ALL, FORGED

import gen_durable
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.printable_text import TextBlock, escape_to_one_line

SOURCE = Path(gen_durable.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn", "fatal"}
LOGGERS = {"log", "logger", "errors_log"}
CONVERSION = re.compile(r"%(?:\([^)]*\))?[-#0 +,]*(?:\d+|\*)?(?:\.\d+)?([a-zA-Z%])")


class LogCall(NamedTuple):
    """A call of a logger in the source."""

    where: str
    method: str
    call: ast.Call
    source: str


def log_calls() -> Iterator[LogCall]:
    for path in SOURCE.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                    name in LOGGERS and method in LEVELS
                ):
                    yield LogCall(f"{path.relative_to(SOURCE)}:{node.lineno}", method, node, source)
                case _:
                    pass


@pytest.fixture
def written() -> Iterator[StringIO]:
    """The lines that a handler of a user writes, from all loggers of the library, tracebacks included."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    parent = logging.getLogger("gen_durable")
    level = parent.level
    parent.addHandler(handler)
    parent.setLevel(logging.DEBUG)
    yield stream
    parent.removeHandler(handler)
    parent.setLevel(level)


def check_lines(text: str) -> list[str]:
    lines = text.removesuffix("\n").split("\n")
    for line in lines:
        assert escape_to_one_line(line) == line
        assert not line.startswith(FORGED)
    return lines


def arguments_for(template: str) -> list[Any]:
    """Hostile arguments, of the types that the template takes. A text after a line break is a block."""
    values: list[Any] = []
    for match in CONVERSION.finditer(template):
        match match[1]:
            case "%":
                continue
            case "d":
                values.append(1)
            case "s" | "r":
                values.append(TextBlock(ALL) if template[: match.start()].endswith("\n") else ALL)
            case _:
                values.append(1.0)
    return values


def test_every_log_line_of_the_source_is_printable(written: StringIO) -> None:
    """Each call in the source, with text that attacks: one line, and below it only indented lines of a block."""
    found = list(log_calls())
    assert len(found) > 70
    for one in found:
        assert not [keyword for keyword in one.call.keywords if keyword.arg != "exc_info"], one.where
        assert isinstance(one.call.args[0], ast.Constant), f"{one.where}: the message is a literal, data are arguments"
        template = one.call.args[0].value
        assert isinstance(template, str)
        values = arguments_for(template)
        assert len(values) == len(one.call.args) - 1, one.where
        written.seek(0)
        written.truncate()
        get_escaping_logger("gen_durable.worker").log(logging.ERROR, template, *values)
        first, *others = check_lines(written.getvalue())
        assert first.startswith("ERROR gen_durable.worker: "), one.where
        assert all(line.startswith("  ") for line in others), one.where


def test_a_text_after_a_line_break_is_a_block() -> None:
    """Else its line breaks are escaped, and a traceback is one long line."""
    blocks = 0
    for one in log_calls():
        template = ast.literal_eval(one.call.args[0])
        conversions = [match for match in CONVERSION.finditer(template) if match[1] != "%"]
        for match, argument in zip(conversions, one.call.args[1:], strict=True):
            if template[: match.start()].endswith("\n"):
                text = ast.unparse(argument)
                assert text.startswith("TextBlock(") or f"{text} = TextBlock(" in one.source, one.where
                blocks += 1
    assert blocks >= 4


def test_no_module_gets_a_logger_elsewhere() -> None:
    """Only `escaping_loggers.py` calls `logging.getLogger`, and nothing logs through the root logger."""
    allowed = {
        ("escaping_loggers.py", "getLogger"),
        ("escaping_loggers.py", "Logger"),
        ("escaping_loggers.py", "Filter"),
    }
    functions = {"getLogger", "Logger", "Filter", "LoggerAdapter", "getLoggerClass", *LEVELS}
    found: set[tuple[str, str]] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="logging"), attr=attribute) if attribute in functions:
                    found.add((str(path.relative_to(SOURCE)), attribute))
                case ast.ImportFrom(module="logging" | "warnings"):
                    found.add((str(path.relative_to(SOURCE)), "an import from logging"))
                case ast.Call(func=ast.Name(id="get_escaping_logger")) if not (
                    len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
                ):
                    found.add((str(path.relative_to(SOURCE)), "a logger without a fixed name"))
                case _:
                    pass
    assert found == allowed


def test_arguments(written: StringIO) -> None:
    """Texts, objects, a mapping, and a message without arguments; printable arguments stay what they are."""
    log = get_escaping_logger("gen_durable.worker")

    class Thing:
        def __str__(self) -> str:
            return ALL

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    log.error("%s and %r", ALL, ALL)
    log.error("%s", ValueError(ALL))
    log.error("%s", Thing())
    log.error("%s", Broken())
    log.error("%(a)s %(b)d", {"a": ALL, "b": 1})
    log.error(ALL.replace("%", ""))
    lines = check_lines(written.getvalue())
    assert len(lines) == 6
    assert lines[3] == "ERROR gen_durable.worker: <Broken without a text>"


def test_records_keep_template_and_arguments(caplog: pytest.LogCaptureFixture) -> None:
    """So that tools group by the template, and read arguments of their types."""
    error = ValueError("no luck")
    get_escaping_logger("gen_durable.worker").error("a %s of %s at %d: %s", "step", error, 7, None)
    (record,) = caplog.records
    assert record.msg == "a %s of %s at %d: %s"
    assert record.args == ("step", error, 7, None)
    assert record.filename == "test_escaping_loggers.py"


def test_an_exception(written: StringIO) -> None:
    log = get_escaping_logger("gen_durable.telemetry")
    try:
        raise ValueError(ALL)
    except ValueError:
        log.exception("a subscriber raised")
    lines = check_lines(written.getvalue())
    assert lines[:2] == ["ERROR gen_durable.telemetry: a subscriber raised", "Traceback (most recent call last):"]
    assert any(line.startswith("ValueError: \\x1b[2J") for line in lines)


def test_a_filter_is_added_once() -> None:
    log = get_escaping_logger("gen_durable.worker")
    before = list(log.filters)
    assert get_escaping_logger("gen_durable.worker") is log
    assert log.filters == before
