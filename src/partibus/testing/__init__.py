"""Tools for tests that need a broker: a process to start (`broker_process`), and fixtures for pytest (`pytest_plugin`).

The tools that prove the broker itself are in `tests/kit` of the project.
"""
