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

# A busy machine must not fail a property: no deadline. What hypothesis finds it keeps in .hypothesis/.
settings.register_profile("partibus", deadline=None)
settings.load_profile("partibus")
