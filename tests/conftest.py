"""What holds for every test: the plug-ins of this project, and the settings of hypothesis."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester", "tests.plugins.rows", "tests.plugins.spread"]

# A busy machine must not fail a property: no deadline. What hypothesis finds it keeps in .hypothesis/.
settings.register_profile("partibus", deadline=None)
settings.load_profile("partibus")
