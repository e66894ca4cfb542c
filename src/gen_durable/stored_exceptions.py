"""Exceptions as they are stored: the name of the class, the message, and the traceback as frames without values.

A frame is a file, a line number, a function and the line of source code. A traceback has no messages of exceptions and
no values of variables, because they may quote payloads: the message of the error itself is in `last_error`. Texts are
bounded, and the frames of the engine that lead to the user's code are left out.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from typing_extensions import TypeIs

from gen_durable.validation import to_storable_error, to_storable_text

MAX_TRACEBACK: Final = 8000  # bytes
MAX_FRAMES: Final = 30
MAX_CHAIN: Final = 5  # exceptions that led to one another
MAX_PARTS: Final = 5  # of an exception group
MAX_PART: Final = 1500  # bytes
MAX_NESTED: Final = 3  # groups inside of groups
MAX_NAME: Final = 200  # characters
MAX_DESCRIBED_PARTS: Final = 5  # of an exception group, in its message
MAX_DESCRIBED_PART: Final = 500  # characters
MAX_DESCRIBED_NESTED: Final = 3  # groups inside of groups
_CUT: Final = "... (cut off here)\n"
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
# Modules between the event loop and the user's code: their frames are left out where they come first.
_ENGINE: Final = ("gen_durable.engine.", "gen_durable.testing.", "gen_durable.json_codec", "asyncio.", "concurrent.")


def is_exception_group(error: BaseException) -> TypeIs[BaseExceptionGroup[BaseException]]:
    """Whether an exception has parts."""
    return isinstance(error, BaseExceptionGroup)


def error_type_of(error: BaseException) -> str:
    """The name of an exception's class, with its module unless it is a builtin."""
    kind = type(error)
    module = str(kind.__module__)
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return to_storable_text(name)[:MAX_NAME]


def describe_error(error: BaseException) -> str:
    """An exception as it is stored in `last_error`: its type and its message; of a group also its first parts."""
    return to_storable_error(_exception_as_text(error, 0))


def format_traceback(error: BaseException, *, during: BaseException | None = None) -> str | None:
    """The frames of an exception and of those that led to it, oldest first, at most 8,000 bytes.

    `during` is an exception that was being handled meanwhile, if it is not among those. Returns None without frames of
    the user's code: the engine has found the error.
    """
    try:
        text, has_frames = _format_chain(error, during, 0)
        return _cut_to_last_lines(to_storable_text(text), MAX_TRACEBACK).rstrip() if has_frames else None
    except BaseException:  # attributes of the user's class: a SystemExit of them would end the process
        return "(its traceback cannot be formatted)"


def _exception_as_text(error: BaseException, depth: int) -> str:
    kind = type(error).__name__
    try:
        words = (
            _describe_group_parts(error, depth)
            if is_exception_group(error) and depth < MAX_DESCRIBED_NESTED
            else str(error)
        )
        return f"{kind}: {words}" if words else kind
    except BaseException:  # user code: a SystemExit of it would end the process
        return f"{kind}: (its str() raised)"


def _describe_group_parts(group: BaseExceptionGroup[BaseException], depth: int) -> str:
    """The parts of a group: `str` of it has only their number."""
    count = len(group.exceptions)
    parts = [_exception_as_text(part, depth + 1) for part in group.exceptions[:MAX_DESCRIBED_PARTS]]
    shown = [part if len(part) <= MAX_DESCRIBED_PART else part[: MAX_DESCRIBED_PART - 3] + "..." for part in parts]
    rest = [f"and {count - len(parts)} more"] if count > len(parts) else []
    return f"{count} error{'s' if count > 1 else ''} ({group.message}): {', '.join([*shown, *rest])}"


def _format_chain(error: BaseException, during: BaseException | None, depth: int) -> tuple[str, bool]:
    """The text of an exception and its causes, and whether it has any frame."""
    blocks: list[str] = []
    has_frames = False
    for one, joint in _exception_chain(error, during):
        if len(blocks) == MAX_CHAIN:
            blocks.append(_CUT)
            break
        frames = list(_format_user_frames(one.__traceback__))
        has_frames = has_frames or bool(frames)
        block = "Traceback (most recent call last):\n" + "".join(frames) if frames else ""
        block += error_type_of(one) + "\n"
        if is_exception_group(one):
            parts, parts_have_frames = _format_group_parts(one, depth)
            block, has_frames = block + parts, has_frames or parts_have_frames
        blocks.append(block + joint)
    return "".join(reversed(blocks)), has_frames


def _exception_chain(error: BaseException, during: BaseException | None) -> Iterator[tuple[BaseException, str]]:
    """The exceptions that led to this one, newest first, each with the sentence that leads to the newer one."""
    seen: set[int] = set()
    one: BaseException | None = error
    joint = ""
    while one is not None and id(one) not in seen:
        yield one, joint
        seen.add(id(one))
        cause, context = one.__cause__, None if one.__suppress_context__ else one.__context__
        one, joint = (context, _CONTEXT) if cause is None else (cause, _CAUSE)
        if one is None and during is not None:
            one, joint, during = during, _CONTEXT, None


def _format_group_parts(group: BaseExceptionGroup[BaseException], depth: int) -> tuple[str, bool]:
    """The first parts of an exception group, indented."""
    if depth == MAX_NESTED:
        return "", False
    count, has_frames = len(group.exceptions), False
    texts: list[str] = []
    for number, part in enumerate(group.exceptions[:MAX_PARTS], 1):
        text, part_has_frames = _format_chain(part, None, depth + 1)
        has_frames = has_frames or part_has_frames
        lines = _cut_to_last_lines(to_storable_text(text), MAX_PART).splitlines()
        texts.append(f"  part {number} of {count}:\n" + "".join(f"    {line}\n" for line in lines))
    return "".join(texts), has_frames


def _format_user_frames(trace: TracebackType | None) -> Iterator[str]:
    """The frames from the user's first one on: that one, and the innermost of the others."""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_ENGINE):
        trace = trace.tb_next
    traces: list[TracebackType] = []
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    left_out = len(traces) - MAX_FRAMES
    for number, one in enumerate(traces):
        if number == 0 or number > left_out:
            yield _format_frame(one)
        elif number == 1:
            yield f"  ... {left_out:,} frames are left out\n"


def _format_frame(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    head = f'  File "{code.co_filename[-MAX_NAME:]}", line {trace.tb_lineno}, in {code.co_qualname[:MAX_NAME]}\n'
    source = _source_line(trace)
    return head + (f"    {source}\n" if source else "")


def _source_line(trace: TracebackType) -> str:
    """The line of source code, empty if it cannot be read."""
    frame = trace.tb_frame
    try:
        # Not traceback.extract_tb, which looks for changes of each file on the disk.
        return linecache.getline(frame.f_code.co_filename, trace.tb_lineno, frame.f_globals).strip()[:MAX_NAME]
    except Exception:  # a path with NUL, a loader of the user
        return ""


def _cut_to_last_lines(text: str, size: int) -> str:
    """The last lines of a text: the newest exception and its innermost frames are at its end."""
    raw = text.encode()
    if len(raw) <= size:
        return text
    kept = raw[len(_CUT) - size :].decode(errors="ignore")
    return _CUT + kept.partition("\n")[2]
