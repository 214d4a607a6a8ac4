"""Runners whose methods go wrong in all the ways that compiled code can."""

import ctypes
import os
import signal
import time


class Faulty:
    def __init__(self, payload):
        self.payload = payload

    def measure(self, what):
        return getattr(self, what)()

    def fine(self):
        return {"seconds": 1.0, "pid": os.getpid(), "payload": self.payload}

    def segfault(self):
        ctypes.string_at(0)

    def abort(self):
        os.write(2, b"LLVM ERROR: Do not know how to split\n")
        os.kill(os.getpid(), signal.SIGABRT)

    def endless(self):
        while True:
            time.sleep(0.01)

    def memory(self):
        held = []
        while True:
            held.append(bytearray(1 << 26))

    def leave(self):
        os._exit(3)

    def wrong(self):
        raise ValueError("differs by 1.00e+00, and 1.00e-05 is allowed")


def bad_start(payload):
    raise RuntimeError("no such machine")
