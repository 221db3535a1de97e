"""The real scheduler under a virtual clock: arrivals in, latencies and service out. Knows no threads.

laws.py        how long a step takes
models.py      what computes a step: a fake whose next token hashes its context, or the real runner
requests.py    what arrives, and what became of it
simulation.py  the loop, as engine.loop runs it
service.py     who was served how much, and the widest gap between two who waited all along
"""
