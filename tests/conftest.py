"""Its being here puts tests/ on the path: helpers such as handmade.py are imported by name."""

import os
import tempfile

# What a user has tuned must not change what is tested, in this process or in those it starts.
os.environ["TILECC_DB"] = os.path.join(tempfile.gettempdir(), "tilecc-tests", "no-such-file.db")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")
