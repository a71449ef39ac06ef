"""Hand a mesh to another library: one file a library, which imports it only when it is used.

deepspeed.py, megatron.py, transformers.py and transformers_experts.py are libraries of training,
and dtensor.py turns patterns into placements of torch's DTensor.
"""
