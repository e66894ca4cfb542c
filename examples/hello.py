import asyncio
from gen_durable import Context, Durable, Worker, job

@job
async def greet(name: str, ctx: Context) -> str:
    if ctx.attempt == 0:
        raise ConnectionError("the network hiccups")  # tried again after a second
    return f"Hello, {name}!"

async def main() -> None:
    async with Durable() as app, Worker(app, jobs=[greet]):
        handle = await app.insert(greet, "world")
        print(await handle.result())

asyncio.run(main())
