"""Children: machines and jobs in one batch, and the typed results of each kind."""

from __future__ import annotations

from dataclasses import dataclass

from gen_durable import Child, Context, Done, Fail, Machine, Outcome, ScheduleChildren, Start, job, step


@dataclass(frozen=True)
class Page:
    url: str


@dataclass(frozen=True)
class Size:
    bytes: int


@dataclass(frozen=True)
class Site:
    pages: tuple[Page, ...]


@job
async def measure(page: Page) -> Size:
    return Size(len(page.url))


@job
def title(page: Page, ctx: Context) -> str:
    return page.url


class Crawl(Machine):
    @step
    def fetch(self, page: Page, ctx: Context) -> Outcome[dict[str, int]]:
        return Done({page.url: 1})


class Survey(Machine):
    @step
    async def start(self, site: Site, ctx: Context) -> Outcome[int]:
        crawls = [Start(Crawl.fetch, page, queue="crawl") for page in site.pages]
        sizes = [Start(measure, page) for page in site.pages]
        titles = (Start(title, page, unique_key=page.url) for page in site.pages)
        return ScheduleChildren([*crawls, *sizes, *titles], then=self.add_up, state=site)

    @step
    async def again(self, site: Site, ctx: Context) -> Outcome[int]:
        return ScheduleChildren((Start(measure, page) for page in site.pages), then=self.add_up, state=site)

    @step
    async def mixed(self, site: Site, ctx: Context) -> Outcome[int]:
        first = site.pages[0]
        return ScheduleChildren([Start(measure, first), Start(Crawl.fetch, first)], then=self.add_up, state=site)

    @step
    async def add_up(self, site: Site, ctx: Context) -> Outcome[int]:
        failed: list[Child] = [child for child in ctx.children if not child.ok]
        if failed:
            return Fail(f"{len(failed)} pages failed, the first with {failed[0].last_error}")
        links: list[dict[str, int]] = ctx.results(Crawl.fetch)
        titles: list[str] = ctx.results(title)
        return Done(sum(size.bytes for size in ctx.results(measure)) + len(links) + len(titles))
