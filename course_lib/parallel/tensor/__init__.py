"""Tensor parallelism: every rank holds a part of each matrix, and all ranks work on the same tokens.

`simple.py`: the ideas in a few lines each.
"""
