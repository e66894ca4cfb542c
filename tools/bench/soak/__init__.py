"""Half of the peak for an hour: does anything grow that should not?

`python -m tools.bench.soak` finds the peak of a mixed load, feeds half of it for the time that it is told, and
samples all
the while: memory of the workers, connections, how late rows are claimed, size of the tables, dead rows. In the middle
somebody keeps a snapshot open for two minutes. The verdict compares the end with the beginning.
"""
