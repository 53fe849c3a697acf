"""vLLM under a KV-cache policy. The only code that imports vllm."""
