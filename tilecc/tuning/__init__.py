"""The tuner: measured candidates, remembered answers."""
