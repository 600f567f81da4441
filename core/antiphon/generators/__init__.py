"""What turns a context into policy tokens: scripted, transformers, openai, vllm; each loads its library when used."""
