"""Trains policies by reinforcement learning on trajectories of the very rollout that answers questions.

Importing this package, and all of it but `antiphon.train.agent_loop`, needs no engine.
"""
