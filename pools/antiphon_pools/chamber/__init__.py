"""The chamber: a toy world of small specialists, with questions that only some of them, or two together, can answer."""
