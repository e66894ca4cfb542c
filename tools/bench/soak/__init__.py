"""Half of the peak for an hour: does anything grow that should not?

`python -m tools.bench.soak` finds the peak of a mixed load, feeds half of it for the given time, and
samples all
the while: memory of the workers, connections, how late rows are claimed, size of the tables, dead rows. In the middle
a reader keeps a snapshot open for two minutes. The checks compare the end with the beginning.
"""
