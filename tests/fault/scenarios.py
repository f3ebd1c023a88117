# SPDX-License-Identifier: Apache-2.0
"""All fault scenarios, by the numbers they have in docs/operations.md: each a function that does its fault a number of times to real
daemons and workers on hosts of their own, measures, and checks what must hold whatever happens."""
import faults_daemons  # noqa: F401
import faults_network  # noqa: F401
import faults_store  # noqa: F401
import faults_workers  # noqa: F401
from kit import HOME, SCENARIOS, Record  # noqa: F401
