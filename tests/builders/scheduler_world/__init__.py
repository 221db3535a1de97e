"""A scheduler in a small world of its own, and referees that watch every step of it.

`world.py` drives it: a model whose next token hashes its context, a clock, a law of step times.
`referees.py` knows what must hold, and asks the scheduler's own account as little as it can.
"""
