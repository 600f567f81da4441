"""The built-in reward terms, pricing functions, tag grammars and metrics."""
