"""A dictionary that forgets what it was given first when it is full.

in: keys and values.  out: the same, at most `limit` of them. Reading takes no lock and no bookkeeping, which is what
the calls that look themselves up in it need; writing takes a lock.
"""

from __future__ import annotations

import threading


class Bounded(dict):
    """See the module's description; write with `keep` only."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._lock = threading.Lock()

    def keep(self, key, value):
        """Store and return `value`; the oldest entries go if there are more than `limit`."""
        with self._lock:
            while len(self) >= self.limit:
                del self[next(iter(self))]
            self[key] = value
        return value
