"""The task of an `importing` run, which is never ready."""

import time

time.sleep(3600)
