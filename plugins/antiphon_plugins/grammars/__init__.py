"""The languages that a policy and the engine speak."""
