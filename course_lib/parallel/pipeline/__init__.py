"""Pipeline parallelism: each rank holds some of the layers, and micro-batches flow through.

A schedule is data (`schedule.py`, `text.py`): the known ones are made by `generators.py`, judged by `validate.py` and
`simulate.py`, and run on real ranks by `runtime.py`. `simple.py` and `simple_stage.py`: the ideas in a few lines each.
"""
