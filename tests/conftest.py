"""Its being here puts tests/ on the path: helpers such as handmade.py are imported by name."""
