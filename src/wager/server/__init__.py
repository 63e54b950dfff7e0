"""The OpenAI-compatible server over the engine: routes, limits, metrics, dashboard.

Knows requests and replies as JSON. What it computes with is `wager.engine.service.AsyncLLM`.
"""
