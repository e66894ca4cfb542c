"""Mistakes at the client: what is inserted, signalled and waited for."""

from __future__ import annotations

from datetime import timedelta

from good.checkout import Checkout, Order, Pack, Paid, Parcel, Stripe, payment, refusal

from gen_durable import Context, Durable, Finished, Handle, Start, SyncDurable, SyncHandle, Worker, job


@job
async def greet(name: str) -> str:
    return f"hello {name}"


@job
async def tick() -> int:
    return 1


async def inserting(app: Durable, machine: Checkout) -> None:
    await app.insert(Checkout.start, Parcel("a"))  # E
    await app.insert(Checkout.start)  # E
    await app.insert(Checkout.start, Order(1), schedule_in=5)  # E
    await app.insert(machine.start, Order(1))  # E
    await app.insert(Checkout, Order(1))  # E
    await app.insert("Checkout.start", Order(1))  # E
    await app.insert(greet, 5)  # E
    await app.insert(greet)  # E
    await app.insert(tick, 5)  # E
    await app.insert(tick, dely=5)  # E
    await app.insert_many([Start(greet)])  # E
    await app.insert(greet("ada"), "ada")  # E
    await app.insert(greet, "ada", delay="5s")  # E
    await app.insert(greet, "ada", on_conflict="ignore")  # E
    await app.insert(greet, "ada", unique="ada")  # E
    await app.insert(greet, "ada", on_conflict="skip", delay="5s")  # E
    await app.insert(greet, "ada", on_conflict="skip", unique="ada")  # E
    await app.insert_many([Start(greet, 5)])  # E
    await app.insert_many([greet])  # E
    await app.insert_many(Start(Pack.pack, Parcel(sku), prio=1) for sku in "ab")  # E
    one: Handle[int] = await app.insert(greet, "ada")  # E
    two: Handle[str] = await app.insert(greet, "ada", on_conflict="skip")  # E
    four: Handle[str] = await app.insert(tick)  # E
    five: Handle[int] = await app.insert(tick, on_conflict="skip", unique_key="tick")  # E
    print(four, five)
    three: Handle[int] = app.insert(Checkout.start, Order(1))  # E
    print(one, two, three)


async def step_called(app: Durable, machine: Checkout, ctx: Context) -> None:
    await app.insert(machine.start(Order(1), ctx), Order(1))  # E


async def signalling(app: Durable, handle: Handle[int]) -> None:
    await app.signal("order:1", payment, Order(1))  # E
    await app.signal("order:1", payment)  # E
    await app.signal("order:1", "payment", Paid(1))  # E
    await app.signal("order:1", refusal, Paid(1))  # E
    await app.signal(payment, Paid(1))  # E
    await app.signal(1.5, payment, Paid(1))  # E
    await handle.signal(payment, 100)  # E
    await handle.signal(payment)  # E


async def starting_with_signals(app: Durable, order: Order) -> None:
    await app.insert(Checkout.start, order, signals=[payment.of(Order(1))])  # E
    await app.insert(Checkout.start, order, signals=[payment.of()])  # E
    await app.insert(Checkout.start, order, signals=[refusal.of(Paid(1))])  # E
    await app.insert(Checkout.start, order, signals=[payment])  # E
    await app.insert(Checkout.start, order, on_conflict="skip", signals=[(payment, Paid(1))])  # E
    await app.insert_many([Start(Checkout.start, order, signals=[payment.of(100)])])  # E
    await app.signal("order:1", payment, Order(1), or_start=Start(Checkout.start, order))  # E
    await app.signal("order:1", payment, or_start=Start(Checkout.start, order))  # E
    await app.signal(42, payment, Paid(1), or_start=Start(Checkout.start, order))  # E
    await app.signal("order:1", payment, Paid(1), or_start=Start(Checkout.start, Parcel("a")))  # E
    await app.signal("order:1", payment, Paid(1), or_start=greet)  # E
    plain: bool = await app.signal("order:1", payment, Paid(1), or_start=Start(Checkout.start, order))  # E
    print(plain, (await app.signal("order:1", payment, Paid(1))).handle)  # E


async def debouncing(app: Durable, sync: SyncDurable) -> None:
    await app.debounce(greet, 5, unique_key="greet", delay=5)  # E
    await app.debounce(greet, unique_key="greet", delay=5)  # E
    await app.debounce(greet, "ada", unique_key="greet")  # E
    await app.debounce(greet, "ada", delay=5)  # E
    await app.debounce(greet, "ada", unique_key="greet", delay=5, schedule_at=None)  # E
    await app.debounce(greet, "ada", unique_key="greet", delay=5, unique="forever")  # E
    one: Handle[int] = await app.debounce(greet, "ada", unique_key="greet", delay=5)  # E
    two: SyncHandle[int] = sync.debounce(greet, "ada", unique_key="greet", delay=5)  # E
    print(one, two)


async def waiting(handle: Handle[int]) -> str:
    ending = await handle.wait(timeout="5s")  # E
    print(ending.result)  # E
    if isinstance(ending, Finished):
        return ending.result  # E
    if handle.id:
        return await handle.result(timeout=5)  # E
    return await handle.wait(timeout=timedelta(seconds=5))  # E


def from_a_script(app: SyncDurable) -> None:
    app.insert(Checkout.start, Parcel("a"))  # E
    app.insert(greet, 5)  # E
    app.insert(greet)  # E
    app.insert(greet, "ada", delay="5s")  # E
    app.insert(greet, "ada", unique="ada")  # E
    app.insert(greet, "ada", on_conflict="skip", prio=1)  # E
    one: SyncHandle[str] = app.insert(greet, "ada", on_conflict="skip", priority=1)  # E
    print(one)
    two: str = app.insert(Checkout.start, Order(1)).result()  # E
    print(two)
    app.signal("order:1", payment, Order(1))  # E
    app.signal("order:1", payment)  # E


def working(app: Durable) -> list[Worker]:
    return [
        Worker(app, machines=[Checkout]),  # E
        Worker(app, machines=[greet]),  # E
        Worker(app, machines=[Checkout(Stripe())], jobs=[len]),  # E
        Worker(app, machines=[Checkout(Stripe())], queues=["default"]),  # E
        Worker(app, machines=[Checkout(Stripe())], lease_ttl="15s"),  # E
        Worker(app, machines=[Checkout(Stripe())], lease=timedelta(seconds=15)),  # E
    ]


def opening(dsn: str) -> list[Durable]:
    return [Durable(pool=dsn)]  # E


def opening_from_a_script() -> SyncDurable:
    return SyncDurable(pool=None)  # E
