"""The desk: what people who look after instances ask for. `Durable` and `SyncDurable` have it from here.

In: filters, or an instance by id or key. Out: pages, counts; an ended instance deleted, a failed one set going again.
Each call looks at so many rows and no more, however big the table is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import Unpack

from gen_durable.errors import NotFound, WrongStatus
from gen_durable.handles import Handle, address, called
from gen_durable.listing import MAX_PAGE, PAGE, Count, Filters, Page, check_limit, place_of, wanted

if TYPE_CHECKING:
    from gen_durable.client import Durable
    from gen_durable.core.notifier import Notifier
    from gen_durable.core.requests import Requests
    from gen_durable.encryption import PayloadEncryption
    from gen_durable.instances import Instance
    from gen_durable.store.admin import AdminStatements

T = TypeVar("T")
H = TypeVar("H")


class Desk:
    """List, count, delete, retry."""

    ask: Requests
    reads: AdminStatements
    seal: PayloadEncryption | None
    wake: Notifier

    async def list(
        self, *, limit: int = PAGE, after: str | None = None, payloads: bool = False, **filters: Unpack[Filters]
    ) -> Page:
        """A page of the instances that fit, newest first; `after` is the cursor of the page before.

        It stops after looking at 20,000 rows: a page may be short, even empty, and still have a cursor. Instances come
        without their states and results unless `payloads=True`.
        """
        call = self.reads.list(wanted(filters), place_of(after), check_limit(limit), payloads=payloads)
        page = await self.ask.run(call, "list", safe=True)
        return page if self.seal is None else Page(tuple(map(self.seal.instance, page)), page.cursor)

    async def list_all(self, *, payloads: bool = False, **filters: Unpack[Filters]) -> AsyncIterator[Instance]:
        """All instances that fit, newest first, page by page."""
        size, cursor = (PAGE if payloads else MAX_PAGE), None
        while True:
            page = await self.list(limit=size, after=cursor, payloads=payloads, **filters)
            for instance in page:
                yield instance
            cursor = page.cursor
            if cursor is None:
                return

    async def count(self, **filters: Unpack[Filters]) -> Count:
        """How many instances fit: exact up to 10,000 if looking at 20,000 rows tells it, else estimated."""
        return await self.ask.run(self.reads.count(wanted(filters)), "count", safe=True)

    async def delete(self, target: int | str | bytes | Handle[Any]) -> None:
        """Delete an instance that has ended, with all that belongs to it.

        Raises `NotFound`, and `WrongStatus` for one that has not ended, or whose parent has not and may read it.
        """
        found = await self.ask.run(self.reads.delete_instance(*address(target)), "delete", safe=False)
        if found is None:
            raise NotFound(f"{called(target)} is unknown")
        if found.deleted:
            return
        if found.parent is not None and found.was.terminal:
            raise WrongStatus(
                f"instance {found.id} cannot be deleted: its parent {found.parent} has not ended and may read it",
                id=found.id,
                status=found.was,
            )
        raise WrongStatus(
            f"instance {found.id} is {found.was.value}: only one that has ended can be deleted",
            id=found.id,
            status=found.was,
        )

    async def retry(self, target: int | str | bytes | Handle[Any]) -> None:
        """Let a failed or cancelled instance go on from the step that it ended in, with the state that it had there.

        What the step had finished (`ctx.run`, `ctx.checkpoint`) counts, as after a crash. Signals that the instance had
        not consumed are gone, and a unique key that it has let go of is not taken again. A parent that still waits for
        its children waits for it too; one that has gone on does not hear of it. Raises `NotFound`, and `WrongStatus`
        for one that is done or has not ended.
        """
        found = await self.ask.run(self.reads.retry(*address(target)), "retry", safe=False)
        if found is None:
            raise NotFound(f"{called(target)} is unknown")
        if found.queue is None:
            raise WrongStatus(
                f"instance {found.id} is {found.was.value}: only a failed or cancelled one can be tried again",
                id=found.id,
                status=found.was,
            )
        self.wake.wake(found.queue)


class SyncDesk(ABC, Generic[H]):
    """The same for code that does not await; H is how it holds an instance."""

    _app: Durable

    def list(
        self, *, limit: int = PAGE, after: str | None = None, payloads: bool = False, **filters: Unpack[Filters]
    ) -> Page:
        """A page of the instances that fit, newest first; see `Durable.list`."""
        return self._wait(self._app.list(limit=limit, after=after, payloads=payloads, **filters))

    def list_all(self, *, payloads: bool = False, **filters: Unpack[Filters]) -> Iterator[Instance]:
        """All instances that fit, newest first, page by page."""
        size, cursor = (PAGE if payloads else MAX_PAGE), None
        while True:
            page = self.list(limit=size, after=cursor, payloads=payloads, **filters)
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    def count(self, **filters: Unpack[Filters]) -> Count:
        """How many instances fit; see `Durable.count`."""
        return self._wait(self._app.count(**filters))

    def delete(self, target: int | str | bytes | H) -> None:
        """Delete an instance that has ended; see `Durable.delete`."""
        self._wait(self._app.delete(self._name(target)))

    def retry(self, target: int | str | bytes | H) -> None:
        """Let a failed or cancelled instance go on; see `Durable.retry`."""
        self._wait(self._app.retry(self._name(target)))

    @abstractmethod
    def _name(self, target: int | str | bytes | H) -> int | str | bytes: ...

    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
