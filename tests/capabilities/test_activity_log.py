"""The activity log: append-only, in the order of starts."""

from __future__ import annotations

from tests.support.capabilities import Opening

from gen_durable import Context, Done, Machine, Next, Outcome, RetryPolicy, step


class Till:
    """Its line is down at first."""

    def __init__(self) -> None:
        self.calls = 0

    async def charge(self, amount: int, currency: str) -> dict[str, int]:
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError("no line")
        return {"receipt": 17}


class Shop(Machine):
    def __init__(self) -> None:
        self.till = Till()

    @step
    async def pay(self, amount: int, ctx: Context) -> Outcome[str]:
        policy = RetryPolicy(attempts=2, backoff=lambda _: 0)
        await ctx.run("charge", self.till.charge, amount, currency="EUR", retry=policy)
        return Next(self.thank, amount)

    @step
    async def thank(self, amount: int, ctx: Context) -> Outcome[str]:
        return Done(await ctx.run("greet", lambda name: f"thank you, {name}", "Ada"))


async def test_parameters_result_error_start_and_duration(engine: Opening) -> None:
    """Every call that has ended has a row, failed ones too, over all steps of a run."""
    async with engine() as e:
        handle = await e.app.insert(Shop.pay, 5)
        assert (await e.end(handle, machines=[Shop()])).result == "thank you, Ada"
        log = await e.app.activities(handle)
        assert [(a.step, a.name, a.attempt, a.parameters, a.result, a.error) for a in log] == [
            ("pay", "charge", 0, {"amount": 5, "currency": "EUR"}, None, "ConnectionError: no line"),
            ("pay", "charge", 1, {"amount": 5, "currency": "EUR"}, {"receipt": 17}, None),
            ("thank", "greet", 0, {"name": "Ada"}, "thank you, Ada", None),
        ]
        by_name = await e.sql("select parameters->>'currency' as currency from @schema.activities order by n limit 1")
        assert [row["currency"] for row in by_name] == ["EUR"]
        row = await handle.get()
        assert [a.started_at for a in log] == sorted(a.started_at for a in log)
        assert all(a.duration >= 0 and row.inserted_at <= a.started_at <= row.updated_at for a in log)
        assert [a.name for a in await e.app.activities(handle, last=1)] == ["greet"]


async def test_a_row_is_written_once(engine: Opening) -> None:
    """What was logged is not changed by a second write of the same call."""
    async with engine() as e:
        handle = await e.app.insert(Shop.pay, 5)
        await e.end(handle, machines=[Shop()])
        before = await e.app.activities(handle)
        (row,) = await e.sql("select claims, seq from @schema.instances")
        await e.sql("update @schema.instances set visit = 0")  # the fence stands; the call is known by its number
        note = "select @schema.record_activity($1, $2, $3, 1, 'charge', '[0]', '0', null, 0, 0, 0)"
        assert [bool(r[0]) for r in await e.sql(note, handle.id, row["claims"], row["seq"])] == [True]
        assert await e.app.activities(handle) == before
