"""The built-in policies: the Router-R1 orchestrator and the baselines it is judged beside."""
