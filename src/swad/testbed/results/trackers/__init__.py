"""Experiment trackers: send the records of a run to Weights & Biases, MLflow or TensorBoard, live or afterwards."""
