"""What the engine's calls cost as the table grows, and while a long reader keeps the dead rows in it.

    python -m tools.bench.scale

`dataset` fills a table of a given size, `works` are the calls and how each gives back what it took, `measure` times
them against a reference, `horizon` is the run with the long reader, `report` and `plot` show the result.
"""
