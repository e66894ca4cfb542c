"""Count the tics of unclear prose per 1,000 words, for each kind of file, and fail above a bound.

Reads comments and docstrings of Python, comments of SQL, and Markdown outside of fenced code, of all files that git
knows. `make prose` runs it. It is a lint for a habit, not a substitute for reading a page aloud.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BOUND = 0.5

TICS = {
    "tell/told": re.compile(r"\b(tells?|told)\b"),
    "who/somebody": re.compile(
        r"\b(whoever|somebody|nobody|whom)\b"
        r"|\bwho (is|has|was|are|have|waits?|asks?|gives?|holds?|had|may|comes?)\b"
    ),
    "headless what": re.compile(r"(?:^|[.;:] )What (is|was|has|a|an|the|it|they|he|comes|must|cannot|had)\b"),
    "is to be": re.compile(r"\b(is|are|was|were) to be\b"),
    "None: ...": re.compile(r"\bNone: "),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of prose and its place."""

    path: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The tics of one line."""

    line: Line
    tics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The count for one kind of file."""

    kind: str
    words: int
    findings: tuple[Finding, ...]

    @property
    def rates(self) -> dict[str, float]:
        """Tics per 1,000 words, by their name."""
        counts = Counter(tic for finding in self.findings for tic in finding.tics)
        return {name: 1000 * counts[name] / max(self.words, 1) for name in TICS}

    @property
    def total(self) -> float:
        """All tics per 1,000 words."""
        return sum(self.rates.values())


def python_lines(path: str, source: str) -> Iterator[Line]:
    """Yield comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Line(path, token.start[0], token.string.lstrip("# "))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        match node.body[:1]:
            case [ast.Expr(value=ast.Constant(value=str(text))) as docstring]:
                for offset, line in enumerate(text.splitlines()):
                    yield Line(path, docstring.lineno + offset, line.strip())
            case _:
                pass


def sql_lines(path: str, source: str) -> Iterator[Line]:
    """Yield everything behind `--`."""
    for number, line in enumerate(source.splitlines(), start=1):
        if "--" in line:
            yield Line(path, number, line.split("--", 1)[1])


def markdown_lines(path: str, source: str) -> Iterator[Line]:
    """Yield all lines outside of fenced code."""
    prose = re.sub(r"```.*?```", lambda block: "\n" * block.group().count("\n"), source, flags=re.DOTALL)
    for number, line in enumerate(prose.splitlines(), start=1):
        yield Line(path, number, line)


def check(kind: str, lines: Iterator[Line]) -> Report:
    """Count words and tics."""
    words = 0
    findings: list[Finding] = []
    for line in lines:
        words += len(line.text.split())
        tics = tuple(name for name, pattern in TICS.items() for _ in pattern.finditer(line.text))
        if tics:
            findings.append(Finding(line, tics))
    return Report(kind, words, tuple(findings))


def check_repository(root: Path) -> list[Report]:
    """Check all files of the repository at `root`, one report per kind of file."""
    kinds: tuple[tuple[str, str, Callable[[str, str], Iterator[Line]]], ...] = (
        ("python", "src/*.py", python_lines),
        ("sql", "src/*.sql", sql_lines),
        ("docs", "*.md", markdown_lines),
    )
    reports: list[Report] = []
    for kind, pattern, read in kinds:
        listed = subprocess.run(
            ["git", "ls-files", pattern], cwd=root, capture_output=True, text=True, check=True
        ).stdout.split()
        # The changelog quotes the old names.
        paths = [path for path in listed if "CHANGELOG" not in path and (root / path).exists()]
        reports.append(check(kind, (line for path in paths for line in read(path, (root / path).read_text()))))
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="list every finding, not only those above the bound")
    parser.add_argument("--most", type=int, default=20, help="lines listed per kind of file (default: %(default)s)")
    options = parser.parse_args()
    failed = False
    for report in check_repository(Path.cwd()):
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in report.rates.items())
        print(f"{report.kind}: {report.words} words, {report.total:.2f} tics per 1,000 ({rates})")
        if report.total <= BOUND and not options.all:
            continue
        failed = failed or report.total > BOUND
        worst = sorted(report.findings, key=lambda finding: -len(finding.tics))
        for finding in worst if options.all else worst[: options.most]:
            line = finding.line
            print(f"  {line.path}:{line.number}: {', '.join(finding.tics)}: {line.text.strip()}")
    if failed:
        print(f"More than {BOUND} tics per 1,000 words. Rewrite the lines above; `make prose ARGS=--all` lists all.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
