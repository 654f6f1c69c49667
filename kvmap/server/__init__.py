"""The OpenAI-compatible HTTP server: one thread drives the engine, the event loop does the rest."""
