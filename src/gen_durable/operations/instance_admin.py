"""Admin: list, count, delete and retry instances, for `Durable` and `SyncDurable`.

Each call reads a bounded number of rows, however large the table is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import Unpack

from gen_durable.errors import InputError, NotFound, WrongStatus
from gen_durable.handles import Handle, describe_target, parse_target
from gen_durable.listing import MAX_PAGE, PAGE, Count, Filters, Page, check_page_size, decode_cursor, encode_filters

if TYPE_CHECKING:
    from gen_durable.client import Durable
    from gen_durable.core.services import Services
    from gen_durable.instances import Instance

T = TypeVar("T")
H = TypeVar("H")


class InstanceAdminOperations:
    """List, count, delete and retry instances: a base class of `Durable`."""

    _services: Services

    async def list(
        self, *, limit: int = PAGE, after: str | None = None, payloads: bool = False, **filters: Unpack[Filters]
    ) -> Page:
        """A page of the instances that match the filters, newest first; `after` is the cursor of the page before.

        A call reads at most 20,000 rows: a page may be short, even empty, and still have a cursor. Instances come
        without their states and results unless `payloads=True`.
        """
        services = self._services
        statement = services.admin_statements.list(
            self._check_and_encode_filters(filters), decode_cursor(after), check_page_size(limit), payloads=payloads
        )
        page = await services.statement_runner.run(statement, "list", may_run_twice=True)
        if services.encryption is None:
            return page
        return Page(tuple(map(services.encryption.decrypt_instance, page)), page.cursor)

    async def list_all(self, *, payloads: bool = False, **filters: Unpack[Filters]) -> AsyncIterator[Instance]:
        """All instances that match the filters, newest first, read page by page."""
        size, cursor = (PAGE if payloads else MAX_PAGE), None
        while True:
            page = await self.list(limit=size, after=cursor, payloads=payloads, **filters)
            for instance in page:
                yield instance
            cursor = page.cursor
            if cursor is None:
                return

    async def count(self, **filters: Unpack[Filters]) -> Count:
        """How many instances match the filters: exact up to 10,000 if 20,000 rows read suffice, else estimated."""
        statement = self._services.admin_statements.count(self._check_and_encode_filters(filters))
        return await self._services.statement_runner.run(statement, "count", may_run_twice=True)

    def _check_and_encode_filters(self, filters: Filters) -> str:
        if self._services.encryption is not None and filters.get("error") is not None:
            raise InputError(
                "error= cannot search errors that a codec has encrypted: list with other filters and compare last_error"
            )
        return encode_filters(filters)

    async def delete(self, target: int | str | bytes | Handle[Any]) -> None:
        """Delete an ended instance with its signals and journal.

        Raises `NotFound`, and `WrongStatus` if the instance, or a parent that may still read it, has not ended.
        """
        statement = self._services.admin_statements.delete_instance(*parse_target(target, self._services))
        found = await self._services.statement_runner.run(statement, "delete", may_run_twice=False)
        if found is None:
            raise NotFound(f"{describe_target(target)} is unknown")
        if found.deleted:
            return
        if found.parent is not None and found.was.terminal:
            raise WrongStatus(
                f"instance {found.id} cannot be deleted: its parent {found.parent} has not ended and may read it",
                id=found.id,
                status=found.was,
            )
        raise WrongStatus(
            f"instance {found.id} is {found.was.value}: only an ended instance can be deleted",
            id=found.id,
            status=found.was,
        )

    async def retry(self, target: int | str | bytes | Handle[Any]) -> None:
        """Run a failed or cancelled instance again, from the step and the state in which it ended.

        A unique key stands for its holder, else for the last instance inserted with it.
        Finished activities and the checkpoint of that step count, as after a crash. Its unread signals are there, and a
        released unique key is not taken again. A parent that still waits for its children waits for this one too; a
        parent that has gone on is not affected. Raises `NotFound`, and `WrongStatus` for an instance that is done or
        has not ended.
        """
        statement = self._services.admin_statements.retry(*parse_target(target, self._services))
        found = await self._services.statement_runner.run(statement, "retry", may_run_twice=False)
        if found is None:
            raise NotFound(f"{describe_target(target)} is unknown")
        if found.queue is None:
            raise WrongStatus(
                f"instance {found.id} is {found.was.value}: only a failed or cancelled instance can be retried",
                id=found.id,
                status=found.was,
            )
        self._services.notifier.wake(found.queue)


class SyncInstanceAdminOperations(ABC, Generic[H]):
    """The blocking counterpart, a base class of `SyncDurable`; `H` is its type of handle."""

    _app: Durable

    def list(
        self, *, limit: int = PAGE, after: str | None = None, payloads: bool = False, **filters: Unpack[Filters]
    ) -> Page:
        """A page of the instances that match the filters; see `Durable.list`."""
        return self._run_and_wait(self._app.list(limit=limit, after=after, payloads=payloads, **filters))

    def list_all(self, *, payloads: bool = False, **filters: Unpack[Filters]) -> Iterator[Instance]:
        """All instances that match the filters, newest first, read page by page."""
        size, cursor = (PAGE if payloads else MAX_PAGE), None
        while True:
            page = self.list(limit=size, after=cursor, payloads=payloads, **filters)
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    def count(self, **filters: Unpack[Filters]) -> Count:
        """The number of instances that match the filters; see `Durable.count`."""
        return self._run_and_wait(self._app.count(**filters))

    def delete(self, target: int | str | bytes | H) -> None:
        """Delete an ended instance; see `Durable.delete`."""
        self._run_and_wait(self._app.delete(self._to_target(target)))

    def retry(self, target: int | str | bytes | H) -> None:
        """Run a failed or cancelled instance again; see `Durable.retry`."""
        self._run_and_wait(self._app.retry(self._to_target(target)))

    @abstractmethod
    def _to_target(self, target: int | str | bytes | H) -> int | str | bytes: ...

    @abstractmethod
    def _run_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
