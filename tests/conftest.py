"""Its being here puts tests/ on the path: helpers such as handmade.py are imported by name."""


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew")
