"""The built-in pool: adapters (how a member is reached) and descriptors (who is there)."""
