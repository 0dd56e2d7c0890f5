"""ONNX files read into torch: the graph, and padding that depends on sizes."""
