"""Imported at the start of every engine process of the tests: fewer garbage collections while an engine loads.

At Python's own thresholds the collector walks everything that was imported so far, again and again: a quarter of the
processor time of a short-lived engine (SGLang 0.5.20 on a CPU: 58 s a run, 45 s with these).
"""

import gc

gc.set_threshold(50_000, 20, 100)
