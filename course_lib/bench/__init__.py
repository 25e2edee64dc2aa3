"""Side-by-side measurements, ours against the real thing, in one run: `python -m course_lib.bench` lists them."""
