"""What holds for every test: the plug-ins of this project, and the settings of hypothesis."""

from __future__ import annotations

import os
import sys

from hypothesis import settings

# Many environments for builds have Python keep no bytecode. Each broker and each of Spark's workers would compile
# all of its modules then, half of what its start costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["pytester", "tests.plugins.rows", "tests.plugins.spread"]

# A busy machine must not fail a property: no deadline. Nor must chance: the examples are the same each time. With
# PARTIBUS_PROPERTY_EXAMPLES others are searched, so many times as many; what is found is kept in .hypothesis/.
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))
settings.register_profile("partibus", deadline=None, derandomize=TIMES == 1, max_examples=100 * TIMES)
settings.load_profile("partibus")
