"""The Open Inference Protocol over gRPC and HTTP."""
