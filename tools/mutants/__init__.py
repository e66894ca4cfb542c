"""Mutation proof of the SQL: every fence, lock, order and constraint is taken out once, and some test must fail."""
