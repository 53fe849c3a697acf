"""Work on an engine's tensors: each Triton kernel beside its twin in plain PyTorch, which runs anywhere."""
