"""The Python client: `aio` for asyncio, `sync` with blocking calls, `extensions` for operations of partibus alone.

This package imports none of them, so that a program pays only for the one it uses.
"""
