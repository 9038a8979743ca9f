"""Count FLOPs, memory traffic and memory of models from their operators."""
