"""The benchmark suite: `make bench`, or `python -m tools.bench --help`.

Every scenario runs the engine and, in the same round, the bare ceiling: the same SQL functions, driven by a loop with
no engine around it. Read the ratio of the two: it depends little on the machine and on its other load.
"""
