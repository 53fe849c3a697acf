"""Unit tests and random tests of a policy: the compiled policy and the index that the engines run, on small caches.

Above ``replay``, whose simulator it runs; below the command line.
"""
