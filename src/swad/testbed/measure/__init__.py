"""The engine that measures saved weights, and the runs and models that it opens."""
