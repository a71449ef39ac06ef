"""Hand a mesh to another library: one file a library, which imports it only when it is used.

Public names, by file::

    deepspeed.py     Mpu, config, check_engine
    dtensor.py       placements, grad_placements, side
    megatron.py      layouts, groups, ends, process_groups
    spmd_types.py    types, register
    transformers.py  distribute
"""
