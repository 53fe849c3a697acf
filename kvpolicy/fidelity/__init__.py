"""What a KV dtype costs on one model: the same text through the same engine with and without it, compared by position.

Sits on the language and the facts, below the command line. It starts engines only as child programs (the adapters'
``score`` modules), one after the other, and reads what those write; no engine and no torch is imported here.
"""
