"""A pytest plugin for runs on mutated SQL.

Tests that take out a cure themselves look for its words, and fail when these are gone. That proves nothing about the
mutant, so here they are skipped.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Tell a cure that is not there from a test that fails."""
    try:
        return (yield)
    except AssertionError as error:
        if type(error).__name__ == "CureIsGone":
            pytest.skip("it takes out what the mutant has taken out")
        raise
