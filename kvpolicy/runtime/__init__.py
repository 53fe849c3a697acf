"""What every engine adapter needs at run time, whatever its engine: no engine is imported, nothing is decided for one.

A start goes through these modules in this order: :mod:`.flags` (is there a policy for this process?), :mod:`.loading`
(file -> :class:`~.active.ActivePolicy`), :mod:`.resolution` (the policy's values against flags and engine),
:mod:`.support` (can its eviction work here?), :mod:`.carry` (into child processes), :mod:`.handshake` (every process
proves that it runs it); :mod:`.launch` is what launchers have in common of all this. :mod:`.status` and :mod:`.metrics`
then say what runs, in one form for all engines.
"""
