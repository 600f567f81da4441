"""How members are reached: one module an adapter, each importing its library when first used."""
