"""The rooms of the worker, one verb each: insert, pick, run, flush, wake; and keep, which holds on to what was picked.

Rooms do not know each other: the worker is the corridor that joins them.
"""
