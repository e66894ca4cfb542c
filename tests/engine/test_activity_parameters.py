"""The arguments of an activity by the names of its function's parameters."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gen_durable.engine.step_journal import CallActivity, StepJournal
from gen_durable.errors import InputError
from gen_durable.store.journal import Fence, JournalStatementBuilder
from gen_durable.store.schema import Schema


class Client:
    async def post(self, url: str, *, body: object = None) -> int: ...


def several(first: int, *rest: int, **options: Any) -> None: ...


def positional(a: int, /, **options: Any) -> None: ...


def parameters(fn: Any, *args: Any, **kwargs: Any) -> str:
    """What would be stored for a call that succeeded."""
    journal = StepJournal(JournalStatementBuilder(Schema()), Fence(1, 1, 0))
    moves = journal.activity_actions("call", fn, args, kwargs, retry=None)
    assert isinstance(next(moves), CallActivity)
    return str(moves.send(None).args[5])


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "stored"),
    [
        (Client().post, ("http://a",), {"body": [1]}, '{"url":"http://a","body":[1]}'),
        (Client().post, (), {"url": "http://a"}, '{"url":"http://a"}'),
        (several, (1, 2, 3), {"retries": 5}, '{"first":1,"rest":[2,3],"retries":5}'),
        (several, (1, 2), {"rest": 3}, '{"first":1,"rest":[2],"options":{"rest":3}}'),
        (positional, (1,), {"a": 2}, '{"a":1,"options":{"a":2}}'),
        (functools.partial(several, 9), (), {}, "{}"),
        (max, (1, 2), {}, '{"args":[1,2]}'),
        (lambda: None, (), {}, "{}"),
    ],
)
def test_arguments_are_stored_by_name(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stored: str) -> None:
    """Positional and keyword arguments have the names of the parameters; `*args` is a list."""
    assert parameters(fn, *args, **kwargs) == stored


def test_a_call_that_does_not_fit_is_refused() -> None:
    """Before the function is called, and without a row in the log."""
    with pytest.raises(InputError, match="activity 'call' cannot be called like this: missing a required argument"):
        parameters(several)
