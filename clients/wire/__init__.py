"""The Open Inference Protocol v2: messages, service and tensors."""
