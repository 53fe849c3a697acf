"""Imported at the start of every engine process of the tests: fewer garbage collections while an engine loads, and a
module `at_start`, where a test has put one on the path.

At Python's own thresholds the collector walks everything that was imported so far, again and again: a quarter of the
processor time of a short-lived engine (SGLang 0.5.20 on a CPU: 58 s a run, 45 s with these).
"""

import gc
from importlib import import_module, util

gc.set_threshold(50_000, 20, 100)
if util.find_spec("at_start"):
    import_module("at_start")
